"""Means over seeds and examples and intervals over rows, against scipy and plain loops."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from attentune.seeding import numpy_generator
from attentune.stats.estimate import (
    Estimate,
    bootstrap_interval,
    bootstrap_mean,
    bounded_interval,
    mean_over_seeds,
    mean_over_seeds_and_examples,
    wilson_interval,
)

SCORES = st.floats(-1, 1).map(lambda value: round(value, 6))
TABLES = hnp.arrays(np.float64, st.tuples(st.integers(2, 5), st.integers(2, 12)), elements=SCORES)
# Spreads that rounding cannot make or unmake.
SPREAD = 1e-4


def two_way_by_loops(values: list[list[float]], confidence: float = 0.95) -> tuple[float, float, float]:
    """Mean and the two parts of its variance, from sums of squares written out; then the half-width."""
    seeds, examples = len(values), len(values[0])
    mean = sum(map(sum, values)) / (seeds * examples)
    rows = [sum(row) / examples for row in values]
    columns = [sum(row[place] for row in values) / seeds for place in range(examples)]
    seed_square = examples * sum((row - mean) ** 2 for row in rows) / (seeds - 1)
    example_square = seeds * sum((column - mean) ** 2 for column in columns) / (examples - 1)
    rest = 0.0
    for number, row in enumerate(values):
        for place, value in enumerate(row):
            rest += (value - rows[number] - columns[place] + mean) ** 2
    rest_square = rest / ((seeds - 1) * (examples - 1))
    seed_part = seed_square / (seeds * examples)
    example_part = max(0.0, example_square - rest_square) / (seeds * examples)
    return mean, seed_part, example_part


def draw(seeds: int, examples: int, key: str) -> np.ndarray:
    generator = numpy_generator("test-estimate", key)
    table = generator.normal(0.3, 1.0, size=(seeds, examples))
    return table + generator.normal(0, 0.3, size=(seeds, 1)) + generator.normal(0, 1.0, size=(1, examples))


@pytest.mark.parametrize("seeds", [2, 3, 5, 10, 30])
def test_over_seeds_it_is_the_paired_t_test(seeds: int) -> None:
    generator = numpy_generator("test-t", seeds)
    first, second = generator.normal(0.8, 0.02, size=(2, seeds))
    found = mean_over_seeds(second - first)
    known = stats.ttest_rel(second, first)
    low, high = known.confidence_interval(0.95)
    assert found.value == pytest.approx(np.mean(second - first), rel=1e-12)
    assert [found.low, found.high] == pytest.approx([low, high], rel=1e-10)
    assert found.p == pytest.approx(known.pvalue, rel=1e-10)


@pytest.mark.parametrize("p", [0.9, 0.05, 1e-4, 1e-12])
def test_p_is_right_far_into_the_tail(p: float) -> None:
    values = np.array([-1.0, 0.0, 1.0]) + stats.t.isf(p / 2, 2) / math.sqrt(3)
    assert mean_over_seeds(values).p == pytest.approx(p, rel=1e-9)


@pytest.mark.parametrize(("seeds", "examples"), [(2, 2), (3, 40), (5, 277)])
def test_over_seeds_and_examples_it_is_the_two_way_table_of_a_plain_loop(seeds: int, examples: int) -> None:
    values = draw(seeds, examples, f"{seeds} {examples}")
    found = mean_over_seeds_and_examples(values, confidence=0.9)
    mean, seed_part, example_part = two_way_by_loops(values.tolist())
    assert found.value == pytest.approx(mean, rel=1e-12)
    assert found.seed_variance == pytest.approx(seed_part, rel=1e-10)
    assert found.example_variance == pytest.approx(example_part, rel=1e-10)
    square = stats.t.ppf(0.95, seeds - 1) ** 2 * seed_part + stats.t.ppf(0.95, examples - 1) ** 2 * example_part
    assert found.high - found.value == pytest.approx(math.sqrt(square), rel=1e-10)
    assert found.value - found.low == pytest.approx(math.sqrt(square), rel=1e-10)


def test_the_parts_are_unbiased_for_known_spreads() -> None:
    """Normal effects: seed 0.5, example 1.5, rest 1; the mean's variance is 0.5^2 / S + 1.5^2 / N + 1 / (S N)."""
    seeds, examples, plays = 4, 20, 4000
    generator = numpy_generator("test-parts")
    values = generator.normal(size=(plays, seeds, examples))
    values += generator.normal(0, 0.5, size=(plays, seeds, 1)) + generator.normal(0, 1.5, size=(plays, 1, examples))
    found = mean_over_seeds_and_examples(values)
    assert found.seed_variance.mean() == pytest.approx(0.25 / seeds + 1 / (seeds * examples), rel=0.06)
    assert found.example_variance.mean() == pytest.approx(2.25 / examples, rel=0.03)
    together = found.seed_variance + found.example_variance
    assert together.mean() == pytest.approx(found.value.var(ddof=1), rel=0.08)


