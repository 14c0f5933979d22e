"""Labels as files have them, through the commands: told, remembered, and asked for before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.integration


def write(path: Path, header: str, cells: list[str]) -> Path:
    rows = [f"the {('dull', 'fine')[row % 2]} visit number {row},{cell}" for row, cell in enumerate(cells)]
    path.write_text("\n".join([f"text,{header}", *rows]) + "\n")
    return path


def test_whole_numbers_with_decimals_are_scored_and_told(attentune, tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", "label", ["0", "1"] * 15)
    floats = write(tmp_path / "floats.csv", "label", ["0.0", "1.0"] * 5)
    assert attentune("train", train, "--preset", "tfidf-linear", "--output_dir", tmp_path / "run")[0] == 0
    status, _, err = attentune("evaluate", tmp_path / "run", "--validation_file", floats)
    assert status == 0, err
    assert "'1.0' is read as '1' (5 rows)" in err


def test_ignored_labels_are_remembered(attentune, tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", "label", ["bad", "good", "bad", "good", "n/a"] * 6)
    flags = ("--preset", "tfidf-linear", "--ignore_labels", "n/a", "--output_dir", tmp_path / "run")
    status, _, err = attentune("train", train, *flags)
    assert status == 0, err
    status, _, err = attentune("evaluate", tmp_path / "run", "--validation_file", train)
    assert status == 0, err
    assert "6 rows are left out" in err


def test_columns_of_zeros_and_ones_are_trained_scored_and_predicted(attentune, tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", "late,rude", ["0,1", "1,0", "0,1", "1,1", "0,0"] * 8)
    flags = ("--preset", "tfidf-linear", "--output_dir", tmp_path / "run")
    status, _, err = attentune("train", train, "--label_column", "late,rude", *flags)
    assert status == 0, err
    status, out, err = attentune("evaluate", tmp_path / "run", "--validation_file", train)
    assert (status, "late" in out, "rude" in out) == (0, True, True), err
    status, out, err = attentune("predict", tmp_path / "run", "--input_file", train)
    assert out.splitlines()[:2][1].split(",")[:2] == ["0", "rude"], err
