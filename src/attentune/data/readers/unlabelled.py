"""The rows of a file to predict: found good from end to end first, then given out part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attentune.config.schema import DataConfig
from attentune.data.builtin import load_spec
from attentune.data.columns import Columns, IdColumns, choose_columns, id_columns, ids_of, require
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.labels import LabelReader
from attentune.data.readers.read import read_chunks
from attentune.data.readers.streams import check_file
from attentune.data.readers.table import CHUNK, WHOLE, ChunkLimit, Table, has_return
from attentune.errors import DataError


@dataclass(frozen=True)
class RowChunks:
    """Rows in parts, each of which is read when its turn comes; they can be gone through again.

    Attributes:
        num_rows: how many rows all parts have together.
        has_return: whether an id holds a carriage return.
        read: gives the parts, from the first.
    """

    num_rows: int
    has_return: bool
    read: Callable[[], Iterator[TextRows]]

    @classmethod
    def of(cls, rows: TextRows) -> RowChunks:
        """Rows in memory as one part."""
        return cls(len(rows), has_return(rows.ids), lambda: iter([rows]))


def read_unlabelled(path: str, *, label_space: LabelSpace, is_pair: bool, config: DataConfig) -> TextRows:
    """Rows to predict, from one file.

    Columns are chosen as for own data; where a known task is set, its own column names count too. Labels are kept
    where the file has them and the model knows them all, so that predictions can be compared.

    Args:
        path: the file, of any kind that `read_table` reads.
        label_space: the trained model's labels.
        is_pair: whether the model takes two texts.
        config: the settings: columns, and the task whose names for columns and labels count.

    Raises:
        DataError: for a file that cannot be read, or that lacks a text column.
    """
    (rows,) = unlabelled_chunks(path, label_space=label_space, is_pair=is_pair, config=config, limit=WHOLE).read()
    return rows


def unlabelled_chunks(
    path: str, *, label_space: LabelSpace, is_pair: bool, config: DataConfig, limit: ChunkLimit = CHUNK
) -> RowChunks:
    """As `read_unlabelled`, in parts of which one is held at a time.

    The file is read from end to end first: what is wrong with any row is said before a part is given out, and columns,
    ids and labels are the same as if it were read at once. A file that is one part is read once.

    Raises:
        DataError: as `read_unlabelled`; and, when parts are read, that the file has changed since.
    """
    names, num_rows, tables = _scanned(path, limit)
    source = str(check_file(path))
    columns = _prediction_columns(names, source, is_pair, config)
    spec = load_spec(config.task) if config.task else None
    values, missing = (spec.label_values, spec.missing_labels) if spec else ({}, ())
    reader = LabelReader(label_space, values, missing=missing, separator=config.label_separator)
    ids = id_columns(names, columns.id, strict=config.id_column is not None)
    chosen = (columns.text, columns.pair, columns.label, *ids.names)
    wanted = tuple(name for name in dict.fromkeys(chosen) if name is not None)

    def parts() -> Iterator[Table]:
        return (_with_columns(table, wanted) for table in tables(wanted))

    has_labels = _checked(parts(), columns, reader, ids)
    columns = replace(columns, id=ids.first_usable(parts), label=columns.label if has_labels else None)
    return RowChunks(num_rows, ids.has_return(columns.id), lambda: (_rows(table, columns, reader) for table in parts()))


def _scanned(path: str, limit: ChunkLimit) -> tuple[tuple[str, ...], int, Callable[[Sequence[str]], Iterator[Table]]]:
    """The names of all columns, the number of rows, and what reads given columns again; each row has been parsed."""
    before = _state(path)
    names, num_rows = dict[str, None](), 0
    held: list[Table] = []
    for number, table in enumerate(read_chunks(path, limit=limit)):
        names |= dict.fromkeys(table.names)
        num_rows += len(table)
        held = [table] if number == 0 else []
    if held:
        return tuple(names), num_rows, lambda wanted: iter(held)

    def again(wanted: Sequence[str]) -> Iterator[Table]:
        for table in read_chunks(path, keep=wanted, limit=limit):
            if _state(path) != before:
                raise DataError("has changed while it was read. Start again when nothing writes to it.", path=path)
            yield table

    return tuple(names), num_rows, again


def _state(path: str) -> tuple[int, int, int]:
    """What changes with a file's content."""
    facts = check_file(path).stat()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def _with_columns(table: Table, wanted: Sequence[str]) -> Table:
    """The table with null in the columns that other parts have and this one lacks."""
    lacking = {name: (None,) * len(table) for name in wanted if name not in table.columns}
    return replace(table, columns={**table.columns, **lacking}) if lacking else table


def _checked(tables: Iterable[Table], columns: Columns, reader: LabelReader, ids: IdColumns) -> bool:
    """Check the cells of all rows, and take in their ids; whether there are labels and the model knows them all."""
    is_labelled, is_known = False, columns.label is not None
    for table in tables:
        ids.add(table)
        table.texts(columns.text)
        if columns.pair is not None:
            table.texts(columns.pair)
        if is_known and columns.label is not None:
            try:
                # -1 is no label where all rows have it, else it may be a score: so both ways must do.
                is_labelled |= reader.read(table, columns.label, is_test=True) is not None
                reader.read(table, columns.label)
            except DataError:
                # To predict needs no labels: a column of that name that holds something else is no reason to stop.
                is_known = False
    return is_labelled and is_known


def _rows(table: Table, columns: Columns, reader: LabelReader) -> TextRows:
    labels: np.ndarray | None = None if columns.label is None else reader.read(table, columns.label)
    pairs = None if columns.pair is None else table.texts(columns.pair)
    return TextRows(ids_of(table, columns.id), table.texts(columns.text), pairs, labels, table.source, table.lines)


def _prediction_columns(names: Sequence[str], source: str, is_pair: bool, config: DataConfig) -> Columns:
    if config.task is not None and config.text_column is None and config.text_pair_column is None:
        for split in load_spec(config.task).splits.values():
            if {split.text, split.pair or split.text} <= set(names):
                label = config.label_column or split.label
                own_id = split.id if split.id in names else None
                if config.id_column is not None:
                    own_id = require(names, config.id_column, source, "--id_column")
                return Columns(split.text, split.pair, label if label in names else None, own_id)
    columns, _ = choose_columns(names, config, source, want_label=False)
    if is_pair and columns.pair is None:
        raise DataError(
            f"the model compares two texts, but only the column {columns.text!r} was found for them. Columns here:"
            f" {', '.join(map(repr, names))}. Name the second with --text_pair_column.",
            path=source,
        )
    return columns if is_pair else Columns(columns.text, None, columns.label, columns.id)
