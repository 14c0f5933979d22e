"""Rows of many files, divided into ranges that are read on their own.

`find_sources` finds the files of `--input_file`, or the split of a dataset; `scan` counts the rows of each and finds
where its blocks of `BLOCK_ROWS` rows begin; `divide` divides them; `read_range` reads one range in chunks. A chunk does
not go beyond a block, so that chunks are the same however the rows are divided.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attentune.data.readers.csv import Dialect, parse_delimited, read_header, scan_delimited
from attentune.data.readers.formats import DELIMITERS, FOUND, HEAD_BYTES, FileOptions, describe, find_dialect
from attentune.data.readers.hub import load_split, read_split_batches
from attentune.data.readers.json import parse_json, parse_json_lines, scan_json_lines
from attentune.data.readers.office import SPREADSHEETS
from attentune.data.readers.parquet import read_parquet_batches, scan_parquet, table_of_arrow
from attentune.data.readers.read import EXTENSIONS, WHOLE_FILES, read_table
from attentune.data.readers.sqlite import SQLITE, parse_sqlite, scan_sqlite
from attentune.data.readers.streams import MAX_BYTES, SNIFFED_BYTES, check_no_page, text_lines, unpacked
from attentune.data.readers.table import BLOCK, BLOCK_ROWS, FIRST, RowStart, Table
from attentune.errors import DataError
from attentune.io.urls import StoredFile, find_files, is_url

DATASET = "dataset"


@dataclass(frozen=True)
class RowSource:
    """A file, or a split of a dataset."""

    path: str  # the absolute path or URL of the file; the name of the dataset
    kind: str  # the ending of the file without ".gz", or `DATASET`
    bytes: int = 0  # the size of the file
    modified: str = ""  # what changes when its content does
    split: str | None = None  # the name of the split
    config_name: str | None = None  # the configuration of the dataset
    delimiter: str | None = None  # the separator of fields, if it is given
    encoding: str | None = None  # the encoding of a file that is not UTF-8, if it is given
    header: bool = True  # whether the first row of the file has the column names
    table: str | None = None  # the table of a SQLite file, if it is given

    @property
    def name(self) -> str:
        """The name for messages."""
        return self.path if self.split is None else f"{self.path}, split {self.split}"

    @property
    def is_packed(self) -> bool:
        """Whether the file is gzipped."""
        return self.kind != DATASET and self.path.lower().endswith(".gz")

    @property
    def is_divisible(self) -> bool:
        """Whether reading can begin in the middle; other files belong to one range as a whole."""
        return not self.is_packed and self.kind not in (".json", *WHOLE_FILES)

    @property
    def has_types(self) -> bool:
        """Whether its columns have types; in other files all cells are texts."""
        return self.kind in (DATASET, ".parquet")

    @property
    def has_header(self) -> bool:
        """Whether the names of its columns are its first row."""
        return self.kind in (*DELIMITERS, *SPREADSHEETS) and self.header

    @property
    def options(self) -> FileOptions:
        """What is given about the file's text."""
        return FileOptions(self.delimiter, self.encoding, self.table, self.header, self.kind[1:])

    @property
    def file(self) -> StoredFile:
        return StoredFile(self.path, self.bytes, self.modified)


@dataclass(frozen=True)
class SourceScan:
    """What is known of a source before its rows are read."""

    names: tuple[str, ...]  # the names of its columns; of JSON lines those of the first block
    rows: int  # the number of rows
    starts: tuple[RowStart, ...]  # where each block begins
    notes: tuple[str, ...] = ()  # how the file is read, if not as its extension says


@dataclass(frozen=True)
class RowRange:
    """Consecutive rows of a source."""

    source: int  # the number of the source, from 0
    start: RowStart  # the first row
    rows: int  # the number of rows


@dataclass(frozen=True)
class RowChunk:
    """Rows in memory."""

    table: Table  # the cells of the columns to interpret
    kept: Any  # a `pyarrow.Table` of the columns to copy; in sources without types, all cells are texts

    def kept_as(self, types: Any) -> Any:
        """Return the columns to copy in the types of a `pyarrow.Schema`."""
        import pyarrow as pa

        try:
            return self.kept.cast(types)
        except (pa.ArrowException, ValueError) as error:
            wanted = ", ".join(f"{field.name} {field.type}" for field in types)
            got = ", ".join(f"{field.name} {field.type}" for field in self.kept.schema)
            raise DataError(
                f"the columns to keep are {got}, expected those of the first file, {wanted} ({error}). Leave them out"
                " of --keep_columns, or convert this file.",
                path=self.table.source,
            ) from error


