"""Scores from confusion counts, for many tables of counts at once.

A call of scikit-learn's takes a millisecond whatever the number of rows; ensemble selection, thresholds, jackknives and
bootstraps need thousands.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Divide, with 0 for 0 / 0."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator != 0)


def _f1_of_classes(counts: np.ndarray) -> np.ndarray:
    diagonal = np.diagonal(counts, axis1=-2, axis2=-1)
    return ratio(2 * diagonal, counts.sum(axis=-1) + counts.sum(axis=-2))


def _macro_f1(counts: np.ndarray) -> np.ndarray:
    there = (counts.sum(axis=-1) + counts.sum(axis=-2)) > 0
    return _f1_of_classes(counts).sum(axis=-1) / there.sum(axis=-1)


def _balanced_accuracy(counts: np.ndarray) -> np.ndarray:
    rows = counts.sum(axis=-1)
    return ratio(np.diagonal(counts, axis1=-2, axis2=-1), rows).sum(axis=-1) / (rows > 0).sum(axis=-1)


def _accuracy(counts: np.ndarray) -> np.ndarray:
    return np.trace(counts, axis1=-2, axis2=-1) / counts.sum(axis=(-2, -1))


def _matthews(counts: np.ndarray) -> np.ndarray:
    true, predicted, total = counts.sum(axis=-1), counts.sum(axis=-2), counts.sum(axis=(-2, -1))
    covariance = np.trace(counts, axis1=-2, axis2=-1) * total - (true * predicted).sum(axis=-1)
    squares = (total**2 - (true**2).sum(axis=-1)) * (total**2 - (predicted**2).sum(axis=-1))
    return ratio(covariance, np.sqrt(squares))


def _kappa(counts: np.ndarray) -> np.ndarray:
    classes = np.arange(counts.shape[-1])
    squares = (classes[:, None] - classes) ** 2
    expected = counts.sum(axis=-1)[..., :, None] * counts.sum(axis=-2)[..., None, :]
    observed = (squares * counts).sum(axis=(-2, -1)) * counts.sum(axis=(-2, -1))
    return 1 - ratio(observed, (squares * expected).sum(axis=(-2, -1)))


# Scores of (..., C, C) confusion counts, labels by predictions.
CONFUSION_SCORES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "accuracy": _accuracy,
    "balanced_accuracy": _balanced_accuracy,
    "f1": lambda counts: _f1_of_classes(counts)[..., 1],
    "f1_macro": _macro_f1,
    "matthews_correlation": _matthews,
    "quadratic_weighted_kappa": _kappa,
}


def has_confusion_score(metric: str, labels: np.ndarray) -> bool:
    """Return whether a metric of these labels is a function of their confusion counts: one class id for each row."""
    return metric in CONFUSION_SCORES and labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer)


def confusion_counts(labels: np.ndarray, predictions: np.ndarray, classes: int | None = None) -> np.ndarray:
    """Count (C, C) float64: rows with each label (first axis) and prediction."""
    size = classes or max(2, int(labels.max()) + 1, int(predictions.max()) + 1)
    return np.bincount(labels * size + predictions, minlength=size * size).reshape(size, size).astype(np.float64)


def bootstrap_confusion_interval(
    metric: str, counts: np.ndarray, generator: np.random.Generator, *, resamples: int = 1000
) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval over rows of a score of (C, C) confusion counts; NaN without rows.

    Resampling rows is drawing the counts from a multinomial distribution.

    Args:
        metric: a name of `CONFUSION_SCORES`.
        counts: labels by predictions.
        generator: draws the resamples.
        resamples: their number.
    """
    total = int(counts.sum())
    if total == 0:
        return float("nan"), float("nan")
    drawn = generator.multinomial(total, (counts / total).reshape(-1), size=resamples)
    low, high = np.quantile(
        CONFUSION_SCORES[metric](drawn.reshape(-1, *counts.shape).astype(np.float64)), [0.025, 0.975]
    )
    return float(low), float(high)
