"""Decision thresholds from out-of-fold logits, and the comparison of predictions with standard errors.

Two classes have one threshold on the probability of the second class, several labels per row a threshold each or one
for all, ordered classes cut points on the expected class number. The result goes into `LabelSpace.thresholds`.

The threshold of two classes and the cut points maximise the score that calibrated probabilities lead to expect, which
depend on the labels through few parameters, and are used unless clearly worse than the default decision. Those of
several labels fit the noise of the rows themselves, and for accuracy the most probable class is the best decision:
these must be clearly better.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special
from sklearn.linear_model import LogisticRegression

from attentune.data.dataset import LabelSpace
from attentune.metrics.calibration import best_threshold, nearest_best
from attentune.metrics.confusion import confusion_score, has_confusion_score, scores_without_each
from attentune.metrics.intervals import example_values
from attentune.metrics.metrics import Metric, predictions_of, probabilities_of, weighted_score
from attentune.seeding import numpy_generator

# Metrics whose per-example values take one pass.
_ONE_PASS = ("subset_accuracy", "hamming_loss", "mean_absolute_error", "mean_squared_error", "pearson")
_RESAMPLES = 50


def utility(metric: Metric, labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the score, negated if lower is better; -inf if it is undefined."""
    score = metric.score(labels, predictions)
    return -math.inf if math.isnan(score) else score if metric.greater_is_better else -score


def choose_simplest(metric: Metric, labels: np.ndarray, predictions: Sequence[np.ndarray]) -> int:
    """Choose the first candidate that the best one does not beat by more than one standard error.

    Source: Breiman et al., "Classification and Regression Trees", 1984, section 3.4.3, here with paired differences.
    """
    best = int(np.argmax([utility(metric, labels, values) for values in predictions]))
    for place in range(best):
        gain, error = paired_gain(metric, labels, predictions[place], predictions[best])
        if gain <= error:
            return place
    return best


