"""From the columns of a table to the rows of a split.

`choose_columns` finds the columns of texts, labels and ids; `row_ids` and `IdColumns` check the ids; `read_rows` makes
the rows. All data takes this way: built-in tasks, custom files, extra training rows and rows to predict.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attentune.config.parse import did_you_mean
from attentune.config.schema import DataConfig
from attentune.data.dataset import TextRows
from attentune.data.dates import date_columns
from attentune.data.label_cells import label_columns, label_setting
from attentune.data.labels import LabelReader
from attentune.data.names import IDS, LABELS, TEXT_PAIRS, TEXTS, no_content
from attentune.data.readers.csv import separator_hint
from attentune.data.readers.table import Table, has_return, quote
from attentune.errors import DataError

# Iterates over the tables from the start again.
Tables = Callable[[], Iterable[Table]]


@dataclass(frozen=True)
class Columns:
    """The columns to read: `pair` None for single texts, `label` None without labels, `id` None for the default.

    Several label columns are one JSON list in `label`.
    """

    text: str
    pair: str | None = None
    label: str | None = None
    id: str | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The label columns."""
        return () if self.label is None else label_columns(self.label, None)

    def settings(self) -> dict[str, str]:
        """Return the settings of the columns that are read, except ids, as in `TaskData.columns`."""
        read = {"text_column": self.text, "text_pair_column": self.pair, "label_column": self.label}
        return {name: column for name, column in read.items() if column is not None}


# The columns of sources without names of their own: lines of a text file, and folders of texts by class.
_OWN_NAMES = (("text",), ("file", "text", "label"))


def with_own_names(names: Sequence[str], config: DataConfig) -> DataConfig:
    """Return the settings for a source without names of its own, in which those of other files are not expected."""
    if tuple(names) not in _OWN_NAMES or config.text_column in (None, *names):
        return config
    label = config.label_column if config.label_column in names else None
    return replace(config, text_column="text", label_column=label)


def with_columns(config: DataConfig, columns: Mapping[str, Any]) -> DataConfig:
    """Return the settings with these columns, in the form of `TaskData.columns`, where none are given."""
    return replace(config, **{name: column for name, column in columns.items() if getattr(config, name) is None})


def columns_notes(columns: Mapping[str, str]) -> tuple[str, ...]:
    """Return a sentence on the columns that are read, in the form of `TaskData.columns`; none on `text` and `label`."""
    if set(columns.values()) <= {"text", "label", "sentence", "sentence1", "sentence2"}:
        return ()
    what = {"text_column": "text", "text_pair_column": "second text", "label_column": "label"}
    shown = {name: ", ".join(map(repr, label_columns(column, None))) for name, column in columns.items()}
    return (f"Columns read: {', '.join(f'{what[name]} {column}' for name, column in shown.items())}.",)


def require(names: Sequence[str], column: str, source: str, setting: str, likely: Sequence[str] = ()) -> str:
    """Return the column if it exists; of `--label_column` several, as `label_columns` reads them, as a JSON list."""
    found = label_columns(column, names) if setting == "--label_column" else None
    if found is not None or column in names:
        return column if found is None else label_setting(found)
    parts = [part.strip() for part in column.split(",")] if "," in column else label_columns(column, None)
    lacking = next((part for part in parts if part not in names), column) if set(parts) & set(names) else column
    near = did_you_mean(lacking, names)
    if not near:
        wanted = {"--label_column": LABELS, "--text_column": TEXTS}.get(setting, ())
        usual = _first(wanted, names)
        meant = likely or ([] if usual is None else [usual])
        near = f" Did you mean {' or '.join(map(repr, meant[:3]))}?" if meant else ""
    raise DataError(
        f"there is no column {lacking!r}.{near} Columns here: {_listed(names)}."
        f" Name the right one with {setting}.{separator_hint(names)}",
        path=source,
    )


