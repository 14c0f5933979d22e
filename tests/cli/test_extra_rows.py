"""Extra files mixed into train, through the command line: train, doctor, compare, search, label."""

import json
from pathlib import Path

import pytest

from helpers.samples import write_reviews

QUICK = ("--num_train_epochs", "1", "--per_device_train_batch_size", "8", "--max_length", "24", "--use_cpu", "--quiet")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_reviews(tmp_path / "train.csv", 40, seed=1)
    write_reviews(tmp_path / "dev.csv", 20, seed=2)
    write_reviews(tmp_path / "silver.csv", 16, seed=3)
    write_reviews(tmp_path / "other.csv", 8, seed=4)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def data(tiny, *more: str) -> tuple[object, ...]:
    return ("--train_file", "train.csv", "--validation_file", "dev.csv", "--model_name_or_path", tiny("bert"), *more)


MIXED = ("--extra_train_files", "silver.csv,other.csv", "--extra_train_weights", "0.5,0.25")


def test_a_run_says_where_its_rows_are_from(attentune, tiny, folder: Path) -> None:
    words = ("train", *data(tiny, *MIXED), "--preset", "ssa-co", *QUICK, "--output_dir", "run")
    status, _, err = attentune(*words)
    assert status == 0, err
    record = json.loads((folder / "run" / "run.json").read_text())
    assert record["train"]["rows"] == 64
    assert record["train"]["rows_from"] == [
        {"source": "train.csv", "rows": 40, "weight": 1.0},
        {"source": "silver.csv", "rows": 16, "weight": 0.5},
        {"source": "other.csv", "rows": 8, "weight": 0.25},
    ]
    assert "Mixed into the 40 rows of train: 16 of silver.csv, each with weight 0.5." in record["notes"]
    card = (folder / "run" / "README.md").read_text()
    assert "| silver.csv | 16 | 0.5 |" in card
    assert "extra_train" not in card
    assert len((folder / "run" / "predictions_validation.csv").read_text().splitlines()) == 21
    # Only train needs the files.
    (folder / "silver.csv").unlink()
    assert attentune("evaluate", "run")[0] == 0
    status, _, err = attentune("evaluate", "run", "--split", "train")
    assert status == 2
    assert "silver.csv" in err
    assert "These data are named in run/config.yaml" in err


@pytest.mark.slow
def test_a_comparison_of_silver_rows(attentune, tiny, folder: Path) -> None:
    """Methods may differ in their extra files: they share main rows, sizes and dev, and are paired."""
    (folder / "methods.yaml").write_text(
        "plain: {preset: bert}\n"
        "silver: {preset: bert, set: {data.extra_train_files: silver.csv, data.extra_train_weights: 0.5}}\n"
    )
    words = ("compare", *data(tiny), "--settings", "methods.yaml", "--train_size", "20", *QUICK, "--output_dir", "c")
    status, out, err = attentune(*words, "--seeds", "2", "--jobs", "1", "--format", "json")
    assert status == 0, err
    assert "were not trained and scored on the same rows" not in err
    assert [cell["n"] for cell in json.loads(out)["cells"]] == [2, 2]
    rows = {
        method: json.loads((folder / f"c/records/own/20/{method}/seed-1.json").read_text())["train"]["rows"]
        for method in ("plain", "silver")
    }
    assert rows == {"plain": 20, "silver": 36}
    write_reviews(folder / "silver.csv", 16, seed=8)
    status, _, err = attentune(*words, "--seeds", "3", "--jobs", "1")
    assert status == 2
    assert "the rows of silver.csv changed since it was begun" in err
