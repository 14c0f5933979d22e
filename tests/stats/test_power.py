"""The stated gaps are checked by playing the tests many times, not by repeating their formulas."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import binom

from attentune.seeding import numpy_generator
from attentune.stats.estimate import mean_over_seeds_and_examples
from attentune.stats.power import (
    minimum_detectable_accuracy_difference,
    minimum_detectable_correlation_difference,
    minimum_detectable_effect,
)

Z_TWO_SIDED_5_PERCENT = 1.959964
PLAYS = 20_000


def _draw_disagreements(n: int, disagreement: float, gap: float) -> tuple[np.ndarray, np.ndarray]:
    """Rows that only the first, and only the second model gets right, when `n` rows are drawn again and again."""
    only_first, only_second = (disagreement + gap) / 2, (disagreement - gap) / 2
    rng = numpy_generator("test-power", n, repr(disagreement), repr(gap))
    counts = rng.multinomial(n, [only_first, max(only_second, 0.0), 1 - disagreement], size=PLAYS)
    return counts[:, 0], counts[:, 1]


def _exact_rejection_rate(n: int, disagreement: float, gap: float) -> float:
    b, c = _draw_disagreements(n, disagreement, gap)
    return float(np.mean(2 * binom.cdf(np.minimum(b, c), b + c, 0.5) <= 0.05))


def _mcnemar_rejection_rate(n: int, disagreement: float, gap: float) -> float:
    b, c = _draw_disagreements(n, disagreement, gap)
    statistic = np.abs(b - c) / np.sqrt(np.maximum(b + c, 1))
    return float(np.mean(statistic > Z_TWO_SIDED_5_PERCENT))


def _correlations(rng: np.random.Generator, n: int, r: float, plays: int) -> np.ndarray:
    x = rng.standard_normal((plays, n))
    y = r * x + math.sqrt(1 - r * r) * rng.standard_normal((plays, n))
    x -= x.mean(axis=1, keepdims=True)
    y -= y.mean(axis=1, keepdims=True)
    return (x * y).sum(axis=1) / np.sqrt((x * x).sum(axis=1) * (y * y).sum(axis=1))


def _fisher_rejection_rate(n: int, first: float, second: float) -> float:
    rng = numpy_generator("test-power-fisher", n, repr(first), repr(second))
    z = np.arctanh(_correlations(rng, n, second, 4000)) - np.arctanh(_correlations(rng, n, first, 4000))
    return float(np.mean(np.abs(z) / math.sqrt(2 / (n - 3)) > Z_TWO_SIDED_5_PERCENT))


@pytest.mark.parametrize(("n", "disagreement"), [(277, 0.2), (1043, 0.1), (1043, 0.3), (5000, 0.05)])
def test_mcnemar_finds_the_stated_gap_in_four_of_five_plays(n: int, disagreement: float) -> None:
    gap = minimum_detectable_accuracy_difference(n, disagreement=disagreement)
    assert _mcnemar_rejection_rate(n, disagreement, gap) == pytest.approx(0.8, abs=0.02)
    assert _mcnemar_rejection_rate(n, disagreement, 0.8 * gap) < 0.7


@pytest.mark.parametrize(("n", "disagreement"), [(20, 0.1), (60, 0.02), (100, 0.1), (277, 0.2), (5000, 0.05)])
def test_the_exact_test_finds_the_stated_gap_almost_as_often(n: int, disagreement: float) -> None:
    gap = minimum_detectable_accuracy_difference(n, disagreement=disagreement)
    assert 0.74 < _exact_rejection_rate(n, max(disagreement, gap), gap) < 0.8


@pytest.mark.parametrize("n", [5, 20, 277, 5000])
@pytest.mark.parametrize("disagreement", [0.05, 0.3, 1.0])
@pytest.mark.parametrize(("power", "z_power"), [(0.5, 0.0), (0.8, 0.8416212335729143), (0.99, 2.3263478740408408)])
def test_accuracy_gap_solves_the_equation(n: int, disagreement: float, power: float, z_power: float) -> None:
    gap = minimum_detectable_accuracy_difference(n, disagreement=disagreement, power=power)
    d = max(disagreement, gap)
    needed = Z_TWO_SIDED_5_PERCENT * math.sqrt(d) + z_power * math.sqrt(d - gap**2)
    assert gap * math.sqrt(n) == pytest.approx(needed, rel=1e-6)


@pytest.mark.parametrize(("n", "baseline", "z_power"), [(4, 0.0, 0.0), (10, 0.8, 0.8416212335729143)])
def test_correlation_rise_is_as_many_standard_errors_of_fishers_z(n: int, baseline: float, z_power: float) -> None:
    power = 0.5 if z_power == 0 else 0.8
    better = baseline + minimum_detectable_correlation_difference(n, baseline=baseline, power=power)
    errors = (math.atanh(better) - math.atanh(baseline)) / math.sqrt(2 / (n - 3))
    assert errors == pytest.approx(Z_TWO_SIDED_5_PERCENT + z_power, rel=1e-6)


def test_no_gap_can_be_found_on_three_rows_and_a_stricter_level_needs_more() -> None:
    for n in (-1, 0, 1, 3):
        assert math.isnan(minimum_detectable_accuracy_difference(n, disagreement=1.0))
        assert math.isnan(minimum_detectable_correlation_difference(n))
    # The square of the normal quantile: 3.84 at 0.05, 6.63 at 0.01.
    assert minimum_detectable_accuracy_difference(4) <= 1
    assert math.isnan(minimum_detectable_accuracy_difference(6, alpha=0.01))
    assert minimum_detectable_accuracy_difference(7, alpha=0.01) <= 1
    # A gap above the disagreement uses the least disagreement possible.
    gap = minimum_detectable_accuracy_difference(60, disagreement=0.01)
    assert 0.01 < gap == minimum_detectable_accuracy_difference(60, disagreement=0.02)
    assert math.isnan(minimum_detectable_effect(5, 0.0)), "where nothing varies nothing is said"


@given(
    n=st.integers(4, 10**7), disagreement=st.floats(1e-6, 1.0), power=st.floats(0.5, 0.999), r=st.floats(-0.99, 0.99)
)
def test_gaps_are_shares_that_shrink_with_rows(n: int, disagreement: float, power: float, r: float) -> None:
    assert 0 < minimum_detectable_correlation_difference(n, baseline=r) <= 1 - r
    gap = minimum_detectable_accuracy_difference(n, disagreement=disagreement, power=power)
    assert 0 < gap <= 1
    assert minimum_detectable_accuracy_difference(4 * n, disagreement=disagreement, power=power) < gap


@pytest.mark.parametrize(("n", "baseline"), [(150, 0.8), (400, 0.3)])
def test_fisher_finds_the_stated_rise_in_four_of_five_plays(n: int, baseline: float) -> None:
    rise = minimum_detectable_correlation_difference(n, baseline=baseline)
    assert _fisher_rejection_rate(n, baseline, baseline + rise) == pytest.approx(0.8, abs=0.03)
    assert _fisher_rejection_rate(n, baseline, baseline) == pytest.approx(0.05, abs=0.015)


# The smallest detectable difference, against the noncentral t, statsmodels and played experiments.


# From statsmodels 0.15.0: TTestPower().solve_power(nobs=seeds, alpha=..., power=...)
STATSMODELS = [
    (3, 0.05, 0.8, 3.264043552819638),
    (5, 0.05, 0.8, 1.6819970833232674),
    (5, 0.01, 0.9, 3.027074084532795),
    (10, 0.05, 0.8, 0.9960019107624178),
    (10, 0.01, 0.9, 1.5097344851610688),
    (20, 0.05, 0.8, 0.6604416544380312),
    (3, 0.05 / 40, 0.8, None),  # deep in the tail that Holm asks for
]


def t_power(difference: float, seeds: int, alpha: float) -> float:
    bar, shift = stats.t.isf(alpha / 2, seeds - 1), difference * math.sqrt(seeds)
    return float(stats.nct.sf(bar, seeds - 1, shift) + stats.nct.cdf(-bar, seeds - 1, shift))


@pytest.mark.parametrize(("seeds", "alpha", "power", "difference"), STATSMODELS)
def test_over_seeds_it_is_the_power_of_the_t_test(seeds: int, alpha: float, power: float, difference: float) -> None:
    found = minimum_detectable_effect(seeds, 1.0, alpha=alpha, power=power)
    assert difference is None or found == pytest.approx(difference, rel=5e-5)
    assert t_power(found, seeds, alpha) == pytest.approx(power, abs=5e-5 if difference else 1e-3)


def test_where_seeds_add_nothing_it_is_the_normal_tests_power_with_the_examples_quantile() -> None:
    """Of a known spread: the chance to lie beyond t standard errors on either side, t of 4 degrees of freedom."""
    for alpha, power in ((0.05, 0.8), (0.6, 0.7)):
        found = minimum_detectable_effect(3, 0.0, examples=5, example_sd=1.0, alpha=alpha, power=power)
        bar, shift = stats.t.isf(alpha / 2, 4), found * math.sqrt(5)
        assert stats.norm.sf(bar - shift) + stats.norm.cdf(-bar - shift) == pytest.approx(power, abs=1e-9)


@pytest.mark.parametrize(("seeds", "example_sd"), [(3, 1.0), (5, 2.0), (10, 4.0)])
def test_it_is_found_in_four_of_five_plays(seeds: int, example_sd: float) -> None:
    """Normal effects: seeds 0.15, the rest 1, examples as given; 4,000 plays have a standard error of 0.6 points."""
    examples, plays = 60, 4000
    seed_sd = math.hypot(0.15, 1 / math.sqrt(examples))
    gap = minimum_detectable_effect(seeds, seed_sd, examples=examples, example_sd=example_sd)
    generator = numpy_generator("test-detectable", seeds)
    values = gap + generator.normal(size=(plays, seeds, examples))
    values += generator.normal(0, 0.15, (plays, seeds, 1)) + generator.normal(0, example_sd, (plays, 1, examples))
    found = mean_over_seeds_and_examples(values)
    assert float(np.mean((found.low > 0) | (found.high < 0))) == pytest.approx(0.8, abs=0.025)


@given(seeds=st.integers(2, 30), sd=st.floats(1e-3, 10), example_sd=st.floats(0, 10), unit=st.floats(0.01, 100))
def test_more_of_anything_helps_and_the_unit_does_not_matter(
    seeds: int, sd: float, example_sd: float, unit: float
) -> None:
    found = minimum_detectable_effect(seeds, sd, examples=100, example_sd=example_sd)
    assert minimum_detectable_effect(seeds + 1, sd, examples=100, example_sd=example_sd) < found * (1 + 1e-6)
    assert minimum_detectable_effect(seeds, sd, examples=200, example_sd=example_sd) <= found * (1 + 1e-6)
    assert minimum_detectable_effect(seeds, sd, examples=100, example_sd=example_sd, alpha=0.01) > found
    scaled = minimum_detectable_effect(seeds, sd * unit, examples=100, example_sd=example_sd * unit)
    assert scaled == pytest.approx(found * unit, rel=1e-6)
