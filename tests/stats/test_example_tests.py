"""McNemar, the paired bootstrap and jackknife values."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attentune.seeding import numpy_generator
from attentune.stats.paired_tests import jackknife_values, mcnemar_p, mcnemar_test, paired_bootstrap_test

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
    assert (found.only_first, found.only_second, found.exact) == (*counts, sum(counts) < 25)


@given(only_first=st.integers(0, 24), only_second=st.integers(0, 24))
def test_with_few_discordant_rows_mcnemar_counts_coins(only_first: int, only_second: int) -> None:
    discordant = only_first + only_second
    if discordant < 25:
        worse = max(only_first, only_second)
        tail = sum(math.comb(discordant, heads) for heads in range(worse, discordant + 1)) / 2**discordant
        assert mcnemar_p(only_first, only_second) == pytest.approx(min(1.0, 2 * tail), rel=1e-9)
    assert mcnemar_p(only_first, only_second) == mcnemar_p(only_second, only_first)


def test_rows_on_which_both_are_alike_do_not_count() -> None:
    assert mcnemar_test(*rows_of(4, 11, 0, 0)).p == mcnemar_test(*rows_of(4, 11, 900, 17)).p
    assert mcnemar_test(*rows_of(0, 0)).p == 1.0


def test_mcnemar_refuses_what_is_not_right_or_wrong() -> None:
    with pytest.raises(ValueError, match=r"answers have shapes \(3,\) and \(2,\); expected the same shape \(N,\)"):
        mcnemar_test(np.ones(3), np.ones(2))
    with pytest.raises(ValueError, match=r"answers contain \[0\.  0\.5\]; expected only True and False, or 1 and 0"):
        mcnemar_test(np.array([0, 0.5]), np.array([1.0, 0.0]))


def test_the_paired_bootstrap_is_near_the_paired_t_test_on_many_rows() -> None:
    differences = numpy_generator("test-boot").choice((-1.0, 0.0, 1.0), p=(0.06, 0.86, 0.08), size=800)
    found = paired_bootstrap_test(differences, generator=numpy_generator("a"), resamples=20_000)
    known = stats.ttest_1samp(differences, 0.0)
    low, high = known.confidence_interval(0.95)
    assert 0.02 < known.pvalue < 0.3
    assert found.difference == pytest.approx(differences.mean(), rel=1e-12)
    assert found.p == pytest.approx(known.pvalue, abs=0.008)
    assert [found.low, found.high] == pytest.approx([low, high], abs=0.1 * (high - low))


def test_the_paired_bootstrap_is_a_loop_over_resamples() -> None:
    differences = np.array([0.5, -0.2, 0.1, 0.7, 0.0, 0.3])
    found = paired_bootstrap_test(differences, generator=numpy_generator("loop"), resamples=300)
    generator, means = numpy_generator("loop"), []
    for places in generator.integers(6, size=(300, 6)):
        means.append(sum(differences[place] for place in places) / 6)
    further = sum(abs(mean - differences.mean()) >= abs(differences.mean()) - 1e-12 for mean in means)
    assert found.p == (1 + further) / 301
    assert [found.low, found.high] == pytest.approx(np.quantile(means, (0.025, 0.975)).tolist(), rel=1e-12)


def test_equal_models_are_not_told_apart_and_very_different_ones_get_the_smallest_p() -> None:
    same = paired_bootstrap_test(np.zeros(50), generator=numpy_generator("c"), resamples=200)
    assert (same.difference, same.low, same.high, same.p) == (0.0, 0.0, 0.0, 1.0)
    apart = np.array([1.0] * 40 + [0.0] * 10)
    assert paired_bootstrap_test(apart, generator=numpy_generator("d"), resamples=200).p == 1 / 201
    with pytest.raises(ValueError, match=r"differences have shape \(1,\); expected \(N,\) with at least 2 examples"):
        paired_bootstrap_test(np.ones(1), generator=numpy_generator("e"))


def test_jackknife_values_of_a_mean_are_its_values() -> None:
    values = numpy_generator("test-jack").normal(size=40)
    found = jackknife_values(lambda rows: float(values[rows].mean()), 40)
    assert found == pytest.approx(values, abs=1e-10)


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
