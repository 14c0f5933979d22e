"""What a command imports: `predict` no more than it needs, mistakes before PyTorch; seconds are not asserted."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.samples import write_reviews

# Modules that predicting a text with a saved model does not need.
NOT_TO_PREDICT = (
    "datasets",
    "optuna",
    "pandas",
    "pyarrow",
    "sklearn",
    "statsmodels",
    "rich.progress",
    "attentune.training",
    "attentune.runs",
    "attentune.report",
)
_PROGRAM = """
import json, sys
from attentune.cli.main import main
status = main(sys.argv[2:])
print(json.dumps([status, [name for name in json.loads(sys.argv[1]) if name in sys.modules]]), file=sys.stderr)
"""


def imported(folder: Path, line: str, names: tuple[str, ...]) -> tuple[int, list[str], str, str]:
    """Run a command line as a program; return its status, which of the modules it imported, and its output."""
    words = [sys.executable, "-c", _PROGRAM, json.dumps(names), *shlex.split(line)]
    # Variables of torchrun would make it one of several processes.
    environment = {name: value for name, value in os.environ.items() if name not in ("LOCAL_RANK", "WORLD_SIZE")}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    *told, last = done.stderr.splitlines()
    status, found = json.loads(last)
    return status, found, done.stdout, "\n".join(told)


@pytest.mark.integration
def test_predict_imports_what_it_needs(tiny, tmp_path: Path, attentune) -> None:
    write_reviews(tmp_path / "train.csv", 24, seed=1)
    words = ("--model_name_or_path", tiny("bert"), "--max_steps", 1, "--baselines", "none", "--quiet", "--use_cpu")
    assert attentune("train", tmp_path / "train.csv", "--output_dir", tmp_path / "run", *words)[0] == 0
    status, found, out, told = imported(tmp_path, 'predict run --text "a dull film"', NOT_TO_PREDICT)
    assert (status, found) == (0, []), told
    assert (0, out) == attentune("predict", tmp_path / "run", "--text", "a dull film")[:2]
