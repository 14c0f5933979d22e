"""Readers of text files: separated by commas, tabs and the like, one text a line, JSON lines, and JSON."""

import csv
import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from attentune.data.tables import CONVENTIONAL, WHOLE, ChunkLimit, Table, as_cell, check_names, in_chunks, listed
from attentune.data.text_formats import Dialect, RowShapes, csv_records, holds_sheets
from attentune.errors import DataError

# The column of a file with one text a line.
_TEXT = "text"
# The line of a row, and its fields.
_Row = tuple[int, tuple[str, ...]]


def parse_delimited(
    lines: Iterable[str],
    path: str | Path,
    dialect: Dialect,
    keep: Collection[str] | None = None,
    limit: ChunkLimit = WHOLE,
) -> Iterator[Table]:
    """Parse the lines of a file; yields one table per chunk."""
    swallowed = list[str]()
    for table in parse_records(_records(lines, path, dialect, swallowed), path, dialect, keep, limit):
        yield replace(table, notes=(_swallowed_note(swallowed, path),)) if swallowed else table
        swallowed.clear()


def parse_records(
    records: Iterator[tuple[int, list[str]]],
    path: str | Path,
    dialect: Dialect,
    keep: Collection[str] | None = None,
    limit: ChunkLimit = WHOLE,
) -> Iterator[Table]:
    """Parse records with their lines, in which a blank line has no fields; yields one table per chunk."""
    left_out = list[tuple[int, str, Any]]()
    header, records = _header(_without_blank_end(records, path), path, dialect)
    wanted = [place for place, name in enumerate(header) if name and (keep is None or name in keep)]
    names = tuple(name for name in header if name)

    def table(rows: list[_Row], first_row: int) -> Table:
        lines, records = zip(*rows, strict=True)
        cells = list(zip(*records, strict=True)) if wanted else []
        columns = {header[place]: column for place, column in zip(wanted, cells, strict=True)}
        made = Table(str(path), names, columns, len(rows), lines, left_out=tuple(left_out), first_row=first_row)
        left_out.clear()
        return replace(made, names_from_row=dialect.header is None and dialect.has_header)

    rows = _rows(records, header, wanted, left_out, path, dialect)
    empty = DataError("holds a header but no rows. Add rows below it.", path=path)
    yield from in_chunks(rows, limit, table, empty=empty)


