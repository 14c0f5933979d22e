"""`Table`: the columns of a file as they were read, not yet interpreted; and chunks of rows."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

from attentune.errors import DataError

IDS = ("id", "idx", "index")
TEXT_PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("sentence_a", "sentence_b"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("text", "text_pair"),
    ("query", "passage"),
)
TEXTS = ("text", "sentence", "review", "content", "comment", "tweet", "document", "sentence1", "premise", "question1")
LABELS = (
    "label",
    "labels",
    "gold_label",
    "target",
    "class",
    "category",
    "sentiment",
    "score",
    "similarity",
    "rating",
    "is_duplicate",
    "intent",
    "intents",
    "emotion",
    "stance",
    "gold",
    "topic",
    "tag",
)
CONVENTIONAL = frozenset((*TEXTS, *LABELS, *IDS, *(name for pair in TEXT_PAIRS for name in pair)))

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\dA-Z_]+|[0-9]+")
_ID_WORDS = re.compile("ids?|idx|index|[ug]uid|key|pk|nr|isbn|sku|asin|zip|postcode|url")
_DATE_WORDS = re.compile("date|datum|(date)?time|timestamp|created|updated|modified|year|month|(week)?day|hour|week")
_COUNT_WORDS = re.compile(
    "counts?|no|num|number|(up|down)?votes|(dis)?likes|views|retweets|shares|replies|followers|rank|page|row|line"
    "|position|length|quantity|age|price|amount"
)
_CONTROL_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}
# Among them the characters that reverse the writing direction and could make a text look like another one.
_CONTROL_PICTURES |= {0x7F: 0x2421} | dict.fromkeys(
    (*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD
)


def no_content(name: str) -> str | None:
    """Return what a column holds by its name, if that is neither a text nor a label: "an id", "a date", "a count"."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if words and (_ID_WORDS.fullmatch(words[-1]) or words[0] in IDS):
        return "an id"
    if any(map(_DATE_WORDS.fullmatch, words)):
        return "a date"
    return "a count" if any(map(_COUNT_WORDS.fullmatch, words)) else None


def columns_of(setting: str) -> tuple[str, ...]:
    """Return the columns that a setting names: one, or several in a JSON list."""
    if not setting.startswith("["):
        return (setting,)
    try:
        return tuple(map(str, json.loads(setting)))
    except ValueError:
        return (setting,)


def find_columns(setting: str, names: Collection[str]) -> tuple[str, ...] | None:
    """Return the columns of a file that a setting names: one, or several in a JSON list or with commas."""
    if setting in names:
        return (setting,)
    listed = columns_of(setting)
    if listed != (setting,):
        return listed if set(listed) <= set(names) else None
    parts = setting.split(",")
    for count in range(len(parts) - 1, 0, -1):
        first, rest = ",".join(parts[:count]).strip(), ",".join(parts[count:]).strip()
        if first in names and (others := find_columns(rest, names)) is not None:
            return (first, *others)
    return None


def columns_setting(columns: Sequence[str]) -> str:
    """Return the setting that names these columns and no others; the inverse of `columns_of`."""
    return columns[0] if len(columns) == 1 else json.dumps(list(columns), ensure_ascii=False)


@dataclass(frozen=True)
class Table:
    """Columns of the same length, in the file's order."""

    source: str  # the file (or dataset and split), for messages
    names: tuple[str, ...]  # the names of all columns, including those that were not read
    columns: Mapping[str, Sequence[Any]]  # the cells of each column that was read
    num_rows: int  # the number of rows
    lines: tuple[int, ...] | None = None  # the line at which each row begins
    class_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # the classes of columns that declare them
    left_out: tuple[tuple[int, str, Any], ...] = ()  # broken rows that were left out: line, reason, cells
    first_row: int = 0  # the number of the first row in the source (from 0), for a chunk
    notes: tuple[str, ...] = ()  # how the file was read, if not as its extension says
    names_from_row: bool = False  # whether the names were the first row of the file, which may have been no header

    def __len__(self) -> int:
        return self.num_rows

    def take(self, rows: Sequence[int]) -> Table:
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
        """Return a column whose cells may be null, such as labels."""
        cells = self.columns[column]
        for row, cell in enumerate(cells):
            if cell is not None and not isinstance(cell, str):
                shown = text if len(text := repr(cell)) <= 40 else f"{text[:37]}..."
                raise self.error(
                    row,
                    f"column {column!r} holds a {type(cell).__name__} ({shown}), expected a text or a number. Write one"
                    " value a row.",
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

        Of several columns, each text has a line a cell, with the column's name; empty cells are left out.
        """
        names = (column,) if column in self.columns else columns_of(column)
        if len(names) > 1:
            columns = [[(name, cell) for cell in self.values(name)] for name in names]
            rows = zip(*columns, strict=True)
            return tuple("\n".join(f"{name}: {cell}" for name, cell in row if cell and cell.strip()) for row in rows)
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


def listed(items: Iterable[object], most: int = 5) -> str:
    """Join the first items for a message, and say how many more there are."""
    texts = list(map(str, items))
    return ", ".join(texts[:most]) + (f", and {len(texts) - most:,} more" if len(texts) > most else "")


def visible(text: str, *, one_line: bool = False) -> str:
    """Replace control characters by visible symbols, so that a terminal does not execute them."""
    shown = text.replace("\r\n", "\n").replace("\r", "\n").translate(_CONTROL_PICTURES)
    return shown.replace("\n", "\u240a").replace("\t", "\u2409") if one_line else shown


def as_cell(value: Any) -> Any:
    """Convert numbers and booleans to text, NaN (pandas' missing value) and infinity to null."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float, Decimal)):
        return str(value) if math.isfinite(value) else None
    return value


def _is_clean(text: str) -> bool:
    if "\0" in text:
        return False
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def check_names(names: Sequence[str], source: str | Path, *, line: int | None = None, cure: str = "") -> None:
    """Check that no two columns have the same name."""
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        shown = ", ".join(map(repr, repeated))
        raise DataError(f"names {shown} more than once. Give each column its own name{cure}.", path=source, line=line)


Row = TypeVar("Row")
Part = TypeVar("Part")


@dataclass(frozen=True)
class ChunkLimit:
    """The maximum size of a chunk; a single row may have more characters."""

    rows: float  # the number of rows
    characters: float  # the number of characters
    block: float = math.inf  # a chunk also ends before each row whose number is a multiple of this


WHOLE = ChunkLimit(math.inf, math.inf)
# Enough rows to batch by similar length, few enough for the memory of any machine.
CHUNK = ChunkLimit(1 << 16, 1 << 23)
# The rows of a file may be divided at multiples of this number.
BLOCK_ROWS = 1 << 12
BLOCK = ChunkLimit(BLOCK_ROWS, 1 << 23, BLOCK_ROWS)


def in_chunks(
    rows: Iterable[tuple[Row, int]],
    limit: ChunkLimit,
    build: Callable[[list[Row], int], Part],
    *,
    empty: DataError | None = None,
) -> Iterator[Part]:
    """Yield parts of consecutive rows as the limit allows; `build` gets rows and the number of the first one."""
    chunk: list[Row] = []
    characters, done = 0, 0
    for number, (row, size) in enumerate(rows):
        is_full = len(chunk) >= limit.rows or characters + size > limit.characters or number % limit.block == 0
        if chunk and is_full:
            part, done = build(chunk, done), done + len(chunk)
            chunk, characters = [], 0  # before the part is used, so that rows are not held twice
            yield part
        chunk.append(row)
        characters += size
    if chunk:
        yield build(chunk, done)
    elif not done and empty is not None:
        raise empty
