"""Estimates the score of the delivered model on new rows, by nested cross-fitting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attentune.automl.fusion import FusionProblem, fit_fusion, usable_members
from attentune.automl.thresholds import fit_thresholds
from attentune.data.splits import stratified_sample
from attentune.errors import ConfigError
from attentune.inference.fusion import FUSION_KINDS
from attentune.metrics.intervals import score_interval
from attentune.metrics.metrics import predictions_of
from attentune.seeding import numpy_generator

# Fewer rows than this are divided into at least so many parts: rules fitted on three quarters of few rows are worse.
_MANY_ROWS, PARTS = 5000, 10
# Numbers of all members that each rule is applied to at most, to see how much the rules differ.
_MAX_SPREAD_VALUES = 2_000_000


# What is tried when time is short, from all to least.
_CHEAPER_KINDS = (FUSION_KINDS, ("single", "weights"), ("single",))
_FEWEST_PARTS = 5
# The sizes of the pieces of rows on which fusing is timed, and the fewest rows that it is worth it.
_PIECES, _WORTH_ROWS = (100, 400), 1000


@dataclass(frozen=True)
class Effort:
    """How much is spent on fusing and estimating."""

    kinds: tuple[str, ...] = FUSION_KINDS  # the kinds of fusion that are tried
    parts: int | None = None  # the parts of the estimate; None for its default
    max_rows: int | None = None  # the most rows that are fitted on; None for all
    seconds: float = 0.0  # the predicted seconds of a fusion; the estimate takes as many for each part


def choose_effort(
    seconds_of: Callable[[tuple[str, ...], int], float],
    *,
    rows: int,
    folds: int,
    fuse_s: float,
    estimate_s: float,
) -> Effort:
    """Choose the most that fits the time: all kinds of fusion on all rows; on fewer rows; fewer kinds and parts."""
    parts = folds if rows >= _MANY_ROWS else max(PARTS, folds)
    few, some = (min(rows, piece) for piece in _PIECES)
    for kinds in _CHEAPER_KINDS:
        first_s = seconds_of(kinds, few)
        if first_s > min(fuse_s, estimate_s / min(parts, _FEWEST_PARTS)):
            continue
        second_s = seconds_of(kinds, some) if some > few else first_s
        slope = max(0.0, (second_s - first_s) / max(1, some - few))
        for count in dict.fromkeys((parts, min(parts, _FEWEST_PARTS))):
            most_s = min(fuse_s, estimate_s / count)
            fitting = rows if slope == 0 else int(some + (most_s - second_s) / slope)
            if fitting >= min(rows, _WORTH_ROWS):
                limit = fitting if fitting < rows else None
                used = min(rows, fitting)
                return Effort(kinds, None if count == parts else count, limit, second_s + slope * (used - some))
    return Effort(("single",), _FEWEST_PARTS, few)


@dataclass(frozen=True)
class ScoreEstimate:
    """The estimated score for new rows."""

    metric: str  # the metric's name
    value: float  # the score of the nested cross-fitted predictions
    low: float  # the lower bound of the 95 % interval; NaN if there is none
    high: float  # the upper bound
    rows: int  # the number of rows it was estimated on
    predictions: np.ndarray  # the nested cross-fitted predictions of these rows, in the order of `places`
    places: np.ndarray  # (rows,) the indices of these rows
    method: str  # how it was estimated, in one sentence


def estimate_score(
    problem: FusionProblem,
    effort: Effort = Effort(),
    *,
    groups: np.ndarray | None = None,
    resamples: int = 1000,
    each_part: Callable[[int, int], None] = lambda part, parts: None,
) -> ScoreEstimate:
    """Estimate the score for new rows of what `fit_fusion` and `fit_thresholds` deliver, with its 95 % interval.

    The rows are divided into parts: the folds, or pieces of them, at least ten below 5,000 rows. Everything that looks
    at labels is repeated without each part: the choice of the simplest good member, the fits of all kinds of fusion,
    the choice among them, and the thresholds. What comes out is applied to the part, so neither fits nor choices make
    the estimate optimistic. This costs as many runs of `fit_fusion` as there are parts.

    The estimate is pessimistic rather than optimistic about the members: their out-of-fold predictions come from models
    that were trained on (k - 1) / k of the rows, while the delivered bag averages k such models. With enough rows the
    difference is small. The interval covers the sampling of the rows that are scored: bootstrap percentiles over rows
    (over groups, if rows depend on each other), and for the accuracy of independent rows Wilson's interval, which does
    not collapse near 0 and 1. It is widened, in squares, by 1.96 standard deviations of the scores on all rows of the
    rules fitted without one part each, as choices vary with the rows. It does not cover the variation of the members
    between training sets. docs/auto.md has its measured coverage.

    Source:
        Nested cross-validation: Varma and Simon, BMC Bioinformatics 7, 2006; how intervals from cross-validation
        relate to new data: Bates, Hastie and Tibshirani, JASA 119, 2024.
    """
    logits, labels, metric, seed = problem.logits, problem.labels, problem.metric, problem.seed
    _, rows = usable_members(logits)
    if len(rows) < 2:
        raise ConfigError(f"estimate: got {len(rows)} row with out-of-fold logits, expected at least 2.")
    predictions, scores = np.zeros_like(labels), []
    part_N = np.full(len(labels), -1)
    part_N[rows] = _parts(problem.folds[rows], rows if groups is None else groups[rows], seed, effort.parts)
    if len(np.unique(problem.folds[rows])) < 2:
        problem = replace(problem, folds=part_N)
    size = len(logits) * problem.space.num_labels * len(rows)
    spread = rows[:: max(1, size // _MAX_SPREAD_VALUES)]  # rows that all rules are scored on
    count = int(part_N.max()) + 1
    for part in range(count):
        each_part(part, count)
        inside, other = rows[part_N[rows] == part], rows[part_N[rows] != part]
        if effort.max_rows is not None and effort.max_rows < len(other):
            other = other[stratified_sample(labels[other], effort.max_rows, seed, "auto estimate rows", part)]
        fitted = fit_fusion(problem.part(other), effort.kinds)
        space = fit_thresholds(
            fitted.logits,
            labels[other],
            problem.space,
            metric=metric,
            folds=problem.folds[other],
            standard_errors=problem.standard_errors,
        ).label_space
        applied = np.union1d(inside, spread)
        members = {name: logits[name][applied] for name in fitted.fusion.members}
        rule = predictions_of(fitted.fusion.apply(members), space)
        predictions[inside] = rule[np.searchsorted(applied, inside)]
        scores.append(metric.score(labels[spread], rule[np.searchsorted(applied, spread)]))
    value, low, high = score_interval(
        metric,
        labels[rows],
        predictions[rows],
        generator=numpy_generator("auto estimate", seed),
        groups=None if groups is None else groups[rows],
        resamples=resamples,
    )
    low, high = _widened(value, low, high, scores)
    method = (
        "nested cross-fitting: members, fusion, its kind and thresholds are chosen without the part that is scored; the"
        " interval is over rows and these choices"
    )
    return ScoreEstimate(metric.name, value, low, high, len(rows), predictions[rows], rows, method)


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


def _widened(value: float, low: float, high: float, scores: Sequence[float]) -> tuple[float, float]:
    """Widen an interval over rows by the variation of the scores of the rules fitted without one part each."""
    spread = 1.96 * np.std(scores)
    return float(value - np.hypot(value - low, spread)), float(value + np.hypot(high - value, spread))
