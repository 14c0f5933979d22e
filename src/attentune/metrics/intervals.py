"""Intervals of scores over rows."""

from __future__ import annotations

import numpy as np

from attentune.metrics.confusion import bootstrap_confusion_interval, confusion_counts, has_confusion_score
from attentune.metrics.metrics import Metric
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

    Args:
        metric: the metric.
        labels: the labels.
        predictions: as `metrics.predictions_of` returns them.
        generator: draws the resamples.
        groups: (N,) the group of each row, if rows depend on each other.
        resamples: the number of bootstrap resamples.

    Returns:
        The score and the bounds; NaN if undefined.
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
    members = np.split(np.argsort(group_N, kind="stable"), np.cumsum(np.bincount(group_N))[:-1])

    def statistic(drawn: np.ndarray) -> float:
        chosen = drawn if count == len(labels) else np.concatenate([members[group] for group in drawn])
        return metric.score(labels[chosen], predictions[chosen])

    low, high = bootstrap_interval(statistic, count, generator=generator, resamples=resamples)
    return value, low, high
