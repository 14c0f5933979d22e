"""The one-standard-error rule: a simple choice stands unless another one is clearly better on the same rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from attentune.metrics.confusion import (
    ConfusionSums,
    confusion_score,
    has_confusion_score,
    ratio,
    scores_without_each,
)
from attentune.metrics.intervals import weighted_score
from attentune.metrics.metrics import Metric
from attentune.metrics.per_example import example_values
from attentune.seeding import numpy_generator

# Metrics whose per-example values take one pass.
_ONE_PASS = ("subset_accuracy", "hamming_loss", "mean_absolute_error", "mean_squared_error", "pearson")
_RESAMPLES = 50


def utility(metric: Metric, labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the score, negated if lower is better; -inf if it is undefined."""
    if has_confusion_score(metric.name, labels):
        return float(confusion_score(metric.name, ConfusionSums.of_rows(labels, predictions)))
    if labels.ndim == 2 and metric.name in ("f1_macro", "f1_micro"):
        parts = np.stack([2.0 * (labels & predictions).sum(axis=0), (labels + predictions).sum(axis=0)])
        hits, sizes = parts if metric.name == "f1_macro" else parts.sum(axis=1, keepdims=True)
        return float(ratio(hits, sizes.astype(np.float64)).mean())
    score = metric.score(labels, predictions)
    return -math.inf if math.isnan(score) else score if metric.greater_is_better else -score


def choose_simplest(
    metric: Metric, labels: np.ndarray, predictions: Sequence[np.ndarray], *, standard_errors: float = 1.0
) -> tuple[int, int]:
    """Choose the first candidate that the best one does not beat by more than the given number of standard errors.

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
    """
    base_utility, other_utility = utility(metric, labels, base), utility(metric, labels, other)
    if math.isinf(other_utility) or math.isinf(base_utility):
        return -math.inf if math.isinf(other_utility) else math.inf, 0.0
    gain = other_utility - base_utility
    if len(labels) < 2 or np.array_equal(base, other):
        return gain, 0.0
    if has_confusion_score(metric.name, labels):
        without = [scores_without_each(metric.name, labels, one) for one in (base, other)]
        values_N = (len(labels) - 1) * (without[0] - without[1])  # the jackknife's, up to a constant
    elif metric.name in _ONE_PASS:
        values_N = example_values(metric.name, labels, other) - example_values(metric.name, labels, base)
    else:
        generator = numpy_generator("auto paired gain", len(labels))
        draws = [generator.integers(0, len(labels), len(labels)) for _ in range(_RESAMPLES)]
        of_base, of_other = (weighted_score(metric, labels, one) for one in (base, other))
        if of_base is not None and of_other is not None:
            sign = 1 if metric.greater_is_better else -1
            counts = [np.bincount(drawn, minlength=len(labels)).astype(np.float64) for drawn in draws]
            gains = np.array([sign * (of_other(count) - of_base(count)) for count in counts])
        else:
            gains = np.array(
                [utility(metric, labels[d], other[d]) - utility(metric, labels[d], base[d]) for d in draws]
            )
        gains = gains[np.isfinite(gains)]
        return gain, float(np.std(gains, ddof=1)) if len(gains) > 1 else 0.0
    return gain, float(np.std(values_N, ddof=1) / math.sqrt(len(labels)))
