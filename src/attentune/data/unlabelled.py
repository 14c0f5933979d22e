"""Rows to predict: `RowChunks` of one file, checked as a whole and read chunk by chunk; `InputRows` of many, in parts.

Parts (`predict --shard I/N`) begin and end between blocks of `BLOCK_ROWS` rows of a file, so that what is predicted in
a block does not depend on their number. Each part reads its files from the start.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attentune.config.schema import DataConfig
from attentune.data.binary_files import SPREADSHEETS, parse_parquet
from attentune.data.builtin import TaskSpec, label_reader, load_spec
from attentune.data.columns import (
    Columns,
    check_extra,
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
    is_standard_input,
    kind_of,
    read_chunks,
    read_stream,
    source_name,
)
from attentune.data.labels import LabelReader
from attentune.data.tables import BLOCK, BLOCK_ROWS, CHUNK, IDS, WHOLE, ChunkLimit, Table
from attentune.data.text_formats import FileOptions, check_file, unpacked
from attentune.errors import DataError
from attentune.io.urls import StoredFile, find_files, is_url

# Of columns to keep: all of them.
ALL = "all"


@dataclass(frozen=True)
class RowChunks:
    """Rows in chunks that are read on demand; they can be read several times."""

    num_rows: int  # the number of rows in all chunks
    read: Callable[[], Iterator[TextRows]]  # iterates over the chunks from the first
    kept: tuple[str, ...] = ()  # the names of the columns in `TextRows.kept`
    notes: tuple[str, ...] = ()  # how the file was read, if not as its extension says

    @classmethod
    def of(cls, rows: TextRows) -> RowChunks:
        """Wrap rows in memory as one chunk."""
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
    path: str,
    *,
    label_space: LabelSpace,
    is_pair: bool,
    config: DataConfig,
    limit: ChunkLimit = CHUNK,
    keep_columns: Sequence[str] = (),
) -> RowChunks:
    """Read rows to predict as `read_unlabelled` does, with one chunk in memory at a time.

    `keep_columns` are columns to copy, or "all" for all but those of ids and labels that are used. The whole file is
    checked before the first chunk is returned. A file that fits in one chunk is read once.
    """
    options, before = FileOptions.of(config), _state(path)

    def tables(wanted: Sequence[str] | None) -> Iterator[Table]:
        for table in read_chunks(path, keep=wanted, limit=limit, options=options):
            if _state(path) != before:
                raise _changed(path)
            yield table

    return _row_chunks(tables, source_name(path), label_space, is_pair, config, keep_columns)


def unlabelled_table(table: Table, *, label_space: LabelSpace, is_pair: bool, config: DataConfig) -> RowChunks:
    """Interpret a table, such as a split of a dataset, as rows to predict; see `unlabelled_chunks`."""
    return _row_chunks(lambda _: iter([table]), table.source, label_space, is_pair, config, ())


def _state(path: str) -> tuple[int, int, int]:
    if is_standard_input(path):
        return 0, 0, 0  # a copy, which nothing changes
    facts = check_file(path).stat()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def _changed(path: str) -> DataError:
    return DataError("has changed while it was read. Start again when nothing writes to it.", path=path)


def _row_chunks(
    tables: Callable[[Sequence[str] | None], Iterator[Table]],
    source: str,
    label_space: LabelSpace,
    is_pair: bool,
    config: DataConfig,
    keep_columns: Sequence[str],
) -> RowChunks:
    names, num_rows, told, only = _scan(tables(None))
    spec = load_spec(config.task) if config.task else None
    first = next(tables(names)) if only is None else only
    columns, notes = prediction_columns(names, first.source, config, is_pair=is_pair, spec=spec, table=first)
    reader = replace(label_reader(spec, label_space, config.label_separator), score_range=None)
    keep = names if tuple(keep_columns) == (ALL,) else tuple(keep_columns)
    for name in keep:
        require(names, name, source, "--keep_columns")
    needed = (*columns.texts, columns.id, *columns.labels, *columns.extra_names, *keep)
    wanted = tuple(dict.fromkeys(name for name in needed if name is not None))

    def chunks() -> Iterator[Table]:
        return (_with_columns(table, wanted) for table in (tables(wanted) if only is None else [only]))

    has_labels, of_cells = _checked(chunks(), columns, reader, keep)
    columns = replace(columns, label=columns.label if has_labels else None)
    notes = (*told, *notes, *of_cells)
    if spec is None and len(names) > 1:
        notes += columns_notes(columns.settings())
    if keep is names:
        keep = tuple(name for name in names if name not in (columns.id, *columns.labels))

    def rows() -> Iterator[TextRows]:
        for table in chunks():
            made, _ = read_rows(table, columns, reader, ids=_ids(table, columns.id))
            yield replace(made, kept=_copied(table, keep)) if keep else made

    return RowChunks(num_rows, rows, keep, notes)


def _ids(table: Table, column: str | None) -> tuple[str, ...]:
    """Return the ids of rows to predict, which are copied; without a column the numbers of the rows."""
    return row_numbers(table) if column is None else _copied(table, [column])[0]


def prediction_columns(
    names: Sequence[str],
    source: str,
    config: DataConfig,
    *,
    is_pair: bool,
    spec: TaskSpec | None = None,
    table: Table | None = None,
) -> tuple[Columns, tuple[str, ...]]:
    """Return the columns of one of the task's files, if they exist, otherwise those chosen as for custom data."""
    if spec is not None and config.text_column is None and config.text_pair_column is None:
        for split in spec.splits.values():
            if {split.text, split.pair or split.text} <= set(names):
                label = config.label_column or split.label
                id_column = split.id if split.id in names else None
                if config.id_column is not None:
                    id_column = require(names, config.id_column, source, "--id_column")
                return Columns(split.text, split.pair, label if label in names else None, id_column), ()
    if spec is not None or config.text_column in names:
        table = None
    columns, notes = choose_columns(names, config, source, want_label=False, table=table)
    if is_pair and columns.pair is None:
        raise DataError(
            f"the model compares two texts, but only the column {columns.text!r} was found for them. Columns here:"
            f" {', '.join(map(repr, names))}. Name the second with --text_pair_column.",
            path=source,
        )
    usual = next((name for name in names if name.lower() in IDS), None)
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
                has_some = reader.read(table, columns.label, is_test=True) is not None
                reader.read(table, columns.label)
                spelled = reader.spellings(table, columns.label)
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
    """A file of rows."""

    file: StoredFile
    kind: str  # the ending of its name without ".gz"
    options: FileOptions
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
            yield from read_chunks(path, keep=keep, limit=BLOCK, options=self.options)
            return
        with self.file.open() as file:
            if self.kind == PARQUET:
                yield from parse_parquet(file, path, keep, BLOCK, file_bytes=size)
                return
            packed_bytes = size if path.lower().endswith(".gz") else None
            with unpacked(file, path, packed_bytes=packed_bytes) as stream:
                yield from read_stream(stream, path, self.kind, keep, BLOCK, self.options)


