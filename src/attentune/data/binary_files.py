"""Readers of Parquet and spreadsheets, with size limits: a few kilobytes can unpack to terabytes."""

import itertools
import json
import math
import os
import subprocess
import sys
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attentune.config.parse import did_you_mean
from attentune.config.schema import DataConfig
from attentune.data.tables import LABELS, TEXT_PAIRS, TEXTS, WHOLE, ChunkLimit, Table, as_cell, check_names, in_chunks
from attentune.data.text_files import parse_records
from attentune.data.text_formats import (
    MAX_BYTES,
    SNIFFED_BYTES,
    Dialect,
    check_no_page,
    check_ratio,
    has_header,
    named_columns,
)
from attentune.errors import DataError
from attentune.plugins import require_extra

# Batch size: so many rows, or fewer if they have more bytes. A cell that is no text has so many.
_BATCH_ROWS, _BATCH_BYTES, _CELL_BYTES = 4096, 1 << 24, 8


def parse_parquet(
    source: Any,
    path: str | Path,
    keep: Collection[str] | None,
    limit: ChunkLimit = WHOLE,
    *,
    file_bytes: int,
    max_bytes: float = math.inf,
) -> Iterator[Table]:
    """Parse the rows of a path or an open file, one table a chunk; only the columns in `keep` are read."""
    require_extra("parquet", "pyarrow", what=str(path))
    import pyarrow as pa

    try:
        file = _opened(source, path, keep)
        names = tuple(file.schema_arrow.names)
        selected = [name for name in names if keep is None or name in keep]
        if file.metadata.num_rows * len(selected) * _CELL_BYTES > max_bytes:
            raise _too_large(path, max_bytes)

        def table(cells: list[tuple[Any, ...]], first_row: int) -> Table:
            columns = dict(zip(selected, zip(*cells, strict=True), strict=True)) if selected else {}
            return Table(str(path), names, columns, len(cells), first_row=first_row)

        empty = DataError("holds columns but no rows. Add rows.", path=path)
        yield from in_chunks(_parquet_rows(file, path, selected, file_bytes, max_bytes), limit, table, empty=empty)
    except (pa.ArrowException, ValueError, OSError, MemoryError, OverflowError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"not a whole Parquet file ({reason}). Write it again.", path=path) from error


def _too_large(path: str | Path, max_bytes: float) -> DataError:
    return DataError(f"holds more than the {max_bytes:.0f} bytes that are read. Split the file.", path=path)


def _opened(source: Any, path: str | Path, keep: Collection[str] | None) -> Any:
    """Open the file; columns of texts are read as dictionaries, so that repeated texts are held once."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(source)
    names = file.schema_arrow.names
    check_names(names, path)
    kinds = {field.name: field.type for field in file.schema_arrow if keep is None or field.name in keep}
    texts = [name for name, kind in kinds.items() if pa.types.is_string(kind) or pa.types.is_large_string(kind)]
    return pq.ParquetFile(source, read_dictionary=texts)


def _parquet_rows(
    file: Any, path: str | Path, selected: list[str], file_bytes: int, max_bytes: float
) -> Iterator[tuple[tuple[Any, ...], int]]:
    unpacked = 0
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        size = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(group.total_byte_size // max(group.num_rows, 1), 1)))
        for batch in file.iter_batches(batch_size=size, row_groups=[number], columns=selected):
            batch.validate(full=True)
            columns = [_cells(array) for array in batch.columns]
            sizes = [[len(cell) if isinstance(cell, str) else _CELL_BYTES for cell in cells] for cells in columns]
            unpacked += sum(map(sum, sizes))
            if unpacked > max_bytes:
                raise _too_large(path, max_bytes)
            check_ratio(unpacked, file_bytes, path)
            records = zip(*columns, strict=True) if columns else ((),) * batch.num_rows
            for row, cells in enumerate(records):
                yield cells, sum(lengths[row] for lengths in sizes)


def _cells(array: Any) -> list[Any]:
    """Return the cells of an array; equal texts are held once."""
    import pyarrow as pa

    if isinstance(array, pa.DictionaryArray):
        values = [as_cell(value) for value in array.dictionary.to_pylist()]
        return [None if place is None else values[place] for place in array.indices.to_pylist()]
    return [as_cell(value) for value in array.to_pylist()]


# The most time that reading a spreadsheet may take.
_SECONDS = 600.0
_ENDED = "reading it ends at once or takes all memory: it is damaged, or has a cell far from the others"


def parse_spreadsheet(path: Path, config: DataConfig) -> Table:
    """Parse a sheet of a spreadsheet: numbers as they are shown without a format, dates in ISO 8601."""
    with path.open("rb") as file:
        check_no_page(file.read(SNIFFED_BYTES), path)
    require_extra("excel", "python_calamine", what=f"{path} (or save it as .csv)")
    sheets, sheet = _sheets(path), config.sheet
    filled = [name for name, rows in sheets.items() if any(map(any, rows))]
    if not filled:
        raise DataError("has no rows. Add a row of column names and rows below it.", path=path)
    if sheet is not None and sheet not in filled:
        known = "is empty." if sheet in sheets else f"is not there.{did_you_mean(sheet, filled)}"
        raise DataError(
            f"the sheet {sheet!r} {known} Sheets with rows: {', '.join(map(repr, filled))}. Name one with --sheet.",
            path=path,
        )
    name = _likely(sheets, filled, named_columns(config)) if sheet is None else sheet
    is_guess = sheet is None and len(filled) > 1
    note = f"{path}: the sheet {name!r} is read, of {', '.join(map(repr, filled))}; --sheet names another."
    rows = [(line, row if any(row) else []) for line, row in enumerate(sheets[name], start=1)]
    records = itertools.dropwhile(lambda record: not record[1], rows)
    dialect = Dialect(has_header=has_header(next(row for _, row in rows if row), config))
    (table,) = parse_records(records, path, dialect)
    return replace(table, notes=(note,) if is_guess else ())


def _likely(sheets: Mapping[str, list[list[str]]], filled: Sequence[str], columns: Collection[str]) -> str:
    """Return the first sheet with the wanted columns, or with a text and a label, or with a text; else the first."""
    headers = {name: set(next(row for row in sheets[name] if any(row))) for name in filled}
    lower = {name: {cell.lower() for cell in header} for name, header in headers.items()}
    pairs = {name for pair in TEXT_PAIRS for name in pair}
    with_text = [name for name in filled if lower[name] & {*TEXTS, *pairs}]
    wanted = [name for name in filled if columns and headers[name].issuperset(columns)]
    return (wanted or [name for name in with_text if lower[name] & {*LABELS}] or with_text or filled)[0]


def _sheets(path: Path) -> dict[str, list[list[str]]]:
    """Return the rows of each sheet, read in a process of its own."""
    command = [sys.executable, "-P", str(Path(__file__).with_name("sheets.py")), str(path), str(MAX_BYTES)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        if zipfile.is_zipfile(path):  # newer spreadsheets, of which one may be a decompression bomb
            with zipfile.ZipFile(path) as archive:
                check_ratio(sum(part.file_size for part in archive.infolist()), path.stat().st_size, path)
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
