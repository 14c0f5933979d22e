"""Reader of comma- and tab-separated files."""

from __future__ import annotations

import csv
import itertools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

from attentune.data.readers.table import FIRST, WHOLE, ChunkLimit, RowStart, Table, in_chunks
from attentune.errors import DataError

# The line of a row, and its fields.
_Row = tuple[int, tuple[str, ...]]


@dataclass(frozen=True)
class Dialect:
    """The format of a delimited file.

    Attributes:
        delimiter: the separator of fields.
        quoting: "csv" (fields may be quoted, with doubled quotes inside) or "none" (quotes are plain characters, as in
            the files of GLUE).
        header: the column names, if the file has no header line.
        drop_broken: leave rows with too few or too many fields out; `Table.dropped` has their lines.
        encoding: the name of a codec.
        has_header: whether the first row has the column names; without it they are column_1, column_2, ...
    """

    delimiter: str = ","
    quoting: str = "csv"
    header: tuple[str, ...] | None = None
    drop_broken: bool = False
    encoding: str = "utf-8"
    has_header: bool = True


def parse_delimited(
    lines: Iterable[str],
    path: str | Path,
    dialect: Dialect,
    keep: Collection[str] | None = None,
    limit: ChunkLimit = WHOLE,
    *,
    start: RowStart = FIRST,
    num_rows: int | None = None,
) -> Iterator[Table]:
    """Parse the lines of a file; yields one table per chunk.

    Args:
        lines: the lines of the file, with line ends.
        path: the path of the file, for messages.
        dialect: the format of the file; with its header if `lines` begin with another row than the first.
        keep: the columns to read; None reads all.
        limit: the maximum size of a chunk.
        start: the row that `lines` begin with.
        num_rows: the number of rows to read; None reads all.

    Raises:
        DataError: for a missing header or rows, repeated names, blank lines between rows, rows with another number of
            fields than the header, and unclosed quotes.
    """
    records = _without_blank_end(_records(lines, path, dialect, start.line), path)
    header, records = _header(records, path, dialect)
    wanted = [place for place, name in enumerate(header) if name and (keep is None or name in keep)]
    names = tuple(name for name in header if name)
    done, dropped = start.row, list[int]()

    def table(rows: list[_Row]) -> Table:
        nonlocal done
        lines, records = zip(*rows, strict=True)
        cells = list(zip(*records, strict=True)) if wanted else []
        columns = {header[place]: column for place, column in zip(wanted, cells, strict=True)}
        made = Table(str(path), names, columns, len(rows), lines, dropped=tuple(dropped), first_row=done)
        made = replace(made, names_from_row=dialect.header is None and dialect.has_header)
        done += len(rows)
        dropped.clear()
        return made

    rows = _rows(records, header, wanted, dropped, path, dialect)
    yield from in_chunks(itertools.islice(rows, num_rows), limit, table)
    if not done:
        raise DataError("holds a header but no rows. Add rows below it.", path=path)


def read_header(lines: Iterable[str], path: str | Path, dialect: Dialect) -> tuple[str, ...]:
    """Return the names of the columns; a column without a name has an empty one.

    Raises:
        DataError: there is no row, or names are repeated.
    """
    return _header(_records(lines, path, dialect), path, dialect)[0]


def scan_delimited(
    lines: Iterable[str], path: str | Path, dialect: Dialect, position: Callable[[], int], every: float
) -> tuple[tuple[str, ...], int, list[RowStart]]:
    """Count the rows of a file, and find where to begin to read it in its middle.

    Args:
        lines: the lines of the file.
        path: the path of the file, for messages.
        dialect: the format of the file.
        position: returns the number of bytes of the lines that were taken.
        every: the start of each row is returned whose number is a multiple of this.

    Returns:
        The header, the number of rows, and the starts.

    Raises:
        DataError: as `parse_delimited`.
    """
    records = _without_blank_end(_records(lines, path, dialect), path)
    byte = 0
    header, records = _header(records, path, dialect)
    if dialect.header is None and dialect.has_header:
        byte = position()
    count, starts = 0, []
    for line, fields in records:
        if len(fields) != len(header):
            raise _ragged(fields, header, path, line, dialect)
        if count % every == 0:
            starts.append(RowStart(count, byte, line))
        count += 1
        if count % every == 0:
            byte = position()
    if not count:
        raise DataError("holds a header but no rows. Add rows below it.", path=path)
    return header, count, starts


def _rows(
    records: Iterable[tuple[int, list[str]]],
    header: Sequence[str],
    wanted: Sequence[int],
    dropped: list[int],
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
        else:
            raise _ragged(fields, header, path, line, dialect)


def _records(
    lines: Iterable[str], path: str | Path, dialect: Dialect, first_line: int = 1
) -> Iterator[tuple[int, list[str]]]:
    """Yield each record with the line at which it begins; a blank line is a record without fields."""
    if dialect.quoting == "none":
        for number, line in enumerate(lines, start=first_line):
            text = line.removesuffix("\n").removesuffix("\r")
            yield number, text.split(dialect.delimiter) if text else []
        return
    # The limit is global to the process, so it is lifted for each record and restored; a text may be a whole book.
    reader = csv.reader(lines, delimiter=dialect.delimiter, strict=True)
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
        yield start, fields


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
    """Return the names in the first record, of which none is there twice.

    Raises:
        DataError: one is, or there is no record.
    """
    for line, names in records:
        repeated = sorted({name for name in names if name and names.count(name) > 1})
        if repeated:
            raise DataError(
                f"the header names {', '.join(map(repr, repeated))} more than once. Give each column its own name.",
                path=path,
                line=line,
            )
        return tuple(names)
    raise DataError("holds only blank lines, expected a header and rows.", path=path)


def _ragged(fields: Sequence[str], header: Sequence[str], path: str | Path, line: int, dialect: Dialect) -> DataError:
    what = {",": "comma", "\t": "tab", ";": "semicolon"}.get(dialect.delimiter, repr(dialect.delimiter))
    if dialect.quoting == "none":
        mend = f"Add what is missing, or take a stray {what} out."
    else:
        mend = f'Add what is missing, or put double quotes around a text that holds a {what} ("like this").'
    got = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
    names = ", ".join(name or "(no name)" for name in header)
    return DataError(
        f"{got}, expected {len(header)} ({names}). {separator_hint(header).strip() or mend}",
        path=path,
        line=line,
    )


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
    if dialect.delimiter == "\t":
        mend += (
            " A .tsv is quoted as a .csv is; where quotes are plain characters (as in GLUE's), convert it to .jsonl."
        )
    return DataError(f"{got}. {mend}", path=path, line=line)
