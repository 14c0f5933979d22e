"""The rows that probabilities are calibrated on: cut from train, or from a file of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attentune.config.schema import DataConfig
from attentune.data.custom import load_custom
from attentune.data.dataset import TaskData, TextRows
from attentune.data.readers.read import read_table
from attentune.data.splits import stratified_split
from attentune.errors import DataError

CALIBRATION = "calibration"


def with_calibration(data: TaskData, config: DataConfig, seed: int) -> TaskData:
    """The data with a split "calibration" after train, if the settings ask for one and train is there.

    Raises:
        DataError: train is too small to be cut; or the file cannot be read, has no labels, or other texts than train.
    """
    train = data.splits.get("train")
    if train is None or (config.calibration_share is None and config.calibration_file is None):
        return data
    if config.calibration_file is not None:
        rows = _from_file(data, config, config.calibration_file, seed)
        return _placed(data, train, rows, f"{len(rows)} rows to calibrate on come from {config.calibration_file}.")
    own = train.original_rows
    if len(own) < 2 or train.labels is None:
        raise DataError("holds fewer than two labelled rows, so none can be cut to calibrate on.", path=train.source)
    _, places = stratified_split(train.labels[own], config.calibration_share or 0.0, seed, CALIBRATION)
    cut = own[places]
    kept = np.setdiff1d(np.arange(len(train)), cut)
    note = (
        f"{len(cut)} of the {len(train)} training rows were cut to calibrate on (calibration_share"
        f" {config.calibration_share:g}, stratified, seed {seed}), {len(kept)} are left to train on."
    )
    return _placed(data, train.take(kept), train.take(cut), note)


def _placed(data: TaskData, train: TextRows, rows: TextRows, note: str) -> TaskData:
    rest = {split: part for split, part in data.splits.items() if split != "train"}
    return replace(data, splits={"train": train, CALIBRATION: rows, **rest}, notes=(*data.notes, note))


def _from_file(data: TaskData, config: DataConfig, path: str, seed: int) -> TextRows:
    own = replace(config, task=None, task_type=None, validation_file=path)
    tables = {"validation": read_table(path)}
    found = load_custom(tables, own, seed=seed, splits=("validation",), label_space=data.label_space)
    rows = found.splits["validation"]
    if rows.labels is None or len(rows) == 0:
        raise DataError("has no labelled rows to calibrate on.", path=path)
    if (rows.pairs is not None) != data.is_pair:
        kinds = ("single texts", "pairs of texts")
        raise DataError(
            f"got {kinds[rows.pairs is not None]}, but the rows to train on are {kinds[data.is_pair]}. Give it rows of"
            " that kind (--text_column and --text_pair_column name the texts).",
            path=path,
        )
    return rows
