"""Rows to predict, as `RowChunks`: of a file or table, checked as a whole first, or of one of the parts of many files.

Parts (`predict --shard I/N`) begin and end between blocks of `BLOCK_ROWS` rows of a file, so that what is predicted in
a block does not depend on their number. Each part reads its files from the start.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attentune.config.schema import DataConfig
from attentune.data.binary_files import parse_parquet
from attentune.data.builtin import TaskSpec, label_reader, load_spec
from attentune.data.columns import (
    Columns,
    check_columns,
    choose_columns,
    columns_notes,
    read_extra_columns,
    read_rows,
    require,
    row_numbers,
)
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.files import (
    ENDINGS,
    PARQUET,
    STANDARD_INPUT,
    copied_input,
    kind_of,
    read_chunks,
    read_stream,
)
from attentune.data.labels import LabelReader
from attentune.data.tables import BLOCK, BLOCK_ROWS, CHUNK, IDS, WHOLE, ChunkLimit, Table
from attentune.data.text_formats import SPREADSHEETS, check_file, check_file_settings, unpacked
from attentune.errors import DataError
from attentune.io.urls import StoredFile, find_files, is_url

# Of columns to keep: all of them.
ALL = "all"


@dataclass(frozen=True)
class RowChunks:
    """Rows in chunks that are read on demand; they can be read several times."""

    num_rows: int  # the number of rows in all chunks
    read: Callable[[], Iterator[TextRows]]  # iterates over the chunks from the first
    kept: tuple[str, ...] = ()  # the names, in the output, of the columns in `TextRows.kept`
    notes: tuple[str, ...] = ()  # how the file was read, if not as its extension says

    @classmethod
    def of(cls, rows: TextRows) -> RowChunks:
        return cls(len(rows), lambda: iter([rows]))


def _scan(tables: Iterable[Table]) -> tuple[tuple[str, ...], int, tuple[str, ...], Table | None]:
    """Read tables to their end; return all names of columns, the number of rows, notes, and the table if it is one."""
    names, notes, rows, only = dict[str, None](), dict[str, None](), 0, None
    for number, table in enumerate(tables):
        names |= dict.fromkeys(table.names)
        notes |= dict.fromkeys(table.notes)
        rows += len(table)
        only = table if number == 0 else None
    return tuple(names), rows, tuple(notes), only


def read_unlabelled(path: str, *, label_space: LabelSpace, is_pair: bool, config: DataConfig) -> TextRows:
    """Read rows to predict from one file.

    Columns are chosen as for custom data; where a built-in task is set, its column names apply too. Labels are kept
    where the file has them and the model knows them all, so that predictions can be compared; ids are copied.
    """
    (rows,) = unlabelled_chunks(path, label_space=label_space, is_pair=is_pair, config=config, limit=WHOLE).read()
    return rows


def unlabelled_chunks(
    source: str | Table,
    *,
    label_space: LabelSpace,
    is_pair: bool,
    config: DataConfig,
    limit: ChunkLimit = CHUNK,
    keep_columns: Sequence[str] = (),
) -> RowChunks:
    """Read rows to predict as `read_unlabelled` does, of a file with one chunk in memory at a time, or of a table.

    `keep_columns` are columns to copy, or "all" for all but those of ids and labels that are used. All rows are checked
    before the first chunk is returned. A file that fits in one chunk is read once.
    """
    tables = _tables(source, limit, config)
    names, num_rows, told, only = _scan(tables(None))
    spec = load_spec(config.task) if config.task else None
    first = replace(next(tables(names)) if only is None else only, names=names)
    columns, notes = known_columns(first, config, is_pair=is_pair, spec=spec)
    keep_all = tuple(keep_columns) == (ALL,)
    keep = names if keep_all else tuple(require(names, name, first.source, "--keep_columns") for name in keep_columns)
    wanted = tuple(dict.fromkeys((*columns.names, *keep)))

    def chunks() -> Iterator[Table]:
        return (_with_columns(table, wanted) for table in (tables(wanted) if only is None else [only]))

    reader = label_reader(spec, label_space, config.label_separator)
    has_labels, of_cells = _checked(chunks(), columns, reader, keep)
    columns = replace(columns, label=columns.label if has_labels else None)
    notes = (*told, *notes, *of_cells)
    if spec is None and len(names) > 1:
        notes += columns_notes(columns.settings())
    if keep_all:
        keep = tuple(name for name in names if name not in (columns.id, *columns.labels))
    return RowChunks(num_rows, lambda: (_rows(table, columns, reader, keep) for table in chunks()), keep, notes)


def _tables(source: str | Table, limit: ChunkLimit, config: DataConfig) -> Callable[..., Iterator[Table]]:
    """Return what reads the tables of a source, with the columns to keep, again and again."""
    if isinstance(source, Table):
        return lambda _: iter([source])
    before = _state(source)

    def tables(keep: Sequence[str] | None) -> Iterator[Table]:
        for table in read_chunks(source, keep=keep, limit=limit, config=config):
            if _state(source) != before:  # what was checked is not what is predicted
                raise _changed(source)
            yield table

    return tables


def _state(path: str) -> tuple[int, int, int]:
    facts = (copied_input() if path == STANDARD_INPUT else check_file(path)).stat()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def _changed(path: str) -> DataError:
    return DataError("has changed while it was read. Start again when nothing writes to it.", path=path)


def _rows(
    table: Table, columns: Columns, reader: LabelReader, keep: Sequence[str], *, first_row: int | None = None
) -> TextRows:
    """Read rows with their ids, which are copied; without a column the numbers of the rows, from `first_row`."""
    numbered = replace(table, first_row=table.first_row if first_row is None else first_row)
    ids = row_numbers(numbered) if columns.id is None else _copied(table, [columns.id])[0]
    rows, _ = read_rows(table, columns, reader, ids=ids)
    return replace(rows, kept=_copied(table, keep))


def known_columns(
    table: Table, config: DataConfig, *, is_pair: bool, spec: TaskSpec | None = None, want_label: bool = False
) -> tuple[Columns, tuple[str, ...]]:
    """Return the columns of one of the task's files, if they exist, otherwise those chosen as for custom data."""
    names = set(table.names)
    if spec is not None and config.text_column is None and config.text_pair_column is None:
        for split in spec.splits.values():
            label = config.label_column or split.label
            if names.issuperset((split.text, split.pair or split.text, label if want_label else split.text)):
                id_column = split.id if split.id in names else None
                if config.id_column is not None:
                    id_column = require(table.names, config.id_column, table.source, "--id_column")
                return Columns(split.text, split.pair, label if label in names else None, id_column), ()
    columns, notes = choose_columns(table, config, want_label=want_label)
    if is_pair and columns.pair is None:
        raise DataError(
            f"the model compares two texts, but only the column {columns.text!r} was found for them. Columns here:"
            f" {', '.join(map(repr, table.names))}. Name the second with --text_pair_column.",
            path=table.source,
        )
    if want_label:
        if columns.pair is not None and not is_pair:
            raise DataError(
                "got pairs of texts, but the rows to train on are single texts. Name their column with --text_column.",
                path=table.source,
            )
        return columns, notes
    usual = next((name for name in table.names if name.lower() in IDS), None)
    return replace(columns, pair=columns.pair if is_pair else None, id=columns.id or usual), notes


