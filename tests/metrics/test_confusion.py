"""Scores from sums of confusion counts: without each row, of resamples, and for hundreds of classes."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from attentune.metrics.confusion import (
    CONFUSION_SCORES,
    bootstrap_confusion_interval,
    confusion_counts,
    scores_without_each,
)
from attentune.metrics.intervals import weighted_score
from attentune.metrics.metrics import METRICS


def drawn(rows: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(rows)
    labels = generator.integers(0, classes, rows)
    return labels, np.where(generator.random(rows) < 0.7, labels, generator.integers(0, classes, rows))


@pytest.mark.parametrize("metric", sorted(CONFUSION_SCORES))
@pytest.mark.parametrize(("rows", "classes"), [(9, 2), (40, 6), (40, 30)])
def test_scores_without_each_row_are_those_of_the_other_rows(metric, rows, classes):
    labels, predictions = drawn(rows, 2 if metric == "f1" else classes)
    found = scores_without_each(metric, labels, predictions)
    for row in range(rows):
        rest = np.arange(rows) != row
        assert found[row] == pytest.approx(METRICS[metric].score(labels[rest], predictions[rest]), abs=1e-12)


@pytest.mark.parametrize("metric", sorted(CONFUSION_SCORES))
@pytest.mark.parametrize("classes", [4, 30])
def test_weighted_rows_score_like_repeated_ones(metric, classes):
    labels, predictions = drawn(60, 2 if metric == "f1" else classes)
    chosen = np.random.default_rng(0).integers(0, 60, 60)
    score = weighted_score(METRICS[metric], labels, predictions)
    wanted = METRICS[metric].score(labels[chosen], predictions[chosen])
    assert score(np.bincount(chosen, minlength=60) * 1.0) == pytest.approx(wanted, abs=1e-12)


SETS = ("f1_macro", "f1_micro", "f1_weighted", "f1_samples", "subset_accuracy", "hamming_loss")


@pytest.mark.parametrize("metric", SETS)
def test_weighted_label_sets_score_like_repeated_ones(metric):
    generator = np.random.default_rng(1)
    labels, predictions = ((generator.random((50, 4)) < 0.3).astype(np.int64) for _ in range(2))
    chosen = generator.integers(0, 50, 50)
    score = weighted_score(METRICS[metric], labels, predictions)
    wanted = METRICS[metric].score(labels[chosen], predictions[chosen])
    assert score(np.bincount(chosen, minlength=50) * 1.0) == pytest.approx(wanted, abs=1e-12)


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