def test_p_is_the_level_at_which_the_interval_touches_zero() -> None:
    values = draw(4, 60, "touch")
    p = float(mean_over_seeds_and_examples(values).p)
    assert 0.001 < p < 0.999
    touching = mean_over_seeds_and_examples(values, confidence=1 - p)
    assert min(abs(touching.low), abs(touching.high)) == pytest.approx(0.0, abs=1e-9)


def test_many_data_sets_at_once_give_what_each_gives_alone() -> None:
    values = np.stack([[draw(3, 15, f"{a}{b}") for a in range(2)] for b in range(3)])
    for ask, one in ((mean_over_seeds_and_examples, values), (mean_over_seeds, values[..., 0])):
        together = ask(one)
        assert together.p.shape == (3, 2)
        for place in np.ndindex(3, 2):
            for name in Estimate.__dataclass_fields__:
                assert getattr(together, name)[place] == pytest.approx(float(getattr(ask(one[place]), name)), rel=1e-9)
        together, alone = ask(np.stack([one[0, 0], one[0, 0] * 1e9])), ask(one[0, 0])  # beside a much larger one
        assert [together.low[0], together.p[0]] == pytest.approx([float(alone.low), float(alone.p)])


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_rounding_is_no_spread_in_any_unit_and_a_small_spread_is(unit: float) -> None:
    alike = np.array([0.1 + 0.2, 0.3, 0.6 / 2]) * unit
    different = np.array([0.3, 0.3001, 0.3002]) * unit
    for ask in (mean_over_seeds, lambda values: mean_over_seeds_and_examples(np.tile(values, (7, 1)).T)):
        assert ask(different).p == pytest.approx(stats.ttest_1samp(different, 0).pvalue, rel=1e-6)
        found = ask(alike)
        assert found.value == pytest.approx(0.3 * unit)
        assert np.isnan([found.low, found.high, found.p]).all()
        nothing = ask(np.zeros(3))
        assert [nothing.value, nothing.low, nothing.high, nothing.p] == [0.0, 0.0, 0.0, 1.0]
    # What every method does alike on an example is no spread either.
    values = np.tile(draw(1, 15, "columns")[0], (3, 1)) * unit
    found, once = mean_over_seeds_and_examples(values), stats.ttest_1samp(values[0], 0)
    assert found.seed_variance == 0
    assert found.p == pytest.approx(once.pvalue, rel=1e-9)


@given(values=TABLES, shift=st.floats(-1, 1), scale=st.sampled_from([-100.0, -1.0, 0.01, 3.0]), data=st.data())
def test_the_interval_moves_with_the_values_in_any_order_and_is_no_narrower_than_over_seeds(
    values: np.ndarray, shift: float, scale: float, data: st.DataObject
) -> None:
    if values.mean(axis=1).std() <= SPREAD:
        return
    rows, columns = (data.draw(st.permutations(range(size))) for size in values.shape)
    before, after = (mean_over_seeds_and_examples(one) for one in (values, values[rows][:, columns] * scale + shift))
    ends = sorted([before.low * scale + shift, before.high * scale + shift])
    assert [after.low, after.high] == pytest.approx(ends, abs=1e-6 * abs(scale))
    assert mean_over_seeds_and_examples(values * scale).p == pytest.approx(float(before.p), rel=1e-6)
    seeds = mean_over_seeds(values.mean(axis=1))
    assert before.high - before.low >= (seeds.high - seeds.low) * (1 - 1e-9)
    assert before.p >= seeds.p * (1 - 1e-6)


def test_one_seed_has_a_mean_and_nothing_else() -> None:
    found = mean_over_seeds(np.array([0.7]))
    assert found.value == 0.7
    assert np.isnan([found.low, found.high, found.p]).all()
    assert np.isnan([found.seed_variance]).all()
    assert found.example_variance == 0
    assert np.isnan(mean_over_seeds(np.array([])).value)
    assert np.isnan(mean_over_seeds(np.empty((3, 2, 0))).value).tolist() == [[True, True]] * 3
    with pytest.raises(ValueError, match="values are 1 seeds x 5 examples; expected at least 2 of each"):
        mean_over_seeds_and_examples(np.ones((1, 5)))


