"""What a command imports: `predict` no more than it needs, mistakes before PyTorch; seconds are not asserted."""

from __future__ import annotations

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
    "attentune.inference.encoder_speed",
    "attentune.training",
    "attentune.runs",
    "attentune.report",
)
# Modules that telling a mistake does not need.
HEAVY = ("torch", "transformers", "datasets", "accelerate", "pandas", "pyarrow", "scipy", "sklearn", "optuna")
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


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with rows and a folder in use."""
    folder = tmp_path_factory.mktemp("startup")
    write_reviews(folder / "train.csv", 24, seed=1)
    (folder / "run").mkdir()
    (folder / "run" / "config.yaml").write_text("preset: bert\n")
    return folder


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train trian.csv --output_dir out", "trian.csv: there is no such file. Did you mean 'train.csv'"),
        ("train train.csv --output_dir run", "run: is not empty"),
        ("train --dataset_name none", "training.output_dir: is missing"),
        ("train train.csv --output_dir train.csv/out", "train.csv: is a file"),
        ("train train.csv --label_column lable --output_dir out", "Did you mean 'label'"),
        ("train --task cola --data_dir nix --output_dir out", "nix: "),
        ("train train.csv --output_dir out --eval_strategy no --load_best_model_at_end", "needs scores"),
        ("train --resume --output_dir out", "out: has no config.yaml"),
        ("predict rum --text a", "rum: holds no config.json, expected the folder of a finished run (attentune train"),
        ("predict rum --text a", "no such folder. Did you mean 'run'?"),
        ("predict run", "predict: got no texts"),
    ],
)
def test_mistakes_are_told_before_anything_heavy_is_imported(place: Path, line: str, expected: str) -> None:
    status, found, out, told = imported(place, line, HEAVY)
    assert (status, found, out) == (2, [], ""), told
    assert expected in told
