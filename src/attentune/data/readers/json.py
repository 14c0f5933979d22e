"""Reader of JSON and JSON-lines files."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attentune.data.names import CONVENTIONAL
from attentune.data.readers.table import WHOLE, ChunkLimit, Table, as_cell, in_chunks
from attentune.errors import DataError

# Names of splits, which may be those of an object's parts.
_SPLITS = {"train", "training", "dev", "valid", "validation", "val", "test", "eval"}
_BLANK = re.compile(r"[ \t\r\n]*")


class _RepeatedKeyError(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedKeyError(next(name for name in names if names.count(name) > 1))
    return record


# Numbers stay as they are written: 1.0 is "1.0", and long numbers lose no digits. NaN and Infinity are missing
# values.
_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=str, parse_float=str, parse_constant=lambda _: None)


def parse_json_lines(
    lines: Iterable[str],
    path: str | Path,
    keep: Collection[str] | None = None,
    limit: ChunkLimit = WHOLE,
) -> Iterator[Table]:
    """Parse lines of one object each; yields one table per chunk. Blank lines are skipped.

    A chunk has the columns of its objects.
    """
    done = 0

    def table(rows: list[tuple[Any, int]]) -> Table:
        nonlocal done
        records, places = zip(*rows, strict=True)
        made = _table(records, places, path, keep, first_row=done)
        done += len(rows)
        return made

    numbered = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    records = (((_decode(line, path, number), number), len(line)) for number, line in numbered)
    yield from in_chunks(records, limit, table)
    if not done:
        raise _no_rows(path)


def parse_json(text: str, path: str | Path, keep: Collection[str] | None = None) -> Table:
    """Parse a list of objects, `{"data": [...]}`, one object per line, or the other shapes that pandas writes."""
    start = _blank_end(text, 0)
    first_line = text[start:].split("\n", 1)[0]
    has_more = bool(text[start + len(first_line) :].strip())
    if text[start : start + 1] == "{" and has_more and _is_record(first_line):
        return next(parse_json_lines(text.split("\n"), path, keep))
    whole = _decode(text, path, 0)
    place = start if isinstance(whole, list) else _data_place(text, start, whole)
    if place is None:
        if isinstance(whole, dict):
            return _reshaped(whole, path, keep) or _table([whole], [1 + text.count("\n", 0, start)], path, keep)
        raise DataError(
            f"holds a {type(whole).__name__}, expected a list of objects: [{{...}}, {{...}}].", path=path, line=1
        )
    records, places = _items(text, place)
    return _table(records, places, path, keep)


def _reshaped(whole: Mapping[str, Any], path: str | Path, keep: Collection[str] | None) -> Table | None:
    """Read one object of columns or of rows by their ids, as pandas writes them; None if it is one row."""
    values = list(whole.values())
    columns = whole.get("columns")
    if isinstance(columns, list) and isinstance(whole.get("data"), list) and {*whole} <= {"columns", "index", "data"}:
        if not all(isinstance(row, list) and len(row) == len(columns) for row in whole["data"]):
            raise DataError("has rows of another length than its columns. Write it again.", path=path)
        return _with_note([dict(zip(columns, row, strict=True)) for row in whole["data"]], path, keep, "rows of cells")
    if values and all(isinstance(value, list) for value in values):
        if any(isinstance(item, dict) for value in values for item in value):
            raise _splits_error(whole, path)
        if len({len(value) for value in values}) != 1:
            sizes = ", ".join(f"{name!r} ({len(value)})" for name, value in list(whole.items())[:5])
            raise DataError(f"holds lists of different lengths, expected columns of one length: {sizes}.", path=path)
        records = [dict(zip(whole, cells, strict=True)) for cells in zip(*values, strict=True)]
        return _with_note(records, path, keep, "columns, a list each")
    if not values or not all(isinstance(value, dict) for value in values):
        return None
    if _SPLITS.issuperset(whole) and all(isinstance(cell, (list, dict)) for value in values for cell in value.values()):
        raise _splits_error(whole, path)
    inner = list(dict.fromkeys(name for value in values for name in value))
    if _are_columns(list(whole), inner):
        records = [{name: value.get(row) for name, value in whole.items()} for row in inner]
        return _with_note(records, path, keep, "columns of cells by row")
    key = () if "id" in inner else ("id",)
    records = [{**dict.fromkeys(key, row), **value} for row, value in whole.items()]
    return _with_note(records, path, keep, "rows by their ids")


def _are_columns(outer: Sequence[str], inner: Sequence[str]) -> bool:
    """Whether the outer names of an object of objects are those of columns, not of rows."""
    if all(name.isdigit() for name in inner) or all(name.isdigit() for name in outer):
        return all(name.isdigit() for name in inner)
    known = [any(name.lower() in CONVENTIONAL for name in names) for names in (outer, inner)]
    return known[0] if known[0] != known[1] else len(inner) > len(outer)


def _with_note(records: list[Any], path: str | Path, keep: Collection[str] | None, shape: str) -> Table:
    table = _table(records, range(len(records)), path, keep)
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
        raise DataError(
            f"an object names {str(error)!r} more than once. Give each value its own name.",
            path=path,
            line=line or None,
        ) from error
    except RecursionError as error:
        raise DataError("nested too deeply, expected flat objects.", path=path, line=line or None) from error


def _blank_end(text: str, place: int) -> int:
    match = _BLANK.match(text, place)
    return match.end() if match else place


def _data_place(text: str, start: int, whole: Any) -> int | None:
    """The offset of the list in `{"data": [...]}`, or None if the text is no such object."""
    if not isinstance(whole, dict) or not isinstance(whole.get("data"), list) or isinstance(whole.get("columns"), list):
        return None
    place = start + 1
    while True:
        key, place = _DECODER.raw_decode(text, _blank_end(text, place))
        place = _blank_end(text, _blank_end(text, place) + 1)
        if key == "data":
            return place
        _, place = _DECODER.raw_decode(text, place)
        place = _blank_end(text, place) + 1


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


def _no_rows(path: str | Path) -> DataError:
    return DataError("holds no rows, expected at least one object.", path=path)


def _table(
    records: Sequence[Any], lines: Sequence[int], path: str | Path, keep: Collection[str] | None, first_row: int = 0
) -> Table:
    if not records:
        raise _no_rows(path)
    for record, line in zip(records, lines, strict=True):
        if not isinstance(record, dict):
            raise DataError(
                f'a {type(record).__name__}, expected an object such as {{"text": "...", "label": "..."}}.',
                path=path,
                line=line,
            )
    names = tuple(dict.fromkeys(name for record in records for name in record))
    selected = [name for name in names if keep is None or name in keep]
    columns = {name: [as_cell(record.get(name)) for record in records] for name in selected}
    return Table(str(path), names, columns, len(records), tuple(lines), first_row=first_row)