def _rows(
    records: Iterable[tuple[int, list[str]]],
    header: Sequence[str],
    wanted: Sequence[int],
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
        elif dialect.skip_broken:
            left_out.append((line, f"{len(fields)} fields, expected {len(header)}", fields))
        else:
            more = [(number, len(cells)) for number, cells in records if len(cells) != len(header)]
            raise _ragged([(line, len(fields)), *more], header, path, dialect)


def _records(
    lines: Iterable[str], path: str | Path, dialect: Dialect, swallowed: list[str]
) -> Iterator[tuple[int, list[str]]]:
    """Yield each record with the line at which it begins; a blank line is a record without fields."""
    lines, first_line = iter(lines), 1
    if dialect.has_sep_line:
        next(lines, None)
        first_line = 2
    if dialect.quoting == "none":
        for number, line in enumerate(lines, start=first_line):
            text = line.removesuffix("\n").removesuffix("\r")
            yield number, text.split(dialect.delimiter) if text else []
        return
    held: list[str] = []

    def kept() -> Iterator[str]:
        for line in lines:
            held.append(line)
            yield line

    shapes, start = RowShapes(dialect.delimiter), first_line
    try:
        for begin, end, fields in csv_records(kept(), dialect.delimiter, skips_spaces=dialect.skips_spaces):
            if end - begin == 1:
                shapes.add(fields)
            elif shapes.are_rows(held):
                swallowed.append(f"{start} to {start + len(held) - 1}")
            held.clear()
            yield start, fields
            start = end + first_line
    except csv.Error as error:
        raise _bad_quoting(error, path, start) from error


def _swallowed_note(spans: Sequence[str], path: str | Path) -> str:
    return (
        f"{path}: the lines {listed(spans)} are one row each, as a double quote holds them together, but"
        " each line looks like a row. If it is one, double that quote or take it out."
    )


def _without_blank_end(records: Iterator[tuple[int, list[str]]], path: str | Path) -> Iterator[tuple[int, list[str]]]:
    first_blank = None
    for line, fields in records:
        if not fields:
            first_blank = first_blank or line
        elif first_blank:
            quoted = "" if holds_sheets(path) else ' (or write "" if it stands for an empty text)'
            raise DataError(
                f"a blank line between rows, expected a row. Delete it{quoted}.", path=path, line=first_blank
            )
        else:
            yield line, fields


def _header(
    records: Iterator[tuple[int, list[str]]], path: str | Path, dialect: Dialect
) -> tuple[tuple[str, ...], Iterator[tuple[int, list[str]]]]:
    """Return the names of the columns, without spaces and quotes around them, and the records of rows."""
    if dialect.header is not None:
        return dialect.header, records
    first = next(records, None)
    if first is None:
        raise DataError(f"holds only blank lines, expected {'a header and ' * dialect.has_header}rows.", path=path)
    line, cells = first
    if not dialect.has_header:
        return tuple(f"column_{number}" for number in range(1, len(cells) + 1)), itertools.chain([first], records)
    names = tuple(_unquoted(cell.strip()) for cell in cells)
    # A conventional name is no cell of a row.
    is_row = not any(name.lower() in CONVENTIONAL for name in names)
    cure = "; or, if the first line is a row, give --no_header (the columns are then column_1, column_2, ...)"
    check_names([name for name in names if name], path, line=line, cure=cure if is_row else "")
    return names, records


def _unquoted(name: str) -> str:
    """Return a name without the quotes that a space before them has kept from being read as such."""
    return name[1:-1].replace('""', '"') if len(name) > 1 and name[0] == name[-1] == '"' else name


def _ragged(broken: Sequence[tuple[int, int]], header: Sequence[str], path: str | Path, dialect: Dialect) -> DataError:
    """Return the error for rows with a wrong number of fields, by their lines and numbers of fields."""
    what = {",": "comma", "\t": "tab", ";": "semicolon"}.get(dialect.delimiter, repr(dialect.delimiter))
    mend = f'Add what is missing, or put double quotes around a text that holds a {what} ("like this").'
    if dialect.quoting == "none":
        mend = f"Add what is missing, or take a stray {what} out."
    (line, count), *more = broken
    names, others = ", ".join(name or "(no name)" for name in header), ""
    if more:
        shown = listed((f"{number} ({fields})" for number, fields in more), 4)
        others = f" {len(broken):,} rows have another number of fields, the others in lines {shown}."
    end = separator_hint(header).strip() or f"{mend} --skip_broken_rows leaves such rows out of training."
    got = f"{count} field{'s' * (count != 1)}"
    return DataError(f"{got}, expected {len(header)} ({names}).{others} {end}", path=path, line=line)


def separator_hint(header: Sequence[str]) -> str:
    """Return a hint if the header is one field that contains another separator, otherwise an empty string."""
    if len(header) == 1:
        for mark, what in (("\t", "tabs"), (",", "commas"), (";", "semicolons"), ("|", "vertical bars")):
            if mark in header[0]:
                return f" The header looks separated by {what}, but not all of the first rows have as many fields."
    return ""


def _bad_quoting(error: csv.Error, path: str | Path, line: int) -> DataError:
    reason = str(error).replace("\t", "\\t")
    cure = 'In a field that begins with a double quote, double each quote inside it and close it ("he said ""no""").'
    if "end of data" in reason:
        got = "opens a double quote that is never closed"
    elif "new-line character" in reason:
        got, cure = "has a bare carriage return outside of quotes", "Save the file with Unix or Windows line ends."
    else:
        got = f"has quotes that do not pair up ({reason})"
    return DataError(f"the row that begins here {got}. {cure}", path=path, line=line)


def parse_plain_lines(lines: Iterable[str], path: str | Path, limit: ChunkLimit) -> Iterator[Table]:
    """Read each line as a text, the column `text`. Empty lines are empty texts, but those at the end are left out."""

    def table(rows: list[str], first: int) -> Table:
        lines = tuple(range(first + 1, first + len(rows) + 1))
        return Table(str(path), (_TEXT,), {_TEXT: tuple(rows)}, len(rows), lines, first_row=first)

    empty = DataError("holds only empty lines, expected one text a line.", path=path)
    yield from in_chunks(((text, len(text)) for text in _without_end(lines)), limit, table, empty=empty)


def _without_end(lines: Iterable[str]) -> Iterator[str]:
    empty = 0
    for line in lines:
        if not line.strip():
            empty += 1
            continue
        yield from itertools.repeat("", empty)
        empty = 0
        yield line.removesuffix("\n").removesuffix("\r")


# Names of splits, which may be those of an object's parts.
_SPLITS = {"train", "training", "dev", "valid", "validation", "val", "test", "eval"}
_NO_ROWS = "holds no rows, expected at least one object."
_BLANK = re.compile(r"[ \t\r\n]*")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedKeyError(next(name for name in names if names.count(name) > 1))
    return record


class _RepeatedKeyError(ValueError):
    pass


# Numbers stay as they are written: 1.0 is "1.0", and long numbers lose no digits. NaN and Infinity are missing
# values.
_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=str, parse_float=str, parse_constant=lambda _: None)


