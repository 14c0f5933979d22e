"""Decision thresholds from out-of-fold logits.

Three cases: two classes (one threshold on the probability of the second class), several labels per row (a threshold
per label, or one for all), and ordered classes (cut points on the expected class number). The result goes into
`LabelSpace.thresholds`.

The threshold of two classes maximises the score that calibrated probabilities lead to expect; it depends on the labels
through two parameters only, so it is used unless it is clearly worse than the default decision. The others maximise the
score on the rows themselves, which fits their noise, and are used only where they are clearly better.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import special
from sklearn.linear_model import LogisticRegression

from attentune.data.dataset import LabelSpace
from attentune.experiments.auto.selection import paired_gain, utility
from attentune.metrics.confusion import CONFUSION_SCORES
from attentune.metrics.metrics import Metric, predictions_of, probabilities_of
from attentune.stats.calibration import best_threshold

_TWO_CLASSES = ("f1", "f1_macro", "matthews_correlation", "balanced_accuracy")
_SETS = ("f1_macro", "f1_micro", "f1_weighted", "f1_samples")
_ORDERED = ("accuracy", "balanced_accuracy", "f1_macro", "quadratic_weighted_kappa", "mean_absolute_error")
# The inverse strength of the regularisation of calibration, whose input has standard deviation 1: next to none.
_CALIBRATION_STRENGTH = 1.0
_MAX_CANDIDATES = 40
_MAX_SWEEPS = 10
_LOWEST = 1e-9  # probabilities are clipped here before their log-odds are taken
_FLAT = 1e-6  # a slope that differs from 0 by rounding only


@dataclass(frozen=True)
class ThresholdResult:
    """The chosen way of deciding.

    Attributes:
        label_space: the label space to deliver, with thresholds if they were kept.
        predictions: cross-fitted predictions of all rows: with thresholds fitted on the other folds if they were kept,
            otherwise by the default decision. They mean nothing in rows with NaN logits.
        scores: the cross-fitted score of the default decision ("default") and of thresholds ("thresholds").
        reason: why thresholds were kept or not, in one sentence.
    """

    label_space: LabelSpace
    predictions: np.ndarray
    scores: dict[str, float]
    reason: str


def fit_thresholds(
    logits_NC: np.ndarray,
    labels: np.ndarray,
    label_space: LabelSpace,
    *,
    metric: Metric,
    folds: np.ndarray,
    standard_errors: float = 1.0,
) -> ThresholdResult:
    """Fit thresholds on all rows, if those fitted on the other folds do well enough.

    They must beat the default decision by a standard error of the paired difference; the threshold of two classes must
    not be behind it by one.

    Args:
        logits_NC: cross-fitted logits of the delivered fusion; rows with NaN are ignored.
        labels: (N,) class ids or scores, or (N, C) ones and zeros.
        label_space: the labels; thresholds are ignored.
        metric: what the thresholds maximise.
        folds: (N,) the fold of each row.
        standard_errors: the number of standard errors.
    """
    space = replace(label_space, thresholds=None)
    default = predictions_of(np.nan_to_num(logits_NC), space)
    rows = np.flatnonzero(np.isfinite(logits_NC).all(axis=1))
    score = metric.score(labels[rows], default[rows]) if len(rows) else float("nan")
    scores = {"default": score}
    if not can_have_thresholds(space, metric):
        reason = f"Thresholds do not apply to {metric.name} with {space.num_labels} outputs ({space.task_type})."
        return ThresholdResult(space, default, scores, reason)
    names = np.unique(folds[rows])
    if len(names) < 2:
        return ThresholdResult(space, default, scores, "Thresholds need out-of-fold rows of at least two folds.")
    fitted = default.copy()
    for fold in names:
        inside, other = rows[folds[rows] == fold], rows[folds[rows] != fold]
        values = best_thresholds(logits_NC[other], labels[other], space, metric)
        fitted[inside] = predictions_of(logits_NC[inside], replace(space, thresholds=values))
    scores["thresholds"] = metric.score(labels[rows], fitted[rows])
    gain, error = paired_gain(metric, labels[rows], default[rows], fitted[rows])
    change = f"changes the cross-fitted {metric.name} by {gain:+.4g} (standard error {error:.2g})"
    least = -standard_errors * error if space.num_labels == 2 and not space.is_multilabel else standard_errors * error
    if not gain > least:
        return ThresholdResult(space, default, scores, f"The default decision is kept: fitting thresholds {change}.")
    values = best_thresholds(logits_NC[rows], labels[rows], space, metric)
    text = ", ".join(f"{value:.3f}" for value in values)
    return ThresholdResult(
        replace(space, thresholds=values), fitted, scores, f"Thresholds ({text}) are used: this {change}."
    )


def can_have_thresholds(label_space: LabelSpace, metric: Metric) -> bool:
    """Return whether thresholds can improve this metric of this task."""
    if label_space.is_multilabel:
        return metric.name in _SETS
    if label_space.task_type == "ordinal" and label_space.num_labels > 2:
        return metric.name in _ORDERED
    return label_space.task_type != "regression" and label_space.num_labels == 2 and metric.name in _TWO_CLASSES


def best_thresholds(
    logits_NC: np.ndarray, labels: np.ndarray, label_space: LabelSpace, metric: Metric
) -> tuple[float, ...]:
    """Find the thresholds that maximise the metric, expected (two classes) or on these rows (the other cases).

    Of two classes every midpoint between neighbouring probabilities is tried. For macro F1 each label has the threshold
    of its best F1; for other F1 of several labels one threshold for all labels is the best of 40 quantiles. Cut
    points of ordered classes are searched one after the other, until none changes.

    Args:
        logits_NC: logits of rows that the model was not trained on.
        labels: (N,) class ids, or (N, C) ones and zeros.
        label_space: a label space for which `can_have_thresholds` is true.
        metric: the metric.

    Source:
        Two classes: Platt scaling, then the threshold of the best expected score: Koyejo et al., "Consistent binary
        classification with generalized performance metrics", NeurIPS 2014; Narasimhan et al., NeurIPS 2014.
    """
    shares_NC = probabilities_of(logits_NC, label_space)
    if label_space.is_multilabel:
        if metric.name == "f1_macro":
            return tuple(best_threshold(shares_NC[:, c], labels[:, c]) for c in range(shares_NC.shape[1]))
        candidates = np.append(np.quantile(shares_NC, np.linspace(0.01, 0.99, _MAX_CANDIDATES)), 0.5)
        found = _best(candidates, [utility(metric, labels, (shares_NC >= t).astype(np.int64)) for t in candidates], 0.5)
        return (found,) * shares_NC.shape[1]
    if shares_NC.shape[1] == 2:
        return (_best_of_two_classes(shares_NC[:, 1], labels, metric),)
    return _cut_points(shares_NC @ np.arange(shares_NC.shape[1]), labels, shares_NC.shape[1], metric)


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
    return _best(candidates, CONFUSION_SCORES[metric.name](counts_K22), 0.5)


def _calibrated(shares_N: np.ndarray, labels: np.ndarray) -> np.ndarray | None:
    """Return probabilities by logistic regression on the log-odds; None if they do not rise with these."""
    odds_N = special.logit(np.clip(shares_N, _LOWEST, 1 - _LOWEST))
    if len(np.unique(labels)) < 2 or odds_N.std() == 0:
        return None
    scaled_N1 = ((odds_N - odds_N.mean()) / odds_N.std())[:, None]
    model = LogisticRegression(C=_CALIBRATION_STRENGTH).fit(scaled_N1, labels)
    return model.predict_proba(scaled_N1)[:, 1] if model.coef_[0, 0] > _FLAT else None


def _best(candidates: np.ndarray, scores: np.ndarray | list[float], default: float) -> float:
    """Return the candidate with the best score; of equally good ones the nearest to the default."""
    scores = np.asarray(scores)
    best = np.flatnonzero(np.isclose(scores, scores.max(), rtol=0, atol=1e-12))
    return float(candidates[best[np.argmin(np.abs(candidates[best] - default))]])


def _cut_points(means_N: np.ndarray, labels: np.ndarray, classes: int, metric: Metric) -> tuple[float, ...]:
    """Search the ascending cut points by coordinate ascent from 0.5, 1.5, ...; class 0 lies below the first."""
    cuts = np.arange(classes - 1) + 0.5
    grid = np.quantile(means_N, np.linspace(0, 1, _MAX_CANDIDATES * (classes - 1)))

    def score(values: np.ndarray) -> float:
        return utility(metric, labels, np.searchsorted(values, means_N, side="right"))

    best = score(cuts)
    for _ in range(_MAX_SWEEPS):
        before = cuts.copy()
        for place in range(classes - 1):
            low = cuts[place - 1] if place else -np.inf
            high = cuts[place + 1] if place + 1 < classes - 1 else np.inf
            for candidate in grid[(grid > low) & (grid < high)]:
                trial = cuts.copy()
                trial[place] = candidate
                value = score(trial)
                if value > best + 1e-12:
                    best, cuts = value, trial
        if np.array_equal(cuts, before):
            break
    return tuple(cuts.tolist())
