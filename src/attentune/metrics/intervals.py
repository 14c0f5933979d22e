"""Intervals of scores over rows."""

import math

import numpy as np
from scipy.stats import rankdata

from attentune.metrics.confusion import (
    bootstrap_confusion_interval,
    confusion_counts,
    has_confusion_score,
    scores_without_each,
)
from attentune.metrics.metrics import CORRELATIONS, METRICS, VALUES, Metric, weighted_score
from attentune.stats.estimate import bootstrap_interval, wilson_interval
from attentune.stats.paired_tests import jackknife_values, pseudo_values

# Ranks that are held in memory at once.
_VALUES_AT_ONCE = 4_000_000


def example_values(metric: str, labels_N: np.ndarray, predictions_N: np.ndarray) -> np.ndarray:
    """Compute (N,) values whose mean is the metric: correctness, errors, or `jackknife_values` of F1 and the like."""
    if metric in VALUES:
        return VALUES[metric](labels_N, predictions_N).astype(np.float64)
    rows, score = len(labels_N), METRICS[metric].score
    if rows < 2:
        raise ValueError(f"rows is {rows}; expected at least 2, because each row is left out in turn")
    if metric in _CORRELATIONS and rows > 2:
        without_N = _CORRELATIONS[metric](labels_N, predictions_N)
    elif has_confusion_score(metric, labels_N):
        without_N = scores_without_each(metric, labels_N, predictions_N)
    else:
        # Rows with equal label and prediction have equal values, so they are computed once.
        kind_N = np.unique(np.column_stack([labels_N, predictions_N]), axis=0, return_inverse=True)[1].reshape(-1)
        return jackknife_values(lambda kept: score(labels_N[kept], predictions_N[kept]), rows, alike_N=kind_N)
    return pseudo_values(score(labels_N, predictions_N), without_N)


def _pearson_without_each(labels_N: np.ndarray, predictions_N: np.ndarray) -> np.ndarray:
    """Return the (N,) correlations of all rows but one: sums without a row follow from the total sums."""
    x_N, y_N = labels_N - labels_N.mean(), predictions_N - predictions_N.mean()
    share = len(labels_N) / (len(labels_N) - 1)
    xx_N, yy_N = (x_N**2).sum() - share * x_N**2, (y_N**2).sum() - share * y_N**2
    with np.errstate(divide="ignore", invalid="ignore"):
        return ((x_N * y_N).sum() - share * x_N * y_N) / np.sqrt(xx_N * yy_N)


def _spearman_without_each(labels_N: np.ndarray, predictions_N: np.ndarray) -> np.ndarray:
    """Return the (N,) rank correlations of all rows but one: ranks above it fall by 1, equal ones by 1/2."""
    rows = len(labels_N)
    without_N = np.empty(rows)
    ranks = [rankdata(values_N) for values_N in (labels_N, predictions_N)]
    step = max(1, _VALUES_AT_ONCE // rows)
    for start in range(0, rows, step):
        left_out = np.arange(start, min(start + step, rows))
        centred = []
        for rank_N in ranks:
            removed = rank_N[left_out, None]
            rank_BN = rank_N - (rank_N > removed) - 0.5 * (rank_N == removed)
            rank_BN[np.arange(len(left_out)), left_out] = rows / 2  # the mean of the others: counts nothing
            centred.append(rank_BN - rows / 2)
        x_BN, y_BN = centred
        with np.errstate(divide="ignore", invalid="ignore"):
            scale_B = np.sqrt((x_BN**2).sum(axis=1) * (y_BN**2).sum(axis=1))
            without_N[left_out] = (x_BN * y_BN).sum(axis=1) / scale_B
    return without_N


_CORRELATIONS = {"pearson": _pearson_without_each, "spearmanr": _spearman_without_each}


def baseline_score(metric: str, labels_N: np.ndarray, *, is_regression: bool) -> float:
    """Score the best constant prediction, of labels those that at least half of the rows have; correlations are 0."""
    guess: float
    if labels_N.ndim == 2:
        usual_C = (labels_N.mean(axis=0) >= 0.5).astype(np.int64)
        return METRICS[metric].score(labels_N, np.tile(usual_C, (len(labels_N), 1)))
    if is_regression:
        guess = float(np.median(labels_N) if metric == "mean_absolute_error" else np.mean(labels_N))
    else:
        guess = int(np.bincount(labels_N).argmax())
    if metric in CORRELATIONS:
        return 0.0
    return METRICS[metric].score(labels_N, np.full(len(labels_N), guess))


def independent_rows(right_N: np.ndarray, group_N: np.ndarray) -> float:
    """Return how many independent rows determine a share of right ones as precisely as these rows, in groups, do.

    By the share's variance over groups; where all rows are right or wrong, as if the rows of a group were equal.

    Source: Korn and Graubard, Survey Methodology 24, 1998; with Wilson's interval Dean and Pagano, Journal of Survey
    Statistics and Methodology 3, 2015.
    """
    count, share = len(right_N), float(right_N.mean())
    sizes_G = np.bincount(group_N)
    groups = len(sizes_G)
    variance = float((np.bincount(group_N, right_N - share) ** 2).sum()) / count**2 * groups / max(1, groups - 1)
    if share in (0.0, 1.0):
        return count**2 / float((sizes_G**2).sum())
    return min(float(count), share * (1 - share) / variance if variance > 0 else math.inf)


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

    Wilson's interval for accuracy, which does not collapse near 0 and 1; else bootstrap percentiles, of confusion
    counts where the metric is a function of them: thousands of times as fast.
    """
    value = metric.score(labels, predictions)
    group_N = np.arange(len(labels)) if groups is None else np.unique(groups, return_inverse=True)[1]
    count = int(group_N.max()) + 1
    if metric.name == "accuracy":
        right_N = labels == predictions
        rows = len(labels) if count == len(labels) else independent_rows(right_N, group_N)
        return value, *wilson_interval(float(right_N.sum()) * rows / len(labels), rows)
    if count == len(labels) and has_confusion_score(metric.name, labels):
        counts = confusion_counts(labels, predictions)
        return value, *bootstrap_confusion_interval(metric.name, counts, generator, resamples=resamples)
    weighted = weighted_score(metric.name, labels, predictions)
    members = []
    if weighted is None and count < len(labels):
        members = np.split(np.argsort(group_N, kind="stable"), np.cumsum(np.bincount(group_N))[:-1])

    def statistic(drawn: np.ndarray) -> float:
        if weighted is not None:
            return weighted(np.bincount(drawn, minlength=count)[group_N].astype(np.float64))
        chosen = np.concatenate([members[group] for group in drawn]) if members else drawn
        return metric.score(labels[chosen], predictions[chosen])

    return value, *bootstrap_interval(statistic, count, generator=generator, resamples=resamples)
