"""What a data set is once it has been read and checked: columns of the same length, and the labels' names."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attentune.results import ORIGINAL_TRAIN

# The name of a task from custom files. Settings files and comparison folders use it, so it stays as it is.
CUSTOM_NAME = "own"
# The split that probabilities are calibrated on.
CALIBRATION = "calibration"
TASK_TYPES = ("classification", "regression", "ordinal", "multi_label")
# Stands between the labels of a row with several, in files that we write and, unless told otherwise, read.
SEPARATOR = "|"


@dataclass(frozen=True)
class LabelSpace:
    """What a model predicts.

    Attributes:
        task_type: "classification", "regression", "ordinal" (classes with an order, lowest first) or "multi_label"
            (any number of the labels at once, each on its own).
        names: the classes in the order of their ids; empty for regression.
        ordinal_prediction: "argmax", the likeliest class, or, for ordered classes, "expected-value", the one nearest to
            the mean of class numbers.
        thresholds: the probability from which on each label is predicted, of two classes the second one; None for a
            half, or for the likeliest class.
    """

    task_type: str
    names: tuple[str, ...] = ()
    ordinal_prediction: str = "argmax"
    thresholds: tuple[float, ...] | None = None

    @property
    def num_labels(self) -> int:
        """The number of outputs: one a class, or one for regression."""
        return 1 if self.task_type == "regression" else len(self.names)

    @property
    def is_multilabel(self) -> bool:
        """Whether a row may have several labels, or none."""
        return self.task_type == "multi_label"

    def text_of(self, value: Any) -> str:
        """A label or prediction as files have it: its name, several joined by `SEPARATOR`, or a score."""
        if self.task_type == "regression":
            return f"{float(value):.6g}"
        if self.is_multilabel:
            return SEPARATOR.join(self.names_of(value))
        return self.names[int(value)]

    def names_of(self, ones_C: Any) -> list[str]:
        """The names of the labels that are there, for rows with several."""
        return [name for name, there in zip(self.names, ones_C, strict=True) if there]

    @property
    def id2label(self) -> dict[int, str]:
        return dict(enumerate(self.names))

    @property
    def label2id(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names)}


@dataclass(frozen=True)
class RowSource:
    """Rows of one split that come from one place and count alike in training."""

    source: str
    rows: int
    weight: float


@dataclass(frozen=True)
class TextRows:
    """The rows of one split.

    Attributes:
        ids: the file's own index of each row, else the row's number from 0, as text.
        texts: the first (or only) text of each row.
        pairs: the second text of each row, or None where the task has one text.
        labels: class ids (int64) or scores (float64), one a row; with several labels a row (N, C) int64, 1 where a
            row has the label; None where the split has no labels.
        source: where the rows came from, for messages.
        lines: the line of the file that each row began at (from 1), or None where the source has no lines.
        weights: (N,) float64, what each row counts in training; None where each counts 1.
        sources: where each row came from, where not all are from `source`; None where they are.
    """

    ids: tuple[str, ...]
    texts: tuple[str, ...]
    pairs: tuple[str, ...] | None
    labels: np.ndarray | None
    source: str
    lines: tuple[int, ...] | None = None
    weights: np.ndarray | None = None
    sources: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def original_rows(self) -> np.ndarray:
        """The places of the rows that are from `source`, ascending."""
        every = np.arange(len(self))
        return every if self.sources is None else every[np.array(self.sources, dtype=object) == self.source]

    def where(self, row: int) -> str:
        """The source of a row, with its line where that is known; for messages."""
        source = self.source if self.sources is None else self.sources[row]
        return source if self.lines is None else f"{source}:{self.lines[row]}"

    def row_sources(self) -> list[RowSource]:
        """How many rows of which weight come from where, in the order of the first of each."""
        counts: dict[tuple[str, float], int] = {}
        weights = [1.0] * len(self) if self.weights is None else self.weights.tolist()
        for key in zip(self.sources or (self.source,) * len(self), weights, strict=True):
            counts[key] = counts.get(key, 0) + 1
        return [RowSource(source, rows, weight) for (source, weight), rows in counts.items()]

    def take(self, indices: Sequence[int] | np.ndarray) -> TextRows:
        """The rows at these places, in this order."""
        places = [int(index) for index in indices]

        def pick(column: Any) -> Any:
            return None if column is None else tuple(column[place] for place in places)

        return replace(
            self,
            ids=pick(self.ids),
            texts=pick(self.texts),
            pairs=pick(self.pairs),
            labels=None if self.labels is None else self.labels[places],
            lines=pick(self.lines),
            weights=None if self.weights is None else self.weights[places],
            sources=pick(self.sources),
        )

    def fingerprint(self) -> str:
        """A SHA-256 over ids, texts, labels, weights: equal for equal rows in the same order, whatever their file."""
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
        return digest.hexdigest()


@dataclass(frozen=True)
class TaskData:
    """A task with its rows.

    Attributes:
        name: the task's name, or "own" for a user's own files.
        label_space: what is predicted.
        metrics: names of the metrics, the one to choose by first (see `evaluation.metrics.METRICS`).
        splits: "train", "validation", "test" (MNLI: "validation_matched", "validation_mismatched", ...), in that order.
        notes: what was decided for the user and should be said, one sentence each.
    """

    name: str
    label_space: LabelSpace
    metrics: tuple[str, ...]
    splits: dict[str, TextRows]
    notes: tuple[str, ...] = ()

    @property
    def is_pair(self) -> bool:
        """Whether each row has two texts."""
        return any(rows.pairs is not None for rows in self.splits.values())

    def fingerprint(self) -> dict[str, str]:
        """The SHA-256 of each split; where extra rows are mixed into train, also that of its own rows
        (`ORIGINAL_TRAIN`)."""
        prints = {name: rows.fingerprint() for name, rows in self.splits.items()}
        train = self.splits.get("train")
        if train is not None and train.sources is not None:
            own = replace(train.take(train.original_rows), weights=None)
            prints[ORIGINAL_TRAIN] = own.fingerprint()
        return prints
