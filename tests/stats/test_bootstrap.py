"""Intervals by resampling rows, seeds, or both."""

import numpy as np
import pytest
from scipy import stats

from attentune.seeding import numpy_generator
from attentune.stats.estimate import bootstrap_interval, bootstrap_mean

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


TABLE = numpy_generator("table").normal(size=(4, 9)) + np.arange(4)[:, None]


@pytest.mark.parametrize("over", ["seeds", "examples", "both"])
def test_the_mean_of_a_table_is_a_loop_over_draws(over: str) -> None:
    """The draws of the code, one by one: examples first, then seeds."""
    found = bootstrap_mean(TABLE, over=over, generator=numpy_generator("loop"), resamples=200)
    generator = numpy_generator("loop")
    columns = generator.integers(9, size=(200, 9)) if over != "seeds" else np.tile(np.arange(9), (200, 1))
    rows = generator.integers(4, size=(200, 4)) if over != "examples" else np.tile(np.arange(4), (200, 1))
    means = []
    for draw in range(200):
        total = 0.0
        for row in rows[draw]:
            for column in columns[draw]:
                total += TABLE[row, column]
        means.append(total / 36)
    assert found == pytest.approx(tuple(np.quantile(means, (0.025, 0.975))), rel=1e-12)


def test_over_seeds_and_over_examples_it_is_scipys_bootstrap() -> None:
    """20,000 draws on both sides: their quantiles agree to some hundredths of the width."""
    table = numpy_generator("larger").normal(size=(12, 40))
    for over, sample in (("seeds", table.mean(axis=1)), ("examples", table.mean(axis=0))):
        known = stats.bootstrap(
            (sample,), np.mean, n_resamples=20_000, method="percentile", rng=numpy_generator("scipy")
        ).confidence_interval
        found = bootstrap_mean(table, over=over, generator=numpy_generator("own"), resamples=20_000)
        assert found == pytest.approx((known.low, known.high), abs=0.03 * (known.high - known.low))


def test_over_both_a_table_whose_rows_and_columns_are_alike_varies_by_what_is_left() -> None:
    values = numpy_generator("owen").normal(size=(30, 30))
    values -= values.mean(axis=0) + values.mean(axis=1, keepdims=True) - values.mean()
    low, high = bootstrap_mean(values, over="both", generator=numpy_generator("c"), resamples=20_000)
    # A drawn row and a drawn column meet in one of 900 values; 900 such meetings are averaged.
    assert (high - low) / (2 * 1.96) == pytest.approx(values.std() / 30, rel=0.05)


def test_many_examples_are_drawn_in_parts() -> None:
    values = numpy_generator("wide").normal(size=(2, 1_000_000))
    low, high = bootstrap_mean(values, over="both", generator=numpy_generator("d"), resamples=10)
    assert -0.01 < low < high < 0.01


def test_one_of_what_is_drawn_has_no_interval() -> None:
    one_seed, scores = np.ones((1, 5)), np.array([[0.5], [0.7], [0.9]])
    generator = numpy_generator("e")
    assert np.isnan(bootstrap_mean(one_seed, over="seeds", generator=generator)).all()
    assert np.isnan(bootstrap_mean(one_seed, over="both", generator=generator)).all()
    assert bootstrap_mean(one_seed, over="examples", generator=generator) == (1.0, 1.0)
    assert np.isnan(bootstrap_mean(scores, over="examples", generator=generator)).all()
    low, high = bootstrap_mean(scores, over="seeds", generator=generator)
    assert 0.5 <= low < 0.7 < high <= 0.9
