"""Rows to predict: `RowChunks` of one file, checked as a whole and read chunk by chunk; `InputRows` of many, in parts.

Parts (`predict --shard I/N`) begin and end between blocks of `BLOCK_ROWS` rows of a file, so that what is predicted in
a block does not depend on their number. Of Parquet files only a part's row groups are read, others from the start.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attentune.config.schema import DataConfig
from attentune.data.binary_files import read_parquet_batches, scan_parquet, table_of_arrow
from attentune.data.builtin import TaskSpec, label_reader, load_spec
from attentune.data.columns import (
    Columns,
    IdColumns,
    choose_columns,
    columns_notes,
    id_columns,
    ids_of,
    read_rows,
    require,
    with_guessed_columns,
    with_own_names,
)
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.files import (
    EXTENSIONS,
    PARQUET,
    WHOLE_FILES,
    is_standard_input,
    read_chunks,
    read_stream,
    source_name,
)
from attentune.data.labels import LabelReader
from attentune.data.tables import BLOCK, BLOCK_ROWS, CHUNK, IDS, WHOLE, ChunkLimit, Table, has_return
from attentune.data.text_formats import FileOptions, check_file, unpacked
from attentune.errors import DataError
from attentune.io.urls import StoredFile, find_files, is_url

# The names of all columns, the number of rows, notes, and what reads some columns.
_Scanned = tuple[tuple[str, ...], int, tuple[str, ...], Callable[[Sequence[str]], Iterator[Table]]]
# Of columns to keep: all of them.
ALL = "all"


@dataclass(frozen=True)
class RowChunks:
    """Rows in chunks that are read on demand; they can be read several times."""

    num_rows: int  # the number of rows in all chunks
    has_return: bool  # whether an id or a cell that is kept holds a carriage return
    read: Callable[[], Iterator[TextRows]]  # iterates over the chunks from the first
    kept: tuple[str, ...] = ()  # the names of the columns in `TextRows.kept`
    notes: tuple[str, ...] = ()  # how the file was read, if not as its extension says

    @classmethod
    def of(cls, rows: TextRows) -> RowChunks:
        """Wrap rows in memory as one chunk."""
        return cls(len(rows), has_return(rows.ids), lambda: iter([rows]))


def read_unlabelled(path: str, *, label_space: LabelSpace, is_pair: bool, config: DataConfig) -> TextRows:
    """Read rows to predict from one file.

    Columns are chosen as for custom data; where a built-in task is set, its column names apply too. Labels are kept
    where the file has them and the model knows them all, so that predictions can be compared.
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

    `keep_columns` are columns to copy, or "all" for all but those of ids and labels that are used.

    The whole file is checked before the first chunk is returned, and columns, ids and labels are the same as if it
    were read at once. A file that fits in one chunk is read once.
    """
    found = _scanned(path, limit, FileOptions.of(config))
    return _row_chunks(found, source_name(path), label_space, is_pair, config, keep_columns)


def unlabelled_table(table: Table, *, label_space: LabelSpace, is_pair: bool, config: DataConfig) -> RowChunks:
    """Interpret a table, such as a split of a dataset, as rows to predict; see `unlabelled_chunks`."""
    found = table.names, len(table), table.notes, lambda wanted: iter([table])
    return _row_chunks(found, table.source, label_space, is_pair, config, ())


def _row_chunks(
    found: _Scanned,
    source: str,
    label_space: LabelSpace,
    is_pair: bool,
    config: DataConfig,
    keep_columns: Sequence[str],
) -> RowChunks:
    names, num_rows, notes, tables = found
    spec = load_spec(config.task) if config.task else None
    columns, guessed = choose_to_predict(next(tables(names)), names, config, is_pair=is_pair, spec=spec)
    notes += guessed
    reader = replace(label_reader(spec, label_space, config.label_separator), score_range=None)
    ids = id_columns(names, columns.id, strict=config.id_column is not None)
    keep = names if tuple(keep_columns) == (ALL,) else keep_columns
    for name in keep:
        require(names, name, source, "--keep_columns")
    needed = (columns.text, columns.pair, *columns.labels, *ids.names, *keep)
    read_columns = tuple(name for name in dict.fromkeys(needed) if name is not None)

    def chunks() -> Iterator[Table]:
        return (_with_columns(table, read_columns) for table in tables(read_columns))

    has_labels, has_kept_return, told = _checked(chunks(), columns, reader, ids, keep)
    notes += told
    columns = replace(columns, id=ids.first_usable(chunks), label=columns.label if has_labels else None)
    if spec is None and len(names) > 1:
        notes += columns_notes(columns.settings())
    if keep is names:
        keep = [name for name in names if name not in (columns.id, *columns.labels)]

    def rows() -> Iterator[TextRows]:
        for table in chunks():
            made, _ = read_rows(table, columns, reader, ids=ids_of(table, columns.id))
            yield replace(made, kept=tuple(_copied(table, name) for name in keep)) if keep else made

    return RowChunks(num_rows, ids.has_return(columns.id) or has_kept_return, rows, tuple(keep), notes)


def choose_to_predict(
    table: Table, names: Sequence[str], config: DataConfig, *, is_pair: bool, spec: TaskSpec | None = None
) -> tuple[Columns, tuple[str, ...]]:
    """Choose the columns of a file to predict by its names and first rows; and return notes on what was guessed."""
    config, notes = with_own_names(names, config), tuple[str, ...]()
    if spec is None and (config.text_column is None or config.text_column not in names):
        config, notes = with_guessed_columns(table, config, want_label=False)
    return prediction_columns(names, table.source, is_pair, config, spec), notes


def _copied(table: Table, name: str) -> tuple[str, ...]:
    """Return the cells of a column as texts, empty for null."""
    return tuple(text or "" for text in _texts(table, name))


def _texts(table: Table, name: str) -> tuple[str | None, ...]:
    """Return the cells of a column as texts; lists and objects as JSON."""
    cells = table.columns[name]
    texts = [cell if cell is None or isinstance(cell, str) else json.dumps(cell, default=str) for cell in cells]
    return replace(table, columns={name: texts}).values(name)


def _scanned(path: str, limit: ChunkLimit, options: FileOptions) -> _Scanned:
    """Parse the whole file; return the names of all columns, the number of rows, notes, and what reads columns."""
    before = _state(path)
    names, num_rows, notes = dict[str, None](), 0, dict[str, None]()
    held: list[Table] = []
    for number, table in enumerate(read_chunks(path, limit=limit, options=options)):
        names |= dict.fromkeys(table.names)
        notes |= dict.fromkeys(table.notes)
        num_rows += len(table)
        held = [table] if number == 0 else []
    if held:
        return tuple(names), num_rows, tuple(notes), lambda wanted: iter(held)

    def read_again(wanted: Sequence[str]) -> Iterator[Table]:
        for table in read_chunks(path, keep=wanted, limit=limit, options=options):
            if _state(path) != before:
                raise DataError("has changed while it was read. Start again when nothing writes to it.", path=path)
            yield table

    return tuple(names), num_rows, tuple(notes), read_again


def _state(path: str) -> tuple[int, int, int]:
    """The attributes of a file that change with its content."""
    if is_standard_input(path):
        return 0, 0, 0  # a copy, which nothing changes
    facts = check_file(path).stat()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def _with_columns(table: Table, wanted: Sequence[str]) -> Table:
    """The table, with null in the columns that other chunks have and this one lacks."""
    lacking = {name: (None,) * len(table) for name in wanted if name not in table.columns}
    return replace(table, columns={**table.columns, **lacking}) if lacking else table


def _checked(
    tables: Iterable[Table], columns: Columns, reader: LabelReader, ids: IdColumns, keep: Sequence[str]
) -> tuple[bool, bool, tuple[str, ...]]:
    """Check the texts and collect the ids of all rows."""
    is_labelled, is_known, returns = False, columns.label is not None, False
    told: tuple[str, ...] = ()
    for table in tables:
        ids.add(table)
        returns |= any(has_return(_copied(table, name)) for name in keep)
        table.texts(columns.text)
        if columns.pair is not None:
            table.texts(columns.pair)
        if is_known and columns.label is not None:
            has_none = False
            try:
                # -1 in all rows means that there are no labels; in some rows it may be a score. Both must be readable.
                has_none = reader.read(table, columns.label, is_test=True) is None
                is_labelled |= not has_none
                has_none = has_none and not is_labelled
                reader.read(table, columns.label)
                spelled = reader.spellings(table, columns.label)
                told = told or (() if spelled is None else (spelled,))
            except DataError as error:
                # Prediction needs no labels, so a column of that name with other content is not an error.
                is_known = False
                told = () if has_none else (f"The labels are left out, since not all are the run's: {error}",)
    return is_labelled and is_known, returns, told


def prediction_columns(
    names: Sequence[str], source: str, is_pair: bool, config: DataConfig, spec: TaskSpec | None = None
) -> Columns:
    """The columns of one of the task's files, if they are there; otherwise those chosen as for custom data."""
    if spec is not None and config.text_column is None and config.text_pair_column is None:
        for split in spec.splits.values():
            if {split.text, split.pair or split.text} <= set(names):
                label = config.label_column or split.label
                id_column = split.id if split.id in names else None
                if config.id_column is not None:
                    id_column = require(names, config.id_column, source, "--id_column")
                return Columns(split.text, split.pair, label if label in names else None, id_column)
    columns, _ = choose_columns(names, config, source, want_label=False)
    if is_pair and columns.pair is None:
        raise DataError(
            f"the model compares two texts, but only the column {columns.text!r} was found for them. Columns here:"
            f" {', '.join(map(repr, names))}. Name the second with --text_pair_column.",
            path=source,
        )
    return columns if is_pair else Columns(columns.text, None, columns.label, columns.id)


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
        import pyarrow as pa

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
                        table = _with_columns(replace(whole.take(piece), first_row=place), columns)
                        yield table, pa.table({name: pa.array(_texts(table, name), pa.string()) for name in kept})
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
