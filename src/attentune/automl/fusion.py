"""Fits a `Fusion` of several models on their out-of-fold logits, and estimates its score on new rows.

Three kinds, from simple to flexible: one member alone, non-negative weights, and a linear model on top. Each is scored
by cross-fitting: its predictions of a fold come from a fit on the other folds. The loss of these predictions chooses
the kind: it needs far fewer rows than accuracy to tell two models apart (results/auto).
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize, special
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, RidgeCV

from attentune.automl.thresholds import can_have_thresholds, choose_simplest, fit_thresholds, paired_gain
from attentune.data.dataset import LabelSpace
from attentune.data.splits import stratified_folds, stratified_sample
from attentune.inference.fusion import FUSION_KINDS, Fusion, fusion_features
from attentune.metrics.calibration import fit_temperature
from attentune.metrics.intervals import score_interval
from attentune.metrics.metrics import METRICS, Metric, predictions_of, probabilities_of
from attentune.seeding import numpy_generator

_LOWEST = 1e-6  # probabilities are clipped here before their logarithm is taken
_MAX_FITTED_ROWS = 10_000  # a few dozen parameters need no more
# With more labels a coefficient for each pair of them cannot be estimated; a weight for each member can.
FEW_LABELS = 10
_WITHOUT_LINEAR = ("single", "weights")
# Of many labels: numbers of all members that are fitted on (160 MB), but at least so many rows; and the rows that
# determine a temperature.
_MAX_FITTED_VALUES, _FEWEST_FITTED_ROWS, _CALIBRATION_ROWS = 20_000_000, 500, 500
_EM_STEPS = 300
_SMALLEST_WEIGHT = 0.02  # a member below this costs its whole running time for next to nothing
_SHOWN_WEIGHT = 0.005  # a member of a linear model below this would be shown as one of weight 0.00
_FLAT = 1e-6  # a member whose log-odds vary less within each fold tells no rows apart
_INVERSE_STRENGTHS = (0.001, 0.01, 0.1, 1.0)
# A fusion that is this many standard errors behind a member alone is not delivered, whatever its loss.
_CLEARLY = 2.0
# A fusion whose loss is not even this share lower is not worth the time of its members.
_LEAST_GAIN = 0.001
# The models of two folds have seen half of the rows, a delivered baseline sees all: coefficients fitted on the former
# do not hold for the latter. Non-negative weights of probabilities suffer less.
_FOLDS_OF_LINEAR = 3
# With fewer rows to score on, which member is best is mostly chance: they are averaged unless one alone is clearly
# better (measured: results/auto).
_FEW_ROWS, _CLEARLY_OF_FEW = 150, 1.0
# Fusions of several members; of equally good ones the first is delivered.
_BY_FREEDOM = ("weights", "linear")


@dataclass(frozen=True)
class FusionProblem:
    """The out-of-fold logits of members, with labels, folds and metric."""

    logits: Mapping[str, np.ndarray]  # by member, (N, C)
    labels: np.ndarray
    folds: np.ndarray  # (N,) the fold of each row
    space: LabelSpace
    metric: Metric
    seed: int = 0

    @functools.cached_property
    def predictions(self) -> list[np.ndarray]:
        return [predictions_of(values, self.space) for values in self.logits.values()]

    @functools.cached_property
    def truth(self) -> list[np.ndarray]:
        """Each member's probabilities of the truth; see `_of_truth`."""
        return [_of_truth(probabilities_of(values, self.space), self.labels) for values in self.logits.values()]

    def part(self, rows: np.ndarray) -> FusionProblem:
        logits = {name: values[rows] for name, values in self.logits.items()}
        return replace(self, logits=logits, labels=self.labels[rows], folds=self.folds[rows])

    def take(self, rows: np.ndarray) -> FusionProblem:
        part = self.part(rows).with_folds()
        for name in ("predictions", "truth"):  # computed for all rows, so not again for a part
            if name in self.__dict__:
                part.__dict__[name] = [values[rows] for values in self.__dict__[name]]
        return part

    def with_folds(self) -> FusionProblem:
        """Divide the rows into five folds if all of them lie in one."""
        if len(self.labels) < 2 or len(np.unique(self.folds)) > 1:
            return self
        folds = np.zeros(len(self.labels), dtype=np.int64)
        for fold, rows in enumerate(stratified_folds(self.labels, min(5, len(self.labels)), self.seed, "auto fusion")):
            folds[rows] = fold
        return replace(self, folds=folds)


