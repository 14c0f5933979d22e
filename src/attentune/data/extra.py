"""Rows of further files that are mixed into train, each file's with a weight of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from attentune.config.schema import DataConfig
from attentune.data.builtin import load_spec
from attentune.data.columns import Columns, choose_columns, row_ids
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.data.labels import LabelReader
from attentune.data.readers.hub import read_dataset
from attentune.data.readers.read import read_table
from attentune.data.readers.table import Table
from attentune.errors import DataError


def with_extra(data: TaskData, config: DataConfig) -> TaskData:
    """The data with the rows of `config.extra_train_files` after those of train.

    Labels are mapped by name. To be called when all cuts have been made, so that they are of the main data only; rows
    that are mixed already stay as they are.

    Raises:
        DataError: a file cannot be read, or has other columns or another number of texts a row than train.
        LabelError: a label is missing or none of the task's.
    """
    train = data.splits.get("train")
    if train is None or train.labels is None or train.sources is not None or not config.extra_train:
        return data
    parts = [
        (read_extra(file, config, data.label_space, is_pair=data.is_pair), weight)
        for file, weight in config.extra_train
    ]
    notes = [
        f"Mixed into the {len(train)} rows of train: {len(rows)} of {rows.source}, each with weight {weight:g}."
        for rows, weight in parts
    ]
    return replace(data, splits={**data.splits, "train": _mixed(train, parts)}, notes=(*data.notes, *notes))


def read_extra(path: str, config: DataConfig, space: LabelSpace, *, is_pair: bool) -> TextRows:
    """The labelled rows of one extra file, or of the train split of a data set on disk.

    Args:
        path: the file, or a folder from `save_to_disk`.
        config: how the main rows are read: columns, and the known task whose columns and labels' values count.
        space: the labels that there are.
        is_pair: whether the main rows are pairs.

    Raises:
        DataError, LabelError: as `with_extra`.
    """
    table = _table(path, config)
    columns = _columns(table, config, is_pair)
    labels = _reader(config, space).read(table, str(columns.label))
    ids, _ = row_ids(table, columns.id)
    pairs = None if columns.pair is None else table.texts(columns.pair)
    return TextRows(ids, table.texts(columns.text), pairs, labels, table.source, table.lines)


def _table(path: str, config: DataConfig) -> Table:
    if not Path(path).expanduser().is_dir():
        return read_table(path)
    tables, _ = read_dataset(replace(config, dataset_name=path, dataset_config_name=None))
    if "train" not in tables:
        raise DataError(f"its splits are {', '.join(tables)}, expected train among them.", path=path)
    return tables["train"]


def _columns(table: Table, config: DataConfig, is_pair: bool) -> Columns:
    spec = None if config.task is None else load_spec(config.task).splits.get("train")
    if spec is not None and {spec.text, spec.pair or spec.text, spec.label} <= set(table.names):
        return Columns(spec.text, spec.pair, spec.label, spec.id if spec.id in table.names else None)
    columns, _ = choose_columns(table.names, config, table.source)
    if (columns.pair is not None) != is_pair:
        kinds = ("single texts", "pairs of texts")
        raise DataError(
            f"got {kinds[not is_pair]}, but the rows to train on are {kinds[is_pair]}. Give it the columns that those"
            " have (--text_column and --text_pair_column name the texts).",
            path=table.source,
        )
    return columns


def _reader(config: DataConfig, space: LabelSpace) -> LabelReader:
    spec = None if config.task is None else load_spec(config.task)
    if spec is None:
        return LabelReader(space, separator=config.label_separator)
    same_kind = (space.task_type == "regression") == (spec.task_type == "regression")
    return LabelReader(space, spec.label_values if same_kind else {}, spec.score_range, spec.missing_labels)


def _mixed(train: TextRows, parts: Sequence[tuple[TextRows, float]]) -> TextRows:
    """All rows in one, train's own first."""
    every = [train, *(rows for rows, _ in parts)]
    weights = np.concatenate([np.full(len(train), 1.0), *(np.full(len(rows), weight) for rows, weight in parts)])
    lines = [rows.lines for rows in every]
    return TextRows(
        ids=tuple(name for rows in every for name in rows.ids),
        texts=tuple(text for rows in every for text in rows.texts),
        pairs=None if train.pairs is None else tuple(text for rows in every for text in rows.pairs or ()),
        labels=np.concatenate([rows.labels for rows in every if rows.labels is not None]),
        source=train.source,
        lines=tuple(line for own in lines for line in own or ()) if all(own is not None for own in lines) else None,
        weights=None if (weights == 1).all() else weights,
        sources=tuple(rows.source for rows in every for _ in range(len(rows))),
    )