def find_sources(pattern: str, leave_out: Sequence[str] = (), options: FileOptions = FOUND) -> list[RowSource]:
    """Find the files of a path, URL, pattern or folder; see `find_files`."""
    endings = (*EXTENSIONS, *(f"{ending}.gz" for ending in EXTENSIONS))
    found = []
    for file in find_files(pattern, endings, leave_out):
        # Those that are not read row by row are taken where they are named, but are left out of a folder.
        kind = next((end for end in EXTENSIONS if file.path.lower().removesuffix(".gz").endswith(end)), None)
        kind = next((end for end in (*SQLITE, *WHOLE_FILES) if file.path.lower().endswith(end)), kind)
        if kind is None and options.file_format not in (None, "txt"):
            kind = f".{options.file_format}"
        if kind is None:
            raise DataError(
                f"its name ends in none of {' '.join(EXTENSIONS)}, also with .gz, nor in one of"
                f" {' '.join((*SQLITE, *WHOLE_FILES))}. Name it after what it holds, or"
                " convert it; a dataset of save_to_disk is named with --dataset_name.",
                path=file.path,
            )
        source = RowSource(file.path, kind, file.bytes, file.modified)
        if kind in (*SQLITE, *WHOLE_FILES) and is_url(file.path):
            raise DataError("a file of this kind is not read from a URL. Copy it to this machine.", path=file.path)
        if kind in DELIMITERS:
            source = replace(source, delimiter=options.delimiter, encoding=options.encoding, header=options.header)
        if kind in (*SQLITE, *SPREADSHEETS):
            source = replace(source, table=options.table)
        if kind in WHOLE_FILES:
            source = replace(source, header=options.header)
        found.append(source)
    return found


def dataset_source(name: str, config_name: str | None, split: str) -> RowSource:
    """Return a split of a dataset as a source."""
    loaded = load_split(name, config_name, split)
    return RowSource(name, DATASET, 0, str(loaded._fingerprint), split, config_name)


def scan(source: RowSource) -> SourceScan:
    """Count the rows of a source; a .csv file is read and its rows are checked, a .jsonl file is only read."""
    if source.kind == DATASET:
        split = load_split(source.path, source.config_name, source.split or "")
        return SourceScan(tuple(split.column_names), len(split), _numbered_starts(len(split)))
    if source.kind == ".parquet":
        with _parquet(source) as (plain, _):
            names, rows = scan_parquet(plain, source.path)
        starts = _numbered_starts(rows) if source.is_divisible else (FIRST,)
        return SourceScan(names, rows, starts)
    if source.kind in SQLITE:
        names, rows = scan_sqlite(Path(source.path), source.table)
        return SourceScan(names, rows, _numbered_starts(rows))
    if source.kind in WHOLE_FILES:
        table = read_table(source.path, options=source.options)
        return SourceScan(table.names, len(table), (FIRST,))
    every = BLOCK_ROWS if source.is_divisible else math.inf
    with source.file.open() as file, _text(source, file) as stream:
        position = file.tell if source.is_divisible else lambda: 0
        dialect = _dialect(source, file, stream)
        lines = text_lines(stream, source.path, encoding=dialect.encoding)
        if source.kind == ".json":
            table = parse_json("".join(lines), source.path)
            return SourceScan(table.names, len(table), (FIRST,))
        if source.kind in DELIMITERS:
            names, rows, found, notes = scan_delimited(lines, source.path, dialect, position, every)
            notes = (*describe(dialect, source.kind, source.path, source.options), *notes)
            return SourceScan(tuple(name for name in names if name), rows, tuple(found), notes)
        rows, found = scan_json_lines(lines, source.path, position, every)
    with source.file.open() as file, _text(source, file) as stream:
        lines = text_lines(stream, source.path)
        first = next(parse_json_lines(lines, source.path, None, BLOCK, num_rows=BLOCK_ROWS))
    return SourceScan(first.names, rows, tuple(found))


def first_rows(source: RowSource, found: SourceScan) -> Table:
    """Return the first rows of a source, all columns of them; for a file, whether its names were its first row."""
    part = RowRange(0, FIRST, min(found.rows, BLOCK_ROWS))
    table = next((_typed if source.has_types else _untyped)(source, part, found.names, ()))[0]
    return replace(table, names_from_row=source.has_header)


