"""Extra training rows: files that are added to train, each with its own weight."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attentune.config.schema import DataConfig
from attentune.data.builtin import TaskSpec, label_reader, load_spec
from attentune.data.columns import Columns, choose_columns, read_rows
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.data.labels import left_out_labels
from attentune.data.readers.formats import FileOptions
from attentune.data.readers.hub import read_dataset
from attentune.data.readers.read import read_table
from attentune.data.readers.table import Table
from attentune.errors import DataError, StorageError
from attentune.io.files import write_text


def without_broken_rows(table: Table, labels: Sequence[str], *, is_skipped: bool) -> tuple[Table, tuple[str, ...]]:
    """Find rows that repeat the names of the columns and, where rows are skipped, those without a label."""
    repeated = dict.fromkeys(_repeated(table), "repeats the names of the columns")
    if not is_skipped:
        return table, (_told(table, list(repeated)),) if repeated else ()
    given = [table.columns[name] for name in labels if name in table.columns]
    empty = {row: "no label" for row, cells in enumerate(zip(*given, strict=True)) if all(map(_is_empty, cells))}
    reasons = empty | repeated
    places = table.lines or range(table.first_row, table.first_row + len(table))
    columns = list(table.columns.values())
    rows = [(places[row], reasons[row], [cells[row] for cells in columns]) for row in sorted(reasons)]
    left_out = sorted((*table.left_out, *rows), key=lambda entry: entry[0])
    if not left_out or len(reasons) == len(table):
        # Rows none of which has a label stay, so that they are refused.
        return table, ()
    kept = table.take([row for row in range(len(table)) if row not in reasons])
    where = _written(table, left_out)
    few = ", ".join(f"{line} ({reason})" for line, reason, _ in left_out[:5]) + (", ..." if len(left_out) > 5 else "")
    count = "1 row is" if len(left_out) == 1 else f"{len(left_out):,} rows are"
    what = "line" if table.lines is not None else "row"
    return replace(kept, left_out=()), (f"{table.source}: {count} left out, {what} {few}; written to {where}.",)


def _repeated(table: Table) -> list[int]:
    if len(table.names) < 2 or len(table.columns) < len(table.names):
        return []
    names = [_plain(name) for name in table.names]
    return [
        row
        for row, cell in enumerate(table.columns[table.names[0]])
        if _plain(cell) == names[0] and [_plain(table.columns[name][row]) for name in table.names] == names
    ]


def _plain(cell: Any) -> str | None:
    """Return a name without the mark that a stacked file begins with, spaces and case."""
    return cell.removeprefix("\ufeff").strip().lower() if isinstance(cell, str) else None


def _is_empty(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip())


def _told(table: Table, rows: Sequence[int]) -> str:
    shown = ", ".join(str(row if table.lines is None else table.lines[row]) for row in rows[:5])
    what = "row" if table.lines is None else "line"
    one, more = len(rows) == 1, ", ..." if len(rows) > 5 else ""
    return (
        f"{table.source}: {what if one else f'{len(rows)} {what}s:'} {shown}{more} {'repeats' if one else 'repeat'} the"
        f" names of the columns and {'is' if one else 'are'} read as {'a row' if one else 'rows'}. If files were put"
        " together, --skip_broken_rows leaves them out."
    )


def _written(table: Table, left_out: Sequence[tuple[int, str, Any]]) -> Path:
    """Write rows beside their file, or to the folder of temporary files where that cannot be written to."""
    place = "row" if table.lines is None else "line"
    lines = [json.dumps({place: line, "reason": why, "cells": cells}, default=str) for line, why, cells in left_out]
    path = Path(table.source)
    for folder in (path.parent, Path(tempfile.gettempdir())):
        file = folder / f"{path.name}.left_out.jsonl"
        try:
            write_text(file, "".join(f"{line}\n" for line in lines))
            return file
        except (StorageError, OSError) as error:
            problem = error
    raise problem


def with_extra(data: TaskData, config: DataConfig) -> TaskData:
    """Add the rows of `config.extra_train_files` after those of train.

    Labels are mapped by name. Call it after all splits have been made, so that these hold rows of the main data only.
    Data that has extra rows already is returned unchanged.
    """
    train = data.splits.get("train")
    if train is None or train.labels is None or train.sources is not None or not config.extra_train:
        return data
    if train.targets is not None:
        raise DataError(
            f"got soft targets and data.extra_train_files, whose rows have labels only; expected one of them. Leave out"
            f" {', '.join(file for file, _ in config.extra_train)}.",
            path=train.source,
        )
    extra, told = list[tuple[TextRows, float]](), list[str]()
    for file, weight in config.extra_train:
        rows, notes_on_rows = read_extra(file, config, data.label_space, is_pair=data.is_pair)
        extra.append((rows, weight))
        told += notes_on_rows
    notes = told + [
        f"Mixed into the {len(train)} rows of train: {len(rows)} of {rows.source}, each with weight {weight:g}."
        for rows, weight in extra
    ]
    return replace(data, splits={**data.splits, "train": _concatenated(train, extra)}, notes=(*data.notes, *notes))


def read_extra(path: str, config: DataConfig, space: LabelSpace, *, is_pair: bool) -> tuple[TextRows, tuple[str, ...]]:
    """Read the labelled rows of one extra file, or of the train split of a saved data set."""
    spec = load_spec(config.task) if config.task is not None else None
    table = _read(path, config)
    columns = _columns(table, config, spec, is_pair)
    table, notes = without_broken_rows(table, columns.labels, is_skipped=config.skip_broken_rows)
    left_out = left_out_labels(space.names, config.ignore_labels)
    rows, _ = read_rows(table, columns, label_reader(spec, space, config.label_separator, left_out))
    return rows, notes


def _read(path: str, config: DataConfig) -> Table:
    if not Path(path).expanduser().is_dir():
        return read_table(path, options=FileOptions.of(config))
    tables, _ = read_dataset(replace(config, dataset_name=path, dataset_config_name=None))
    if "train" not in tables:
        raise DataError(f"its splits are {', '.join(tables)}, expected train among them.", path=path)
    return tables["train"]


def _columns(table: Table, config: DataConfig, spec: TaskSpec | None, is_pair: bool) -> Columns:
    """The columns of the task's train file, if the table has them; otherwise those chosen as for custom data."""
    train = None if spec is None else spec.splits.get("train")
    if train is not None and {train.text, train.pair or train.text, train.label} <= set(table.names):
        return Columns(train.text, train.pair, train.label, train.id if train.id in table.names else None)
    columns, _ = choose_columns(table.names, config, table.source)
    if (columns.pair is not None) != is_pair:
        kinds = ("single texts", "pairs of texts")
        raise DataError(
            f"got {kinds[not is_pair]}, but the rows to train on are {kinds[is_pair]}. Give it the columns that those"
            " have (--text_column and --text_pair_column name the texts).",
            path=table.source,
        )
    return columns


def _concatenated(train: TextRows, extra: Sequence[tuple[TextRows, float]]) -> TextRows:
    """Train's rows, which weigh 1, followed by the extra ones."""
    every = [train, *(rows for rows, _ in extra)]
    weights = np.concatenate([np.full(len(train), 1.0), *(np.full(len(rows), weight) for rows, weight in extra)])
    lines = [rows.lines for rows in every]
    return TextRows(
        ids=tuple(name for rows in every for name in rows.ids),
        texts=tuple(text for rows in every for text in rows.texts),
        pairs=None if train.pairs is None else tuple(text for rows in every for text in rows.pairs or ()),
        labels=np.concatenate([rows.labels for rows in every if rows.labels is not None]),
        source=train.source,
        lines=tuple(line for part in lines for line in part or ()) if None not in lines else None,
        weights=None if (weights == 1).all() else weights,
        sources=tuple(rows.source for rows in every for _ in range(len(rows))),
        dates={
            name: tuple(cell for rows in every for cell in rows.dates.get(name, (None,) * len(rows)))
            for name in train.dates
        },
    )