def parse_json_lines(lines: Iterable[str], path: str | Path, limit: ChunkLimit = WHOLE) -> Iterator[Table]:
    """Parse lines of one object each, or blank ones; yields one table per chunk, with the columns of its objects."""

    def table(rows: list[tuple[Any, int]], first_row: int) -> Table:
        records, places = zip(*rows, strict=True)
        return _table(records, places, path, first_row=first_row)

    numbered = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    records = (((_decode(line, path, number), number), len(line)) for number, line in numbered)
    yield from in_chunks(records, limit, table, empty=DataError(_NO_ROWS, path=path))


def parse_json(text: str, path: str | Path) -> Table:
    """Parse a list of objects, `{"data": [...]}`, one object per line, or the other shapes that pandas writes."""
    start = _blank_end(text, 0)
    first_line = text[start:].split("\n", 1)[0]
    has_more = bool(text[start + len(first_line) :].strip())
    if text[start : start + 1] == "{" and has_more and _is_record(first_line):
        return next(parse_json_lines(text.split("\n"), path))
    whole = _decode(text, path, 0)
    if isinstance(whole, list):
        return _table(*_items(text, start), path)
    if not isinstance(whole, dict):
        raise DataError(
            f"holds a {type(whole).__name__}, expected a list of objects: [{{...}}, {{...}}].", path=path, line=1
        )
    return _reshaped(whole, text, path) or _table([whole], [1 + text.count("\n", 0, start)], path)


def _reshaped(whole: Mapping[str, Any], text: str, path: str | Path) -> Table | None:
    """Read one object of columns or of rows by their ids, as pandas writes them; None if it is one row."""
    values = list(whole.values())
    columns = whole.get("columns")
    if isinstance(whole.get("data"), list) and not isinstance(columns, list):
        found = re.finditer(r'"data"\s*:\s*(?=\[)', text)
        place = next(key.end() for key in found if _DECODER.raw_decode(text, key.end())[0] == whole["data"])
        return _table(*_items(text, place), path)
    if isinstance(columns, list) and isinstance(whole.get("data"), list) and {*whole} <= {"columns", "index", "data"}:
        if not all(isinstance(row, list) and len(row) == len(columns) for row in whole["data"]):
            raise DataError("has rows of another length than its columns. Write it again.", path=path)
        return _with_note([dict(zip(columns, row, strict=True)) for row in whole["data"]], path, "rows of cells")
    if values and all(isinstance(value, list) for value in values):
        if any(isinstance(item, dict) for value in values for item in value):
            raise _splits_error(whole, path)
        if len({len(value) for value in values}) != 1:
            sizes = ", ".join(f"{name!r} ({len(value)})" for name, value in list(whole.items())[:5])
            raise DataError(f"holds lists of different lengths, expected columns of one length: {sizes}.", path=path)
        records = [dict(zip(whole, cells, strict=True)) for cells in zip(*values, strict=True)]
        return _with_note(records, path, "columns, a list each")
    if not values or not all(isinstance(value, dict) for value in values):
        return None
    if _SPLITS.issuperset(whole) and all(isinstance(cell, (list, dict)) for value in values for cell in value.values()):
        raise _splits_error(whole, path)
    inner = list(dict.fromkeys(name for value in values for name in value))
    if _are_columns(list(whole), inner):
        records = [{name: value.get(row) for name, value in whole.items()} for row in inner]
        return _with_note(records, path, "columns of cells by row")
    key = () if "id" in inner else ("id",)
    records = [{**dict.fromkeys(key, row), **value} for row, value in whole.items()]
    return _with_note(records, path, "rows by their ids")


