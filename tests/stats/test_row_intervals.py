"""Intervals by resampling rows, and Wilson's interval of a share against its formula."""

import math

import numpy as np
import pytest

from attentune.seeding import numpy_generator
from attentune.stats.estimate import (
    Estimate,
    bootstrap_interval,
    bootstrap_mean,
    bounded_interval,
    mean_over_seeds,
    wilson_interval,
)

VALUES = numpy_generator("values").normal(size=200)


def mean_of(places: np.ndarray) -> float:
    return float(VALUES[places].mean())


def test_the_interval_of_a_mean_is_near_the_one_of_the_normal_distribution() -> None:
    low, high = bootstrap_interval(mean_of, 200, generator=numpy_generator("a"), resamples=4000)
    error = VALUES.std(ddof=1) / np.sqrt(200)
    assert low == pytest.approx(VALUES.mean() - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(VALUES.mean() + 1.96 * error, abs=0.15 * error)


def test_the_same_key_gives_the_same_resamples_to_all_statistics() -> None:
    seen: dict[str, list[np.ndarray]] = {"first": [], "second": []}

    def noting(name: str):
        def statistic(places: np.ndarray) -> float:
            seen[name].append(np.array(places))
            return 0.0 if name == "first" else mean_of(places)

        return statistic

    for name in seen:
        bootstrap_interval(noting(name), 50, generator=numpy_generator("same"), resamples=20)
    assert len(seen["first"]) >= 20
    for one, two in zip(seen["first"], seen["second"], strict=True):
        assert np.array_equal(one, two)


def test_what_is_undefined_too_often_has_no_interval() -> None:
    def mostly_undefined(places: np.ndarray) -> float:
        return float("nan") if places[0] < 40 else 1.0

    found = bootstrap_interval(mostly_undefined, 50, generator=numpy_generator("b"), resamples=100)
    assert np.isnan(found).all()
    assert np.isnan(bootstrap_interval(mean_of, 1, generator=numpy_generator("c"))).all()


def test_the_interval_is_of_the_statistics_own_quantiles() -> None:
    seen: list[float] = []

    def statistic(places: np.ndarray) -> float:
        seen.append(mean_of(places))
        return seen[-1]

    found = bootstrap_interval(statistic, 2, generator=numpy_generator("d"), resamples=60, confidence=0.8)
    assert len(seen) == 60
    assert found == pytest.approx(tuple(np.quantile(seen, (0.1, 0.9))), rel=1e-12)
    assert found[0] < found[1]


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
@pytest.mark.parametrize(("confidence", "z"), [(0.95, 1.959963984540054), (0.8, 1.2815515655446004)])
def test_it_is_where_the_share_lies_z_standard_errors_away(
    successes: int, rows: int, confidence: float, z: float
) -> None:
    """Each end is a share p that lies z of its own standard errors, sqrt(p (1 - p) / n), from the one seen."""
    share = successes / rows
    low, high = wilson_interval(successes, rows, confidence=confidence)
    assert 0 <= low <= share <= high <= 1
    for end in (low, high):
        assert abs(end - share) == pytest.approx(z * math.sqrt(end * (1 - end) / rows), abs=1e-9)
    assert high - low > 0
    if confidence == 0.95:
        assert wilson_interval(successes, rows) == (low, high)


def test_no_rows_have_no_interval() -> None:
    low, high = wilson_interval(0, 0)
    assert math.isnan(low)
    assert math.isnan(high)


def test_a_bounded_interval_is_wilsons_with_the_estimated_variance() -> None:
    # 57 of 60 rows: with the normal quantile and the variance of a proportion, Wilson's interval itself.
    width = 1.959963984540054 * math.sqrt(0.95 * 0.05 / 60)
    of_rows = Estimate(*map(np.float64, (0.95, 0.95 - width, 0.95 + width, 0, 0, 0)))
    assert bounded_interval(of_rows, (0.0, 1.0)) == pytest.approx(wilson_interval(57, 60))
    low, high = bounded_interval(of_rows, (-1.0, 1.0))
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
