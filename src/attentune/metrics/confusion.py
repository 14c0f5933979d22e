"""Scores from confusion counts, for many tables of counts at once.

A call of scikit-learn's takes a millisecond whatever the number of rows; ensemble selection, thresholds, jackknives and
bootstraps need thousands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

# Values that are held in memory at once.
_VALUES_AT_ONCE = 2_000_000
_FEW_CLASSES = 10


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Divide, with 0 for 0 / 0."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator != 0)


class ConfusionSums(NamedTuple):
    """What scores need of confusion counts, or of several labels per row, for any number of tables at once."""

    hits: np.ndarray  # (..., C) rows of each class that are predicted right
    true: np.ndarray  # (..., C) rows of each class
    predicted: np.ndarray  # (..., C) predictions of each class
    distance: np.ndarray = np.zeros(())  # (...) the sum of the squared differences of class numbers, over rows
    is_sets: bool = False  # whether rows have several labels

    def average(self, values: np.ndarray) -> np.ndarray:
        """Return the (...) means of (..., C) values over the classes that occur, or over all of several labels."""
        count = values.shape[-1] if self.is_sets else ((self.true + self.predicted) > 0).sum(axis=-1)
        return values.sum(axis=-1) / count

    @classmethod
    def of(cls, counts: np.ndarray) -> ConfusionSums:
        """Sum (..., C, C) confusion counts, labels by predictions."""
        classes = np.arange(counts.shape[-1])
        distance = ((classes[:, None] - classes) ** 2 * counts).sum(axis=(-2, -1))
        return cls(
            np.diagonal(counts, axis1=-2, axis2=-1), counts.sum(axis=-1), counts.sum(axis=-2), np.asarray(distance)
        )

    @classmethod
    def of_rows(
        cls, labels: np.ndarray, predictions: np.ndarray, weights: np.ndarray | None = None, classes: int | None = None
    ) -> ConfusionSums:
        """Sum rows, each with a weight."""
        size = classes or _size(labels, predictions)
        squares_N = (labels - predictions).astype(np.float64) ** 2
        every = np.ones(len(labels)) if weights is None else weights
        return cls(
            np.bincount(labels, every * (labels == predictions), size),
            np.bincount(labels, every, size),
            np.bincount(predictions, every, size),
            np.asarray(squares_N @ every),
        )


# (..., C) of each class; 0 for 0 / 0.


def _precision(sums: ConfusionSums) -> np.ndarray:
    return ratio(sums.hits, sums.predicted)


def _recall(sums: ConfusionSums) -> np.ndarray:
    return ratio(sums.hits, sums.true)


def _f1(sums: ConfusionSums) -> np.ndarray:
    return ratio(2 * sums.hits, sums.true + sums.predicted)


def _matthews(sums: ConfusionSums) -> np.ndarray:
    true, predicted, total = sums.true, sums.predicted, sums.true.sum(axis=-1)
    covariance = sums.hits.sum(axis=-1) * total - (true * predicted).sum(axis=-1)
    squares = (total**2 - (true**2).sum(axis=-1)) * (total**2 - (predicted**2).sum(axis=-1))
    return ratio(covariance, np.sqrt(squares))


def _kappa(sums: ConfusionSums) -> np.ndarray:
    classes, total = np.arange(sums.true.shape[-1], dtype=np.float64), sums.true.sum(axis=-1)
    # The sum of (i - j)^2 true_i predicted_j.
    squares = (sums.true @ classes**2) * total + (sums.predicted @ classes**2) * total
    expected = squares - 2 * (sums.true @ classes) * (sums.predicted @ classes)
    return 1 - ratio(np.asarray(sums.distance * total), np.asarray(expected))


# The (...) scores of tables.
SCORES_OF_SUMS: dict[str, Callable[[ConfusionSums], np.ndarray]] = {
    "accuracy": lambda sums: sums.hits.sum(axis=-1) / sums.true.sum(axis=-1),
    "balanced_accuracy": lambda sums: _recall(sums).sum(axis=-1) / (sums.true > 0).sum(axis=-1),
    "f1": lambda sums: _f1(sums)[..., 1],
    "f1_macro": lambda sums: sums.average(_f1(sums)),
    "matthews_correlation": _matthews,
    "quadratic_weighted_kappa": _kappa,
    "precision": lambda sums: _precision(sums)[..., 1],
    "recall": lambda sums: _recall(sums)[..., 1],
    "precision_macro": lambda sums: sums.average(_precision(sums)),
    "recall_macro": lambda sums: sums.average(_recall(sums)),
    "f1_micro": lambda sums: ratio(2.0 * sums.hits.sum(axis=-1), (sums.true + sums.predicted).sum(axis=-1)),
    "f1_weighted": lambda sums: ratio((_f1(sums) * sums.true).sum(axis=-1), sums.true.sum(axis=-1)),
}


# Of these the intervals are from resampled counts.
CONFUSION_SCORES = (
    "accuracy",
    "balanced_accuracy",
    "f1",
    "f1_macro",
    "matthews_correlation",
    "quadratic_weighted_kappa",
)


def confusion_score(metric: str, counts: np.ndarray) -> np.ndarray:
    """Return the (...) scores of (..., C, C) confusion counts, labels by predictions."""
    return SCORES_OF_SUMS[metric](ConfusionSums.of(counts))


def has_confusion_score(metric: str, labels: np.ndarray) -> bool:
    """Whether the metric is one of `CONFUSION_SCORES` and each row has one class id."""
    return metric in CONFUSION_SCORES and labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer)


def confusion_counts(labels: np.ndarray, predictions: np.ndarray, classes: int | None = None) -> np.ndarray:
    """Count (C, C) float64: rows with each label (first axis) and prediction."""
    size = classes or _size(labels, predictions)
    return np.bincount(labels * size + predictions, minlength=size * size).reshape(size, size).astype(np.float64)


def _size(labels: np.ndarray, predictions: np.ndarray) -> int:
    return max(2, int(labels.max()) + 1, int(predictions.max()) + 1)


def scores_without_each(metric: str, labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Return the (N,) scores of all rows but one, for each row: from the sums of all rows, without copies of counts."""
    size = _size(labels, predictions)
    whole = ConfusionSums.of_rows(labels, predictions, classes=size)
    # Rows with equal label and prediction have equal scores.
    cells, cell_N = np.unique(labels * size + predictions, return_inverse=True)
    scores_K = np.empty(len(cells))
    step = max(1, _VALUES_AT_ONCE // size)
    for start in range(0, len(cells), step):
        label_K, predicted_K = np.divmod(cells[start : start + step], size)
        every = np.arange(len(label_K))
        hits, true, predicted = (np.repeat(values[None], len(every), axis=0) for values in whole[:3])
        true[every, label_K] -= 1
        predicted[every, predicted_K] -= 1
        hits[every, label_K] -= label_K == predicted_K
        sums = ConfusionSums(hits, true, predicted, whole.distance - (label_K - predicted_K) ** 2.0)
        scores_K[start : start + step] = SCORES_OF_SUMS[metric](sums)
    return scores_K[cell_N]


def bootstrap_confusion_interval(
    metric: str, counts: np.ndarray, generator: np.random.Generator, *, resamples: int = 1000
) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval over rows of a score of (C, C) confusion counts; NaN without rows.

    Resampling rows is drawing the counts from a multinomial distribution.
    """
    total, size = int(counts.sum()), len(counts)
    if total == 0:
        return float("nan"), float("nan")
    # Cells without rows are never drawn. Of few classes they are kept: the numbers drawn depend on their places.
    cells = np.arange(size * size) if size <= _FEW_CLASSES else np.flatnonzero(counts)
    shares_K = counts.reshape(-1)[cells] / total
    label_K, predicted_K = np.divmod(cells, size)
    scores, step = [], max(1, _VALUES_AT_ONCE // max(len(cells), size))
    for start in range(0, resamples, step):
        drawn_RK = generator.multinomial(total, shares_K, size=min(step, resamples - start)).astype(np.float64)
        is_hit_K = label_K == predicted_K
        sums = ConfusionSums(
            _summed(drawn_RK[:, is_hit_K], label_K[is_hit_K], size),
            _summed(drawn_RK, label_K, size),
            _summed(drawn_RK, predicted_K, size),
            drawn_RK @ (label_K - predicted_K) ** 2.0,
        )
        scores.append(SCORES_OF_SUMS[metric](sums))
    low, high = np.quantile(np.concatenate(scores), [0.025, 0.975])
    return float(low), float(high)


def _summed(values_RK: np.ndarray, class_K: np.ndarray, size: int) -> np.ndarray:
    """Return the (R, C) sums of the columns of each class."""
    sums_RC = np.zeros((len(values_RK), size))
    if len(class_K):
        order = np.argsort(class_K, kind="stable")
        classes, starts = np.unique(class_K[order], return_index=True)
        sums_RC[:, classes] = np.add.reduceat(values_RK[:, order], starts, axis=1)
    return sums_RC