# Intervals by resampling rows, and Wilson's interval of a share against its formula.


VALUES = numpy_generator("values").normal(size=200)


def mean_of(places: np.ndarray) -> float:
    return float(VALUES[places].mean())


def test_the_interval_has_the_quantiles_of_a_statistic_on_draws_that_only_the_key_decides() -> None:
    seen: list[list[float]] = []
    for statistic in (mean_of, lambda places: 2 * mean_of(places)):
        seen.append([])

        def noted(places: np.ndarray, statistic=statistic) -> float:
            seen[-1].append(statistic(places))
            return seen[-1][-1]

        found = bootstrap_interval(noted, 2, generator=numpy_generator("d"), resamples=60)
        assert len(seen[-1]) == 60
        assert found == pytest.approx(tuple(np.quantile(seen[-1], (0.025, 0.975))), rel=1e-12)
        assert found[0] < found[1]
    assert seen[1] == [2 * value for value in seen[0]]
    mostly_undefined = lambda places: float("nan") if places[0] < 40 else 1.0  # noqa: E731
    assert np.isnan(bootstrap_interval(mostly_undefined, 50, generator=numpy_generator("b"), resamples=100)).all()
    assert np.isnan(bootstrap_interval(mean_of, 1, generator=numpy_generator("c"))).all()


def test_the_interval_of_a_mean_is_a_loop_over_draws() -> None:
    values = numpy_generator("table").normal(size=9)
    found = bootstrap_mean(values, generator=numpy_generator("loop"), resamples=200)
    means = [
        sum(values[place] for place in places) / 9 for places in numpy_generator("loop").integers(9, size=(200, 9))
    ]
    assert found == pytest.approx(tuple(np.quantile(means, (0.025, 0.975))), rel=1e-12)
    low, high = bootstrap_mean(np.full(3_000_000, 0.5), generator=numpy_generator("parts"), resamples=4)
    assert low == pytest.approx(high)
    assert np.isnan(bootstrap_mean(np.ones(1), generator=numpy_generator("e"))).all()


@pytest.mark.parametrize(("successes", "rows"), [(0, 5), (1, 1), (7, 10), (180, 277), (277, 277)])
def test_it_is_where_the_share_lies_1_96_standard_errors_away(successes: int, rows: int) -> None:
    """Each end is a share p that lies z of its own standard errors, sqrt(p (1 - p) / n), from the one seen."""
    share, z = successes / rows, 1.959963984540054
    low, high = wilson_interval(successes, rows)
    assert 0 <= low <= share <= high <= 1
    for end in (low, high):
        assert abs(end - share) == pytest.approx(z * math.sqrt(end * (1 - end) / rows), abs=1e-9)
    assert high - low > 0
    assert np.isnan(wilson_interval(0, 0)).all()


def test_a_bounded_interval_is_wilsons_with_the_estimated_variance() -> None:
    # 57 of 60 rows: with the normal quantile and the variance of a proportion, Wilson's interval itself.
    width = 1.959963984540054 * math.sqrt(0.95 * 0.05 / 60)
    of_rows = Estimate(*map(np.float64, (0.95, 0.95 - width, 0.95 + width, 0, 0, 0)))
    assert bounded_interval(of_rows, (0.0, 1.0)) == pytest.approx(wilson_interval(57, 60))
    low, high = bounded_interval(of_rows, (-1.0, 1.0))
    halved = Estimate(*map(np.float64, (0.975, 0.975 - width / 2, 0.975 + width / 2, 0, 0, 0)))
    assert (low, high) == pytest.approx([2 * end - 1 for end in bounded_interval(halved, (0.0, 1.0))])
    assert (low + 1) / 2 < 0.975 < (high + 1) / 2 < 1
    assert bounded_interval(of_rows, (-math.inf, math.inf)) == (of_rows.low, of_rows.high)


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 1.0), (0.0, math.inf)])
def test_a_bounded_interval_stays_within_its_bounds(bounds: tuple[float, float]) -> None:
    for scores in ([0.99, 0.9], [0.02, 0.3], [0.5, 0.98], [0.999, 0.998, 0.4], [0.7, 0.7, 0.71]):
        estimate = mean_over_seeds(np.array(scores))
        low, high = bounded_interval(estimate, bounds)
        assert bounds[0] <= low < estimate.value < high <= bounds[1]
    certain = mean_over_seeds(np.array([1.0, 1.0]))
    assert all(map(math.isnan, bounded_interval(certain, bounds)))
