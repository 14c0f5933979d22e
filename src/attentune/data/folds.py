"""Cross-validation: train cut into parts of which one is scored on, and the others trained on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attentune.config.schema import DataConfig
from attentune.data.dataset import TaskData
from attentune.data.splits import stratified_folds
from attentune.errors import ConfigError, DataError


def splits_for_fold(splits: tuple[str, ...] | None, config: DataConfig) -> tuple[str, ...] | None:
    """The splits to read so that those asked for can be made: train in the place of validation."""
    if splits is None or config.folds is None:
        return splits
    others = tuple(split for split in splits if split.split("_")[0] not in ("train", "validation"))
    return splits if others == splits else ("train", *others)


def with_fold(data: TaskData, config: DataConfig) -> TaskData:
    """The data with train cut in `config.folds` stratified parts: validation is part `config.fold`, train the others.

    The cut depends on the rows and on `config.fold_seed` alone. Validation rows that there were are left out, so that
    they stay unseen.

    Raises:
        ConfigError: it is not said which part.
        DataError: there are fewer rows than parts.
    """
    train = data.splits.get("train")
    if config.folds is None or train is None:
        return data
    if config.fold is None:
        raise ConfigError(
            "data.folds: needs to know which part is scored on: --fold 1, and so on; attentune compare --folds runs all"
            " of them."
        )
    if train.labels is None or len(train) < config.folds:
        raise DataError(
            f"has {len(train)} labelled rows, fewer than the {config.folds} parts to cut them in. Take fewer --folds.",
            path=train.source,
        )
    scored = stratified_folds(train.labels, config.folds, "folds", config.fold_seed)[config.fold - 1]
    rest = np.setdiff1d(np.arange(len(train)), scored)
    gone = [split for split in data.splits if split.startswith("validation")]
    kept = {split: rows for split, rows in data.splits.items() if split != "train" and split not in gone}
    note = (
        f"Fold {config.fold} of {config.folds}: {len(scored)} of the {len(train)} training rows are scored on, the"
        f" other {len(rest)} trained on (stratified, fold_seed {config.fold_seed})."
    )
    if gone:
        note += f" The rows of {' and '.join(gone)} are not used."
    splits = {"train": train.take(rest), "validation": train.take(scored), **kept}
    return replace(data, splits=splits, notes=(*data.notes, note))
