"""Reader of comma- and tab-separated files."""

from __future__ import annotations

import csv
import itertools
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from attentune.data.names import CONVENTIONAL
from attentune.data.readers.table import WHOLE, ChunkLimit, Table, in_chunks
from attentune.errors import DataError

# A number or an id: no spaces, and a digit.
_ID = re.compile(r"\S*\d\S*")
# The line of a row, and its fields.
_Row = tuple[int, tuple[str, ...]]


@dataclass(frozen=True)
class Dialect:
    """The format of a delimited file."""

    delimiter: str = ","  # the separator of fields
    # "csv" (fields may be quoted, with doubled quotes inside) or "none" (quotes are plain characters, as in the files
    # of GLUE).
    quoting: str = "csv"
    header: tuple[str, ...] | None = None  # the column names, if the file has no header line
    drop_broken: bool = False  # leave rows with too few or too many fields out; `Table.dropped` has their lines
    skip_broken: bool = False
    encoding: str = "utf-8"  # the name of a codec
    has_header: bool = True  # whether the first row has the column names; without it they are column_1, column_2,
    has_sep_line: bool = False  # whether the first line names the separator (`sep=;`), as Excel writes it
    skips_spaces: bool = False  # whether spaces after separators are left out
    words: tuple[str, ...] = ()  # examples of words that the encoding changes


def parse_delimited(
    lines: Iterable[str],
    path: str | Path,
    dialect: Dialect,
    keep: Collection[str] | None = None,
    limit: ChunkLimit = WHOLE,
) -> Iterator[Table]:
    """Parse the lines of a file; yields one table per chunk."""
    swallowed, left_out = list[str](), list[tuple[int, str, Any]]()
    records = _without_blank_end(_records(lines, path, dialect, swallowed), path)
    header, records = _header(records, path, dialect)
    wanted = [place for place, name in enumerate(header) if name and (keep is None or name in keep)]
    names = tuple(name for name in header if name)
    done, dropped = 0, list[int]()

    def table(rows: list[_Row]) -> Table:
        nonlocal done
        lines, records = zip(*rows, strict=True)
        cells = list(zip(*records, strict=True)) if wanted else []
        columns = {header[place]: column for place, column in zip(wanted, cells, strict=True)}
        made = Table(str(path), names, columns, len(rows), lines, dropped=tuple(dropped), first_row=done)
        made = replace(made, names_from_row=dialect.header is None and dialect.has_header, left_out=tuple(left_out))
        made = replace(made, notes=_swallowed_notes(swallowed, path))
        done += len(rows)
        for lines_told in (dropped, swallowed, left_out):
            lines_told.clear()
        return made

    rows = _rows(records, header, wanted, dropped, left_out, path, dialect)
    yield from in_chunks(rows, limit, table)
    if not done:
        raise DataError("holds a header but no rows. Add rows below it.", path=path)


def _rows(
    records: Iterable[tuple[int, list[str]]],
    header: Sequence[str],
    wanted: Sequence[int],
    dropped: list[int],
    left_out: list[tuple[int, str, Any]],
    path: str | Path,
    dialect: Dialect,
) -> Iterator[tuple[_Row, int]]:
    """Yield the line and the wanted fields of each row, and their number of characters."""
    pick = itemgetter(*wanted) if len(wanted) > 1 else lambda fields: tuple(fields[place] for place in wanted)
    for line, fields in records:
        if len(fields) == len(header):
            cells = pick(fields)
            yield (line, cells), sum(map(len, cells))
        elif dialect.drop_broken:
            dropped.append(line)
        elif dialect.skip_broken:
            left_out.append((line, f"{len(fields)} fields, expected {len(header)}", fields))
        else:
            broken = [(number, len(cells)) for number, cells in records if len(cells) != len(header)]
            raise _ragged(fields, header, path, line, dialect, broken)


