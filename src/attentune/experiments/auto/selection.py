"""The one-standard-error rule: a simple choice stands unless another one is clearly better on the same rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from attentune.metrics.metrics import Metric
from attentune.metrics.per_example import example_values
from attentune.seeding import numpy_generator

# Metrics whose per-example values take one pass.
_ONE_PASS = ("subset_accuracy", "hamming_loss", "mean_absolute_error", "mean_squared_error", "pearson")
_RESAMPLES = 50


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Divide, with 0 for 0 / 0."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator != 0)


def _f1_of_classes(counts: np.ndarray) -> np.ndarray:
    diagonal = np.diagonal(counts, axis1=-2, axis2=-1)
    return _ratio(2 * diagonal, counts.sum(axis=-1) + counts.sum(axis=-2))


def _macro_f1(counts: np.ndarray) -> np.ndarray:
    there = (counts.sum(axis=-1) + counts.sum(axis=-2)) > 0
    return _f1_of_classes(counts).sum(axis=-1) / there.sum(axis=-1)


def _balanced_accuracy(counts: np.ndarray) -> np.ndarray:
    rows = counts.sum(axis=-1)
    return _ratio(np.diagonal(counts, axis1=-2, axis2=-1), rows).sum(axis=-1) / (rows > 0).sum(axis=-1)


def _accuracy(counts: np.ndarray) -> np.ndarray:
    return np.trace(counts, axis1=-2, axis2=-1) / counts.sum(axis=(-2, -1))


def _matthews(counts: np.ndarray) -> np.ndarray:
    true, predicted, total = counts.sum(axis=-1), counts.sum(axis=-2), counts.sum(axis=(-2, -1))
    covariance = np.trace(counts, axis1=-2, axis2=-1) * total - (true * predicted).sum(axis=-1)
    squares = (total**2 - (true**2).sum(axis=-1)) * (total**2 - (predicted**2).sum(axis=-1))
    return _ratio(covariance, np.sqrt(squares))


def _kappa(counts: np.ndarray) -> np.ndarray:
    classes = np.arange(counts.shape[-1])
    squares = (classes[:, None] - classes) ** 2
    expected = counts.sum(axis=-1)[..., :, None] * counts.sum(axis=-2)[..., None, :]
    observed = (squares * counts).sum(axis=(-2, -1)) * counts.sum(axis=(-2, -1))
    return 1 - _ratio(observed, (squares * expected).sum(axis=(-2, -1)))


# Scores of (..., C, C) confusion counts: labels by predictions. A call of scikit-learn's takes a millisecond whatever
# the number of rows, and ensemble selection, thresholds and jackknives need thousands.
CONFUSION_SCORES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "accuracy": _accuracy,
    "balanced_accuracy": _balanced_accuracy,
    "f1": lambda counts: _f1_of_classes(counts)[..., 1],
    "f1_macro": _macro_f1,
    "matthews_correlation": _matthews,
    "quadratic_weighted_kappa": _kappa,
}


def confusion_counts(labels: np.ndarray, predictions: np.ndarray, classes: int | None = None) -> np.ndarray:
    """Count (C, C) float64: rows with each label (first axis) and prediction."""
    size = classes or max(2, int(labels.max()) + 1, int(predictions.max()) + 1)
    return np.bincount(labels * size + predictions, minlength=size * size).reshape(size, size).astype(np.float64)


def utility(metric: Metric, labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the score, negated if lower is better; -inf if it is undefined."""
    if _has_counts(metric, labels):
        return float(CONFUSION_SCORES[metric.name](confusion_counts(labels, predictions)))
    if labels.ndim == 2 and metric.name in ("f1_macro", "f1_micro"):
        parts = np.stack([2.0 * (labels & predictions).sum(axis=0), (labels + predictions).sum(axis=0)])
        hits, sizes = parts if metric.name == "f1_macro" else parts.sum(axis=1, keepdims=True)
        return float(_ratio(hits, sizes.astype(np.float64)).mean())
    score = metric.score(labels, predictions)
    return -math.inf if math.isnan(score) else score if metric.greater_is_better else -score


def _has_counts(metric: Metric, labels: np.ndarray) -> bool:
    return metric.name in CONFUSION_SCORES and labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer)


def choose_simplest(
    metric: Metric, labels: np.ndarray, predictions: Sequence[np.ndarray], *, standard_errors: float = 1.0
) -> tuple[int, int]:
    """Choose the first candidate that the best one does not beat by more than the given number of standard errors.

    Args:
        metric: the metric.
        labels: (N,) class ids or scores, or (N, C) ones and zeros.
        predictions: those of each candidate, simplest first, as `predictions_of` returns them.
        standard_errors: the number of standard errors of the paired difference.

    Returns:
        The indices of the chosen candidate and of the best one.

    Source:
        Breiman et al., "Classification and Regression Trees", 1984, section 3.4.3, here with paired differences.
    """
    best = int(np.argmax([utility(metric, labels, values) for values in predictions]))
    for place in range(best):
        gain, error = paired_gain(metric, labels, predictions[place], predictions[best])
        if gain <= standard_errors * error:
            return place, best
    return best, best


def paired_gain(metric: Metric, labels: np.ndarray, base: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Compute how much better the other predictions of the same rows are, and the standard error of that difference.

    The standard error is that of the mean of paired differences of per-example values (the jackknife's for F1 and
    correlations), which estimates the same as a paired bootstrap over rows; where the jackknife needs a call per row,
    the standard deviation of 50 bootstrap resamples.

    Args:
        metric: the metric.
        labels: (N,) class ids or scores, or (N, C) ones and zeros.
        base: predictions, as `predictions_of` returns them.
        other: predictions of the same rows.

    Returns:
        The gain, positive if `other` is better, and its standard error. If a score is undefined: (-inf, 0) for
        `other`'s, (inf, 0) for that of `base` alone.
    """
    base_utility, other_utility = utility(metric, labels, base), utility(metric, labels, other)
    if math.isinf(other_utility) or math.isinf(base_utility):
        return -math.inf if math.isinf(other_utility) else math.inf, 0.0
    gain = other_utility - base_utility
    if len(labels) < 2 or np.array_equal(base, other):
        return gain, 0.0
    if _has_counts(metric, labels):
        values_N = _jackknife(metric, labels, other) - _jackknife(metric, labels, base)
    elif metric.name in _ONE_PASS:
        values_N = example_values(metric.name, labels, other) - example_values(metric.name, labels, base)
    else:
        generator = numpy_generator("auto paired gain", len(labels))
        draws = [generator.integers(0, len(labels), len(labels)) for _ in range(_RESAMPLES)]
        gains = np.array([utility(metric, labels[d], other[d]) - utility(metric, labels[d], base[d]) for d in draws])
        gains = gains[np.isfinite(gains)]
        return gain, float(np.std(gains, ddof=1)) if len(gains) > 1 else 0.0
    return gain, float(np.std(values_N, ddof=1) / math.sqrt(len(labels)))


def _jackknife(metric: Metric, labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Return the jackknife's value of each row, up to a constant; see `stats.paired_tests.jackknife_values`."""
    counts = confusion_counts(labels, predictions)
    size = len(counts)
    without = counts - np.eye(size * size).reshape(size, size, size, size)
    scores = CONFUSION_SCORES[metric.name](np.maximum(without, 0.0))
    return -(len(labels) - 1) * scores[labels, predictions]
