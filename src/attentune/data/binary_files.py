"""Readers of Parquet, Feather and spreadsheets, with size limits: a few kilobytes can unpack to terabytes."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import subprocess
import sys
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attentune.config.parse import did_you_mean
from attentune.data.tables import LABELS, TEXT_PAIRS, TEXTS, WHOLE, ChunkLimit, Table, as_cell
from attentune.data.text_files import check_header, numbered_names
from attentune.data.text_formats import MAX_BYTES, SNIFFED_BYTES, check_no_page, check_ratio
from attentune.errors import DataError

# Batch size: so many rows, or fewer if they may have more bytes.
_BATCH_ROWS, _BATCH_BYTES = 4096, 1 << 24
# The minimum size of a cell.
_CELL_BYTES = 8


def parse_parquet(
    source: Path | bytes,
    path: str | Path,
    keep: Collection[str] | None,
    max_bytes: float,
    limit: ChunkLimit = WHOLE,
    *,
    packed_bytes: int,
) -> Iterator[Table]:
    """Parse a Parquet file; yields one table per chunk."""
    with _whole_file(path):
        file = _opened(source, ())
        names = tuple(file.schema_arrow.names)
        selected = [name for name in names if keep is None or name in keep]
        _check(file, path, names, selected, max_bytes)
        texts = [field.name for field in file.schema_arrow if field.name in selected and _is_text(field.type)]
        total, done = file.metadata.num_rows, 0
        groups = range(file.metadata.num_row_groups)
        batches = _batches(file, _opened(source, texts), selected, texts, groups)
        for columns, rows in _chunks(batches, path, selected, max_bytes, limit, packed_bytes):
            done += rows
            if done > total:
                break
            yield Table(str(path), names, columns, rows, first_row=done - rows)
    if done != total:
        raise DataError("not a whole Parquet file (its parts differ in their rows). Write it again.", path=path)


def scan_parquet(source: Any, path: str) -> tuple[tuple[str, ...], int]:
    """Return the names of the columns and the number of rows."""
    with _whole_file(path):
        file = _opened(source, ())
        names = tuple(file.schema_arrow.names)
        _check(file, path, names, (), math.inf)
        return names, file.metadata.num_rows


def read_parquet_batches(
    sources: tuple[Any, Any], path: str, keep: Sequence[str], *, packed_bytes: int, first_row: int, num_rows: int
) -> Iterator[Any]:
    """Yield consecutive rows of a Parquet file as `pyarrow.RecordBatch`; only their row groups are read.

    Where the batches of a row group end does not depend on the rows asked for.
    """
    with _whole_file(path):
        file = _opened(sources[0], ())
        selected = [name for name in file.schema_arrow.names if name in keep]
        texts = [field.name for field in file.schema_arrow if field.name in selected and _is_text(field.type)]
        shared = _opened(sources[1], texts)
        first, end, unpacked = 0, first_row + num_rows, 0
        for number in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(number).num_rows
            if first < end and first + rows > first_row:
                place = first
                for batch in _batches(file, shared, selected, texts, [number]):
                    unpacked += batch.nbytes
                    check_ratio(unpacked, packed_bytes, path)
                    start, stop = max(first_row - place, 0), min(end - place, batch.num_rows)
                    place += batch.num_rows
                    if start < stop:
                        yield batch.slice(start, stop - start)
                    if place >= end:
                        break
            first += rows


def table_of_arrow(arrow: Any, path: str, first_row: int) -> Table:
    """Convert a `pyarrow.Table` to a table of cells."""
    columns = {name: _of_array(arrow.column(name).combine_chunks())[0] for name in arrow.column_names}
    return Table(path, tuple(arrow.column_names), columns, arrow.num_rows, first_row=first_row)


@contextlib.contextmanager
def _whole_file(path: str | Path) -> Iterator[None]:
    """Convert pyarrow's errors to a `DataError`."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, ValueError, OSError, MemoryError, OverflowError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"not a whole Parquet file ({reason}). Write it again.", path=path) from error