def _records(
    lines: Iterable[str], path: str | Path, dialect: Dialect, swallowed: list[str]
) -> Iterator[tuple[int, list[str]]]:
    """Yield each record with the line at which it begins; a blank line is a record without fields."""
    lines, first_line = iter(lines), 1
    if dialect.has_sep_line and dialect.header is None:
        next(lines, None)
        first_line = 2
    if dialect.quoting == "none":
        for number, line in enumerate(lines, start=first_line):
            text = line.removesuffix("\n").removesuffix("\r")
            fields = text.split(dialect.delimiter) if text else []
            yield number, [fields[0], *(cell.lstrip(" ") for cell in fields[1:])] if dialect.skips_spaces else fields
        return
    held: list[str] = []

    def kept() -> Iterator[str]:
        for line in lines:
            held.append(line)
            yield line

    shapes = RowShapes(dialect.delimiter)
    # The limit is global to the process, so it is lifted for each record and restored; a text may be a whole book.
    reader = csv.reader(kept(), delimiter=dialect.delimiter, strict=True, skipinitialspace=dialect.skips_spaces)
    while True:
        start = reader.line_num + first_line
        limit = csv.field_size_limit(sys.maxsize)
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise _bad_quoting(error, path, start, dialect) from error
        finally:
            csv.field_size_limit(limit)
        if len(held) == 1:
            shapes.add(fields)
        elif shapes.are_rows(held):
            swallowed.append(f"{start} to {start + len(held) - 1}")
        held.clear()
        yield start, fields


class RowShapes:
    """What the cells of single-line rows look like, to know rows inside of a quoted field."""

    _ROWS, _MOST_CLASSES = 2000, 64

    def __init__(self, delimiter: str) -> None:
        self._delimiter = delimiter
        self._num_rows = 0
        self._values: list[set[str]] = []

    def add(self, fields: Sequence[str]) -> None:
        """Add a row; the first one is the header."""
        if not self._values:
            self._values = [set() for _ in fields]
        elif self._num_rows < self._ROWS and len(fields) == len(self._values):
            self._num_rows += 1
            for seen, cell in zip(self._values, fields, strict=True):
                if len(seen) <= self._MOST_CLASSES:
                    seen.add(cell)

    def are_rows(self, lines: Sequence[str]) -> bool:
        """Whether each line has as many fields as the header, and in one column classes, numbers or ids as other rows.

        The first and the last line, in which other fields may be quoted, count only where there are no others.
        """
        inner = lines[1:-1] if len(lines) > 3 else lines
        rows = [line.rstrip("\r\n").split(self._delimiter) for line in inner]
        if len(self._values) < 2 or any(len(row) != len(self._values) for row in rows):
            return False
        for seen, cells in zip(self._values, zip(*rows, strict=True), strict=True):
            is_class = len(seen) <= self._MOST_CLASSES and 2 * len(seen) <= self._num_rows
            if is_class and "" not in cells and seen.issuperset(cells):
                return True
            if seen and all(map(_ID.fullmatch, (*seen, *cells))):
                return True
        return False


def _swallowed_notes(spans: Sequence[str], path: str | Path) -> tuple[str, ...]:
    if not spans:
        return ()
    more = f" and {len(spans) - 5} more places" if len(spans) > 5 else ""
    return (
        f"{path}: the lines {', '.join(spans[:5])}{more} are one row each, as a double quote holds them together, but"
        " each line looks like a row. If it is one, double that quote or take it out.",
    )


def _without_blank_end(records: Iterator[tuple[int, list[str]]], path: str | Path) -> Iterator[tuple[int, list[str]]]:
    first_blank = None
    for line, fields in records:
        if not fields:
            first_blank = first_blank or line
        elif first_blank:
            raise DataError(
                'a blank line between rows, expected a row. Delete it (or write "" if it stands for an empty text).',
                path=path,
                line=first_blank,
            )
        else:
            yield line, fields


