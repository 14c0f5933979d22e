"""Intervals of scores: from confusion counts they are those of resampled rows, and undefined ones are NaN."""

from __future__ import annotations

import numpy as np
import pytest

from attentune.metrics.confusion import CONFUSION_SCORES
from attentune.metrics.intervals import score_interval
from attentune.metrics.metrics import METRICS
from attentune.stats.estimate import bootstrap_interval

RESAMPLES = 2000


def rows(count: int = 120, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(5)
    labels = generator.integers(0, classes, count)
    return labels, np.where(generator.random(count) < 0.7, labels, generator.integers(0, classes, count))


@pytest.mark.integration
@pytest.mark.parametrize("name", sorted({*CONFUSION_SCORES} - {"accuracy"}))
def test_intervals_from_counts_are_those_of_resampled_rows(name: str) -> None:
    labels, predictions = rows(classes=2 if name == "f1" else 3)
    value, low, high = score_interval(
        METRICS[name], labels, predictions, generator=np.random.default_rng(1), resamples=RESAMPLES
    )
    assert value == pytest.approx(METRICS[name].score(labels, predictions))
    wanted = bootstrap_interval(
        lambda drawn: METRICS[name].score(labels[drawn], predictions[drawn]),
        len(labels),
        generator=np.random.default_rng(2),
        resamples=RESAMPLES,
    )
    # Quantiles of 2,000 resamples have standard errors of about a twentieth of the interval's width.
    assert (low, high) == pytest.approx(wanted, abs=0.15 * (wanted[1] - wanted[0]))


def test_scores_that_are_no_function_of_counts_are_resampled_by_rows() -> None:
    generator = np.random.default_rng(3)
    labels = generator.normal(size=80)
    predictions = labels + generator.normal(size=80)
    value, low, high = score_interval(METRICS["pearson"], labels, predictions, generator=generator)
    assert low < value < high


def test_groups_are_resampled_whole() -> None:
    labels, predictions = rows()
    groups = np.arange(len(labels)) // 30  # four groups say less than 120 rows
    generator = np.random.default_rng(1)
    _, low, high = score_interval(METRICS["f1_macro"], labels, predictions, generator=generator)
    _, wide_low, wide_high = score_interval(
        METRICS["f1_macro"],
        np.sort(labels),
        predictions[np.argsort(labels, kind="stable")],
        generator=generator,
        groups=groups,
    )
    assert wide_high - wide_low > high - low
