"""Several methods over several tasks: mean ranks, and how far apart they must lie to be told apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata, studentized_range


@dataclass(frozen=True)
class Ranking:
    """Methods by their mean rank over tasks; all that a critical-difference figure draws.

    Attributes:
        methods: the best first.
        mean_ranks: of the methods, in that order; 1 is the best rank.
        tasks: how many.
        statistic: Friedman's chi-square.
        p: of Friedman's test.
        critical_difference: mean ranks that lie less than this apart are not told apart.
        groups: the largest runs of neighbouring methods that are not told apart, of two methods or more; a single one
            with all methods where Friedman's test finds no difference at all.
        alpha: the level.
    """

    methods: tuple[str, ...]
    mean_ranks: tuple[float, ...]
    tasks: int
    statistic: float
    p: float
    critical_difference: float
    groups: tuple[tuple[str, ...], ...]
    alpha: float


def rank_methods(
    scores_TM: np.ndarray,
    methods: Sequence[str],
    *,
    generator: np.random.Generator,
    greater_is_better: bool | Sequence[bool] = True,
    alpha: float = 0.05,
    permutations: int = 10_000,
) -> Ranking:
    """Friedman's test with Nemenyi's critical difference, after Demsar (JMLR 7, 2006).

    Null hypothesis of p: on every task all methods are alike, so that any order of them is as likely as any other. p is
    the share of random orders within tasks with a statistic at least as large: right for few tasks too, where
    chi-square is not. Null hypothesis of a pair: these two methods are alike; Nemenyi's difference keeps the chance of
    one or more false alarms among all pairs near alpha. Tasks count as independent and weigh alike, and a rank says
    nothing of how large a difference is.

    Args:
        scores_TM: (T, M), the score of each method on each task, usually the mean over seeds.
        methods: the M names.
        generator: draws the orders.
        greater_is_better: for all tasks, or one a task.
        alpha: the level, two-sided.
        permutations: how many orders are drawn.

    Raises:
        ValueError: fewer than 2 tasks or methods, or a score that is missing.
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
    sorted_ranks = mean_ranks_M[order]
    names = tuple(methods[place] for place in order)
    spans = [(0, count)] if p > alpha else cliques(sorted_ranks, difference)
    groups = tuple(names[first:last] for first, last in spans)
    return Ranking(names, tuple(map(float, sorted_ranks)), tasks, statistic, p, difference, groups, alpha)


def critical_difference(methods: int, tasks: int, alpha: float = 0.05) -> float:
    """Nemenyi's: q sqrt(M (M + 1) / (6 T)), q the studentised range's quantile over sqrt(2) (Demsar, section 3.2.2)."""
    q = studentized_range.ppf(1.0 - alpha, methods, math.inf) / math.sqrt(2.0)
    return float(q) * math.sqrt(methods * (methods + 1) / (6.0 * tasks))


def cliques(sorted_ranks: np.ndarray, difference: float) -> list[tuple[int, int]]:
    """The largest runs [first, last) of two or more ascending ranks that span less than the difference."""
    found: list[tuple[int, int]] = []
    for first in range(len(sorted_ranks)):
        last = int(np.searchsorted(sorted_ranks, sorted_ranks[first] + difference, side="left"))
        if last - first >= 2 and (not found or last > found[-1][1]):
            found.append((first, last))
    return found


def _friedman(ranks_TM: np.ndarray, generator: np.random.Generator, permutations: int) -> tuple[float, float]:
    """Friedman's chi-square with the correction for ties, and its p over random orders within tasks."""
    tasks, methods = ranks_TM.shape
    # With ties the ranks of a task vary less than 1 .. M do; this is (M^3 - M) / 12 a task without ties.
    spread = float(((ranks_TM - (methods + 1) / 2) ** 2).sum())
    if spread == 0:
        return 0.0, 1.0
    offset = tasks * (methods + 1) / 2

    def distance(sums_M: np.ndarray) -> np.ndarray:
        return ((sums_M - offset) ** 2).sum(axis=-1)

    seen = float(distance(ranks_TM.sum(axis=0)))
    shuffled_RTM = generator.permuted(np.broadcast_to(ranks_TM, (permutations, *ranks_TM.shape)), axis=2)
    as_far = int((distance(shuffled_RTM.sum(axis=1)) >= seen - 1e-9).sum())
    return (methods - 1) * seen / spread, (1 + as_far) / (1 + permutations)


def _check(scores_TM: np.ndarray, methods: int) -> None:
    if scores_TM.ndim != 2 or min(scores_TM.shape) < 2 or scores_TM.shape[1] != methods:
        raise ValueError(
            f"scores are of shape {scores_TM.shape} for {methods} methods; expected (tasks, methods), 2 of each or more"
        )
    if not np.isfinite(scores_TM).all():
        raise ValueError("a score is missing or not finite; leave out its task or its method")
