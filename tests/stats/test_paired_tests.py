"""The sign-flip test, McNemar, the paired bootstrap and jackknife values, against scipy and plain loops."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentune.seeding import numpy_generator
from attentune.stats.paired_tests import (
    jackknife_values,
    mcnemar_p,
    mcnemar_test,
    paired_bootstrap_test,
    sign_flip_p,
    sign_flip_test,
    smallest_p,
)

# Differences of accuracies on 200 rows: with ties and zeros, as they are.
DIFFERENCES = st.lists(st.integers(-20, 20).map(lambda count: count / 200), min_size=1, max_size=8).map(np.array)


def sign_flip_by_loop(differences: list[float]) -> float:
    seen = abs(sum(differences))
    as_far = total = 0
    for signs in itertools.product((1, -1), repeat=len(differences)):
        flipped = abs(sum(sign * value for sign, value in zip(signs, differences, strict=True)))
        as_far += flipped >= seen - 1e-9
        total += 1
    return as_far / total


@given(differences=DIFFERENCES)
def test_the_sign_flip_test_is_a_loop_over_all_signs(differences: np.ndarray) -> None:
    assert sign_flip_test(differences) == sign_flip_by_loop(differences.tolist())


def test_sixteen_differences_are_gone_through_and_more_are_drawn() -> None:
    for count in (16, 17):
        differences = numpy_generator("test-sixteen").normal(0.3, 1.0, size=count)
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=8)))
        rest = np.array(list(itertools.product((1.0, -1.0), repeat=count - 8)))
        sums = (signs @ differences[:8])[:, None] + (rest @ differences[8:])[None, :]
        exact = float(np.mean(np.abs(sums) >= abs(differences.sum()) - 1e-9))
        assert (sign_flip_test(differences) == exact) == (count == 16)
        drawn = [sign_flip_test(differences, generator=numpy_generator("drawn", one)) for one in range(3)]
        assert (len(set(drawn)) == 1) == (count == 16)
    assert (smallest_p(0), smallest_p(17), smallest_p(40)) == (1.0, 2 / 65_537, 2 / 65_537)


def test_ties_are_found_through_rounding() -> None:
    # 0.1 + 0.2 - 0.3 is 5.6e-17.
    for unit in (1e-8, 1.0, 1e8):
        assert sign_flip_test(unit * np.array([0.1, 0.2, -0.3])) == 1.0


@pytest.mark.parametrize(
    ("seeds", "floor"), [(1, 1.0), (3, 0.25), (4, 0.125), (5, 0.0625), (6, 0.03125), (10, 2 / 1024)]
)
def test_p_has_a_floor(seeds: int, floor: float) -> None:
    assert sign_flip_test(np.linspace(0.1, 0.2, seeds)) == smallest_p(seeds) == floor


def test_many_seeds_are_drawn_from_and_are_near_the_exact_p() -> None:
    differences = numpy_generator("test-many").normal(0.45, 1.0, size=20)
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=10)))
    halves = (signs @ differences[:10])[:, None] + (signs @ differences[10:])[None, :]
    exact = float(np.mean(np.abs(halves) >= abs(differences.sum()) - 1e-9))
    found = sign_flip_test(differences)
    assert 0.01 < exact < 0.5
    assert found == pytest.approx(exact, abs=5 * (exact * (1 - exact) / 65_536) ** 0.5)
    assert found == sign_flip_test(differences)
    assert found != sign_flip_test(differences, generator=numpy_generator("other"))
    assert sign_flip_test(np.ones(40)) == smallest_p(40)


def test_many_data_sets_at_once_give_what_each_gives_alone() -> None:
    values = numpy_generator("test-stack").normal(size=(4, 2, 5))
    together = sign_flip_p(values)
    assert together.shape == (4, 2)
    for place in np.ndindex(4, 2):
        assert together[place] == sign_flip_test(values[place])


@pytest.mark.parametrize("bad", [[], [1.0, float("nan")], [[1.0, 2.0]]])
def test_what_is_no_row_of_numbers_is_refused(bad: list) -> None:
    with pytest.raises(ValueError, match="expected one finite number per seed, for at least one seed"):
        sign_flip_test(np.array(bad))


# McNemar, the paired bootstrap and jackknife values.


# From statsmodels 0.15.0: mcnemar([[50, b], [c, 30]], exact=b + c < 25, correction=False).pvalue
STATSMODELS = {(3, 12): 0.03515625, (0, 5): 0.0625, (10, 10): 1.0, (20, 45): 0.0019295404758470829}
STATSMODELS |= {(13, 12): 0.841480581121794}


def rows_of(only_first: int, only_second: int, both: int = 50, neither: int = 30) -> tuple[np.ndarray, np.ndarray]:
    first = [True] * only_first + [False] * only_second + [True] * both + [False] * neither
    second = [False] * only_first + [True] * only_second + [True] * both + [False] * neither
    return np.array(first), np.array(second)


@pytest.mark.parametrize(("counts", "p"), STATSMODELS.items())
def test_mcnemar_is_statsmodels(counts: tuple[int, int], p: float) -> None:
    found = mcnemar_test(*rows_of(*counts))
    assert found.p == pytest.approx(p, rel=1e-12)
    assert (found.only_first, found.only_second) == counts
    assert mcnemar_test(*rows_of(*counts, 900, 17)).p == found.p, "rows on which both are alike do not count"


@given(only_first=st.integers(0, 24), only_second=st.integers(0, 24))
def test_with_few_discordant_rows_mcnemar_counts_coins(only_first: int, only_second: int) -> None:
    discordant = only_first + only_second
    if discordant < 25:
        worse = max(only_first, only_second)
        tail = sum(math.comb(discordant, heads) for heads in range(worse, discordant + 1)) / 2**discordant
        assert mcnemar_p(only_first, only_second) == pytest.approx(min(1.0, 2 * tail), rel=1e-9)
    assert mcnemar_p(only_first, only_second) == mcnemar_p(only_second, only_first)


def test_mcnemar_refuses_what_is_not_right_or_wrong() -> None:
    with pytest.raises(ValueError, match=r"answers have shapes \(3,\) and \(2,\); expected the same shape \(N,\)"):
        mcnemar_test(np.ones(3), np.ones(2))
    with pytest.raises(ValueError, match=r"answers contain \[0\.  0\.5\]; expected only True and False, or 1 and 0"):
        mcnemar_test(np.array([0, 0.5]), np.array([1.0, 0.0]))


def test_the_paired_bootstrap_is_a_loop_over_resamples() -> None:
    differences = np.array([0.5, -0.2, 0.1, 0.7, 0.0, 0.3])
    found = paired_bootstrap_test(differences, generator=numpy_generator("loop"), resamples=300)
    generator, means = numpy_generator("loop"), []
    for places in generator.integers(6, size=(300, 6)):
        means.append(sum(differences[place] for place in places) / 6)
    assert found.difference == pytest.approx(differences.mean(), rel=1e-12)
    further = sum(abs(mean - differences.mean()) >= abs(differences.mean()) - 1e-12 for mean in means)
    assert found.p == max((1 + further) / 301, 2 / 2**5), "five differences other than zero have 2^5 signs"
    assert [found.low, found.high] == pytest.approx(np.quantile(means, (0.025, 0.975)).tolist(), rel=1e-12)


def test_equal_models_are_not_told_apart_and_very_different_ones_get_the_smallest_p() -> None:
    same = paired_bootstrap_test(np.zeros(50), generator=numpy_generator("c"), resamples=200)
    assert (same.difference, same.low, same.high, same.p) == (0.0, 0.0, 0.0, 1.0)
    apart = np.array([1.0] * 40 + [0.0] * 10)
    assert paired_bootstrap_test(apart, generator=numpy_generator("d"), resamples=200).p == 1 / 201
    for rows in (3, 5):  # without spread no resample is far away; coins say how often as many signs agree
        few = np.concatenate([np.ones(rows), np.zeros(100 * (rows == 5))])
        p = paired_bootstrap_test(few, generator=numpy_generator("f"), resamples=200).p
        assert p == mcnemar_test(few == 1, few == 2).p == 2 / 2**rows
    with pytest.raises(ValueError, match=r"differences have shape \(1,\); expected \(N,\) with at least 2 examples"):
        paired_bootstrap_test(np.ones(1), generator=numpy_generator("e"))


def test_jackknife_values_follow_the_formula_row_by_row() -> None:
    values = [1.0, 4.0, 2.0, 8.0]

    def root(places: np.ndarray) -> float:
        return math.sqrt(sum(values[place] for place in places))

    without = [math.sqrt(sum(values) - value) for value in values]
    expected = [math.sqrt(15.0) + 3 * (sum(without) / 4 - one) for one in without]
    assert jackknife_values(root, 4) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match="rows is 1; expected at least 2, because each row is left out in turn"):
        jackknife_values(root, 1)


def test_rows_that_are_alike_are_left_out_once() -> None:
    values, asked = np.array([3.0, 1.0, 3.0, 1.0, 1.0]), []

    def statistic(places: np.ndarray) -> float:
        asked.append(tuple(places))
        return float(np.std(values[places]))

    alike = jackknife_values(statistic, 5, alike_N=values)
    assert len(asked) == 3
    assert alike == pytest.approx(jackknife_values(statistic, 5), rel=1e-12)
    assert len(asked) == 3 + 6
