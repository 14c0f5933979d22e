"""Intervals of scores: from confusion counts they are those of resampled rows, and undefined ones are NaN."""

import tracemalloc

import numpy as np
import pytest

from attentune.metrics.confusion import (
    CONFUSION_SCORES,
    bootstrap_confusion_interval,
    confusion_counts,
    scores_without_each,
)
from attentune.metrics.intervals import score_interval, weighted_score
from attentune.metrics.metrics import METRICS
from attentune.stats.estimate import bootstrap_interval

RESAMPLES = 2000


def drawn(rows: int = 120, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(rows)
    labels = generator.integers(0, classes, rows)
    return labels, np.where(generator.random(rows) < 0.7, labels, generator.integers(0, classes, rows))


@pytest.mark.integration
@pytest.mark.parametrize("name", sorted({*CONFUSION_SCORES} - {"accuracy"}))
def test_intervals_from_counts_are_those_of_resampled_rows(name: str) -> None:
    labels, predictions = drawn(classes=2 if name == "f1" else 3)
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
    labels, predictions = drawn()
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


# Scores from sums of confusion counts: without each row, of resamples, and for hundreds of classes.


@pytest.mark.parametrize("metric", sorted(CONFUSION_SCORES))
@pytest.mark.parametrize(("rows", "classes"), [(9, 2), (40, 6), (40, 30)])
def test_scores_without_each_row_are_those_of_the_other_rows(metric, rows, classes):
    labels, predictions = drawn(rows, 2 if metric == "f1" else classes)
    found = scores_without_each(metric, labels, predictions)
    for row in range(rows):
        rest = np.arange(rows) != row
        assert found[row] == pytest.approx(METRICS[metric].score(labels[rest], predictions[rest]), abs=1e-12)


SETS = ("f1_macro", "f1_micro", "f1_weighted", "f1_samples", "subset_accuracy", "hamming_loss")


@pytest.mark.parametrize(
    ("metric", "classes"),
    [*((one, n) for one in sorted(CONFUSION_SCORES) for n in (4, 30)), *((one, 0) for one in SETS)],
)
def test_weighted_rows_score_like_repeated_ones(metric, classes):
    """With several labels a row too (0 classes here)."""
    generator = np.random.default_rng(1)
    labels, predictions = drawn(60, 2 if metric == "f1" else classes or 2)
    if not classes:
        labels, predictions = ((generator.random((60, 4)) < 0.3).astype(np.int64) for _ in range(2))
    chosen = generator.integers(0, 60, 60)
    score = weighted_score(METRICS[metric], labels, predictions)
    wanted = METRICS[metric].score(labels[chosen], predictions[chosen])
    assert score(np.bincount(chosen, minlength=60) * 1.0) == pytest.approx(wanted, abs=1e-12)


def test_intervals_of_many_classes_are_those_of_all_cells():
    labels, predictions = drawn(400, 40)
    counts = confusion_counts(labels, predictions)
    low, high = bootstrap_confusion_interval("f1_macro", counts, np.random.default_rng(0), resamples=3000)
    resamples = np.random.default_rng(1).multinomial(400, counts.reshape(-1) / 400, size=3000).reshape(-1, 40, 40)
    wanted = np.quantile(CONFUSION_SCORES["f1_macro"](resamples.astype(float)), [0.025, 0.975])
    assert (low, high) == pytest.approx(wanted, abs=0.1 * np.ptp(wanted))


@pytest.mark.parametrize("metric", ["f1_macro", "quadratic_weighted_kappa"])
def test_five_hundred_classes_need_little_memory(metric):
    labels, predictions = drawn(4000, 500)
    tracemalloc.start()
    scores_without_each(metric, labels, predictions)
    bootstrap_confusion_interval(metric, confusion_counts(labels, predictions), np.random.default_rng(0), resamples=200)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 250e6  # a copy of the counts for each row would take 8 GB
