"""One part of the rows of many files, for `predict --shard I/N`.

Rows are divided between blocks of `BLOCK_ROWS` rows of a file, so that what is predicted in a block does not depend on
the number of parts. Of Parquet files only the row groups of the part are read, other files from their beginning.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attentune.config.schema import DataConfig
from attentune.data.columns import Columns, columns_notes, ids_of, require
from attentune.data.dataset import TextRows
from attentune.data.names import IDS
from attentune.data.readers.formats import FileOptions
from attentune.data.readers.parquet import read_parquet_batches, scan_parquet, table_of_arrow
from attentune.data.readers.read import EXTENSIONS, PARQUET, WHOLE_FILES, read_chunks, read_stream
from attentune.data.readers.streams import unpacked
from attentune.data.readers.table import BLOCK, BLOCK_ROWS, Table
from attentune.data.unlabelled import ALL, choose_to_predict
from attentune.errors import DataError
from attentune.io.urls import StoredFile, find_files, is_url


@dataclass(frozen=True)
class Source:
    """A file of rows."""

    file: StoredFile
    kind: str  # the ending of its name without ".gz"
    options: FileOptions
    names: tuple[str, ...] = ()  # the names of its columns, and the number of its rows, once it is scanned
    rows: int = 0
    notes: tuple[str, ...] = ()

    @property
    def is_packed(self) -> bool:
        """Whether the file is gzipped."""
        return self.file.path.lower().endswith(".gz")

    def scanned(self) -> Source:
        """Count the rows, of text files by reading them, so that each broken row is found before one is predicted."""
        if self.kind == PARQUET:
            with self._parquet() as (plain, _):
                names, rows = scan_parquet(plain, self.file.path)
            return replace(self, names=names, rows=rows)
        found, notes, rows = dict[str, None](), dict[str, None](), 0
        for table in self._tables(()):
            found |= dict.fromkeys(table.names)
            notes |= dict.fromkeys(table.notes)
            rows += len(table)
        return replace(self, names=tuple(found), rows=rows, notes=tuple(notes))

    def blocks(self, first: int, end: int, wanted: Sequence[str], kept: Sequence[str]) -> Iterator[tuple[Table, Any]]:
        """Yield the rows from `first`, where a block begins, to `end`: as a `Table`, and columns as `pyarrow.Table`.

        No piece goes beyond a block. The kept columns of Parquet files have their types, others are texts.
        """
        columns = tuple(dict.fromkeys((*wanted, *kept)))
        if self.kind == PARQUET:
            with self._parquet() as sources:
                size, count = self.file.bytes, end - first
                batches = read_parquet_batches(
                    sources, self.file.path, columns, packed_bytes=size, first_row=first, num_rows=count
                )
                for arrow in _in_blocks(batches, first):
                    table = table_of_arrow(arrow.select([n for n in arrow.column_names if n in wanted]), "", first)
                    yield replace(table, source=self.file.path), _with_nulls(arrow, kept)
                    first += len(table)
        else:
            for whole in self._tables(columns):
                for row in range(0, len(whole), BLOCK_ROWS) if whole.first_row < end else ():
                    place = whole.first_row + row
                    if first <= place < end:
                        piece = range(row, min(row + BLOCK_ROWS, len(whole)))
                        table = replace(whole.take(piece), first_row=place)
                        cells = {name: table.columns.get(name, (None,) * len(table)) for name in columns}
                        table = replace(table, columns=cells)
                        yield table, _texts_of(table, kept)
                        first = place + len(table)
                if first >= end:
                    return
        if first < end:
            raise DataError(
                "has changed while it was read. Start again when nothing writes to it.", path=self.file.path
            )

    def _tables(self, keep: Sequence[str]) -> Iterator[Table]:
        if not is_url(self.file.path):
            yield from read_chunks(self.file.path, keep=keep, limit=BLOCK, options=self.options)
            return
        packed = self.file.bytes if self.is_packed else None
        with self.file.open() as file, unpacked(file, self.file.path, packed_bytes=packed) as stream:
            yield from read_stream(stream, self.file.path, self.kind, keep, BLOCK, self.options)

    @contextlib.contextmanager
    def _parquet(self) -> Iterator[tuple[Any, Any]]:
        """Yield the file twice, each time as what pyarrow opens."""
        with self.file.open() as first, self.file.open() as second:
            if not self.is_packed:
                yield first, second
                return
            with unpacked(first, self.file.path, packed_bytes=self.file.bytes) as stream:
                content = stream.read()
            yield content, content


def find_sources(pattern: str, options: FileOptions) -> list[Source]:
    """Find the files of a path, URL, pattern or folder."""
    found = []
    for file in find_files(pattern, (*EXTENSIONS, *(f"{ending}.gz" for ending in EXTENSIONS))):
        name = file.path.lower()
        # Those that are not read row by row are taken where they are named, but are left out of a folder.
        kind = next((end for end in EXTENSIONS if name.removesuffix(".gz").endswith(end)), None)
        kind = next((end for end in WHOLE_FILES if name.endswith(end)), kind)
        if kind is None and options.file_format is not None:
            kind = f".{options.file_format}"
        if kind is None:
            raise DataError(
                f"its name ends in none of {' '.join(EXTENSIONS)}, also with .gz, nor of {' '.join(WHOLE_FILES)}. Name"
                " it after what it holds, give --file_format, or convert it.",
                path=file.path,
            )
        if kind in WHOLE_FILES and is_url(file.path):
            raise DataError("a file of this kind is not read from a URL. Copy it to this machine.", path=file.path)
        found.append(Source(file, kind, options))
    return found


@dataclass(frozen=True)
class InputRows:
    """The rows to predict of many files, with the columns to read and to copy."""

    sources: tuple[Source, ...]
    columns: Columns
    kept: dict[str, str]  # the columns to copy, by their names in the output
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls, sources: Sequence[Source], config: DataConfig, *, is_pair: bool, keep: Sequence[str], label: str
    ) -> InputRows:
        """Count the rows, and choose the columns by the first file; all files must have them.

        `label` is the name of the label column in the output.
        """
        scanned = tuple(source.scanned() for source in sources)
        first = scanned[0]
        table, _ = next(first.blocks(0, min(first.rows, BLOCK_ROWS), first.names, ()))
        columns, notes = choose_to_predict(table, first.names, config, is_pair=is_pair)
        if columns.id is None:
            columns = replace(columns, id=next((name for name in first.names if name.lower() in IDS), None))
        read = {columns.text: "--text_column", columns.pair: "--text_pair_column"}
        read |= {config.id_column: "--id_column"} if config.id_column else {}
        copied = {label: columns.labels[0]} if len(columns.labels) == 1 else {}
        if tuple(keep) == (ALL,):
            keep = [name for name in first.names if name not in (columns.id, *columns.labels)]
        copied |= {require(first.names, name, first.file.path, "--keep_columns"): name for name in keep}
        for source in scanned:
            for name, flag in read.items():
                if name is not None and source.kind not in (".jsonl", ".ndjson"):  # their rows may differ
                    require(source.names, name, source.file.path, flag)
        told = tuple(dict.fromkeys(note for source in scanned for note in source.notes))
        return cls(scanned, columns, copied, (*told, *notes, *columns_notes(columns.settings())))

    @property
    def num_rows(self) -> int:
        """The number of all rows."""
        return sum(source.rows for source in self.sources)

    def ranges(self, number: int, parts: int) -> list[tuple[int, int, int]]:
        """Return what part `number`, from 1, of so many reads: the number of each source, its first row and its end."""
        total, done, found = self.num_rows, 0, list[tuple[int, int, int]]()
        for place, source in enumerate(self.sources):
            for first in range(0, source.rows, BLOCK_ROWS):
                end = min(first + BLOCK_ROWS, source.rows)
                # A block belongs to the part that has its middle.
                if (2 * done + first + end) * parts // (2 * total) == number - 1:
                    begun = found.pop()[1] if found and found[-1][0] == place else first
                    found.append((place, begun, end))
            done += source.rows
        return found

    def types(self) -> Any:
        """Return the types of the copied columns, those of the first file, as a `pyarrow.Schema`."""
        import pyarrow as pa

        source = self.sources[0]
        _, kept = next(source.blocks(0, min(source.rows, BLOCK_ROWS), (), tuple(self.kept.values())))
        return pa.schema([(name, kept.schema.field(column).type) for name, column in self.kept.items()])

    def read(self, ranges: Iterable[tuple[int, int, int]], types: Any) -> Iterator[tuple[TextRows, Any]]:
        """Yield the rows of a part, block by block, and their copied columns; without ids, rows are counted from 0."""
        import pyarrow as pa

        columns, kept = self.columns, tuple(self.kept.values())
        wanted = [name for name in (columns.text, columns.pair, columns.id) if name is not None]
        for place, first, end in ranges:
            source, before = self.sources[place], sum(one.rows for one in self.sources[:place])
            for table, arrow in source.blocks(first, end, wanted, kept):
                if columns.id is None:
                    ids = ids_of(replace(table, first_row=before + table.first_row), None)
                else:
                    ids = tuple("" if value is None else value for value in table.values(columns.id))
                pairs = None if columns.pair is None else table.texts(columns.pair)
                rows = TextRows(ids, table.texts(columns.text), pairs, None, table.source, table.lines)
                try:
                    renamed = pa.table({name: arrow.column(column) for name, column in self.kept.items()})
                    yield rows, renamed.cast(types)
                except (pa.ArrowException, ValueError) as error:
                    raise DataError(
                        f"the columns to copy have other types than in the first file ({error}). Leave them out of"
                        " --keep_columns, or convert this file.",
                        path=source.file.path,
                    ) from error


def _in_blocks(batches: Iterable[Any], first_row: int) -> Iterator[Any]:
    """Yield batches put together to pieces as `pyarrow.Table`; none goes beyond a block."""
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


def _with_nulls(arrow: Any, names: Sequence[str]) -> Any:
    """Select columns; those that the rows lack are null."""
    import pyarrow as pa

    there = set(arrow.column_names)
    return pa.table({name: arrow.column(name) if name in there else pa.nulls(len(arrow)) for name in names})


def _texts_of(table: Table, names: Sequence[str]) -> Any:
    """Convert columns to a `pyarrow.Table` of texts; lists and objects of JSON are written as JSON."""
    import pyarrow as pa

    columns = {}
    for name in names:
        texts = [cell if cell is None or isinstance(cell, str) else json.dumps(cell) for cell in table.columns[name]]
        columns[name] = pa.array(replace(table, columns={name: texts}).values(name), pa.string())
    return pa.table(columns)
