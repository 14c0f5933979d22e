"""The data classes that the loader returns: `TaskData`, with the `TextRows` of each split and the `LabelSpace`."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from attentune.errors import InputError
from attentune.results import ORIGINAL_TRAIN

# The split that probabilities are calibrated on.
CALIBRATION = "calibration"
# The name of data that is given in Python.
FROM_PYTHON = "data from Python"
TASK_TYPES = ("classification", "regression", "ordinal", "multi_label")
# Separates the labels of a row in files that we write, and by default in files that we read.
SEPARATOR = "|"
# How many names of labels stand in one line.
SHOWN_CLASSES = 6


def shown_label(name: str) -> str:
    r"""Return the name of a label for a line: line breaks and invisible characters as signs such as `\n`, shortened."""
    signs = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in name[:41])
    return signs if len(name) <= 40 else f"{signs[:37]}..."


def some_names(names: Sequence[str]) -> str:
    """List the names of labels in one line: up to six, otherwise the first three."""
    quoted = any("," in name for name in names)
    shown = [f"'{shown_label(name)}'" if quoted else shown_label(name) for name in names]
    if len(names) <= SHOWN_CLASSES:
        return ", ".join(shown)
    return f"{', '.join(shown[:3])}, ..."


@dataclass(frozen=True)
class LabelSpace:
    """What a model predicts."""

    task_type: str  # "classification", "regression", "ordinal" or "multi_label"
    names: tuple[str, ...] = ()  # the classes in the order of their ids; empty for regression
    # "argmax", the most likely class, or, for ordinal tasks, "expected-value", the class nearest to the expected class
    # number.
    ordinal_prediction: str = "argmax"
    thresholds: tuple[float, ...] | None = None  # the decision threshold of each label, or of the second of two classes

    @property
    def num_labels(self) -> int:
        """The number of outputs: one per class, or one for regression."""
        return 1 if self.task_type == "regression" else len(self.names)

    @property
    def is_multilabel(self) -> bool:
        """Whether a row may have any number of labels."""
        return self.task_type == "multi_label"

    def job(self, *, is_pair: bool, score_range: Sequence[float] | None = None) -> str:
        """Say in words what a model with these labels does, such as "sorts a text into bad or good"."""
        of = "a pair of texts" if is_pair else "a text"
        if self.task_type == "regression":
            bounds = "" if score_range is None else " from {} to {}".format(*map(self.text_of, score_range))
            return f"gives {of} a score{bounds}"
        count, last = len(self.names), "and" if self.is_multilabel else "or"
        many = count > SHOWN_CLASSES
        listed = f" {last} ".join(filter(None, (some_names(self.names[:-1]), some_names(self.names[-1:]))))
        if many:
            listed = f"({some_names(self.names)})"
        if self.is_multilabel:
            return f"gives {of} any of {f'{count} labels' if many else 'the labels'} {listed}"
        order = "ordered " if self.task_type == "ordinal" else ""
        if many:
            return f"sorts {of} into {count} {order}classes {listed}"
        return f"sorts {of} into {f'the {order}classes ' if order else ''}{listed}"

    def text_of(self, value: Any) -> str:
        """Format a label or prediction for files: its name, several names joined by `SEPARATOR`, or a score."""
        if self.task_type == "regression":
            number = float(value)  # six digits, and four behind the point of large numbers
            return f"{number:.{max(6, len(str(int(abs(number)))) + 4)}g}"
        if self.is_multilabel:
            return SEPARATOR.join(self.names_of(value))
        return self.names[int(value)]

    def names_of(self, ones_C: Any) -> list[str]:
        return [name for name, there in zip(self.names, ones_C, strict=True) if there]

    @property
    def id2label(self) -> dict[int, str]:
        return dict(enumerate(self.names))

    @property
    def label2id(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names)}


@dataclass(frozen=True)
class RowSource:
    """The number of rows of a split that come from one source and have the same weight in training."""

    source: str
    rows: int
    weight: float


@dataclass(frozen=True)
class TextRows:
    """The rows of one split."""

    ids: tuple[str, ...]  # the id of each row in its file, otherwise its number from 0, as text
    texts: tuple[str, ...]  # the first (or only) text of each row
    pairs: tuple[str, ...] | None  # the second text of each row, or None for single texts
    labels: np.ndarray | None  # class ids (int64) or scores (float64), one per row
    source: str  # the file or dataset, for messages
    lines: tuple[int, ...] | None = None  # the line at which each row begins
    weights: np.ndarray | None = None  # (N,) float64, the loss weight of each row; None if all are 1
    sources: tuple[str, ...] | None = None  # the source of each row; None if it is `source` for all
    targets: np.ndarray | None = None  # (N, C) float64, what training compares predictions with instead of the labels
    kept: tuple[tuple[str, ...], ...] = ()  # the cells of further columns of the file, which are only copied, as texts
    # The columns beside the text, by name: categories as texts, "" if missing, or numbers as (N,) float64, else NaN.
    extra: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def original_rows(self) -> np.ndarray:
        """The indices of the rows from `source`, without extra rows, ascending."""
        every = np.arange(len(self))
        return every if self.sources is None else every[np.array(self.sources, dtype=object) == self.source]

    def where(self, row: int) -> str:
        """Return the source of a row, with its line if known, for messages."""
        source = self.source if self.sources is None else self.sources[row]
        return source if self.lines is None else f"{source}:{self.lines[row]}"

    def row_sources(self) -> list[RowSource]:
        """Count the rows by source and weight, in the order of their first rows."""
        counts: dict[tuple[str, float], int] = {}
        weights = [1.0] * len(self) if self.weights is None else self.weights.tolist()
        for key in zip(self.sources or (self.source,) * len(self), weights, strict=True):
            counts[key] = counts.get(key, 0) + 1
        return [RowSource(source, rows, weight) for (source, weight), rows in counts.items()]

    def take(self, indices: Sequence[int] | np.ndarray) -> TextRows:
        places = [int(index) for index in indices]

        def pick(column: Any) -> Any:
            if column is None or isinstance(column, np.ndarray):
                return None if column is None else column[places]
            return tuple(column[place] for place in places)

        names = ("ids", "texts", "pairs", "labels", "lines", "weights", "sources", "targets")
        columns: dict[str, Any] = {name: pick(getattr(self, name)) for name in names}
        extra = {name: pick(cells) for name, cells in self.extra.items()}
        return replace(self, **columns, kept=tuple(map(pick, self.kept)), extra=extra)

    def joined(self, *others: TextRows) -> TextRows:
        """Return these rows followed by others, without columns beside the text."""
        every = (self, *others)

        def join(name: str) -> Any:
            parts = [getattr(rows, name) for rows in every]
            if any(part is None for part in parts):
                return None
            return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else tuple(itertools.chain(*parts))

        columns = {name: join(name) for name in ("ids", "texts", "pairs", "labels", "lines", "targets")}
        sources = tuple(source for rows in every for source in rows.sources or (rows.source,) * len(rows))
        weights = [np.ones(len(rows)) if rows.weights is None else rows.weights for rows in every]
        is_weighted = any(rows.weights is not None for rows in every)
        columns["weights"] = np.concatenate(weights) if is_weighted else None
        return TextRows(**columns, source=self.source, sources=sources)

    def fingerprint(self) -> str:
        """Return a SHA-256 of ids, texts, labels, weights, targets and columns; it does not depend on the file."""
        digest = hashlib.sha256()
        for column in (self.ids, self.texts, self.pairs or ()):
            digest.update(f"{len(column)}\x1e".encode())
            for text in column:
                data = text.encode("utf-8", "surrogatepass")
                digest.update(f"{len(data)}\x1f".encode() + data)
        if self.labels is not None:
            digest.update(str(self.labels.dtype).encode() + np.ascontiguousarray(self.labels).tobytes())
        if self.weights is not None:
            digest.update(b"weights" + np.ascontiguousarray(self.weights).tobytes())
        if self.targets is not None:
            digest.update(b"targets" + np.ascontiguousarray(self.targets).tobytes())
        for name, cells in self.extra.items():
            digest.update(repr((name, list(cells))).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


@dataclass(frozen=True)
class Finding:
    level: str  # "warning" (likely to invalidate a result) or "note"
    kind: str  # a key of `data.doctor.CHECKS`
    split: str  # the name of the split
    message: str  # one sentence on what was found
    cure: str  # one sentence on how to fix it
    examples: tuple[str, ...] = ()  # up to three rows, by id and, if known, file and line


@dataclass(frozen=True)
class TaskData:
    name: str  # the name of the task, or of the user's file or data set (`data_name`)
    label_space: LabelSpace
    metrics: tuple[str, ...]  # names of metrics; the first selects the best model (see `metrics.metrics.METRICS`)
    splits: dict[str, TextRows]  # "train", "validation", "test"
    notes: tuple[str, ...] = ()  # sentences on what was decided automatically, to be logged
    doubt: tuple[str, str] | None = None  # why the labels may be scores instead of classes, and what settles it
    columns: dict[str, Any] = field(default_factory=dict)  # of custom data: the settings of the columns that were read

    @property
    def is_pair(self) -> bool:
        return any(rows.pairs is not None for rows in self.splits.values())

    @property
    def has_columns(self) -> bool:
        return any(rows.extra for rows in self.splits.values())

    def fingerprint(self) -> dict[str, str]:
        """Return the SHA-256 of each split; with extra rows, also that of train without them (`ORIGINAL_TRAIN`)."""
        prints = {name: rows.fingerprint() for name, rows in self.splits.items()}
        train = self.splits.get("train")
        if train is not None and train.sources is not None:
            original = replace(train.take(train.original_rows), weights=None)
            prints[ORIGINAL_TRAIN] = original.fingerprint()
        return prints


def data_name(data: Mapping[str, Any]) -> str:
    """Name a run's data, for people: the task, the data set on the hub, or the file without its folder."""
    if name := str(data.get("task") or data.get("dataset_name") or ""):
        return Path(name).name if Path(name).is_absolute() or Path(name).is_dir() else name
    file = next((data[key] for key in ("train_file", "validation_file", "test_file") if data.get(key)), None)
    return FROM_PYTHON if file is None else Path(str(file)).name


def checked_texts(texts: Sequence[Any], what: str) -> tuple[str, ...]:
    rows = tuple(texts)
    check_each(rows, what, lambda value: isinstance(value, str), "a text; fill gaps with '' or take these rows out")
    return rows


def check_each(values: Sequence[Any], what: str, is_valid: Callable[[Any], bool], expected: str) -> None:
    wrong = [row for row, value in enumerate(values) if not is_valid(value)]
    if wrong:
        value = values[wrong[0]]
        more = f" and {len(wrong) - 1:,} more row{'s' * (len(wrong) > 2)} likewise" if len(wrong) > 1 else ""
        raise InputError(
            f"{what}: row {wrong[0]} holds {repr(value)[:60]} ({type(value).__name__}){more}, expected {expected}."
        )


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, or pandas' NA or NaT."""
    return (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )
