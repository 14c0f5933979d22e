"""Friedman's test and Nemenyi's difference."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attentune.seeding import numpy_generator
from attentune.stats.compare import Ranking, critical_difference, rank_methods


def rank(scores: np.ndarray, names: tuple[str, ...] | None = None, **settings) -> Ranking:
    names = names or tuple("abcdefghij"[: np.asarray(scores).shape[1]])
    return rank_methods(scores, names, generator=numpy_generator("test-ranks"), **settings)


def test_methods_are_sorted() -> None:
    """Twelve tasks: `d` is always last, `a` always first but once, and `b` and `c` take turns."""
    scores = np.array([[0.9, 0.8, 0.7, 0.1], [0.9, 0.7, 0.8, 0.1]] * 6)
    scores[0] = [0.8, 0.9, 0.7, 0.1]
    found = rank(scores[:, [3, 1, 0, 2]], ("d", "b", "a", "c"))
    assert found.methods == ("a", "b", "c", "d")
    assert found.mean_ranks == pytest.approx((13 / 12, 29 / 12, 30 / 12, 4.0))
    assert found.statistic == pytest.approx(stats.friedmanchisquare(*scores.T).statistic, rel=1e-12)
    assert found.p == 1 / 10_001
    assert found.critical_difference == pytest.approx(1.354, abs=1e-3)  # 2.569 sqrt(4 x 5 / (6 x 12))
    assert rank(scores, alpha=0.1).critical_difference == critical_difference(4, 12, alpha=0.1) < 4 / 3


def test_the_critical_difference_is_that_of_demsars_example() -> None:
    # Section 3.2.2: 4 methods on 14 data sets, 1.25 at 0.05 and 1.12 at 0.10.
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)
    assert critical_difference(4, 14, alpha=0.1) == pytest.approx(1.12, abs=0.005)


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (3, 2.343), (4, 2.569), (10, 3.164)])
def test_the_critical_difference_has_the_papers_quantiles(methods: int, q: float) -> None:
    assert critical_difference(methods, 12) == pytest.approx(q * (methods * (methods + 1) / 72) ** 0.5, rel=5e-4)


def test_p_is_exact_for_few_tasks() -> None:
    """Where there are no more orders than permutations to draw, p is the share of all orders."""
    scores = np.array([[0.1, 0.2, 0.3], [0.2, 0.1, 0.3], [0.1, 0.2, 0.3]])
    seen, total = 0, 0
    for orders in itertools.product(itertools.permutations((1, 2, 3)), repeat=3):
        sums = np.sum(orders, axis=0)
        seen += ((sums - 6) ** 2).sum() >= ((np.array([4, 5, 9]) - 6) ** 2).sum()
        total += 1
    assert rank(scores).p == pytest.approx(seen / total, rel=1e-12)
    assert rank(scores, permutations=total - 1).p == pytest.approx(seen / total, abs=0.08)


def test_p_is_near_chi_square_for_many_tasks() -> None:
    scores = numpy_generator("many-tasks").normal(size=(80, 4)) + np.array([0.0, 0.1, 0.2, 0.3])
    found, known = rank(scores), stats.friedmanchisquare(*scores.T)
    assert 0.01 < known.pvalue < 0.9
    assert found.statistic == pytest.approx(known.statistic, rel=1e-12)
    assert found.p == pytest.approx(known.pvalue, abs=0.02)


def test_drawn_orders_are_those_of_the_generator() -> None:
    scores = numpy_generator("drawn-orders").normal(size=(6, 5))
    ranks = stats.rankdata(-scores, axis=1)
    orders = numpy_generator("test-ranks").permuted(np.broadcast_to(ranks, (1000, 6, 5)), axis=2)
    distances = ((orders.sum(axis=1) - 18) ** 2).sum(axis=1)
    as_far = int((distances >= ((ranks.sum(axis=0) - 18) ** 2).sum() - 1e-9).sum())
    assert rank(scores, permutations=1000).p == (1 + as_far) / 1001


def test_two_methods_are_compared_by_the_sign_test() -> None:
    """Friedman's test of two methods is the sign test; scipy's own takes three methods or more."""
    found = rank(np.array([[0.9, 0.5]] * 7 + [[0.5, 0.9]]))
    assert found.p == pytest.approx(stats.binomtest(1, 8).pvalue, rel=1e-12)
    assert found.statistic == pytest.approx((7 - 1) ** 2 / 8)


def test_two_tasks_cannot_show_anything() -> None:
    found = rank(np.array([[0.9, 0.5, 0.1], [0.8, 0.5, 0.2]]))
    assert found.mean_ranks == (1.0, 2.0, 3.0)
    assert found.p == pytest.approx(1 / 6, rel=1e-12)


def test_where_smaller_is_better_ranks_turn_task_by_task() -> None:
    scores = np.tile([[0.9, 0.5, 0.1]], (12, 1))
    assert rank(scores).methods == ("a", "b", "c")
    assert rank(scores, greater_is_better=False).methods == ("c", "b", "a")
    assert rank(scores, greater_is_better=[True, False] * 6).mean_ranks == (2.0, 2.0, 2.0)


@given(seed=st.integers(0, 10_000), shift=st.floats(-5, 5))
def test_neither_the_order_of_tasks_nor_a_tasks_level_matters(seed: int, shift: float) -> None:
    generator = np.random.default_rng(seed)
    scores = generator.integers(0, 5, size=(6, 4)) / 10
    settings = {"permutations": 50}
    before = rank(scores, **settings)
    after = rank(scores[generator.permutation(6)] + shift * generator.random((6, 1)), **settings)
    assert (after.methods, after.mean_ranks) == (before.methods, before.mean_ranks)
    assert after.statistic == pytest.approx(before.statistic, rel=1e-9)


def test_methods_that_all_tie_have_a_p_of_one() -> None:
    found = rank(np.full((5, 3), 0.1) + np.array([[0.0], [0.1], [0.2], [0.3], [0.4]]))
    assert (found.statistic, found.p) == (0.0, 1.0)


def test_what_cannot_be_ranked_is_refused() -> None:
    with pytest.raises(ValueError, match=r"scores have shape \(1, 3\) for 3 methods; expected \(tasks, methods\)"):
        rank(np.ones((1, 3)))
    with pytest.raises(ValueError, match=r"shape \(4, 3\) for 2 methods"):
        rank(np.ones((4, 3)), ("a", "b"))
    with pytest.raises(ValueError, match="a score is missing or not finite; leave out its task or its method"):
        rank(np.array([[0.1, np.nan], [0.2, 0.3]]))
