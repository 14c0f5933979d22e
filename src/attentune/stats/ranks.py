"""Rank several methods over several tasks: Friedman's test, mean ranks and Nemenyi's critical difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import permutation_test, rankdata, studentized_range


@dataclass(frozen=True)
class Ranking:
    """Methods by their mean rank over tasks."""

    methods: tuple[str, ...]  # the names, best first
    mean_ranks: tuple[float, ...]  # the mean ranks of the methods, in that order; 1 is the best rank
    statistic: float  # Friedman's chi-square
    p: float  # the p of Friedman's test
    critical_difference: float  # methods whose mean ranks differ by less are not significantly different


def rank_methods(
    scores_TM: np.ndarray,
    methods: Sequence[str],
    *,
    generator: np.random.Generator,
    greater_is_better: bool | Sequence[bool] = True,
    alpha: float = 0.05,
    permutations: int = 10_000,
) -> Ranking:
    """Run Friedman's test and compute Nemenyi's critical difference.

    Null hypothesis of p: all methods are equivalent on every task, so every order of them is equally likely. p is from
    a permutation test within tasks, which is valid for few tasks too, where the chi-square approximation is not; if
    there are no more than `permutations` orders, p is exact. Null hypothesis for a pair: the two methods are
    equivalent; Nemenyi's critical difference keeps the family-wise error rate over all pairs near alpha. Tasks count as
    independent and have equal weight, and a rank says nothing about the size of a difference.

    Source: Demsar, JMLR 7, 2006.
    """
    scores_TM = np.asarray(scores_TM, dtype=np.float64)
    _check(scores_TM, len(methods))
    tasks, count = scores_TM.shape
    better_T1 = np.broadcast_to(greater_is_better, tasks)[:, None]
    # Scores that are equal up to rounding share their rank.
    ranks_TM = rankdata(np.round(np.where(better_T1, -scores_TM, scores_TM), 12), axis=1)
    statistic, p = _friedman(ranks_TM, generator, permutations)
    mean_ranks_M = ranks_TM.mean(axis=0)
    difference = critical_difference(count, tasks, alpha)
    order = np.argsort(mean_ranks_M, kind="stable")
    names = tuple(methods[place] for place in order)
    return Ranking(names, tuple(map(float, mean_ranks_M[order])), statistic, p, difference)


def critical_difference(methods: int, tasks: int, alpha: float = 0.05) -> float:
    """Compute Nemenyi's critical difference of mean ranks.

    It is q sqrt(M (M + 1) / (6 T)), where q is the quantile of the studentized range over sqrt(2) (Demsar, section
    3.2.2).
    """
    q = studentized_range.ppf(1.0 - alpha, methods, math.inf) / math.sqrt(2.0)
    return float(q) * math.sqrt(methods * (methods + 1) / (6.0 * tasks))


def _friedman(ranks_TM: np.ndarray, generator: np.random.Generator, permutations: int) -> tuple[float, float]:
    """Compute Friedman's chi-square with the correction for ties, and its p over permutations within tasks.

    `scipy.stats.friedmanchisquare` gives the same statistic, but needs three methods and has the chi-square p only.
    """
    methods = ranks_TM.shape[1]
    centered_TM = ranks_TM - (methods + 1) / 2
    # With ties the ranks of a task vary less than 1 .. M do; without ties this is (M^3 - M) / 12 per task.
    spread = float((centered_TM**2).sum())
    if spread == 0:
        return 0.0, 1.0

    def chi_square(*centered_M: np.ndarray, axis: int) -> np.ndarray:
        return (methods - 1) * (np.stack(centered_M).sum(axis=0) ** 2).sum(axis=axis) / spread

    result = permutation_test(
        tuple(centered_TM),
        chi_square,
        permutation_type="pairings",
        alternative="greater",
        vectorized=True,
        n_resamples=permutations,
        rng=generator,
    )
    return float(result.statistic), float(result.pvalue)


def _check(scores_TM: np.ndarray, methods: int) -> None:
    if scores_TM.ndim != 2 or min(scores_TM.shape) < 2 or scores_TM.shape[1] != methods:
        raise ValueError(
            f"scores have shape {scores_TM.shape} for {methods} methods; expected (tasks, methods), at least 2 of each"
        )
    if not np.isfinite(scores_TM).all():
        raise ValueError("a score is missing or not finite; leave out its task or its method")
