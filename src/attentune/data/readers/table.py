"""A file's columns as they were read, before anyone decides what they mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, TypeVar

from attentune.errors import DataError


@dataclass(frozen=True)
class Table:
    """Columns of the same length, in the file's order.

    Attributes:
        source: the file (or data set and split) they came from, for messages.
        names: all of the columns' names, also of those that were not kept.
        columns: the cells of each kept column: text, None (null), or a value that is not text (a list, say).
        num_rows: the number of rows.
        lines: the line that each row began at (from 1), or None where the source has no lines.
        class_names: the classes of columns that declare them (`datasets.ClassLabel`), in the order of their ids.
        dropped: lines of broken rows that were left out, where that was asked for.
        first_row: the number of its first row in the source (from 0), where this is a part of it.
    """

    source: str
    names: tuple[str, ...]
    columns: Mapping[str, Sequence[Any]]
    num_rows: int
    lines: tuple[int, ...] | None = None
    class_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dropped: tuple[int, ...] = ()
    first_row: int = 0

    def __len__(self) -> int:
        return self.num_rows

    def take(self, rows: Sequence[int]) -> Table:
        """The rows at these places, in this order."""
        columns = {name: tuple(cells[row] for row in rows) for name, cells in self.columns.items()}
        lines = None if self.lines is None else tuple(self.lines[row] for row in rows)
        return replace(self, columns=columns, lines=lines, num_rows=len(rows))

    def place(self, row: int) -> str:
        """Where a row is, as an editor can jump to: `path:line`, or `source, row N` where there are no lines."""
        return (
            f"{self.source}, row {self.first_row + row}" if self.lines is None else f"{self.source}:{self.lines[row]}"
        )

    def error(self, row: int, message: str, kind: type[DataError] = DataError) -> DataError:
        """An error that names the row's place. Rows without lines are counted from 0."""
        if self.lines is None:
            return kind(f"row {self.first_row + row}: {message}", path=self.source)
        return kind(message, path=self.source, line=self.lines[row])

    def values(self, column: str) -> tuple[str | None, ...]:
        """A column whose cells may be null, such as labels.

        Raises:
            DataError: if a cell is neither text, a number, true/false nor null, or holds a NUL or half of a surrogate
                pair.
        """
        cells = self.columns[column]
        for row, cell in enumerate(cells):
            if cell is not None and not isinstance(cell, str):
                raise self.error(
                    row,
                    f"column {column!r} holds {_describe(cell)}, expected a text or a number. Write one value a row.",
                )
        if not _is_clean("\n".join(cell for cell in cells if cell is not None)):
            row = next(row for row, cell in enumerate(cells) if not _is_clean(cell or ""))
            raise self.error(
                row,
                f"column {column!r} holds a NUL character or half of a surrogate pair (such as \\ud83d alone), which is"
                " no text. Take it out, or write the whole character.",
            )
        return tuple(cells)

    def texts(self, column: str) -> tuple[str, ...]:
        """A column whose cells must all be texts; empty ones are kept.

        Raises:
            DataError: for a null, and as `values`.
        """
        values = self.values(column)
        for row, value in enumerate(values):
            if value is None:
                raise self.error(
                    row,
                    f'column {column!r} has no text here (null, or the key is missing), expected one. Write "" for an'
                    " empty text, or take the row out.",
                )
        return tuple(value for value in values if value is not None)


def quote(text: str, limit: int = 60) -> str:
    """A text in quotes, its middle left out where it is long; nothing in it can be obeyed by a terminal."""
    whole = ascii(text) if any(not sign.isprintable() for sign in text[: 2 * limit]) else repr(text)
    return whole if len(whole) <= limit else f"{whole[: limit - 20]}...{whole[-10:]} ({len(text)} characters)"


def has_return(texts: Iterable[str]) -> bool:
    """Whether one of the texts holds a carriage return."""
    return any("\r" in text for text in texts)


def as_cell(value: Any) -> Any:
    """Numbers and true/false as text, null and texts as they are, anything else untouched.

    A floating-point NaN is null: it is how typed files (Parquet) from pandas say that there is no value.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float, Decimal)):
        return None if value != value else str(value)
    return value


def _describe(value: Any) -> str:
    text = repr(value)
    return f"a {type(value).__name__} ({text if len(text) <= 40 else text[:37] + '...'})"


def _is_clean(text: str) -> bool:
    if "\0" in text:
        return False
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


Row = TypeVar("Row")


@dataclass(frozen=True)
class ChunkLimit:
    """How much a part holds at most; one row alone may have more characters.

    Attributes:
        rows: the number of rows.
        characters: the characters of their texts.
    """

    rows: float
    characters: float


WHOLE = ChunkLimit(math.inf, math.inf)
# Enough rows to find many of like length, so that batches are padded little; few enough for any machine's memory.
CHUNK = ChunkLimit(1 << 16, 1 << 23)


def in_chunks(
    rows: Iterable[tuple[Row, int]], limit: ChunkLimit, build: Callable[[list[Row]], Table]
) -> Iterator[Table]:
    """Tables of consecutive rows. A part is given out when a row comes that it has no room for, or at the end.

    Args:
        rows: each row with its number of characters.
        limit: of a part.
        build: makes a table of rows.
    """
    part: list[Row] = []
    characters = 0
    for row, size in rows:
        if part and (len(part) >= limit.rows or characters + size > limit.characters):
            yield _emptied(part, build)
            characters = 0
        part.append(row)
        characters += size
    if part:
        yield _emptied(part, build)


def _emptied(part: list[Row], build: Callable[[list[Row]], Table]) -> Table:
    """The rows as a table; they are not kept beside it."""
    table = build(part)
    part.clear()
    return table