def choose_columns(
    names: Sequence[str], config: DataConfig, source: str, *, want_label: bool = True
) -> tuple[Columns, tuple[str, ...]]:
    """Choose the columns given in the settings, otherwise those with conventional names."""
    label = config.label_column
    if label is not None:
        is_there = label_columns(label, names) is not None
        label = require(names, label, source, "--label_column") if want_label or is_there else None
    else:
        label = _first(LABELS, [name for name in names if name not in (config.text_column, config.text_pair_column)])
        if label is None and want_label:
            raise _not_found("label", "--label_column", names, source)
    parts = Columns("", label=label).labels
    same = next((part for part in parts if part in (config.text_column, config.text_pair_column)), None)
    if same is not None and want_label:
        raise DataError(
            f"column {same!r} is given as the text and as the label, so that the label would predict itself. Name"
            " another with --text_column or --label_column.",
            path=source,
        )
    if config.id_column is not None:
        require(names, config.id_column, source, "--id_column")
    text, pair = _choose_texts(names, config, source, parts)
    taken = (text, pair, label, config.id_column)
    guessed, others = [], [name for name in names if name not in (*taken, *parts)]
    texts = labels = ""  # columns that could be meant instead
    if config.text_column is None:
        texts = "" if pair is not None else _instead(name for name in others if name.lower() in TEXTS)
        guessed.append(f"text {text!r}{texts}")
    if pair is not None and config.text_pair_column is None:
        guessed.append(f"second text {pair!r}")
    if label is not None and config.label_column is None:
        labels = _instead(name for name in others if name.lower() in LABELS)
        guessed.append(f"label {label!r}{labels}")
    doubt = " If that is wrong, give --text_column or --label_column." if texts or labels else ""
    notes = (f"Columns chosen by their names: {', '.join(guessed)}.{doubt}",) if guessed else ()
    return Columns(*taken), notes


def _instead(others: Iterable[str]) -> str:
    """Name the other columns that could be meant, if there are any."""
    named = ", ".join(map(repr, others))
    return f" (not {named})" if named else ""


def _choose_texts(
    names: Sequence[str], config: DataConfig, source: str, labels: Sequence[str]
) -> tuple[str, str | None]:
    pair = config.text_pair_column
    if pair is not None:
        require(names, pair, source, "--text_pair_column")
    if config.text_column is not None:
        return require(names, config.text_column, source, "--text_column"), pair
    rest = [name for name in names if name not in (*labels, pair, config.id_column)]
    if pair is None:
        for first, second in TEXT_PAIRS:
            chosen = _first((first,), rest), _first((second,), rest)
            if chosen[0] is not None and chosen[1] is not None:
                return chosen[0], chosen[1]
    candidates = tuple(first for first, second in TEXT_PAIRS if pair is not None and second == pair.lower()) + TEXTS
    text = _first(candidates, rest)
    unnamed = [name for name in rest if name.lower() not in IDS]
    if text is None and len(unnamed) == 1 and no_content(unnamed[0]) not in ("an id", "a date"):
        text = unnamed[0]
    if text is None:
        raise _not_found("text", "--text_column", names, source)
    return text, pair