def _copied(table: Table, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return the cells of columns as texts: empty for null, lists and objects as JSON."""
    texts = {name: [_text(cell) for cell in cells] for name, cells in table.columns.items() if name in names}
    return tuple(replace(table, columns=texts).texts(name) for name in names)


def _text(cell: Any) -> str:
    if cell is None or isinstance(cell, str):
        return cell or ""
    return json.dumps(cell, default=str)


def _with_columns(table: Table, wanted: Sequence[str]) -> Table:
    """The table, with null in the columns that other chunks have and this one lacks."""
    lacking = {name: (None,) * len(table) for name in wanted if name not in table.columns}
    return replace(table, columns={**table.columns, **lacking}) if lacking else table


def _checked(
    tables: Iterable[Table], columns: Columns, reader: LabelReader, keep: Sequence[str]
) -> tuple[bool, tuple[str, ...]]:
    """Check the texts of all rows; return whether all labels are known, and notes on labels and numbers."""
    is_labelled, unknown, told, of_numbers = False, None, tuple[str, ...](), dict[str, str]()
    for table in tables:
        _copied(table, keep)
        of_numbers = read_extra_columns(table, columns.extra)[1] | of_numbers
        for name in filter(None, (columns.text, columns.pair)):
            table.texts(name)
        if columns.label is not None and not (is_labelled and unknown):
            has_some = True
            try:
                # -1 in all rows means that there are no labels; in some rows it may be a score. Both must be readable.
                has_some = reader.read(table, columns.label, is_test=True).labels is not None
                spelled = reader.read(table, columns.label).note
                told = told or (() if spelled is None else (spelled,))
            except DataError as error:
                unknown = unknown or error
            is_labelled |= has_some
    if unknown is not None:
        # Prediction needs no labels, so a column of that name with other content is not an error.
        told = (f"The labels are left out, since not all are the run's: {unknown}",) if is_labelled else ()
    return is_labelled and unknown is None, (*told, *of_numbers.values())


@dataclass(frozen=True)
class Source:
    file: StoredFile
    kind: str  # the ending of its name without ".gz"
    config: DataConfig
    names: tuple[str, ...] = ()  # the names of its columns, and the number of its rows, once it is scanned
    rows: int = 0
    notes: tuple[str, ...] = ()

    def scanned(self) -> Source:
        """Count the rows by reading them, so that each broken row is found before one is predicted."""
        names, rows, notes, _ = _scan(self._tables(()))
        return replace(self, names=names, rows=rows, notes=notes)

    def blocks(self, first: int, end: int, wanted: Sequence[str]) -> Iterator[Table]:
        """Yield the rows from `first`, where a block begins, to `end`; no table goes beyond a block."""
        for whole in self._tables(wanted):
            for row in range(0, len(whole), BLOCK_ROWS):
                place = whole.first_row + row
                if first <= place < end:
                    rows = range(row, min(row + BLOCK_ROWS, len(whole)))
                    table = replace(whole.take(rows), first_row=place, source=self.file.path)
                    yield _with_columns(table, wanted)
                    first = place + len(table)
            if first >= end:
                return
        raise _changed(self.file.path)

    def _tables(self, keep: Sequence[str]) -> Iterator[Table]:
        path, size = self.file.path, self.file.bytes
        if not is_url(path):
            yield from read_chunks(path, keep=keep, limit=BLOCK, config=self.config)
            return
        with self.file.open() as file:
            if self.kind == PARQUET and path.lower().endswith(".gz"):
                raise DataError("gzipped Parquet is not read. Unpack it.", path=path)
            if self.kind == PARQUET:
                yield from parse_parquet(file, path, keep, BLOCK, file_bytes=size)
                return
            packed_bytes = size if path.lower().endswith(".gz") else None
            with unpacked(file, path, packed_bytes=packed_bytes) as stream:
                yield from read_stream(stream, path, self.kind, keep, BLOCK, self.config)


def find_sources(pattern: str, config: DataConfig) -> list[Source]:
    check_file_settings(config)
    # Spreadsheets are taken where they are named, but are left out of a folder.
    files = find_files(pattern, ENDINGS)
    sources = [Source(file, kind_of(file.path, config), config) for file in files]
    for source in sources:
        if source.kind in SPREADSHEETS and is_url(source.file.path):
            raise DataError("a spreadsheet is not read from a URL. Copy it to this machine.", path=source.file.path)
    return sources


def part_chunks(
    sources: Sequence[Source],
    number: int,
    parts: int,
    *,
    label_space: LabelSpace,
    is_pair: bool,
    config: DataConfig,
    keep_columns: Sequence[str],
) -> RowChunks:
    """Return part `number`, from 1, of the rows of scanned files, block by block; the first file decides the columns.

    Labels are not read but copied, as the first column to keep. Rows without ids are counted from 0 over all files.
    """
    first = sources[0]
    table = replace(next(first.blocks(0, min(first.rows, BLOCK_ROWS), first.names)), names=first.names)
    columns, notes = known_columns(table, config, is_pair=is_pair)
    label = "labels" if label_space.is_multilabel else "label"
    kept = {label: columns.labels[0]} if len(columns.labels) == 1 else {}
    if tuple(keep_columns) == (ALL,):
        keep_columns = [name for name in first.names if name not in (columns.id, *columns.labels)]
    if label in keep_columns and kept.get(label, label) != label:
        raise DataError(
            f"--keep_columns: the input has {label!r}, as the output has, for the labels in {kept[label]!r}. List the"
            " columns to keep without it, or rename it in the input.",
            path=table.source,
        )
    kept |= {require(first.names, name, table.source, "--keep_columns"): name for name in keep_columns}
    for source in sources:
        if source.kind not in (".jsonl", ".ndjson"):  # their rows may differ
            check_columns(replace(columns, id=config.id_column, label=None), source.names, source.file.path)
    told = dict.fromkeys(note for source in sources for note in source.notes)
    notes = (*told, *notes, *columns_notes(columns.settings()))
    columns, keep = replace(columns, label=None), tuple(kept.values())
    ranges = _ranges([source.rows for source in sources], number, parts)

    def rows() -> Iterator[TextRows]:
        reader = LabelReader(label_space)
        for place, begin, end in ranges:
            before = sum(source.rows for source in sources[:place])
            for table in sources[place].blocks(begin, end, (*columns.names, *keep)):
                yield _rows(table, columns, reader, keep, first_row=before + table.first_row)

    return RowChunks(sum(end - begin for _, begin, end in ranges), rows, tuple(kept), notes)


def _ranges(rows: Sequence[int], number: int, parts: int) -> list[tuple[int, int, int]]:
    """Return what a part reads: the numbers of files with so many rows, and the first row and the end in each."""
    done, found = 0, list[tuple[int, int, int]]()
    for place, count in enumerate(rows):
        for first in range(0, count, BLOCK_ROWS):
            end = min(first + BLOCK_ROWS, count)
            # A block belongs to the part that has its middle.
            if (2 * done + first + end) * parts // (2 * sum(rows)) == number - 1:
                begun = found.pop()[1] if found and found[-1][0] == place else first
                found.append((place, begun, end))
        done += count
    return found