def divide(scans: Sequence[SourceScan], shards: int) -> list[list[RowRange]]:
    """Divide the rows of all sources, in their order, into shards of about equal size.

    Shards begin where blocks do, so there are empty ones if there are fewer blocks than shards.
    """
    total = sum(one.rows for one in scans)
    divided: list[list[RowRange]] = [[] for _ in range(shards)]
    done = 0
    for number, one in enumerate(scans):
        ends = [start.row for start in one.starts[1:]] + [one.rows]
        for start, end in zip(one.starts, ends, strict=True):
            rows = end - start.row
            # A block belongs to the shard that has its middle.
            ranges = divided[(2 * (done + start.row) + rows) * shards // (2 * total)]
            if ranges and ranges[-1].source == number:
                ranges[-1] = replace(ranges[-1], rows=ranges[-1].rows + rows)
            else:
                ranges.append(RowRange(number, start, rows))
        done += one.rows
    return divided


def read_range(source: RowSource, part: RowRange, wanted: Iterable[str], kept: Sequence[str]) -> Iterator[RowChunk]:
    """Read consecutive rows in chunks."""
    wanted, rows = list(dict.fromkeys(wanted)), 0
    for table, arrow in (_typed if source.has_types else _untyped)(source, part, wanted, kept):
        rows += len(table)
        cells = {name: table.columns.get(name, (None,) * len(table)) for name in wanted}
        yield RowChunk(replace(table, columns=cells), _kept(arrow, kept, len(table)))
    if rows != part.rows:
        raise DataError("has changed while it was read. Start again when nothing writes to it.", path=source.name)


def _typed(
    source: RowSource, part: RowRange, wanted: Sequence[str], kept: Sequence[str]
) -> Iterator[tuple[Table, Any]]:
    """Yield chunks of a Parquet file or dataset as cells and as `pyarrow.Table`."""
    columns, done = [*wanted, *kept], part.start.row
    with contextlib.ExitStack() as stack:
        if source.kind == DATASET:
            split = load_split(source.path, source.config_name, source.split or "")
            batches = read_split_batches(split, columns, first_row=done, num_rows=part.rows)
        else:
            sources, size = stack.enter_context(_parquet(source)), source.bytes
            batches = read_parquet_batches(
                sources, source.path, columns, packed_bytes=size, first_row=done, num_rows=part.rows
            )
        for arrow in _in_blocks(batches, done):
            names = [name for name in arrow.column_names if name in wanted]
            yield table_of_arrow(arrow.select(names), source.name, done), arrow
            done += arrow.num_rows


def _in_blocks(batches: Iterable[Any], first_row: int) -> Iterator[Any]:
    """Yield batches put together to chunks as `pyarrow.Table`; none goes beyond a block."""
    import pyarrow as pa

    held: list[Any] = []
    row, size = first_row, 0
    for batch in batches:
        place = 0
        while place < batch.num_rows:
            piece = batch.slice(place, min(batch.num_rows - place, BLOCK_ROWS - row % BLOCK_ROWS))
            if held and (row % BLOCK_ROWS == 0 or size + piece.nbytes > BLOCK.characters):
                yield pa.Table.from_batches(held)
                held, size = [], 0
            held.append(piece)
            size += piece.nbytes
            row += piece.num_rows
            place += piece.num_rows
    if held:
        yield pa.Table.from_batches(held)


def _untyped(
    source: RowSource, part: RowRange, wanted: Sequence[str], kept: Sequence[str]
) -> Iterator[tuple[Table, Any]]:
    """Yield chunks of a file without types as cells and as `pyarrow.Table` of texts."""
    columns = {*wanted, *kept}
    if source.kind in (*SQLITE, *WHOLE_FILES):
        if source.kind in SQLITE:
            first, count = part.start.row, part.rows
            tables = parse_sqlite(Path(source.path), columns, source.table, BLOCK, first_row=first, num_rows=count)
        else:
            tables = _blocks_of(read_table(source.path, keep=columns, options=source.options))
        for table in tables:
            yield table, _texts_of(table, kept)
        return
    with source.file.open() as file, _text(source, file) as stream:
        dialect, options = _dialect(source, file, stream), {}
        lines = text_lines(stream, source.path, encoding=dialect.encoding)
        if source.is_divisible:
            if source.kind in DELIMITERS:
                dialect = replace(dialect, header=read_header(lines, source.path, dialect))
            file.seek(part.start.byte)
            lines = text_lines(stream, source.path, first_line=part.start.line, encoding=dialect.encoding)
            options = {"start": part.start, "num_rows": part.rows}
        if source.kind == ".json":
            tables = _blocks_of(parse_json("".join(lines), source.path, columns))
        elif source.kind in DELIMITERS:
            tables = parse_delimited(lines, source.path, dialect, columns, BLOCK, **options)  # type: ignore[arg-type]
        else:
            tables = parse_json_lines(lines, source.path, columns, BLOCK, **options)  # type: ignore[arg-type]
        for table in tables:
            yield table, _texts_of(table, kept)


def _blocks_of(table: Table) -> Iterator[Table]:
    for first in range(0, len(table), BLOCK_ROWS):
        rows = range(first, min(first + BLOCK_ROWS, len(table)))
        yield replace(table.take(rows), first_row=first)


def _kept(arrow: Any, kept: Sequence[str], rows: int) -> Any:
    """Select columns; those that the rows lack are null."""
    import pyarrow as pa

    there = set(arrow.column_names)
    return pa.table({name: arrow.column(name) if name in there else pa.nulls(rows) for name in kept})


def _texts_of(table: Table, names: Sequence[str]) -> Any:
    """Convert columns to a `pyarrow.Table` of texts; lists and objects of JSON are written as JSON."""
    import pyarrow as pa

    columns = {}
    for name in (name for name in names if name in table.columns):
        cells = table.columns[name]
        texts = [cell if cell is None or isinstance(cell, str) else json.dumps(cell) for cell in cells]
        columns[name] = pa.array(replace(table, columns={name: texts}).values(name), pa.string())
    return pa.table(columns)


def schema_of(source: RowSource, names: Sequence[str]) -> Any:
    """Return the types of columns as a `pyarrow.Schema`; texts for a source without types."""
    import pyarrow as pa

    if not source.has_types or not names:
        return pa.schema([(name, pa.string()) for name in names])
    _, rows = next(_typed(source, RowRange(0, FIRST, 1), (), names))
    return pa.schema([rows.schema.field(name) if name in rows.schema.names else (name, pa.null()) for name in names])


def _numbered_starts(rows: int) -> tuple[RowStart, ...]:
    return tuple(RowStart(row) for row in range(0, rows, BLOCK_ROWS))


def _dialect(source: RowSource, file: Any, stream: Any) -> Dialect:
    """Return the dialect of a text file that is open at its beginning."""
    if source.kind not in DELIMITERS:
        return Dialect()
    if source.is_divisible:
        head = file.read(HEAD_BYTES)
        file.seek(0)
    else:
        head = stream.peek(HEAD_BYTES)
    dialect = find_dialect(head, source.kind, source.options)
    if dialect.encoding.startswith("utf-16"):
        raise DataError(
            "the file is UTF-16, in which rows cannot be found from its middle. Save it as UTF-8 (iconv -f UTF-16 -t"
            " UTF-8 OLD > NEW).",
            path=source.path,
        )
    return dialect


@contextlib.contextmanager
def _text(source: RowSource, file: Any) -> Iterator[Any]:
    """Read an open file of text; sizes are limited only where the whole file is held in memory."""
    if source.is_divisible:
        if not file.peek(1):
            raise DataError("the file is empty, expected rows.", path=source.path)
        check_no_page(file.peek(SNIFFED_BYTES), source.path)
        yield file
        return
    limit = MAX_BYTES if source.kind == ".json" else math.inf
    packed_bytes = source.bytes if source.is_packed else None
    with unpacked(file, source.path, packed_bytes=packed_bytes, max_bytes=limit) as stream:
        yield stream


@contextlib.contextmanager
def _parquet(source: RowSource) -> Iterator[tuple[Any, Any]]:
    """Yield a Parquet file twice, each time as what pyarrow opens: a path, a stream or bytes."""
    if source.is_packed:
        with source.file.open() as file, unpacked(file, source.path, packed_bytes=source.bytes) as stream:
            content = stream.read()
        yield content, content
    elif is_url(source.path):
        with source.file.open() as first, source.file.open() as second:
            yield first, second
    else:
        yield source.path, source.path
