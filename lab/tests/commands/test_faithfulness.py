"""`attentune faithfulness`: tables, JSON, files, the demo's reviews, and mistakes in one line each."""

import json
from pathlib import Path

import pytest

from attentune_lab.synthetic import write_files
from helpers.interrupted import run as trained

QUICK = ("--method", "ssa,gradient", "--erasures", "mask,delete", "--draws", 2, "--beam", 1, "--beam-tokens", 12)


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faithfulness")
    trained(folder, tiny("bert"), preset="ssa-hybrid", training__num_train_epochs=1)
    return folder / "run"


@pytest.fixture(scope="module")
def demo_run(tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faithfulness-demo")
    write_files(folder, train_size=24, eval_size=8)
    changes = {"data__text_column": "text", "data__label_column": "label", "data__max_length": 150}
    trained(folder, tiny("bert"), preset="ssa-hybrid", training__max_steps=2, **changes)
    return folder / "run"


@pytest.mark.integration
def test_tables_rank_methods_with_a_sign_and_without_apart(run: Path, attentune) -> None:
    status, out, err = attentune("faithfulness", run, *QUICK)
    assert status == 0
    assert out.startswith("20 texts, accuracy ")
    for part in ("erased by mask", "erased by delete"):
        table = out.split(part)[1].split("erased by")[0]
        assert table.index("(signed)") < table.index("gradient") < table.index("(unsigned)")
        assert table.index("(unsigned)") < table.index("ssa") < table.index("(baseline)") < table.index("random")
    assert "NAOPC compr. (" in out
    assert "passes per text" in out
    assert "erasing by delete ..." in err


def test_json_and_the_folder_hold_the_same_report(run: Path, attentune, tmp_path: Path) -> None:
    words = ("--max-samples", 6, "--seed", 3, "--format", "json", "--output-dir", tmp_path / "out")
    status, out, err = attentune("faithfulness", run, *QUICK, *words)
    assert status == 0
    report = json.loads(out)
    assert report["rows"] == 6
    assert report["seed"] == 3
    saved = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {name: saved[name] for name in report} == report
    assert "versions" in saved
    assert f"report and records written to {tmp_path / 'out'}" in err
    files = sorted(path.name for path in (tmp_path / "out" / "eraser").iterdir())
    methods = [f"{name}.{erasure}.jsonl" for name in ("gradient", "random", "ssa") for erasure in ("delete", "mask")]
    assert files == sorted(["docs.jsonl", "test.jsonl", *methods])


def test_sanity_checks_come_beside(run: Path, attentune) -> None:
    words = ("--method", "ssa", "--erasures", "mask", "--beam", 0, "--max-samples", 3, "--sanity")
    status, out, _ = attentune("faithfulness", run, *words)
    assert status == 0
    assert "repeatability (Kendall's tau), 3 texts" in out
    assert "shuffled to" in out
    assert "NAOPC compr." not in out


@pytest.mark.integration
def test_the_demo_s_reviews_and_the_words_that_decide(demo_run: Path, attentune, tmp_path: Path) -> None:
    words = ("--demo", "--max-samples", 16, "--method", "gradient", "--erasures", "mask", "--beam", 0)
    status, out, _ = attentune("faithfulness", demo_run, *words, "--output-dir", tmp_path / "out")
    assert status == 0
    assert "ground-truth words, in correctly predicted texts" in out
    assert "top-1 hit" in out
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {own["method"] for own in report["planted"]} == {"gradient", "random"}
    annotations = (tmp_path / "out" / "eraser" / "test.jsonl").read_text().splitlines()
    assert all(json.loads(line)["evidences"] for line in annotations)