def _header(
    records: Iterator[tuple[int, list[str]]], path: str | Path, dialect: Dialect
) -> tuple[tuple[str, ...], Iterator[tuple[int, list[str]]]]:
    """Return the names of the columns, and the records of rows."""
    if dialect.header is not None:
        return dialect.header, records
    if dialect.has_header:
        return check_header(records, path), records
    first = next(records, None)
    if first is None:
        raise DataError("holds only blank lines, expected rows.", path=path)
    return numbered_names(len(first[1])), itertools.chain([first], records)


def numbered_names(count: int) -> tuple[str, ...]:
    """Return the names of columns that have none."""
    return tuple(f"column_{number}" for number in range(1, count + 1))


def check_header(records: Iterable[tuple[int, list[str]]], path: str | Path) -> tuple[str, ...]:
    """Return the names in the first record without spaces and quotes around them; none of them is there twice."""
    for line, cells in records:
        names = [_unquoted(cell.strip()) for cell in cells]
        repeated = sorted({name for name in names if name and names.count(name) > 1})
        if repeated:
            raise DataError(
                f"the header names {', '.join(map(repr, repeated))} more than once. Give each column its own name"
                f"{_headless_hint(names)}.",
                path=path,
                line=line,
            )
        return tuple(names)
    raise DataError("holds only blank lines, expected a header and rows.", path=path)


def _unquoted(name: str) -> str:
    """Return a name without the quotes that a space before them has kept from being read as such."""
    return name[1:-1].replace('""', '"') if len(name) > 1 and name[0] == name[-1] == '"' else name


def _headless_hint(names: Sequence[str]) -> str:
    """Return the cure for a first line that is a row; a conventional name is none of a row."""
    if any(name.strip().lower() in CONVENTIONAL for name in names):
        return ""
    return "; or, if the first line is a row, give --no_header (the columns are then column_1, column_2, ...)"


def _ragged(
    fields: Sequence[str],
    header: Sequence[str],
    path: str | Path,
    line: int,
    dialect: Dialect,
    more: Sequence[tuple[int, int]] = (),
) -> DataError:
    """Return the error for the first row with a wrong number of fields, and the lines and numbers of the others."""
    what = {",": "comma", "\t": "tab", ";": "semicolon"}.get(dialect.delimiter, repr(dialect.delimiter))
    if dialect.quoting == "none":
        mend = f"Add what is missing, or take a stray {what} out."
    else:
        mend = f'Add what is missing, or put double quotes around a text that holds a {what} ("like this").'
    got = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
    names = ", ".join(name or "(no name)" for name in header)
    others = ""
    if more:
        shown = ", ".join(f"{number} ({count})" for number, count in more[:4]) + (", ..." if len(more) > 4 else "")
        others = f" {len(more) + 1:,} rows have another number of fields, the others in lines {shown}."
    hint = separator_hint(header).strip()
    end = hint or f"{mend} --skip_broken_rows leaves such rows out of training."
    return DataError(f"{got}, expected {len(header)} ({names}).{others} {end}", path=path, line=line)


def separator_hint(header: Sequence[str]) -> str:
    """Return a hint if the header is one field that contains another separator, otherwise an empty string."""
    if len(header) == 1:
        for mark, what in (("\t", "tabs"), (",", "commas"), (";", "semicolons"), ("|", "vertical bars")):
            if mark in header[0]:
                return f" The header looks separated by {what}, but not all of the first rows have as many fields."
    return ""


def _bad_quoting(error: csv.Error, path: str | Path, line: int, dialect: Dialect) -> DataError:
    reason = str(error).replace("\t", "\\t")
    if "end of data" in reason:
        got = "the row that begins here opens a double quote that is never closed"
    elif "new-line character" in reason:
        got = "the row that begins here has a bare carriage return outside of quotes"
        return DataError(f"{got}. Save the file with Unix or Windows line ends.", path=path, line=line)
    else:
        got = f"the quotes in the row that begins here do not pair up ({reason})"
    mend = 'In a field that begins with a double quote, double each quote inside it and close it ("he said ""no""").'
    return DataError(f"{got}. {mend}", path=path, line=line)