def _opened(source: Any, texts: Collection[str]) -> Any:
    """Open the file; the columns in `texts` are read as dictionaries, so that repeated texts are held once."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pq.ParquetFile(pa.BufferReader(source) if isinstance(source, bytes) else source, read_dictionary=list(texts))


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _check(file: Any, path: str | Path, names: tuple[str, ...], selected: Collection[str], max_bytes: float) -> None:
    """Check the metadata of the file before unpacking it."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(
            f"names {', '.join(map(repr, repeated))} more than once. Give each column its own name.", path=path
        )
    facts = file.metadata
    if facts.num_rows == 0:
        raise DataError("holds columns but no rows. Add rows.", path=path)
    if max_bytes == math.inf:
        return
    groups = [facts.row_group(number) for number in range(facts.num_row_groups)]
    unpacked = max(sum(group.total_byte_size for group in groups), facts.num_rows * len(selected) * _CELL_BYTES)
    if unpacked <= max_bytes:
        paths = [file.schema.column(place).path for place in range(len(file.schema))]
        roots = tuple(f"{name}." for name in selected)
        leaves = [place for place, leaf in enumerate(paths) if f"{leaf}.".startswith(roots)]
        for number in range(len(groups)):  # a damaged column is an error here, but would end the process below
            next(file.iter_batches(batch_size=1, row_groups=[number], columns=list(selected)), None)
        values = sum(group.column(place).num_values for group in groups for place in leaves)
        unpacked = max(unpacked, values * _CELL_BYTES)
    if unpacked > max_bytes:
        raise DataError(
            f"holds {unpacked} bytes when unpacked, more than the {max_bytes} that are read. Split the file.", path=path
        )


def _batches(file: Any, shared: Any, selected: list[str], texts: list[str], groups: Iterable[int]) -> Iterator[Any]:
    """Yield the rows of row groups in batches, which are small if texts are long."""
    for number in groups:
        group = file.metadata.row_group(number)
        longest = group.total_byte_size // max(group.num_rows, 1)
        # The first row of a dictionary column comes with the whole dictionary.
        first = next(shared.iter_batches(batch_size=1, row_groups=[number], columns=texts), None) if texts else None
        for array in () if first is None else first.columns:
            longest = max(longest, _longest_bytes(array))
        rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(longest, 1)))
        for batch in file.iter_batches(batch_size=rows, row_groups=[number], columns=selected):
            batch.validate(full=True)
            yield batch