def _first(wanted: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the first wanted name that exists, ignoring case."""
    by_lower = {name.lower(): name for name in reversed(names)}
    return next((by_lower[name] for name in wanted if name in by_lower), None)


def _not_found(what: str, setting: str, names: Sequence[str], source: str) -> DataError:
    return DataError(
        f"no column looks like the {what} by its name. Columns here: {_listed(names)}. Name it with {setting}."
        f"{separator_hint(names)}",
        path=source,
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:30]))
    return f"{shown}, and {len(names) - 30} more" if len(names) > 30 else shown


class IdColumns:
    """Finds the first of some columns whose values are unique ids, in memory of 8 bytes per row and column."""

    def __init__(self, names: Sequence[str], *, strict: bool, hash_of: Callable[[str], int] = hash) -> None:
        self._strict, self._hash_of = strict, hash_of
        self._hashes = {name: array("q") for name in names}
        self._returning: set[str] = set()

    @property
    def names(self) -> list[str]:
        """The columns that are still candidates."""
        return list(self._hashes)

    def add(self, table: Table) -> None:
        """Add the ids of the next chunk."""
        for name in self.names:
            try:
                ids = _ids(table, name)
            except DataError:
                if self._strict:
                    raise
                del self._hashes[name]
                continue
            self._hashes[name].extend(map(self._hash_of, ids))
            if has_return(ids):
                self._returning.add(name)

    def has_return(self, name: str | None) -> bool:
        """Whether an id in this column holds a carriage return; False without a column."""
        return name in self._returning

    def first_usable(self, tables: Tables) -> str | None:
        """Return the first column with unique ids, or None."""
        for name, hashes in self._hashes.items():
            error = _repeated(name, np.frombuffer(hashes, dtype=np.int64), tables)
            if error is None:
                return name
            if self._strict:
                raise error
        return None


def id_columns(names: Iterable[str], column: str | None, *, strict: bool) -> IdColumns:
    """The candidate id columns: the given one, otherwise those with a conventional name."""
    wanted = [column] if column is not None else [name for name in names if name.lower() in IDS]
    return IdColumns(wanted, strict=strict and column is not None)


def row_ids(table: Table, column: str | None, *, strict: bool = True) -> tuple[tuple[str, ...], str | None]:
    """Read the id of each row."""
    candidates = id_columns(table.columns, column, strict=strict)
    names = candidates.names
    candidates.add(table)
    usable = candidates.first_usable(lambda: [table])
    if usable is not None or not names:
        return ids_of(table, usable), None
    shown = " and ".join(map(repr, names))
    return ids_of(table, None), f"{table.source}: rows are numbered from 0, since {shown} does not name each row once."


def ids_of(table: Table, column: str | None) -> tuple[str, ...]:
    """Return the ids in a column with unique values; without a column the row numbers in the source."""
    if column is not None:
        return table.texts(column)
    return tuple(str(number) for number in range(table.first_row, table.first_row + len(table)))


def _ids(table: Table, column: str) -> Sequence[str]:
    values = table.values(column)
    for row, value in enumerate(values):
        if not value:
            raise table.error(row, f"column {column!r} has no id here. Give each row one, or leave --id_column out.")
    return table.texts(column)


def _repeated(column: str, hashes: np.ndarray, tables: Tables) -> DataError | None:
    """Return the error for the first repeated id, or None."""
    ordered = np.sort(hashes)
    if not (ordered[1:] == ordered[:-1]).any():
        return None
    order = np.argsort(hashes, kind="stable")
    again = order[1:][hashes[order[1:]] == hashes[order[:-1]]]
    for row in np.sort(again).tolist():
        alike = np.flatnonzero(hashes[: row + 1] == hashes[row])
        error = _used_before(column, alike, tables())
        if error is not None:
            return error
    return None


def _used_before(column: str, alike: np.ndarray, tables: Iterable[Table]) -> DataError | None:
    """Return the error for the last of these rows, if one of the others has the same id."""
    seen: dict[str, str] = {}
    for table in tables:
        here = alike[(alike >= table.first_row) & (alike < table.first_row + len(table))] - table.first_row
        for row in here.tolist():
            value = table.columns[column][row]
            if table.first_row + row < alike[-1]:
                seen.setdefault(value, table.place(row))
            elif value in seen:
                return table.error(
                    row,
                    f"id {value!r} in column {column!r} was used before ({seen[value]}), expected each once. Correct"
                    " it, or leave --id_column out to number the rows.",
                )
            else:
                return None
    return None


def read_rows(
    table: Table,
    columns: Columns,
    reader: LabelReader,
    *,
    is_test: bool = False,
    ids: tuple[str, ...] | None = None,
    strict_ids: bool = True,
    drop_unlabelled: bool = False,
) -> tuple[TextRows, list[str]]:
    """Read and check the texts, labels and ids of a table."""
    unlabelled = reader.missing_rows(table, columns.label) if drop_unlabelled and columns.label is not None else []
    left_out = {} if columns.label is None else reader.rows_left_out(table, columns.label)
    used, dropped = table, sorted({*unlabelled, *left_out})
    if 0 < len(dropped) < len(table):
        labelled = sorted(set(range(len(table))) - set(dropped))
        used = table.take(labelled)
    labels = None if columns.label is None else reader.read(used, columns.label, is_test=is_test)
    notes = []
    if labels is not None and columns.label is not None and (note := reader.spellings(used, columns.label)) is not None:
        notes.append(note)
    if ids is None:
        ids, note = row_ids(table, columns.id, strict=strict_ids)
        notes += [note] if note else []
    if used is not table:
        ids = tuple(ids[row] for row in labelled)
    if used is not table and unlabelled:
        lines = () if table.lines is None else [table.lines[row] for row in unlabelled]
        notes.append(dropped_note(table.source, lines, "no label"))
    if used is not table and left_out:
        counts = Counter(left_out.values())
        shown = ", ".join(f"{quote(label)} ({count:,})" for label, count in counts.most_common(5))
        notes.append(
            f"{table.source}: {len(left_out):,} row{'s are' if len(left_out) > 1 else ' is'} left out, as the label"
            f" means that there is none: {shown}, first {table.place(min(left_out))}. (--ignore_labels; --label_names"
            " keeps such a label as a class.)"
        )
    pairs = None if columns.pair is None else used.texts(columns.pair)
    dates = date_columns(used, but=(columns.text, columns.pair, *columns.labels))
    return TextRows(ids, used.texts(columns.text), pairs, labels, used.source, used.lines, dates=dates), notes


def dropped_note(source: str, lines: Sequence[int], reason: str) -> str:
    """A note on rows of a built-in task that were left out, with their first lines."""
    first = ", ".join(map(str, lines[:5])) + (", ..." if len(lines) > 5 else "")
    rows = "1 row was" if len(lines) == 1 else f"{len(lines)} rows were"
    return f"{source}: {rows} left out for {reason} (line {first}), as the task's published loaders do."
