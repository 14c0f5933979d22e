"""Intervals of scores over rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attentune.metrics.confusion import (
    ConfusionSums,
    bootstrap_confusion_interval,
    confusion_counts,
    confusion_score,
    has_confusion_score,
    ratio,
)
from attentune.metrics.metrics import Metric
from attentune.metrics.per_example import example_values
from attentune.stats.bootstrap import bootstrap_interval
from attentune.stats.estimate import wilson_interval


def score_interval(
    metric: Metric,
    labels: np.ndarray,
    predictions: np.ndarray,
    *,
    generator: np.random.Generator,
    groups: np.ndarray | None = None,
    resamples: int = 1000,
) -> tuple[float, float, float]:
    """Score predictions, with the 95 % interval over rows, or over groups of rows.

    Wilson's interval for the accuracy of independent rows, which does not collapse near 0 and 1; else bootstrap
    percentiles, of confusion counts where the metric is a function of them: thousands of times as fast.
    """
    value = metric.score(labels, predictions)
    group_N = np.arange(len(labels)) if groups is None else np.unique(groups, return_inverse=True)[1]
    count = int(group_N.max()) + 1
    if count == len(labels) and metric.name == "accuracy":
        low, high = wilson_interval(int((labels == predictions).sum()), len(labels))
        return value, low, high
    if count == len(labels) and has_confusion_score(metric.name, labels):
        counts = confusion_counts(labels, predictions)
        return value, *bootstrap_confusion_interval(metric.name, counts, generator, resamples=resamples)
    score = weighted_score(metric, labels, predictions)
    if score is not None:
        low, high = bootstrap_interval(
            lambda drawn: score(np.bincount(drawn, minlength=count)[group_N].astype(np.float64)),
            count,
            generator=generator,
            resamples=resamples,
        )
        return value, low, high
    members = np.split(np.argsort(group_N, kind="stable"), np.cumsum(np.bincount(group_N))[:-1])

    def statistic(drawn: np.ndarray) -> float:
        chosen = drawn if count == len(labels) else np.concatenate([members[group] for group in drawn])
        return metric.score(labels[chosen], predictions[chosen])

    low, high = bootstrap_interval(statistic, count, generator=generator, resamples=resamples)
    return value, low, high


def weighted_score(metric: Metric, labels: np.ndarray, predictions: np.ndarray) -> Callable[[np.ndarray], float] | None:
    """Return a function from the (N,) weights of rows to their score, from sums; None for other metrics.

    For resamples, in which the weight of a row is how often it was drawn: much faster than scoring copies of rows.
    """
    name = metric.name
    if has_confusion_score(name, labels):
        return lambda weights: float(confusion_score(name, ConfusionSums.of_rows(labels, predictions, weights)))
    if name in ("subset_accuracy", "hamming_loss", "mean_absolute_error", "mean_squared_error"):
        values_N = example_values(name, labels, predictions)
        return lambda weights: float(weights @ values_N / weights.sum())
    if labels.ndim != 2 or name not in ("f1_macro", "f1_micro", "f1_weighted", "f1_samples"):
        return None
    true_NC = labels.astype(np.float64)
    hits_NC, sizes_NC = 2.0 * (labels & predictions), true_NC + predictions
    if name == "f1_samples":  # no labels and no predictions are right
        sizes_N = sizes_NC.sum(axis=1)
        values_N = np.where(sizes_N == 0, 1.0, ratio(hits_NC.sum(axis=1), sizes_N))
        return lambda weights: float(weights @ values_N / weights.sum())

    def score(weights: np.ndarray) -> float:
        hits_C, sizes_C = weights @ hits_NC, weights @ sizes_NC
        if name == "f1_micro":
            return float(ratio(hits_C.sum(), sizes_C.sum()))
        f1_C = ratio(hits_C, sizes_C)
        shares_C = weights @ true_NC if name == "f1_weighted" else np.ones_like(f1_C)
        return float(ratio(f1_C @ shares_C, shares_C.sum()))

    return score
