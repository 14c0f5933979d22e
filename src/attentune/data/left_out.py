"""Rows that are none, or have no label: told, or left out on request (`skip_broken_rows`) and written to a file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attentune.data.readers.table import Table
from attentune.errors import StorageError
from attentune.io.files import write_text


def without_broken_rows(table: Table, labels: Sequence[str], *, is_skipped: bool) -> tuple[Table, tuple[str, ...]]:
    """Find rows that repeat the names of the columns and, where rows are skipped, those without a label.

    Args:
        table: the rows, all columns of them.
        labels: the columns of labels; none for rows that need none.
        is_skipped: whether such rows are left out, and written to a file with the rows that the reader left out.

    Returns:
        The table, and a note on such rows.
    """
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
