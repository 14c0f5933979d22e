"""Per-example values of metrics, and baseline scores of constant predictions; used by the statistical tests."""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata

from attentune.metrics.confusion import has_confusion_score, scores_without_each
from attentune.metrics.metrics import METRICS
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
    if metric in ("matthews_correlation", "quadratic_weighted_kappa", "pearson", "spearmanr"):
        return 0.0
    return METRICS[metric].score(labels_N, np.full(len(labels_N), guess))
