"""Consecutive rows of a file taken together, so that no more of it need be held than one such part."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from attentune.data.readers.table import Table

Row = TypeVar("Row")


@dataclass(frozen=True)
class PartLimit:
    """How much a part holds at most; one row alone may have more characters.

    Attributes:
        rows: the number of rows.
        characters: the characters of their texts.
    """

    rows: float
    characters: float


WHOLE = PartLimit(math.inf, math.inf)
# Enough rows to find many of like length, so that batches are padded little; few enough for any machine's memory.
PART = PartLimit(1 << 16, 1 << 23)


def in_parts(rows: Iterable[tuple[Row, int]], limit: PartLimit, build: Callable[[list[Row]], Table]) -> Iterator[Table]:
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