def _are_columns(outer: Sequence[str], inner: Sequence[str]) -> bool:
    """Whether the outer names of an object of objects are those of columns, not of rows."""
    if all(name.isdigit() for name in inner) or all(name.isdigit() for name in outer):
        return all(name.isdigit() for name in inner)
    known = [any(name.lower() in CONVENTIONAL for name in names) for names in (outer, inner)]
    return known[0] if known[0] != known[1] else len(inner) > len(outer)


def _with_note(records: list[Any], path: str | Path, shape: str) -> Table:
    table = _table(records, range(len(records)), path)
    return replace(table, lines=None, notes=(f"{path}: one object, read as {shape} ({len(records):,} rows).",))


def _splits_error(whole: Mapping[str, Any], path: str | Path) -> DataError:
    names = ", ".join(map(repr, list(whole)[:5]))
    first = next(iter(whole))
    return DataError(
        f"one object with rows under {names}, expected rows of one split. Save each in a file of its own (in Python:"
        f' json.dump(json.load(open("FILE"))[{first!r}], open("{first}.json", "w"))), and give them with --train_file,'
        " --validation_file and --test_file.",
        path=path,
    )


def _is_record(line: str) -> bool:
    """Whether a line is a whole record; then the file is JSON lines, whatever its extension."""
    try:
        value = _DECODER.decode(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and not isinstance(value.get("data"), list)


def _decode(text: str, path: str | Path, line: int) -> Any:
    """Decode a JSON text; `line` is its line in the file, or 0 for a whole file."""
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"not valid JSON at column {error.colno}: {error.msg}. Correct this line (json.dumps writes it right).",
            path=path,
            line=line or error.lineno,
        ) from error
    except _RepeatedKeyError as error:
        message = f"an object names {str(error)!r} more than once. Give each value its own name."
        raise DataError(message, path=path, line=line or None) from error
    except RecursionError as error:
        raise DataError("nested too deeply, expected flat objects.", path=path, line=line or None) from error


def _blank_end(text: str, place: int) -> int:
    match = _BLANK.match(text, place)
    return match.end() if match else place


def _items(text: str, place: int) -> tuple[list[Any], list[int]]:
    """The items of the list that begins at `place`, and the line of each. The text must be valid."""
    items, lines = [], []
    line = 1 + text.count("\n", 0, place)
    counted = place
    place = _blank_end(text, place + 1)
    while text[place] != "]":
        line += text.count("\n", counted, place)
        counted = place
        item, place = _DECODER.raw_decode(text, place)
        items.append(item)
        lines.append(line)
        place = _blank_end(text, place)
        if text[place] == ",":
            place = _blank_end(text, place + 1)
    return items, lines


def _table(records: Sequence[Any], lines: Sequence[int], path: str | Path, first_row: int = 0) -> Table:
    if not records:
        raise DataError(_NO_ROWS, path=path)
    for record, line in zip(records, lines, strict=True):
        if not isinstance(record, dict):
            raise DataError(
                f'a {type(record).__name__}, expected an object such as {{"text": "...", "label": "..."}}.',
                path=path,
                line=line,
            )
    names = tuple(dict.fromkeys(name for record in records for name in record))
    columns = {name: [as_cell(record.get(name)) for record in records] for name in names}
    return Table(str(path), names, columns, len(records), tuple(lines), first_row=first_row)
