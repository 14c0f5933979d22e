"""Rows to predict: the whole file is checked first, then read chunk by chunk."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from attentune.config.schema import DataConfig
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
    with_own_names,
)
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.guesses import with_guessed_columns
from attentune.data.labels import LabelReader
from attentune.data.readers.formats import FileOptions
from attentune.data.readers.read import is_standard_input, read_chunks, source_name
from attentune.data.readers.streams import check_file
from attentune.data.readers.table import CHUNK, WHOLE, ChunkLimit, Table, has_return
from attentune.errors import DataError

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
    """Return the cells of a column as texts: empty for null, JSON for lists and objects."""
    cells = table.columns[name]
    texts = [cell if cell is None or isinstance(cell, str) else json.dumps(cell, default=str) for cell in cells]
    return tuple(text or "" for text in replace(table, columns={name: texts}).values(name))


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
