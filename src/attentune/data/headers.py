"""Whether the names of a table's columns are its first row: a file without a header."""

from __future__ import annotations

from collections.abc import Sequence

from attentune.config.schema import DataConfig
from attentune.data.names import CONVENTIONAL
from attentune.data.readers.formats import named_columns
from attentune.data.readers.table import Table, quote
from attentune.errors import DataError

# Rows that are looked at, and what classes are: few, each of some rows.
_ROWS, _MOST_CLASSES, _ROWS_PER_CLASS = 1000, 20, 2
# A name with as many words may be a text; a question may be the name of its answers.
_TEXT_WORDS = 4
_CURE = (
    "If it is a row, give --no_header (the columns are then column_1, column_2, ...) or write names above it; otherwise"
    " name the columns with --text_column and --label_column."
)


def header_note(table: Table, config: DataConfig) -> str | None:
    """Return a note if the first row of a file was read as names, but may be a row; None if there is no sign of it."""
    if not table.names_from_row or _has_names(table.names, config):
        return None
    columns = [(name, table.columns.get(name, ())[:_ROWS]) for name in table.names]
    classes = [name for name, cells in columns if _is_class(name, cells)]
    others = [name for name, cells in columns if name not in classes and (_is_text(name) or _is_number(name, cells))]
    if not classes and not others:
        return None
    if not classes and len(others) < 2 and not named_columns(config):
        return (
            f"{table.source}: the first line is read as the names of columns, but may be a row:"
            f" {_shown(table)}. If it is one, give --no_header."
        )
    raise header_error(table)


def header_error(table: Table) -> DataError:
    """Return the error for a first row that reads like a row."""
    return DataError(
        f"the first line is read as the names of columns, but reads like a row: {_shown(table)}. {_CURE}",
        path=table.source,
        line=None if table.lines is None else max(1, table.lines[0] - 1),
    )


def _shown(table: Table) -> str:
    return ", ".join(quote(name) for name in table.names[:5]) + (", ..." if len(table.names) > 5 else "")


def _has_names(names: Sequence[str], config: DataConfig) -> bool:
    """Whether a column has a conventional or given name, or they are numbers from 0, as pandas writes them."""
    given = named_columns(config)
    if any(name in given or name.lower() in CONVENTIONAL for name in names):
        return True
    return len(names) > 1 and list(names) == [str(number) for number in range(len(names))]


def _is_class(name: str, cells: Sequence[object]) -> bool:
    """Whether the name is one of the few values of its column."""
    values = set(cells) if all(isinstance(cell, str) for cell in cells) else set()
    return name in values and len(values) <= _MOST_CLASSES and len(cells) >= _ROWS_PER_CLASS * len(values)


def _is_number(name: str, cells: Sequence[object]) -> bool:
    """Whether the name and all cells of its column are numbers."""
    try:
        return bool([float(str(cell)) for cell in (name, *cells)])
    except ValueError:
        return False


def _is_text(name: str) -> bool:
    return len(name.split()) >= _TEXT_WORDS and not name.rstrip().endswith(("?", ":"))