def find_sources(pattern: str, options: FileOptions) -> list[Source]:
    """Find the files of a path, URL, pattern or folder."""
    # Spreadsheets are taken where they are named, but are left out of a folder.
    files = find_files(pattern, ENDINGS)
    sources = [Source(file, kind_of(file.path, options), options) for file in files]
    for source in sources:
        if source.kind in SPREADSHEETS and is_url(source.file.path):
            raise DataError("a spreadsheet is not read from a URL. Copy it to this machine.", path=source.file.path)
    return sources


@dataclass(frozen=True)
class InputRows:
    """The rows to predict of many files, with the columns to read and to copy."""

    sources: tuple[Source, ...]
    columns: Columns
    kept: Mapping[str, str]  # the columns to copy, by their names in the output
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls, sources: Sequence[Source], config: DataConfig, *, is_pair: bool, keep: Sequence[str], label: str
    ) -> InputRows:
        """Count the rows, and choose the columns by the first file; `label` is the name of the labels in the output."""
        scanned = tuple(source.scanned() for source in sources)
        first = scanned[0]
        table = next(first.blocks(0, min(first.rows, BLOCK_ROWS), first.names))
        columns, notes = prediction_columns(first.names, table.source, config, is_pair=is_pair, table=table)
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
            if source.kind not in (".jsonl", ".ndjson"):
                check_extra(columns, source.names, source.file.path)
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

    def read(self, ranges: Iterable[tuple[int, int, int]]) -> Iterator[TextRows]:
        """Yield the rows of a part, block by block; without ids, rows are counted from 0."""
        columns, kept = self.columns, tuple(self.kept.values())
        named = (*columns.texts, columns.id, *columns.extra_names, *kept)
        wanted = tuple(dict.fromkeys(name for name in named if name is not None))
        for place, first, end in ranges:
            before = sum(one.rows for one in self.sources[:place])
            for table in self.sources[place].blocks(first, end, wanted):
                ids = _ids(replace(table, first_row=before + table.first_row), columns.id)
                pairs = None if columns.pair is None else table.texts(columns.pair)
                texts, (extra, _) = table.texts(columns.text), read_extra_columns(table, columns.extra)
                copied = _copied(table, kept)
                yield TextRows(ids, texts, pairs, None, table.source, table.lines, kept=copied, extra=extra)
