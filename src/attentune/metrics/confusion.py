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
    """What scores need of confusion counts, for any number of tables at once."""

    hits: np.ndarray  # (..., C) rows of each class that are predicted right
    true: np.ndarray  # (..., C) rows of each class
    predicted: np.ndarray  # (..., C) predictions of each class
    distance: np.ndarray  # (...) the sum of the squared differences of class numbers, over rows

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


def _f1_of_classes(sums: ConfusionSums) -> np.ndarray:
    return ratio(2 * sums.hits, sums.true + sums.predicted)


def _macro_f1(sums: ConfusionSums) -> np.ndarray:
    there = (sums.true + sums.predicted) > 0
    return _f1_of_classes(sums).sum(axis=-1) / there.sum(axis=-1)


def _balanced_accuracy(sums: ConfusionSums) -> np.ndarray:
    return ratio(sums.hits, sums.true).sum(axis=-1) / (sums.true > 0).sum(axis=-1)


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


_SCORES: dict[str, Callable[[ConfusionSums], np.ndarray]] = {
    "accuracy": lambda sums: sums.hits.sum(axis=-1) / sums.true.sum(axis=-1),
    "balanced_accuracy": _balanced_accuracy,
    "f1": lambda sums: _f1_of_classes(sums)[..., 1],
    "f1_macro": _macro_f1,
    "matthews_correlation": _matthews,
    "quadratic_weighted_kappa": _kappa,
}


def confusion_score(metric: str, sums: ConfusionSums) -> np.ndarray:
    """Return the (...) scores of tables of confusion counts; see `has_confusion_score`."""
    return _SCORES[metric](sums)


def _of_counts(metric: str) -> Callable[[np.ndarray], np.ndarray]:
    return lambda counts: confusion_score(metric, ConfusionSums.of(counts))


# Scores of (..., C, C) confusion counts, labels by predictions.
CONFUSION_SCORES: dict[str, Callable[[np.ndarray], np.ndarray]] = {name: _of_counts(name) for name in _SCORES}


def has_confusion_score(metric: str, labels: np.ndarray) -> bool:
    """Whether the metric can be computed from a confusion matrix: one class id for each row."""
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
        scores_K[start : start + step] = confusion_score(metric, sums)
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
        scores.append(confusion_score(metric, sums))
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
