"""Several labels a row: from what a file holds to sets of names, and to ones and zeros."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attentune.data.dataset import SEPARATOR
from attentune.data.readers.table import Table, as_cell
from attentune.errors import LabelError

LabelSet = tuple[str, ...]


def label_sets(table: Table, column: str, separator: str | None = None) -> list[LabelSet | None]:
    """The labels of each row without spaces around them, each once: () where there are none, None for a null.

    Args:
        table: the rows; a cell is a list, or a text with a separator between labels.
        column: the labels' column.
        separator: what stands between labels in a text; `SEPARATOR` if not given.

    Raises:
        LabelError: a cell is neither, or a list holds something other than texts and numbers.
    """
    return [
        None if cell is None else _label_set(table, row, column, cell, separator or SEPARATOR)
        for row, cell in enumerate(table.columns[column])
    ]


def _label_set(table: Table, row: int, column: str, cell: Any, separator: str) -> LabelSet:
    parts = cell.split(separator) if isinstance(cell, str) else cell
    names = [as_cell(part) for part in parts] if isinstance(parts, list) else [None]
    if not all(isinstance(name, str) for name in names):
        raise table.error(
            row,
            f'column {column!r} holds {str(cell)[:40]}, expected labels: a list such as ["a", "b"], or a text with'
            f" {separator!r} between them (--label_separator).",
            LabelError,
        )
    return tuple(dict.fromkeys(name.strip() for name in names if name and name.strip()))


def multi_hot(sets: Sequence[LabelSet], ids: Mapping[str, int], count: int) -> np.ndarray:
    """(N, C) int64, 1 where a row has a label. `ids` knows every name."""
    labels_NC = np.zeros((len(sets), count), dtype=np.int64)
    for row, names in enumerate(sets):
        labels_NC[row, [ids[name] for name in names]] = 1
    return labels_NC


def check_names(names: Sequence[str], source: str) -> None:
    """See that names can stand beside each other in our own files.

    Raises:
        LabelError: one holds what stands between them there.
    """
    wrong = next((name for name in names if SEPARATOR in name), None)
    if wrong is not None:
        raise LabelError(
            f"got the label {wrong!r}, expected none with {SEPARATOR!r} in its name, which stands between the labels of"
            " a row in our files. Rename it, or name what stands between labels in yours with --label_separator.",
            path=source,
        )


def separator_note(table: Table, column: str, separator: str | None) -> tuple[str, ...]:
    """A sentence where the labels' texts never hold the separator, but hold what may be one."""
    texts = [cell for cell in table.columns[column] if isinstance(cell, str)]
    wanted = separator or SEPARATOR
    if not texts or any(wanted in text for text in texts):
        return ()
    near = next((sign for sign in (";", ",", "|") if sign != wanted and any(sign in text for text in texts)), None)
    if near is None:
        return ()
    return (
        f"No row of column {column!r} holds {wanted!r}, so each text is one label; if {near!r} stands between labels,"
        f" use --label_separator '{near}'.",
    )
