"""The smallest detectable difference, against the noncentral t, statsmodels and played experiments."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attentune.seeding import numpy_generator
from attentune.stats.estimate import mean_over_seeds_and_examples
from attentune.stats.power import minimum_detectable_effect

# From statsmodels 0.15.0: TTestPower().solve_power(nobs=seeds, alpha=..., power=...)
STATSMODELS = [
    (3, 0.05, 0.8, 3.264043552819638),
    (5, 0.05, 0.8, 1.6819970833232674),
    (5, 0.01, 0.9, 3.027074084532795),
    (10, 0.05, 0.8, 0.9960019107624178),
    (10, 0.01, 0.9, 1.5097344851610688),
    (20, 0.05, 0.8, 0.6604416544380312),
]


def t_power(difference: float, seeds: int, alpha: float) -> float:
    bar, shift = stats.t.isf(alpha / 2, seeds - 1), difference * math.sqrt(seeds)
    return float(stats.nct.sf(bar, seeds - 1, shift) + stats.nct.cdf(-bar, seeds - 1, shift))


@pytest.mark.parametrize(("seeds", "alpha", "power", "difference"), STATSMODELS)
def test_over_seeds_it_is_the_power_of_the_t_test(seeds: int, alpha: float, power: float, difference: float) -> None:
    found = minimum_detectable_effect(seeds, 1.0, alpha=alpha, power=power)
    assert found == pytest.approx(difference, rel=5e-5)
    assert t_power(found, seeds, alpha) == pytest.approx(power, abs=5e-5)


def test_where_seeds_add_nothing_it_is_the_normal_tests_power_with_the_examples_quantile() -> None:
    """Of a known spread: the chance to lie beyond t standard errors on either side, t of 4 degrees of freedom."""
    for alpha, power in ((0.05, 0.8), (0.6, 0.7)):
        found = minimum_detectable_effect(3, 0.0, examples=5, example_sd=1.0, alpha=alpha, power=power)
        bar, shift = stats.t.isf(alpha / 2, 4), found * math.sqrt(5)
        assert stats.norm.sf(bar - shift) + stats.norm.cdf(-bar - shift) == pytest.approx(power, abs=1e-9)


def test_it_holds_deep_in_the_tail_that_holm_asks_for() -> None:
    found = minimum_detectable_effect(3, 1.0, alpha=0.05 / 40)
    assert t_power(found, 3, 0.05 / 40) == pytest.approx(0.8, abs=1e-3)


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


def test_where_nothing_varies_nothing_is_said() -> None:
    assert math.isnan(minimum_detectable_effect(5, 0.0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seeds": 1}, "seeds is 1 and examples 2; expected at least 2 of each"),
        ({"examples": 1}, "seeds is 5 and examples 1; expected at least 2 of each"),
        ({"seed_sd": -1.0}, "seed_sd is -1.0 and example_sd 0.0; expected 0 or more"),
        ({"seed_sd": math.nan}, "seed_sd is nan"),
        ({"alpha": 0.0}, "alpha is 0.0 and power 0.8; expected 0 < alpha < power < 1"),
        ({"power": 0.05}, "alpha is 0.05 and power 0.05"),
        ({"power": 1.0}, "alpha is 0.05 and power 1.0"),
        ({"alpha": 1.0, "power": 2.0}, "alpha is 1.0 and power 2.0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        minimum_detectable_effect(**({"seeds": 5, "seed_sd": 1.0} | settings))
