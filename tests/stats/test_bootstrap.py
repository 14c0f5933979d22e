"""Intervals by resampling rows."""

import numpy as np
import pytest

from attentune.seeding import numpy_generator
from attentune.stats.bootstrap import bootstrap_interval

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
