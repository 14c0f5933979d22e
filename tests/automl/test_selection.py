"""Scores from confusion counts beside those of `METRICS`, and the one-standard-error rule."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentune.automl.thresholds import choose_simplest, paired_gain, utility
from attentune.metrics.confusion import CONFUSION_SCORES
from attentune.metrics.metrics import METRICS

CLASSES = st.integers(2, 4).flatmap(
    lambda count: st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), min_size=2, max_size=30)
)


@given(CLASSES)
def test_scores_of_confusion_counts_are_those_of_the_metrics(rows):
    labels, predictions = np.array(rows).T
    for name in CONFUSION_SCORES:
        if name == "f1" and max(labels.max(), predictions.max()) > 1:
            continue
        wanted = METRICS[name].score(labels, predictions)
        assert utility(METRICS[name], labels, predictions) == pytest.approx(wanted, abs=1e-12), name


@given(st.lists(st.lists(st.integers(0, 1), min_size=6, max_size=6), min_size=1, max_size=20))
def test_scores_of_label_sets_are_those_of_the_metrics(rows):
    labels, predictions = np.array(rows)[:, :3], np.array(rows)[:, 3:]
    for name in ("f1_macro", "f1_micro", "f1_samples"):
        wanted = METRICS[name].score(labels, predictions)
        assert utility(METRICS[name], labels, predictions) == pytest.approx(wanted, abs=1e-12), name


def test_lower_errors_are_better_and_undefined_scores_the_worst():
    labels, constant = np.array([1.0, 2.0, 4.0]), np.zeros(3)
    assert utility(METRICS["mean_squared_error"], labels, constant) == -7.0
    assert utility(METRICS["pearson"], labels, constant) == -math.inf
    assert paired_gain(METRICS["pearson"], labels, constant, labels) == (math.inf, 0.0)
    assert paired_gain(METRICS["pearson"], labels, labels, constant) == (-math.inf, 0.0)


@pytest.mark.parametrize("metric", ["accuracy", "f1", "matthews_correlation", "quadratic_weighted_kappa", "pearson"])
def test_the_standard_error_is_that_of_a_paired_bootstrap(metric):
    generator = np.random.default_rng(3)
    labels = generator.integers(0, 2, 400)
    base, other = (np.where(generator.random(400) < share, 1 - labels, labels) for share in (0.3, 0.2))
    if metric == "pearson":
        labels, base, other = labels * 1.0, base + generator.normal(size=400), other + generator.normal(size=400)
    gain, error = paired_gain(METRICS[metric], labels, base, other)
    score = METRICS[metric].score
    assert gain == pytest.approx(score(labels, other) - score(labels, base))
    draws = [generator.integers(0, 400, 400) for _ in range(400)]
    drawn = [score(labels[d], other[d]) - score(labels[d], base[d]) for d in draws]
    assert error == pytest.approx(np.std(drawn), rel=0.15)


def test_the_simplest_that_is_not_clearly_beaten():
    labels = np.zeros(100, dtype=np.int64)

    def right(count):
        return np.where(np.arange(100) < count, 0, 1)

    metric = METRICS["accuracy"]
    other = right(88)[::-1]  # 12 errors in other rows: the difference of 0.02 has a standard error of 0.047
    assert choose_simplest(metric, labels, [right(50), other, right(90)]) == (1, 2)
    assert choose_simplest(metric, labels, [right(50), right(80), right(90)]) == (2, 2)
    assert choose_simplest(metric, labels, [right(50), right(80), right(90)], standard_errors=4) == (1, 2)
    assert choose_simplest(metric, labels, [right(90), right(90)]) == (0, 0)