@dataclass(frozen=True)
class FusionResult:
    """The delivered fusion, and the reason of the choice."""

    fusion: Fusion  # fitted on all rows
    logits: np.ndarray  # (N, C) the cross-fitted logits of the delivered kind
    simplest_member: str  # the simplest good member: the first that no member beats by more than one standard error
    reason: str  # why this fusion is delivered, in one sentence


def fit_fusion(whole: FusionProblem, kinds: Sequence[str] = FUSION_KINDS, max_rows: int | None = None) -> FusionResult:
    """Fit all kinds of fusion, choose one of them, and fit it on all rows; docs/auto.md has the rule of choice.

    The simplest good member is the first that the best one does not beat by more than one standard error.

    Source: Stacking: Wolpert, Neural Networks 5, 1992; van der Laan, Polley and Hubbard, "Super learner", 2007.
    """
    count, members, space = len(whole.labels), tuple(whole.logits), replace(whole.space, thresholds=None)
    is_many = space.num_labels > FEW_LABELS
    if is_many:
        fitting = max(_FEWEST_FITTED_ROWS, _MAX_FITTED_VALUES // (len(members) * space.num_labels))
        max_rows = min(fitting, _MAX_FITTED_ROWS, max_rows or count)
    used = np.arange(count)
    if max_rows is not None and max_rows < count:
        used = stratified_sample(whole.labels, max_rows, whole.seed, "auto fusion rows")
    problem = replace(whole if len(used) == count else whole.part(used), space=space).with_folds()
    allowed = _deliverable(kinds, problem) if len(members) > 1 else []
    _ = problem.predictions  # computed once, for all folds
    if "weights" in allowed and space.task_type != "regression":
        _ = problem.truth
    crossed = {kind: _cross_fit(kind, problem) for kind in FUSION_KINDS if kind == "single" or kind in allowed}
    fused, losses = ({kind: pair[place] for kind, pair in crossed.items()} for place in (0, 1))
    kind = _choose_kind(fused, losses, problem)
    simplest = _fit_single(problem).members[0]
    fusion = _fit(kind, problem)
    if len(fusion.members) == 1 and fusion.kind == "weights":
        fusion = _only(fusion.members[0], problem)
    if len(members) == 1:
        reason = f"{simplest} is delivered: it is the only member with out-of-fold predictions."
    elif fusion.kind != "single":
        is_lower = losses[kind].mean() < losses["single"].mean()
        finding = "lower than" if is_lower else f"with so few ({len(problem.labels)}) not clearly above"
        reason = (
            f"The fusion of {len(fusion.members)} members ({kind}) is delivered: on rows that it was not fitted on, its"
            f" loss is {finding} that of the simplest good member, {simplest}: {losses[kind].mean():.4f} against"
            f" {losses['single'].mean():.4f}."
        )
    else:
        reason = f"{fusion.members[0]} is delivered: no fusion of several members is better."
    logits_NC = fused[kind]
    if len(logits_NC) < count:
        others = np.setdiff1d(np.arange(count), used)
        logits_NC = np.empty((count, fused[kind].shape[1]))
        logits_NC[used] = fused[kind]
        logits_NC[others] = fusion.apply({name: whole.logits[name][others] for name in fusion.members})
    return FusionResult(fusion, logits_NC, simplest, reason)


def _deliverable(kinds: Sequence[str], problem: FusionProblem) -> list[str]:
    """Return the kinds that can be chosen: a linear model needs few labels, rows enough and folds."""
    is_little = len(problem.labels) < _FEW_ROWS or len(np.unique(problem.folds)) < _FOLDS_OF_LINEAR
    if problem.space.num_labels > FEW_LABELS or (is_little and "weights" in kinds):
        return [kind for kind in kinds if kind in _WITHOUT_LINEAR]
    return list(kinds)


def _cross_fit(kind: str, problem: FusionProblem) -> tuple[np.ndarray, np.ndarray]:
    """Return (N, C) logits, those of each fold by a fusion fitted on the other folds, and their (N,) calibrated losses.

    The other folds determine the calibration too, by what the same fusion predicts for them: with folds of different
    members or weights, the scale of their own logits would say nothing about those of this fold.
    """
    fused_NC = np.empty_like(next(iter(problem.logits.values())))
    losses_N = np.empty(len(fused_NC))
    for fold in np.unique(problem.folds):
        inside = problem.folds == fold
        part = problem.take(inside)
        if inside.all():  # a single row has no other fold; the first member needs no labels
            other, fitted = part, _only(next(iter(problem.logits)), problem)
        else:
            other = problem.take(~inside)
            fitted = _fit(kind, other)
        fused_NC[inside] = fitted.apply(part.logits)
        known = _calibration_rows(fitted, other)
        losses_N[inside] = calibrated_losses(fused_NC[inside], part.labels, problem.space, known)
    return fused_NC, losses_N


def _calibration_rows(fitted: Fusion, other: FusionProblem) -> tuple[np.ndarray, np.ndarray]:
    """Return the fused logits and the labels of the rows that determine the calibration: of many labels a sample."""
    logits, labels = other.logits, other.labels
    if other.space.num_labels > FEW_LABELS and len(labels) > _CALIBRATION_ROWS:
        some = np.linspace(0, len(labels) - 1, _CALIBRATION_ROWS).round().astype(int)
        logits, labels = {name: logits[name][some] for name in fitted.members}, labels[some]
    return fitted.apply(logits), labels


def _choose_kind(fused: Mapping[str, np.ndarray], losses: Mapping[str, np.ndarray], problem: FusionProblem) -> str:
    several = [kind for kind in _BY_FREEDOM if kind in fused]
    if not several:
        return "single"
    if len(problem.labels) < _FEW_ROWS and "weights" in several:
        lead_N = losses["weights"] - losses["single"]
        error = float(np.std(lead_N, ddof=1)) / math.sqrt(len(lead_N)) if len(lead_N) > 1 else math.inf
        return "single" if lead_N.mean() > _CLEARLY_OF_FEW * error else "weights"
    chosen = min(several, key=lambda kind: losses[kind].mean())
    gain, error = paired_gain(
        problem.metric, problem.labels, *(_decided(fused[kind], problem) for kind in ("single", chosen))
    )
    is_better = losses[chosen].mean() < (1 - _LEAST_GAIN) * losses["single"].mean() and gain >= -_CLEARLY * error
    return chosen if is_better else "single"


def _decided(logits_NC: np.ndarray, problem: FusionProblem) -> np.ndarray:
    """Return predictions as they would be delivered: of two classes with thresholds, where these are better."""
    if problem.space.num_labels == 2 and can_have_thresholds(problem.space, problem.metric):
        return fit_thresholds(
            logits_NC, problem.labels, problem.space, metric=problem.metric, folds=problem.folds
        ).predictions
    return predictions_of(logits_NC, problem.space)


def calibrated_losses(
    logits_NC: np.ndarray,
    labels: np.ndarray,
    label_space: LabelSpace,
    known: tuple[np.ndarray, np.ndarray] | None = None,
) -> np.ndarray:
    """Return the (N,) losses of out-of-fold logits, cross-entropy or squared error, after a temperature or a line.

    Without it an overconfident member would lose to a fusion that only damps it. The known logits and labels determine
    it, or the rows themselves without any.
    """
    known_NC, known_labels = (logits_NC, labels) if known is None else known
    if label_space.task_type == "regression":
        slope, start = _line(known_NC[:, 0], known_labels)
        return (slope * logits_NC[:, 0] + start - labels) ** 2
    scaled_NC = logits_NC / fit_temperature(known_NC, known_labels)
    truth = np.log(_of_truth(probabilities_of(scaled_NC, label_space), labels))
    return -truth if truth.ndim == 1 else -truth.mean(axis=1)


def _line(scores_N: np.ndarray, labels_N: np.ndarray) -> tuple[float, float]:
    centred_N = scores_N - scores_N.mean()
    size = float(centred_N @ centred_N)
    slope = float(centred_N @ labels_N) / size if size > 0 else 0.0
    return slope, float(labels_N.mean() - slope * scores_N.mean())


def _fit(kind: str, problem: FusionProblem) -> Fusion:
    if kind == "single":
        return _fit_single(problem)
    if len(problem.labels) > _MAX_FITTED_ROWS:
        problem = problem.take(stratified_sample(problem.labels, _MAX_FITTED_ROWS, problem.seed, "auto fusion"))
    return _fit_weights(problem) if kind == "weights" else _fit_linear(problem)


def _only(name: str, problem: FusionProblem) -> Fusion:
    return Fusion.weighted("single", {name: 1.0}, problem.space.task_type)


def _fit_single(problem: FusionProblem) -> Fusion:
    place = choose_simplest(problem.metric, problem.labels, problem.predictions)
    return _only(list(problem.logits)[place], problem)


def _loss(shares_NC: np.ndarray, labels: np.ndarray, space: LabelSpace) -> float:
    """Return the mean cross-entropy of probabilities, or the mean squared error of scores."""
    if space.task_type == "regression":
        return float(np.mean((shares_NC[:, 0] - labels) ** 2))
    return float(-np.log(_of_truth(shares_NC, labels)).mean())


def _of_truth(shares_NC: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the clipped probability of each row's class (N,), or of the truth about each label (N, C)."""
    if labels.ndim == 2:
        return np.clip(np.where(labels == 1, shares_NC, 1 - shares_NC), _LOWEST, 1.0)
    return np.clip(shares_NC[np.arange(len(labels)), labels], _LOWEST, 1.0)


def _fit_weights(problem: FusionProblem) -> Fusion:
    """Fit non-negative weights with sum 1: least cross-entropy of the mean probabilities, or least squares of scores.

    The cross-entropy is convex in the weights; expectation-maximisation decreases it in every step.

    Source: Linear opinion pool: Stone, 1961. Weights by expectation-maximisation: McLachlan and Peel, "Finite Mixture
    Models", 2000, section 2.8. Non-negative stacking: Breiman, "Stacked regressions", Machine Learning 24, 1996.
    """
    count, is_regression = len(problem.logits), problem.space.task_type == "regression"
    scores_NM = np.column_stack([values[:, 0] for values in problem.logits.values()])
    if problem.metric.name in ("pearson", "spearmanr") and is_regression:
        # The scale does not matter; with sum 1, noise members would serve to shrink the good ones.
        weights_M, _ = optimize.nnls(scores_NM - scores_NM.mean(axis=0), problem.labels - problem.labels.mean())
        return _weighted(problem, weights_M)
    if is_regression:
        # For weights w = t v with sum(v) = 1, |errors w|^2 + s^2 (t - 1)^2 is least at the v of the least |errors v|^2.
        errors_NM = scores_NM - problem.labels[:, None]
        size = float(np.linalg.norm(errors_NM)) or 1.0
        target = np.append(np.zeros(len(errors_NM)), size)
        weights_M, _ = optimize.nnls(np.vstack([errors_NM, np.full((1, count), size)]), target)
        return _weighted(problem, weights_M)
    truth_MN = np.stack([values.reshape(-1) for values in problem.truth])
    weights_M = np.full(count, 1 / count)
    for _ in range(_EM_STEPS):
        before_M = weights_M
        weights_M = weights_M * (truth_MN @ (1 / (weights_M @ truth_MN))) / truth_MN.shape[1]
        if np.abs(weights_M - before_M).max() < 1e-5:
            break
    return _weighted(problem, weights_M)


def _weighted(problem: FusionProblem, weights_M: np.ndarray) -> Fusion:
    """Make a fusion of weights, without negligible ones; equal weights if all are zero."""
    shares_M = weights_M / weights_M.sum() if weights_M.sum() > 0 else np.full(len(weights_M), 1 / len(weights_M))
    shares_M[shares_M < min(_SMALLEST_WEIGHT, shares_M.max())] = 0.0
    return Fusion.weighted(
        "weights", dict(zip(problem.logits, shares_M.tolist(), strict=True)), problem.space.task_type
    )


def _fit_linear(problem: FusionProblem) -> Fusion:
    """Fit strongly regularised logistic regression on log-probabilities, or ridge regression on scores.

    The inverse regularisation strength is the best by cross-entropy over the problem's folds; in regression by
    efficient leave-one-out cross-validation.

    Source: Ting and Witten, "Issues in stacked generalization", JAIR 10, 1999: class probabilities as inputs.
    """
    task_type, members = problem.space.task_type, tuple(problem.logits)
    inputs_NMC = fusion_features(problem.logits, members, task_type).reshape(len(problem.labels), len(members), -1)
    has_classes = task_type in ("classification", "ordinal")
    if has_classes:  # what all classes have in common does not matter
        inputs_NMC = inputs_NMC - inputs_NMC.mean(axis=2, keepdims=True)
    # One scale per member, so that regularisation does not depend on how confident it is; centred, as the fit converges
    # slowly otherwise. The majority varies with the folds only, which tells nothing about new rows.
    means_MC = inputs_NMC.mean(axis=0)
    within_FM = [inputs_NMC[problem.folds == fold].std(axis=0).max(axis=1) for fold in np.unique(problem.folds)]
    is_flat_M = np.max(within_FM, axis=0) < _FLAT
    scales_M = np.where(is_flat_M, np.inf, np.maximum(inputs_NMC.std(axis=0).mean(axis=1), _FLAT))[:, None]
    scaled_NMC = (inputs_NMC - means_MC) / scales_M
    if task_type == "regression":
        model = RidgeCV(alphas=tuple(len(problem.labels) / 10**power for power in range(4)))
        model.fit(scaled_NMC[:, :, 0], problem.labels)
        coefficients_MCC, bias_C = model.coef_.reshape(-1, 1, 1), np.array([model.intercept_])
    else:
        losses = np.zeros(len(_INVERSE_STRENGTHS))
        for fold in np.unique(problem.folds) if len(np.unique(problem.folds)) > 1 else ():
            inside = problem.folds == fold
            for place, strength in enumerate(_INVERSE_STRENGTHS):
                weights, bias = _logistic(scaled_NMC[~inside], problem.labels[~inside], strength)
                fused_NC = np.einsum("nmc,mck->nk", scaled_NMC[inside], weights) + bias
                shares_NC = special.softmax(fused_NC, axis=1) if has_classes else special.expit(fused_NC)
                losses[place] += _loss(shares_NC, problem.labels[inside], problem.space) * inside.sum()
        strength = _INVERSE_STRENGTHS[int(losses.argmin())]
        coefficients_MCC, bias_C = _logistic(scaled_NMC, problem.labels, strength)
    coefficients_MCC = coefficients_MCC / scales_M[:, :, None]
    bias_C = bias_C - np.einsum("mc,mck->k", means_MC, coefficients_MCC)
    if has_classes:
        coefficients_MCC = coefficients_MCC - coefficients_MCC.mean(axis=1, keepdims=True)
    fusion = Fusion.linear(members, task_type, coefficients_MCC.reshape(-1, len(bias_C)), bias_C)
    shown = {name: problem.logits[name] for name, share in fusion.member_weights().items() if share >= _SHOWN_WEIGHT}
    return fusion if len(shown) in (0, len(members)) else _fit_linear(replace(problem, logits=shown))


def _logistic(inputs_NMC: np.ndarray, labels: np.ndarray, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """Return (M, C, C) coefficients and (C,) bias of a multinomial model, or of a binary one per label."""
    rows, members, outputs = inputs_NMC.shape
    coefficients_MCC, bias_C = np.zeros((members, outputs, outputs)), np.zeros(outputs)
    if labels.ndim == 2:
        for label in range(outputs):
            weights, bias = _regress(inputs_NMC[:, :, label], labels[:, label], 2, strength)
            coefficients_MCC[:, label, label], bias_C[label] = weights[1] - weights[0], bias[1] - bias[0]
        return coefficients_MCC, bias_C
    weights, bias_C = _regress(inputs_NMC.reshape(rows, -1), labels, outputs, strength)
    return weights.T.reshape(members, outputs, outputs), bias_C


def _regress(
    inputs_NF: np.ndarray, classes_N: np.ndarray, count: int, strength: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return (count, F) coefficients and (count,) bias; classes without rows get a small constant probability."""
    weights, bias, there = np.zeros((count, inputs_NF.shape[1])), np.zeros(count), np.unique(classes_N)
    if len(there) > 1:
        model = LogisticRegression(C=strength, max_iter=200)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # nearly converged will do for a few weights
            model.fit(inputs_NF, classes_N)
        # For two classes scikit-learn returns one row: the logit of the second.
        fitted = there[1:] if len(there) == 2 else there
        weights[fitted], bias[fitted] = model.coef_, model.intercept_
    absent = np.setdiff1d(np.arange(count), there)
    bias[absent] = bias[there].min() - math.log(2 * len(classes_N))
    return weights, bias


# Fewer rows than this are divided into at least so many parts: rules fitted on three quarters of few rows are worse.
_MANY_ROWS, PARTS = 5000, 10
# Numbers of all members that each rule is applied to at most, to see how much the rules differ.
_MAX_SPREAD_VALUES = 2_000_000


# Kinds to try when time is short, from all to fewest.
_CHEAPER_KINDS = (FUSION_KINDS, ("single", "weights"), ("single",))
_FEWEST_PARTS = 5
# The sizes of the pieces of rows on which fusing is timed, and the fewest rows that it is worth it.
_PIECES, _WORTH_ROWS = (_FEW_ROWS, 400), 1000


@dataclass(frozen=True)
class Effort:
    """How much is spent on fusing and estimating."""

    kinds: tuple[str, ...] = FUSION_KINDS  # the kinds of fusion that are tried
    parts: int | None = None  # the parts of the estimate; None for its default
    max_rows: int | None = None  # the most rows that are fitted on; None for all
    seconds: float = 0.0  # the predicted seconds of a fusion; the estimate takes as many for each part


def choose_effort(
    seconds_of: Callable[[tuple[str, ...], int], float], *, rows: int, folds: int, fuse_s: float, estimate_s: float
) -> Effort:
    """Choose the most that fits the time: all kinds of fusion on all rows; on fewer rows; fewer kinds and parts."""
    parts = folds if rows >= _MANY_ROWS else max(PARTS, folds)
    few, some = (min(rows, piece) for piece in _PIECES)
    for kinds in _CHEAPER_KINDS:
        first_s = seconds_of(kinds, few)
        if first_s > min(fuse_s, estimate_s / min(parts, _FEWEST_PARTS)):
            continue
        second_s = seconds_of(kinds, some) if some > few else first_s
        row_s = max(1e-9, (second_s - first_s) / max(1, some - few))
        for count in dict.fromkeys((parts, min(parts, _FEWEST_PARTS))):
            used = int(min(rows, some + (min(fuse_s, estimate_s / count) - second_s) / row_s))
            if used >= min(rows, _WORTH_ROWS):
                seconds = second_s + row_s * (used - some)
                return Effort(kinds, None if count == parts else count, None if used == rows else used, seconds)
    return Effort(("single",), _FEWEST_PARTS, few)


@dataclass(frozen=True)
class ScoreEstimate:
    value: float  # the score of the nested cross-fitted predictions
    low: float  # the lower bound of the 95 % interval; NaN if there is none
    high: float  # the upper bound
    predictions: np.ndarray  # (N,) the nested cross-fitted predictions


def estimate_score(
    problem: FusionProblem,
    effort: Effort = Effort(),
    *,
    groups: np.ndarray | None = None,
    resamples: int = 1000,
) -> ScoreEstimate:
    """Estimate the score for new rows of what `fit_fusion` and `fit_thresholds` deliver, with its 95 % interval.

    Everything that looks at labels is repeated without each part of the rows, so neither fits nor choices make the
    estimate optimistic. It is pessimistic rather than optimistic about the members: their out-of-fold predictions come
    from models of (k - 1) / k of the rows, while the delivered bag averages k of them. The interval is that of
    `score_interval`, widened, in squares, by 1.96 standard deviations of the scores of the rules fitted without one
    part each, as choices vary with the rows; it excludes the variation of members between training sets.

    Source: Nested cross-validation: Varma and Simon, BMC Bioinformatics 7, 2006; how intervals from cross-validation
    relate to new data: Bates, Hastie and Tibshirani, JASA 119, 2024.
    """
    labels, metric, seed, count = problem.labels, problem.metric, problem.seed, len(problem.labels)
    groups = np.arange(count) if groups is None else groups
    predictions, scores = np.zeros_like(labels), []
    part_N = _parts(problem.folds, groups, seed, effort.parts)
    if len(np.unique(problem.folds)) < 2:
        problem = replace(problem, folds=part_N)
    size = len(problem.logits) * problem.space.num_labels * count
    spread = np.arange(0, count, max(1, size // _MAX_SPREAD_VALUES))  # rows that all rules are scored on
    parts = int(part_N.max()) + 1
    for part in range(parts):
        inside, other = np.flatnonzero(part_N == part), np.flatnonzero(part_N != part)
        if effort.max_rows is not None and effort.max_rows < len(other):
            other = other[stratified_sample(labels[other], effort.max_rows, seed, "auto estimate rows", part)]
        fitted = fit_fusion(problem.part(other), effort.kinds)
        space = fit_thresholds(
            fitted.logits, labels[other], problem.space, metric=metric, folds=problem.folds[other]
        ).label_space
        applied = np.union1d(inside, spread)
        members = {name: problem.logits[name][applied] for name in fitted.fusion.members}
        rule = predictions_of(fitted.fusion.apply(members), space)
        predictions[inside] = rule[np.searchsorted(applied, inside)]
        scores.append(metric.score(labels[spread], rule[np.searchsorted(applied, spread)]))
    value, low, high = score_interval(
        metric,
        labels,
        predictions,
        generator=numpy_generator("auto estimate", seed),
        groups=groups,
        resamples=resamples,
    )
    spread_s = 1.96 * np.std(scores)
    lowest, highest = METRICS.bounds(metric.name)
    low, high = value - np.hypot(value - low, spread_s), value + np.hypot(high - value, spread_s)
    return ScoreEstimate(value, float(np.maximum(low, lowest)), float(np.minimum(high, highest)), predictions)


def _parts(folds: np.ndarray, groups: np.ndarray, seed: int, parts: int | None = None) -> np.ndarray:
    """Return the part of each row: its fold, or a piece of it where there are fewer than `parts`; a group is in one."""
    names, fold_N = np.unique(folds, return_inverse=True)
    if len(names) > 1 and (len(folds) >= _MANY_ROWS or (parts is not None and parts <= len(names))):
        return fold_N
    pieces = -(-(parts or PARTS) // len(names))
    part_N = fold_N * pieces
    for fold in range(len(names)):
        inside = np.flatnonzero(fold_N == fold)
        members, group = np.unique(groups[inside], return_inverse=True)
        order = numpy_generator("auto estimate folds", seed, fold).permutation(len(members))
        part_N[inside] += order[group] % pieces
    return part_N
