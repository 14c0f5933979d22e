"""`Table`: the columns of a file as they were read, not yet interpreted; and chunks of rows."""

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
        source: the file (or dataset and split), for messages.
        names: the names of all columns, including those that were not read.
        columns: the cells of each column that was read: text, None (null), or another value (such as a list).
        num_rows: the number of rows.
        lines: the line at which each row begins (from 1), or None if the source has no lines.
        class_names: the classes of columns that declare them (`datasets.ClassLabel`), in the order of their ids.
        dropped: the lines of broken rows that were left out (`Dialect.drop_broken`).
        left_out: rows that were left out on request (`skip_broken_rows`): the line, the reason and the cells.
        first_row: the number of the first row in the source (from 0), for a chunk.
        notes: how the file was read, if not as its extension says.
        names_from_row: whether the names were the first row of the file, which may have been no header.
    """

    source: str
    names: tuple[str, ...]
    columns: Mapping[str, Sequence[Any]]
    num_rows: int
    lines: tuple[int, ...] | None = None
    class_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dropped: tuple[int, ...] = ()
    left_out: tuple[tuple[int, str, Any], ...] = ()
    first_row: int = 0
    notes: tuple[str, ...] = ()
    names_from_row: bool = False

    def __len__(self) -> int:
        return self.num_rows

    def take(self, rows: Sequence[int]) -> Table:
        """Return the rows at these indices, in this order."""
        columns = {name: tuple(cells[row] for row in rows) for name, cells in self.columns.items()}
        lines = None if self.lines is None else tuple(self.lines[row] for row in rows)
        return replace(self, columns=columns, lines=lines, num_rows=len(rows))

    def place(self, row: int) -> str:
        """Format the location of a row: `path:line`, or `source, row N` if there are no lines."""
        return (
            f"{self.source}, row {self.first_row + row}" if self.lines is None else f"{self.source}:{self.lines[row]}"
        )

    def error(self, row: int, message: str, kind: type[DataError] = DataError) -> DataError:
        """Make an error with the location of a row. Rows without lines are counted from 0."""
        if self.lines is None:
            return kind(f"row {self.first_row + row}: {message}", path=self.source)
        return kind(message, path=self.source, line=self.lines[row])

    def values(self, column: str) -> tuple[str | None, ...]:
        """Return a column whose cells may be null, such as labels.

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
        """Return a column whose cells must all be texts; they may be empty.

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
    """Quote a text for a message, shortened if it is long, without control characters."""
    whole = ascii(text) if any(not sign.isprintable() for sign in text[: 2 * limit]) else repr(text)
    return whole if len(whole) <= limit else f"{whole[: limit - 20]}...{whole[-10:]} ({len(text)} characters)"


def has_return(texts: Iterable[str]) -> bool:
    """Whether one of the texts holds a carriage return."""
    return any("\r" in text for text in texts)


def as_cell(value: Any) -> Any:
    """Convert numbers and booleans to text; other values are returned unchanged.

    NaN and infinity become null: typed files (Parquet) from pandas mark missing values with NaN.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float, Decimal)):
        return str(value) if math.isfinite(value) else None
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
    """The maximum size of a chunk; a single row may have more characters.

    Attributes:
        rows: the number of rows.
        characters: the number of characters.
        block: a chunk also ends before each row whose number is a multiple of this, so that where a file is divided at
            such rows does not change its chunks.
    """

    rows: float
    characters: float
    block: float = math.inf


WHOLE = ChunkLimit(math.inf, math.inf)
# Enough rows to batch by similar length, few enough for the memory of any machine.
CHUNK = ChunkLimit(1 << 16, 1 << 23)
# The rows of a file may be divided at multiples of this number.
BLOCK_ROWS = 1 << 12
BLOCK = ChunkLimit(BLOCK_ROWS, 1 << 23, BLOCK_ROWS)


@dataclass(frozen=True)
class RowStart:
    """Where a row of a file begins.

    Attributes:
        row: its number, from 0.
        byte: the bytes before it; 0 if the format finds rows by their numbers.
        line: its line, from 1.
    """

    row: int = 0
    byte: int = 0
    line: int = 1


FIRST = RowStart()


def in_chunks(
    rows: Iterable[tuple[Row, int]], limit: ChunkLimit, build: Callable[[list[Row]], Table]
) -> Iterator[Table]:
    """Yield tables of consecutive rows; each holds as many rows as the limit allows.

    Args:
        rows: each row with its number of characters; the first one has a number that is a multiple of `limit.block`.
        limit: the maximum size of a chunk.
        build: makes a table from rows.
    """
    chunk: list[Row] = []
    characters = 0
    for number, (row, size) in enumerate(rows):
        is_full = len(chunk) >= limit.rows or characters + size > limit.characters or number % limit.block == 0
        if chunk and is_full:
            yield _flush(chunk, build)
            characters = 0
        chunk.append(row)
        characters += size
    if chunk:
        yield _flush(chunk, build)


def _flush(chunk: list[Row], build: Callable[[list[Row]], Table]) -> Table:
    """Build the table and clear the rows, so that they are not held twice."""
    table = build(chunk)
    chunk.clear()
    return table
