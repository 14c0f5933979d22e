"""Columns of dates, read only where no date can be meant otherwise."""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from attentune.data.tables import Table, no_content

# Cells that are tried before a column is held as one of dates, and the share of cells that have to be dates.
_TRIED, _LEAST_DATES = 50, 0.95
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_ISO = re.compile(r"\d{4}-\d\d(-\d\d)?([T ]\d.*)?")
_YEAR_FIRST = re.compile(r"(\d{4})[/.](\d{1,2})[/.](\d{1,2})(?:[T ]\d.*)?")
_YEAR_LAST = re.compile(r"(\d{1,2})([/.-])(\d{1,2})\2(\d{4})(?:,? \d.*)?")
# Of dates with the name of a month: its parts, among which hours and minutes are none.
_WORD, _DAY, _YEAR_IN = (
    re.compile(r"[A-Za-z]+"),
    re.compile(r"(?<![\d:+])\d{1,2}(?![\d:])"),
    re.compile(r"\b\d{4}$|\b(?:19|20)\d\d\b"),
)
_SECONDS = re.compile(r"(\d{10})(\d{3})?(\.\d+)?")
_YEAR = re.compile(r"((?:19|20)\d\d)(\.0)?")


def date_columns(table: Table, but: Collection[str | None]) -> dict[str, tuple[Any, ...]]:
    """Return the cells of the columns that begin like dates, except some columns."""
    return {
        name: tuple(cells)
        for name, cells in table.columns.items()
        if name not in but and _read(name, [list(islice(filter(None, cells), _TRIED))], is_part=True)
    }


def dates_in_common(
    here: Mapping[str, Sequence[Any]], there: Mapping[str, Sequence[Any]]
) -> tuple[str, np.ndarray, np.ndarray] | None:
    """Return the first column of dates that both have, and the dates of both as datetime64[s] without missing ones.

    Where they have no name in common and one column of dates each, these are taken.
    """
    names = [(name, name) for name in here if name in there]
    if not names and len(here) == len(there) == 1:
        names = [(next(iter(here)), next(iter(there)))]
    for first, second in names:
        if first == second:
            read = _read(first, [here[first], there[first]])
        else:
            read = [*_read(first, [here[first]]), *_read(second, [there[second]])]
        if all(len(dates) for dates in read) and len(read) == 2:
            return first, read[0], read[1]
    return None


def _read(name: str, columns: Sequence[Sequence[Any]], *, is_part: bool = False) -> list[np.ndarray]:
    """Return the dates of columns that are written alike; nothing if they hold something else, or may be read twofold.

    Whether the day or the month stands first is found in all columns together; in a part of them it may stay open.
    """
    cells = [[cell for cell in column if cell is not None and cell != ""] for column in columns]
    parsed = [[_parsed(name, cell) for cell in column] for column in cells]
    firsts = {tuple(date) for column in parsed for date in column if isinstance(date, tuple)}
    is_day_first, is_month_first = (any(date[place] > 12 for date in firsts) for place in (0, 1))
    if firsts and (is_day_first == is_month_first) and not (is_part and not is_day_first):
        return []
    dates = []
    for column in parsed:
        whole = [_ordered(date, is_day_first) if isinstance(date, tuple) else date for date in column]
        found = [date for date in whole if date is not None]
        if not found or len(found) < _LEAST_DATES * len(whole):
            return []
        dates.append(np.array(found, dtype="datetime64[s]"))
    return dates


def _parsed(name: str, cell: Any) -> datetime.datetime | tuple[int, int, int] | None:
    """Return the date in a cell; two numbers and a year where it is open which one is the day."""
    if isinstance(cell, datetime.datetime):
        return cell.replace(tzinfo=None)
    if isinstance(cell, datetime.date):
        return datetime.datetime(cell.year, cell.month, cell.day)
    if not isinstance(cell, str) or len(cell) > 40 or not any(map(str.isdecimal, cell)):
        return None
    text = cell.strip()
    try:
        if _ISO.fullmatch(text):
            whole = f"{text}-01" if len(text) == 7 else text.removesuffix(" UTC")
            return datetime.datetime.fromisoformat(whole).replace(tzinfo=None)
        if (found := _YEAR_FIRST.fullmatch(text)) is not None:
            return datetime.datetime(*map(int, found.groups()))  # type: ignore[arg-type]
        if (found := _YEAR_LAST.fullmatch(text)) is not None:
            first, sign, second, year = found.groups()
            numbers = int(first), int(second), int(year)
            return _ordered(numbers, True) if sign == "." else numbers
        months = [_MONTHS.index(word[:3].lower()) + 1 for word in _WORD.findall(text) if word[:3].lower() in _MONTHS]
        if months and (year := _YEAR_IN.search(text)) is not None:
            day = _DAY.search(text)
            return datetime.datetime(int(year[0]), months[0], 1 if day is None else int(day[0]))
        if no_content(name) == "a date":
            return _number(text)
    except ValueError:
        pass
    return None


def _ordered(date: tuple[int, int, int], is_day_first: bool) -> datetime.datetime | None:
    day, month = date[:2] if is_day_first else date[1::-1]
    try:
        return datetime.datetime(date[2], month, day)
    except ValueError:
        return None


def _number(text: str) -> datetime.datetime | None:
    """Return the date of a year, of YYYYMMDD, or of seconds or milliseconds since 1970 that are after 2000."""
    if re.fullmatch(r"(19|20)\d{6}", text):
        return datetime.datetime.fromisoformat(text)
    if (found := _YEAR.fullmatch(text)) is not None:
        return datetime.datetime(int(found[1]), 1, 1)
    if (found := _SECONDS.fullmatch(text)) is None or not 946_684_800 <= int(found[1]) < 4_102_444_800:
        return None
    return datetime.datetime.fromtimestamp(int(found[1]), datetime.UTC).replace(tzinfo=None)
