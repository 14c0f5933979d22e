"""Cross-validation: every row is scored on once, parts are stratified, and validation rows stay unseen."""

from pathlib import Path
from typing import Any

import pytest

from attentune.config import DataConfig
from attentune.data.load import load_data
from attentune.errors import ConfigError, DataError
from helpers.samples import write_reviews


def load(folder: Path, splits: Any = None, seed: int = 1, **settings: Any) -> Any:
    if not (folder / "train.csv").exists():
        write_reviews(folder / "train.csv", 50, seed=1)
    return load_data(DataConfig(train_file=str(folder / "train.csv"), **settings), seed=seed, splits=splits)


def test_every_row_is_scored_on_once_and_never_trained_on_then(tmp_path: Path) -> None:
    whole = load(tmp_path, splits=("train",), validation_share=0.02)
    seen = []
    for fold in range(1, 6):
        data = load(tmp_path, folds=5, fold=fold)
        assert list(data.splits) == ["train", "validation"]
        train, scored = data.splits["train"], data.splits["validation"]
        assert len(scored) == 10
        assert not set(train.ids) & set(scored.ids)
        assert len(train) == 40
        share = whole.splits["train"].labels.mean()
        assert abs(scored.labels.mean() - share) <= 0.1
        seen += scored.ids
        assert f"Fold {fold} of 5: 10 of the 50 training rows are scored on, the other 40 trained on" in data.notes[-1]
    assert sorted(seen) == sorted(f"r{number}" for number in range(50))


def test_the_cut_depends_on_its_own_seed_alone(tmp_path: Path) -> None:
    one, same = (load(tmp_path, folds=5, fold=2, seed=seed).fingerprint() for seed in (1, 7))
    other = load(tmp_path, folds=5, fold=2, fold_seed=2).fingerprint()
    assert one == same
    assert one["validation"] != other["validation"]


def test_splits_are_made_as_they_are_asked_for(tmp_path: Path) -> None:
    whole = load(tmp_path, folds=5, fold=2).splits
    for splits in (("train",), ("validation",), ("train", "validation")):
        found = load(tmp_path, splits=splits, folds=5, fold=2).splits
        assert tuple(found) == splits
        assert all(rows.fingerprint() == whole[name].fingerprint() for name, rows in found.items())


def test_validation_rows_stay_unseen_and_test_rows_stay(tmp_path: Path) -> None:
    files = {name: str(write_reviews(tmp_path / f"{name}.csv", 9, seed=3)) for name in ("validation_file", "test_file")}
    data = load(tmp_path, folds=5, fold=1, **files)
    assert {name: len(rows) for name, rows in data.splits.items()} == {"train": 40, "validation": 10, "test": 9}
    assert "The rows of validation are not used." in data.notes[-1]


def test_calibration_and_sizes_go_on_top(tmp_path: Path) -> None:
    data = load(tmp_path, folds=5, fold=1, calibration_share=0.25, max_train_samples=20)
    assert {name: len(rows) for name, rows in data.splits.items()} == {"train": 20, "calibration": 10, "validation": 10}


def test_what_cannot_be_cut_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="data.folds: needs the number of the fold to score on"):
        load(tmp_path, folds=5)
    with pytest.raises(DataError, match="has 50 labelled rows, fewer than the 51 parts"):
        load(tmp_path, folds=51, fold=1)
