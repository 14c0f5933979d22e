"""The examples do what they say, on a tiny encoder."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def test_every_example_is_run_by_a_test() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"train_own_csv.py"}


def test_train_own_csv(tiny, tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script = EXAMPLES / "train_own_csv.py"
    monkeypatch.setattr(sys, "argv", [str(script), str(tiny("bert")), str(tmp_path / "example")])
    for _ in range(2):  # the second time into the same folder
        runpy.run_path(str(script), run_name="__main__")
        first, *predicted = capsys.readouterr().out.splitlines()
        assert first.startswith("{'accuracy':")
        assert [line.split()[-1] in ("good", "bad") for line in predicted] == [True, True]
    assert json.loads((tmp_path / "example" / "run" / "run.json").read_text())["train"]["steps"] == 12