def paired_gain(metric: Metric, labels: np.ndarray, base: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Compute how much better the other predictions of the same rows are, and the standard error of that difference.

    It is that of paired differences of per-example values (the jackknife's for F1 and correlations); where the
    jackknife needs a call per row, the standard deviation of 50 bootstrap resamples.
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
        of_base, of_other = (weighted_score(metric.name, labels, one) for one in (base, other))
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


_TWO_CLASSES = ("f1", "f1_macro", "matthews_correlation", "balanced_accuracy")
_SETS = ("f1_macro", "f1_micro", "f1_weighted", "f1_samples")
_ORDERED = ("accuracy", "balanced_accuracy", "f1_macro", "quadratic_weighted_kappa", "mean_absolute_error")
# The inverse strength of the regularisation of calibration, whose input has standard deviation 1: next to none.
_CALIBRATION_STRENGTH = 1.0
_MAX_CANDIDATES = 40
_MAX_SWEEPS = 10
# Ordered classes beyond these have no cut points: their model would need a row for each class and row.
_MOST_ORDERED = 10
# Probabilities that thresholds are fitted on at most.
_MAX_VALUES = 2_000_000
_LOWEST = 1e-9  # probabilities are clipped here before their log-odds are taken
_FLAT = 1e-6  # a slope that differs from 0 by rounding only


@dataclass(frozen=True)
class ThresholdResult:
    label_space: LabelSpace  # the label space to deliver, with thresholds if they were kept
    predictions: np.ndarray  # cross-fitted predictions of all rows
    reason: str = ""  # why thresholds are used, in one sentence


def fit_thresholds(
    logits_NC: np.ndarray,
    labels: np.ndarray,
    label_space: LabelSpace,
    *,
    metric: Metric,
    folds: np.ndarray,
) -> ThresholdResult:
    """Fit thresholds on all rows, if those fitted on the other folds do well enough (by one standard error)."""
    space = replace(label_space, thresholds=None)
    default = predictions_of(logits_NC, space)
    names = np.unique(folds)
    if not can_have_thresholds(space, metric) or len(names) < 2:
        return ThresholdResult(space, default)
    fitted = default.copy()
    for fold in names:
        inside, other = folds == fold, folds != fold
        values = best_thresholds(logits_NC[other], labels[other], space, metric)
        fitted[inside] = predictions_of(logits_NC[inside], replace(space, thresholds=values))
    gain, error = paired_gain(metric, labels, default, fitted)
    must_win = space.is_multilabel or metric.name == "accuracy"
    if not gain > (error if must_win else -error):
        return ThresholdResult(space, default)
    values = best_thresholds(logits_NC, labels, space, metric)
    reason = (
        f"Thresholds ({', '.join(f'{value:.3f}' for value in values)}) are used: this changes the cross-fitted"
        f" {metric.name} by {gain:+.4g} (standard error {error:.2g})."
    )
    return ThresholdResult(replace(space, thresholds=values), fitted, reason)


def can_have_thresholds(label_space: LabelSpace, metric: Metric) -> bool:
    if label_space.is_multilabel:
        return metric.name in _SETS
    if label_space.task_type == "ordinal" and label_space.num_labels > 2:
        return metric.name in _ORDERED and label_space.num_labels <= _MOST_ORDERED
    return label_space.task_type != "regression" and label_space.num_labels == 2 and metric.name in _TWO_CLASSES


def best_thresholds(
    logits_NC: np.ndarray, labels: np.ndarray, label_space: LabelSpace, metric: Metric
) -> tuple[float, ...]:
    """Find the thresholds that maximise the metric: expected (two or ordered classes), or on these rows (label sets).

    Source: Two classes: Platt scaling, then the threshold of the best expected score: Koyejo et al., "Consistent binary
    classification with generalized performance metrics", NeurIPS 2014; Narasimhan et al., NeurIPS 2014. Ordered
    classes: with the proportional-odds model of McCullagh, "Regression models for ordinal data", JRSS B 1980.
    """
    step = max(1, logits_NC.size // _MAX_VALUES)
    logits_NC, labels = logits_NC[::step], labels[::step]
    shares_NC = probabilities_of(logits_NC, label_space)
    if label_space.is_multilabel:
        if metric.name == "f1_macro":
            return tuple(best_threshold(shares_NC[:, c], labels[:, c]) for c in range(shares_NC.shape[1]))
        candidates = np.append(np.quantile(shares_NC, np.linspace(0.01, 0.99, _MAX_CANDIDATES)), 0.5)
        scores = [utility(metric, labels, (shares_NC >= t).astype(np.int64)) for t in candidates]
        return (nearest_best(candidates, scores, 0.5),) * shares_NC.shape[1]
    if shares_NC.shape[1] == 2:
        return (_best_of_two_classes(shares_NC[:, 1], labels, metric),)
    means_N = shares_NC @ np.arange(shares_NC.shape[1])
    expected_NC = _ordered_probabilities(means_N, labels, shares_NC.shape[1])
    if expected_NC is None:
        return tuple(cut + 0.5 for cut in range(shares_NC.shape[1] - 1))
    return _cut_points(means_N, expected_NC, metric)


def _best_of_two_classes(shares_N: np.ndarray, labels: np.ndarray, metric: Metric) -> float:
    """Return the threshold with the best expected score if each row's label has its calibrated probability."""
    expected_N = _calibrated(shares_N, labels)
    values, place_N = np.unique(shares_N, return_inverse=True)
    if expected_N is None or len(values) == 1:
        return 0.5
    # Rows below candidates[k] are those of values[:k + 1]; some rows are on either side.
    candidates = (values[1:] + values[:-1]) / 2
    sums_2V = np.stack([np.bincount(place_N, weights=share_N) for share_N in (1 - expected_N, expected_N)])
    below_2K = np.cumsum(sums_2V, axis=1)[:, :-1]
    counts_K22 = np.stack([below_2K, sums_2V.sum(axis=1, keepdims=True) - below_2K], axis=-1).transpose(1, 0, 2)
    return nearest_best(candidates, confusion_score(metric.name, counts_K22), 0.5)


def _calibrated(shares_N: np.ndarray, labels: np.ndarray) -> np.ndarray | None:
    """Return probabilities by logistic regression on the log-odds; None if they do not rise with these."""
    odds_N = special.logit(np.clip(shares_N, _LOWEST, 1 - _LOWEST))
    if len(np.unique(labels)) < 2 or odds_N.std() == 0:
        return None
    scaled_N1 = ((odds_N - odds_N.mean()) / odds_N.std())[:, None]
    model = LogisticRegression(C=_CALIBRATION_STRENGTH).fit(scaled_N1, labels)
    return model.predict_proba(scaled_N1)[:, 1] if model.coef_[0, 0] > _FLAT else None


def _cut_points(means_N: np.ndarray, expected_NC: np.ndarray, metric: Metric) -> tuple[float, ...]:
    """Return the ascending cut points with the best expected score, given each row's probability of each class.

    Class 0 lies below the first cut point. Coordinate ascent from 0.5, 1.5, ... over midpoints between
    neighbouring means, of which at most 40 a cut point are tried.
    """
    classes = expected_NC.shape[1]
    cuts = np.arange(classes - 1) + 0.5
    values = np.unique(means_N)
    middles = (values[1:] + values[:-1]) / 2
    some = np.linspace(0, len(middles) - 1, min(len(middles), _MAX_CANDIDATES * (classes - 1))).round().astype(int)
    # At the ends of the grid a class is never predicted.
    grid = np.unique([0.0, *middles[some], *cuts, classes - 1.0])
    # Expected rows of each class whose mean lies below each point of the grid, then below -inf and inf.
    below_GC = np.stack([expected_NC[means_N < point].sum(axis=0) for point in (-np.inf, *grid, np.inf)])
    places = [0, *(np.searchsorted(grid, cuts) + 1), len(grid) + 1]
    is_error = metric.name == "mean_absolute_error"
    for _ in range(_MAX_SWEEPS):
        before = list(places)
        for cut in range(1, classes):
            candidates = np.arange(max(places[cut - 1], 1), min(places[cut + 1], len(grid)) + 1)
            edges = np.repeat(np.array(places)[:, None], len(candidates), axis=1)
            edges[cut] = candidates
            counts_KCC = np.diff(below_GC[edges], axis=0).transpose(1, 2, 0)
            scores_K = _negative_absolute_error(counts_KCC) if is_error else confusion_score(metric.name, counts_KCC)
            places[cut] = int(nearest_best(candidates, scores_K, places[cut]))
        if places == before:
            break
    return tuple(grid[np.array(places[1:-1]) - 1].tolist())


def _negative_absolute_error(counts: np.ndarray) -> np.ndarray:
    classes = np.arange(counts.shape[-1])
    return -(np.abs(classes[:, None] - classes) * counts).sum(axis=(-2, -1)) / counts.sum(axis=(-2, -1))


def _ordered_probabilities(means_N: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray | None:
    """Return (N, C) probabilities by a proportional-odds model of the mean class numbers; None if they do not rise.

    One logistic regression of "the label is above k", for all k at once, with an intercept for each: their order is
    that of the observed shares, so that no probability is negative.
    """
    if means_N.std() == 0 or len(np.unique(labels)) < 2:
        return None
    scaled_N = (means_N - means_N.mean()) / means_N.std()
    levels = np.arange(classes - 1)
    above_NK = labels[:, None] > levels
    which_K = np.flatnonzero(above_NK.any(axis=0) & ~above_NK.all(axis=0))
    inputs = np.column_stack([np.repeat(scaled_N, len(which_K)), np.tile(np.eye(len(which_K)), (len(labels), 1))])
    model = LogisticRegression(C=_CALIBRATION_STRENGTH).fit(inputs, above_NK[:, which_K].reshape(-1))
    if model.coef_[0, 0] <= _FLAT:
        return None
    share_NK = above_NK.astype(np.float64)  # of classes that no label has, as in the labels
    share_NK[:, which_K] = model.predict_proba(inputs)[:, 1].reshape(len(labels), -1)
    edge_N = np.ones((len(labels), 1))
    expected_NC = -np.diff(np.column_stack([edge_N, share_NK, 0 * edge_N]), axis=1)
    expected_NC[:, np.bincount(labels, minlength=classes) == 0] = 0  # no rounding: a class without rows has no recall
    return expected_NC
