"""Intervals of scores over rows."""

from collections.abc import Callable

import numpy as np
from scipy.stats import rankdata

from attentune.metrics.confusion import (
    ConfusionSums,
    bootstrap_confusion_interval,
    confusion_counts,
    confusion_score,
    has_confusion_score,
    ratio,
    scores_without_each,
)
from attentune.metrics.metrics import CORRELATIONS, METRICS, Metric
from attentune.stats.estimate import bootstrap_interval, wilson_interval
from attentune.stats.paired_tests import jackknife_values

# Ranks that are held in memory at once.
_VALUES_AT_ONCE = 4_000_000


def example_values(metric: str, labels_N: np.ndarray, predictions_N: np.ndarray) -> np.ndarray:
    """Compute (N,) float64 values whose mean is the metric.

    Correctness for accuracy, errors for mean errors, `jackknife_values` for F1, kappa and correlations.
    """
    if metric == "subset_accuracy":
        return (labels_N == predictions_N).all(axis=1).astype(np.float64)
    if metric == "hamming_loss":
        return (labels_N != predictions_N).mean(axis=1)
    if metric == "accuracy":
        return (labels_N == predictions_N).astype(np.float64)
    if metric == "mean_absolute_error":
        return np.abs(labels_N - predictions_N).astype(np.float64)
    if metric == "mean_squared_error":
        return ((labels_N - predictions_N) ** 2).astype(np.float64)
    if metric == "pearson" and len(labels_N) > 2:
        return _pearson_values(labels_N, predictions_N)
    if metric == "spearmanr" and len(labels_N) > 2:
        return _spearman_values(labels_N, predictions_N)
    score = METRICS[metric].score
    if has_confusion_score(metric, labels_N):
        if len(labels_N) < 2:
            raise ValueError(f"rows is {len(labels_N)}; expected at least 2, because each row is left out in turn")
        without_N = scores_without_each(metric, labels_N, predictions_N)
        return score(labels_N, predictions_N) + (len(labels_N) - 1) * (without_N.mean() - without_N)
    # Rows with equal label and prediction have equal values, so they are computed once.
    _, kind_N = np.unique(np.column_stack([labels_N, predictions_N]), axis=0, return_inverse=True)
    return jackknife_values(
        lambda rows: score(labels_N[rows], predictions_N[rows]), len(labels_N), alike_N=kind_N.reshape(-1)
    )


def _pearson_values(labels_N: np.ndarray, predictions_N: np.ndarray) -> np.ndarray:
    """The jackknife values of Pearson's correlation, vectorised: sums without a row follow from the total sums."""
    rows = len(labels_N)
    x_N, y_N = labels_N - labels_N.mean(), predictions_N - predictions_N.mean()
    share = rows / (rows - 1)
    xx_N, yy_N = (x_N**2).sum() - share * x_N**2, (y_N**2).sum() - share * y_N**2
    with np.errstate(divide="ignore", invalid="ignore"):
        without_N = ((x_N * y_N).sum() - share * x_N * y_N) / np.sqrt(xx_N * yy_N)
    whole = METRICS["pearson"].score(labels_N, predictions_N)
    return whole + (rows - 1) * (without_N.mean() - without_N)


def _spearman_values(labels_N: np.ndarray, predictions_N: np.ndarray) -> np.ndarray:
    """The jackknife values of Spearman's correlation: without a row, ranks above it fall by 1, equal ones by 1/2."""
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
    whole = METRICS["spearmanr"].score(labels_N, predictions_N)
    return whole + (rows - 1) * (without_N.mean() - without_N)


def baseline_score(metric: str, labels_N: np.ndarray, *, is_regression: bool) -> float:
    """Score the best constant prediction: the most frequent class, or the mean or median score.

    For multi-label it consists of the labels that at least half of the examples have. A correlation with a constant
    counts as 0.
    """
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