def _longest_bytes(array: Any) -> int:
    """The length of the longest text in the dictionary."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = array.dictionary if isinstance(array, pa.DictionaryArray) else array
    return pc.max(pc.binary_length(texts)).as_py() or 0


def _chunks(
    batches: Iterable[Any],
    path: str | Path,
    selected: list[str],
    max_bytes: float,
    limit: ChunkLimit,
    packed_bytes: int,
) -> Iterator[tuple[dict[str, list[Any]], int]]:
    """Yield the cells of the kept columns and the number of rows of each chunk."""
    columns: dict[str, list[Any]] = {name: [] for name in selected}
    rows, chunk_size, unpacked = 0, 0, 0
    for batch in batches:
        arrays = [_of_array(array) for array in batch.columns]
        size = sum(size for _, size in arrays)
        unpacked += size
        if unpacked > max_bytes:
            raise DataError(f"holds more than the {max_bytes} bytes that are read. Split the file.", path=path)
        check_ratio(unpacked, packed_bytes, path)
        if rows and (rows + batch.num_rows > limit.rows or chunk_size + size > limit.characters):
            yield columns, rows
            columns, rows, chunk_size = {name: [] for name in selected}, 0, 0
        for name, (cells, _) in zip(batch.schema.names, arrays, strict=True):
            columns[name] += cells
        rows, chunk_size = rows + batch.num_rows, chunk_size + size
    yield columns, rows


def _of_array(array: Any) -> tuple[list[Any], int]:
    """Return the cells of an array and their size in bytes. Equal texts are held once."""
    import pyarrow as pa

    if isinstance(array, pa.DictionaryArray):
        values = [as_cell(value) for value in array.dictionary.to_pylist()]
        places = array.indices.to_pylist()
        sizes = [len(value) if isinstance(value, str) else _CELL_BYTES for value in values]
        size = sum(_CELL_BYTES if place is None else sizes[place] for place in places)
        return [None if place is None else values[place] for place in places], size
    cells = [as_cell(value) for value in array.to_pylist()]
    if _is_text(array.type):
        interned: dict[str | None, str | None] = {}
        cells = [interned.setdefault(cell, cell) for cell in cells]
    return cells, array.nbytes


SPREADSHEETS = (".xlsx", ".xls", ".xlsb", ".ods")
FEATHER = (".feather", ".arrow")
# The most time that reading a spreadsheet may take.
_SECONDS = 600.0
_ENDED = "reading it ends at once or takes all memory: it is damaged, or has a cell far from the others"


def parse_spreadsheet(
    path: Path,
    keep: Collection[str] | None = None,
    *,
    sheet: str | None = None,
    has_header: bool = True,
    columns: Collection[str] = (),
) -> Table:
    """Parse a sheet of a spreadsheet; its first row that is not empty has the names.

    Numbers are texts as they are shown without a format (5, not 5.0), dates are ISO 8601, and an empty cell is an empty
    text. Columns without a name, and empty rows at the end, are left out.
    """
    with path.open("rb") as file:
        check_no_page(file.read(SNIFFED_BYTES), path)
    try:
        importlib.import_module("python_calamine")
    except ImportError as error:
        raise DataError(
            "reading spreadsheets needs python-calamine: pip install 'attentune[excel]', or save the file as .csv.",
            path=path,
        ) from error
    sheets = _sheets(path)
    filled = [name for name, rows in sheets.items() if any(map(any, rows))]
    if not filled:
        raise DataError("has no rows. Add a row of column names and rows below it.", path=path)
    if sheet is not None and sheet not in filled:
        known = "is empty." if sheet in sheets else f"is not there.{did_you_mean(sheet, filled)}"
        raise DataError(
            f"the sheet {sheet!r} {known} Sheets with rows: {', '.join(map(repr, filled))}. Name one with --sheet.",
            path=path,
        )
    name = _likely(sheets, filled, columns) if sheet is None else sheet
    is_guess = sheet is None and len(filled) > 1
    note = f"{path}: the sheet {name!r} is read, of {', '.join(map(repr, filled))}; --sheet names another."
    notes = (note,) if is_guess else ()
    return _table(sheets[name], path, keep, notes, has_header)


def _likely(sheets: Mapping[str, list[list[str]]], filled: Sequence[str], columns: Collection[str]) -> str:
    """Return the first sheet with the wanted columns, or with a text and a label, or with a text; else the first."""
    headers = {name: set(next(row for row in sheets[name] if any(row))) for name in filled}
    lower = {name: {cell.lower() for cell in header} for name, header in headers.items()}
    pairs = {name for pair in TEXT_PAIRS for name in pair}
    with_text = [name for name in filled if lower[name] & {*TEXTS, *pairs}]
    wanted = [name for name in filled if columns and headers[name].issuperset(columns)]
    return (wanted or [name for name in with_text if lower[name] & {*LABELS}] or with_text or filled)[0]


def _table(
    rows: list[list[str]], path: Path, keep: Collection[str] | None, notes: tuple[str, ...], has_header: bool
) -> Table:
    while not any(rows[-1]):
        rows.pop()
    top = next(number for number, row in enumerate(rows) if any(row))
    if not has_header:
        rows.insert(top, list(numbered_names(len(rows[top]))))
    header, body = check_header([(top + 1, rows[top])], path), rows[top + 1 :]
    if not body:
        raise DataError("holds a header but no rows. Add rows below it.", path=path)
    first = top + 2 if has_header else top + 1
    for line, row in enumerate(body, start=first):
        if not any(row):
            raise DataError("an empty row between rows, expected a row. Delete it.", path=path, line=line)
    places = {name: place for place, name in enumerate(header) if name and (keep is None or name in keep)}
    columns = {name: tuple(row[place] for row in body) for name, place in places.items()}
    lines = tuple(range(first, first + len(body)))
    names = tuple(filter(None, header))
    return Table(str(path), names, columns, len(body), lines, notes=notes, names_from_row=has_header)


def _sheets(path: Path) -> dict[str, list[list[str]]]:
    """Return the rows of each sheet, read in a process of its own."""
    command = [sys.executable, "-P", str(Path(__file__).with_name("sheets.py")), str(path), str(MAX_BYTES)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        _check_archive(path)
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, env=environment)
        found: Any = json.loads(done.stdout) if done.returncode == 0 else _ENDED
    except subprocess.TimeoutExpired:
        found = f"reading it took more than {_SECONDS:g} seconds"
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        found = str(error)
    if isinstance(found, str):
        raise DataError(
            f"cannot be read as a spreadsheet ({found[:200]}). Open it, and save it again without a password.",
            path=path,
        )
    return found


def _check_archive(path: Path) -> None:
    """Refuse a decompression bomb; newer spreadsheets are zip archives."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            check_ratio(sum(part.file_size for part in archive.infolist()), path.stat().st_size, path)


def parse_feather(path: Path, keep: Collection[str] | None = None) -> Table:
    """Parse a Feather (version 2) or Arrow file."""
    import pyarrow as pa

    try:
        with pa.OSFile(str(path)) as file:
            reader = pa.ipc.open_file(file)
            names: Sequence[str] = reader.schema.names
            batches, unpacked = [], 0
            for number in range(reader.num_record_batches):
                batches.append(reader.get_batch(number))
                batches[-1].validate(full=True)  # wrong offsets would end the process
                unpacked += batches[-1].nbytes
                check_ratio(unpacked, path.stat().st_size, path)
            arrow = pa.Table.from_batches(batches, reader.schema)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(
            f"not a whole Feather file ({str(error).splitlines()[0][:200]}). Write it again.", path=path
        ) from error
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(f"the columns {', '.join(repeated)} are there more than once. Rename them.", path=path)
    if not arrow.num_rows:
        raise DataError("has no rows. Add rows.", path=path)
    selected = [name for name in names if keep is None or name in keep]
    table = table_of_arrow(arrow.select(selected), str(path), 0)
    return Table(str(path), tuple(names), table.columns, arrow.num_rows)
