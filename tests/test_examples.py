"""The examples do what they say, on a tiny encoder."""

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
TESTED = {
    "train_own_csv.py",
    "pairs_cross_attention.py",
    "compare_two_presets.py",
    "explain_one_text.py",
    "ssa_in_trainer.py",
}
Started = Callable[..., list[str]]


@pytest.fixture
def started(
    tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """`started("name.py", more words)`: the lines that an example prints, its folder being `tmp_path / "example"`."""

    def start(name: str, *words: str) -> list[str]:
        script = EXAMPLES / name
        monkeypatch.setattr(sys, "argv", [str(script), str(tiny("bert")), str(tmp_path / "example"), *words])
        runpy.run_path(str(script), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return start


def test_every_example_is_run_by_a_test_and_is_short() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == TESTED
    assert all(len(path.read_text(encoding="utf-8").splitlines()) < 60 for path in EXAMPLES.glob("*.py"))


def test_train_own_csv(started: Started, tmp_path: Path) -> None:
    for _ in range(2):  # the second time into the same folder
        first, *predicted = started("train_own_csv.py")
        assert first.startswith("{'accuracy':")
        assert [line.split()[-1] in ("good", "bad") for line in predicted] == [True, True]
    assert json.loads((tmp_path / "example" / "run" / "run.json").read_text())["train"]["steps"] == 12


def test_pairs_cross_attention(started: Started, tmp_path: Path) -> None:
    for _ in range(2):
        scores, *predicted = started("pairs_cross_attention.py")
        assert scores.startswith("{'accuracy':")
        assert all(line.startswith(("fits {", "does not {")) for line in predicted)
        assert len(predicted) == 2
    config = json.loads((tmp_path / "example" / "run" / "config.json").read_text())
    assert config["head"]["kind"] == "cross-attention"


def test_explain_one_text(started: Started) -> None:
    lines = started("explain_one_text.py")
    heads = [line for line in lines if not line.startswith(" ")]
    assert [head.split(":")[0] for head in heads] == ["ssa", "leave-one-out"]
    words = [line.split()[0] for line in lines[1 : lines.index(heads[1])]]
    assert words == ["The", "costumes", "were", "lovely", ",", "and", "nobody", "was", "bored", "."]
    assert "1 passes" in heads[0]


def test_ssa_in_trainer(started: Started) -> None:
    *_, labels, first, second = started("ssa_in_trainer.py")
    assert labels.startswith("labels of the last epoch:")
    assert {first.split()[-1], second.split()[-1]} <= {"good", "bad"}


@pytest.mark.slow
def test_compare_two_presets(started: Started, tmp_path: Path) -> None:
    lines = started("compare_two_presets.py", "2")
    assert len([line for line in lines if " done " in line]) == 4
    assert "bert-mean" in lines[-1]
    assert "CI" in lines[-1]
    assert (tmp_path / "example" / "report.html").is_file()
    assert started("compare_two_presets.py", "2") == lines  # nothing is done again
