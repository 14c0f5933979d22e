"""Labels: find the label space of a task, and read label columns as class ids, scores or multi-hot rows."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attentune.config.parse import did_you_mean
from attentune.config.schema import DataConfig
from attentune.data.dataset import SEPARATOR, LabelSpace, TextRows
from attentune.data.readers.table import Table, as_cell, quote
from attentune.errors import ConfigError, DataError, LabelError

LabelSet = tuple[str, ...]

# Up to this many rows, labels may all be different; above this many classes, rows of one each are pointed out.
_FEW_ROWS, _MANY_CLASSES = 10, 50
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_UNKNOWN_SCORES = frozenset({"-1", "-1.0"})


def decide_task_type(config: DataConfig, default: str | None) -> tuple[str, str]:
    """Decide the type of the labels, and explain it in a note.

    Args:
        config: the settings; `task_type` overrides the default.
        default: the type of the built-in task; None for custom data (then: classification).
    """
    if config.task_type is not None:
        return config.task_type, f"Task type: {config.task_type}, as set by task_type."
    if default is not None:
        return default, f"Task type: {default}, the task's own."
    return (
        "classification",
        "Task type: classification, the default (else: --task_type regression, ordinal or multi_label).",
    )


def find_space(task_type: str, config: DataConfig, table: Table, column: str) -> tuple[LabelSpace, tuple[str, ...]]:
    """Find the label space of custom data in its training rows.

    The order of the classes is that of `label_names`, otherwise (classification) that of the column's declaration,
    otherwise sorted (by value if all are integers).

    Returns:
        The label space, and notes.

    Raises:
        ConfigError: if `label_names` is invalid, or the order of an ordinal task is unknown.
        LabelError: if there are fewer than two classes.
    """
    if task_type == "regression":
        if config.label_names is not None:
            raise ConfigError("data.label_names: scores of a regression have no names. Leave it out.")
        return LabelSpace(task_type), ()
    notes: tuple[str, ...] = ()
    if task_type == "multi_label":
        sets = label_sets(table, column, config.label_separator)
        distinct = sorted({label for names in sets for label in names or ()})
        check_names((*distinct, *(config.label_names or ())), table.source)
        notes = separator_note(table, column, config.label_separator)
    else:
        labels = label_values(table, column)
        distinct = sorted({label for label in labels if label is not None})
        if len(distinct) == 1 and None in labels:
            raise _no_label(table, labels.index(None), column)
    if len(distinct) < 2:
        got = f"only the label {quote(distinct[0])}" if distinct else "no labels"
        raise LabelError(
            f"column {column!r} holds {got}, expected at least two classes. Add rows of another class"
            " (or use --task_type regression for scores).",
            path=table.source,
        )
    if task_type == "classification" and column not in table.class_names and config.label_names is None:
        count = sum(label is not None for label in labels)
        _check_repeated(distinct, count, table, column)
        if _look_continuous(distinct):
            notes = (_continuous_note(distinct, column),)
        elif len(distinct) > _MANY_CLASSES and len(distinct) > count / 2:
            notes = (_many_classes_note(distinct, count, column),)
    return LabelSpace(task_type, _ordered_names(task_type, config, table, column, distinct)), notes


def _ordered_names(
    task_type: str, config: DataConfig, table: Table, column: str, distinct: Sequence[str]
) -> tuple[str, ...]:
    if config.label_names is not None:
        names = config.label_names
        if len(set(names)) < max(len(names), 2):
            raise ConfigError(
                f"data.label_names: got {', '.join(names)}, expected at least two names, each once, such as"
                " [bad, good]."
            )
        return names
    if column in table.class_names and task_type != "ordinal":
        return tuple(name.strip() for name in table.class_names[column])
    if all(_INTEGER.fullmatch(label) for label in distinct):
        return tuple(sorted(distinct, key=lambda label: (int(label), label)))
    if task_type == "ordinal":
        raise ConfigError(
            "data.label_names: an ordinal task needs its labels in order, lowest first (only whole numbers order"
            f" themselves). Found: {', '.join(distinct[:20])}. Give them as label_names, such as [bad, fair, good]."
        )
    return tuple(distinct)


def _look_continuous(distinct: Sequence[str]) -> bool:
    numbers = [parse_number(label) for label in distinct]
    return len(distinct) > 20 and None not in numbers and any(number % 1 for number in numbers if number is not None)


def _check_repeated(distinct: Sequence[str], count: int, table: Table, column: str) -> None:
    """Check that at least one label occurs twice: a column of ids or free text is no label column.

    Raises:
        LabelError: all labels of more than a few rows are different.
    """
    if count > _FEW_ROWS and len(distinct) == count:
        raise LabelError(
            f"column {column!r} holds a different label in each of its {count:,} rows ({quote(distinct[0])},"
            f" {quote(distinct[1])}, ...), expected classes that occur several times. Is it an id or a free text? Name"
            " the column of the classes with --label_column; for scores use --task_type regression.",
            path=table.source,
        )


def _many_classes_note(distinct: Sequence[str], count: int, column: str) -> str:
    return (
        f"warning: column {column!r} holds {len(distinct):,} classes in {count:,} rows: most have one row. Is"
        " it an id or a free text? Name another --label_column; for scores use --task_type regression."
    )


def _continuous_note(distinct: Sequence[str], column: str) -> str:
    return (
        f"Column {column!r} holds {len(distinct)} different numbers, not all of them whole, and each is a class"
        " of its own; if they are scores, use --task_type regression."
    )


def check_names(names: Sequence[str], source: str) -> None:
    """Check that label names can be joined by `SEPARATOR` in our files.

    Raises:
        LabelError: a name contains the separator.
    """
    wrong = next((name for name in names if SEPARATOR in name), None)
    if wrong is not None:
        raise LabelError(
            f"got the label {wrong!r}, expected none with {SEPARATOR!r} in its name, which stands between the labels of"
            " a row in our files. Rename it, or name what stands between labels in yours with --label_separator.",
            path=source,
        )


def separator_note(table: Table, column: str, separator: str | None) -> tuple[str, ...]:
    """Return a note if no label text contains the separator, but some contain another likely one."""
    texts = [cell for cell in table.columns[column] if isinstance(cell, str)]
    wanted = separator or SEPARATOR
    if not texts or any(wanted in text for text in texts):
        return ()
    near = next((sign for sign in (";", ",", "|") if sign != wanted and any(sign in text for text in texts)), None)
    if near is None:
        return ()
    return (
        f"No row of column {column!r} holds {wanted!r}, so each text is one label; if {near!r} stands between labels,"
        f" use --label_separator '{near}'.",
    )


@dataclass(frozen=True)
class LabelReader:
    """Reads the labels of a column.

    Attributes:
        space: the labels.
        values: maps values in the file to class names; the names themselves are valid too.
        score_range: the lowest and highest valid score.
        missing: values that mean "no label", besides empty and null.
        separator: multi-label: the separator in a cell (default: `SEPARATOR`).
    """

    space: LabelSpace
    values: Mapping[str, str] = field(default_factory=dict)
    score_range: tuple[float, float] | None = None
    missing: tuple[str, ...] = ()
    separator: str | None = None

    def read(self, table: Table, column: str, *, is_test: bool = False) -> np.ndarray | None:
        """Read class ids (int64) or scores (float64), one per row; multi-label (N, C) int64, 1 for each label of a row.

        White space around labels is ignored.

        Args:
            table: the rows.
            column: the label column.
            is_test: whether labels that are all missing (empty, null or -1) mean that the split has none.

        Returns:
            The labels; None for a test split without labels.

        Raises:
            LabelError: for missing labels, unknown classes (all of them, with the first row of each), and scores that
                are not finite or out of range.
        """
        if self.space.is_multilabel:
            return self._sets(table, column, is_test=is_test)
        labels = label_values(table, column)
        if is_test and all(self._is_missing(label, is_test=True) for label in labels):
            return None
        for row, label in enumerate(labels):
            if self._is_missing(label, is_test=False):
                raise _no_label(table, row, column)
        present = [label or "" for label in labels]
        return self._scores(present, table) if self.space.task_type == "regression" else self._classes(present, table)

    def _sets(self, table: Table, column: str, *, is_test: bool) -> np.ndarray | None:
        sets = label_sets(table, column, self.separator)
        if is_test and all(not names or self._is_missing(SEPARATOR.join(names), is_test=True) for names in sets):
            return None
        present: list[LabelSet] = []
        for row, names in enumerate(sets):
            if names is None:
                raise _no_label(table, row, column)
            present.append(names)
        ids = self.space.label2id
        places = [(label, row) for row, names in enumerate(present) for label in names if label not in ids]
        if places:
            raise _unknown_labels(dict(reversed(places)), table, self.space.names)
        return multi_hot(present, ids, self.space.num_labels)

    def missing_rows(self, table: Table, column: str) -> list[int]:
        """Return the indices of the rows without a label."""
        return [row for row, label in enumerate(label_values(table, column)) if self._is_missing(label, is_test=False)]

    def _is_missing(self, label: str | None, *, is_test: bool) -> bool:
        if not label or label in self.missing:
            return True
        return is_test and label in _UNKNOWN_SCORES and label not in self.space.names and label not in self.values

    def _classes(self, labels: Sequence[str], table: Table) -> np.ndarray:
        label2id = self.space.label2id
        ids = label2id | {raw: label2id[name] for raw, name in self.values.items() if name in label2id}
        unknown = {label: row for row, label in reversed(list(enumerate(labels))) if label not in ids}
        if unknown:
            raise _unknown_labels(unknown, table, self.space.names)
        return np.array([ids[label] for label in labels], dtype=np.int64)

    def _scores(self, labels: Sequence[str], table: Table) -> np.ndarray:
        scores = np.empty(len(labels), dtype=np.float64)
        for row, label in enumerate(labels):
            score = parse_number(label)
            if score is None:
                hint = " Write decimals with a point." if "," in label else ""
                raise table.error(
                    row, f"label {quote(label)}, expected a finite number (such as 3.5).{hint}", LabelError
                )
            if self.score_range is not None and not self.score_range[0] <= score <= self.score_range[1]:
                low, high = self.score_range
                raise table.error(row, f"label {quote(label)}, expected a score from {low:g} to {high:g}.", LabelError)
            scores[row] = score
        return scores


def multi_hot(sets: Sequence[LabelSet], ids: Mapping[str, int], count: int) -> np.ndarray:
    """Encode label sets as (N, C) int64 of ones and zeros; `ids` maps every name to its column."""
    labels_NC = np.zeros((len(sets), count), dtype=np.int64)
    for row, names in enumerate(sets):
        labels_NC[row, [ids[name] for name in names]] = 1
    return labels_NC


def map_labels(rows: TextRows, source: LabelSpace, target: LabelSpace) -> TextRows:
    """Map the labels of rows from one label space to another: classes by name, scores unchanged.

    Raises:
        LabelError: if the spaces are of different types, or a class does not exist in the target.
    """
    check_same_labels(source, target, rows.source)
    if rows.labels is None or source.task_type == "regression" or source.names == target.names:
        return rows
    table = np.array([target.label2id[name] for name in source.names], dtype=np.int64)
    return replace(rows, labels=table[rows.labels])


def check_same_labels(source: LabelSpace, target: LabelSpace, where: str) -> None:
    """Check that labels of one space can be mapped to another.

    Raises:
        LabelError: as `map_labels`.
    """
    words = {"regression": "scores", "multi_label": "sets of labels"}
    kinds = [words.get(space.task_type, "classes") for space in (source, target)]
    if kinds[0] != kinds[1]:
        raise LabelError(
            f"the labels are {kinds[0]}, but the model was trained on {kinds[1]}. Score it on data of its own kind.",
            path=where,
        )
    unknown = [name for name in source.names if name not in target.label2id]
    if unknown:
        raise LabelError(
            f"the model does not know the label{'s' * (len(unknown) > 1)} {', '.join(map(repr, unknown))}; it was"
            f" trained on {', '.join(map(repr, target.names))}. Score it on data with these labels.",
            path=where,
        )


def label_sets(table: Table, column: str, separator: str | None = None) -> list[LabelSet | None]:
    """Read the set of labels of each row, stripped and without repetitions: () if it is empty, None for null.

    Args:
        table: the rows; a cell is a list, or a text with separated labels.
        column: the label column.
        separator: the separator in a text (default: `SEPARATOR`).

    Raises:
        LabelError: a cell is neither, or a list holds something other than texts and numbers.
    """
    return [
        None if cell is None else _label_set(table, row, column, cell, separator or SEPARATOR)
        for row, cell in enumerate(table.columns[column])
    ]


def _label_set(table: Table, row: int, column: str, cell: Any, separator: str) -> LabelSet:
    values = cell.split(separator) if isinstance(cell, str) else cell
    names = [as_cell(value) for value in values] if isinstance(values, list) else [None]
    if not all(isinstance(name, str) for name in names):
        raise table.error(
            row,
            f'column {column!r} holds {str(cell)[:40]}, expected labels: a list such as ["a", "b"], or a text with'
            f" {separator!r} between them (--label_separator).",
            LabelError,
        )
    return tuple(dict.fromkeys(name.strip() for name in names if name and name.strip()))


def label_values(table: Table, column: str) -> tuple[str | None, ...]:
    """Read the labels of a column, stripped; None for missing ones.

    Raises:
        DataError: a row has a list of labels.
    """
    listed = next((row for row, cell in enumerate(table.columns[column]) if isinstance(cell, list)), None)
    if listed is not None:
        raise table.error(
            listed,
            f"column {column!r} holds a list ({str(table.columns[column][listed])[:40]}), expected one label. If rows"
            " have several labels, use --task_type multi_label.",
            LabelError,
        )
    return tuple(None if value is None else value.strip() or None for value in table.values(column))


def parse_number(text: str) -> float | None:
    """Parse a finite number in decimal notation (no 1_000, no nan); None if it is none."""
    try:
        number = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _no_label(table: Table, row: int, column: str) -> DataError:
    return table.error(
        row, f"column {column!r} has no label here, expected one in each row. Add it, or take the row out.", LabelError
    )


def _unknown_labels(first_rows: Mapping[str, int], table: Table, names: Sequence[str]) -> DataError:
    ordered = sorted(first_rows.items(), key=lambda item: item[1])
    listed = [
        f"{quote(label)} (first at {table.place(row)}){did_you_mean(label[:100], [name[:100] for name in names])}"
        for label, row in ordered[:10]
    ]
    more = f" and {len(ordered) - 10} more" if len(ordered) > 10 else ""
    valid = ", ".join(map(quote, names[:30])) + (f" and {len(names) - 30} more" if len(names) > 30 else "")
    message = (
        f"unknown labels: {'; '.join(listed)}{more}. Known: {valid}. Correct the rows (or label_names, where given)."
    )
    return table.error(ordered[0][1], message, LabelError)
