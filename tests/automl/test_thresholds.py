"""Thresholds: the best, kept only if they do well out of fold, and carried by the label space."""

import warnings
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    cohen_kappa_score,
    f1_score,
    matthews_corrcoef,
    mean_absolute_error,
)

from attentune.automl.thresholds import (
    _ordered_probabilities,
    best_thresholds,
    can_have_thresholds,
    fit_thresholds,
)
from attentune.data.dataset import LabelSpace
from attentune.metrics.metrics import METRICS, predictions_of

BINARY = LabelSpace("classification", ("no", "yes"))
ORDERED = LabelSpace("ordinal", ("a", "b", "c", "d"))
SETS = LabelSpace("multi_label", ("a", "b", "c"))
SCORES = {
    "f1": f1_score,
    "matthews_correlation": matthews_corrcoef,
    "accuracy": accuracy_score,
    "balanced_accuracy": balanced_accuracy_score,
    "f1_macro": partial(f1_score, average="macro"),
    "quadratic_weighted_kappa": partial(cohen_kappa_score, weights="quadratic"),
    "mean_absolute_error": lambda *rows, **given: -mean_absolute_error(*rows, **given),
}


@given(
    st.sampled_from(["f1", "f1_macro", "matthews_correlation", "balanced_accuracy"]),
    st.lists(st.tuples(st.integers(0, 1), st.integers(-4, 4)), min_size=4, max_size=25),
)
def test_the_threshold_of_two_classes_has_the_best_expected_score(metric, drawn):
    """Each row stands for a row of either class, weighted by its calibrated probability."""
    labels, logits = np.array(drawn).T
    logits_NC = np.column_stack([np.zeros(len(labels)), logits / 2])
    (threshold,) = best_thresholds(logits_NC, labels, BINARY, METRICS[metric])
    if logits.std() == 0 or labels.std() == 0 or np.corrcoef(logits, labels)[0, 1] <= 1e-6:
        assert threshold == 0.5
        return
    inputs = ((logits - logits.mean()) / logits.std())[:, None]
    weights = LogisticRegression().fit(inputs, labels).predict_proba(inputs)
    shares_N = 1 / (1 + np.exp(-logits / 2))

    def expected(value):
        truth, predicted = np.repeat([0, 1], len(labels)), np.tile((shares_N >= value).astype(int), 2)
        return SCORES[metric](truth, predicted, sample_weight=weights.T.reshape(-1))

    assert expected(threshold) == pytest.approx(max(expected(value) for value in np.unique(shares_N)[1:]), abs=1e-3)


@pytest.mark.parametrize("metric", ["f1", "matthews_correlation"])
def test_thresholds_of_a_rare_class_are_kept_and_help_on_new_rows(metric):
    generator = np.random.default_rng(0)

    def draw(count):
        labels = (generator.random(count) < 0.15).astype(np.int64)
        return np.column_stack([np.zeros(count), 1.5 * labels - 2.5 + generator.normal(size=count)]), labels

    logits_NC, labels = draw(600)
    result = fit_thresholds(logits_NC, labels, BINARY, metric=METRICS[metric], folds=np.arange(600) % 5)
    assert result.label_space.thresholds is not None
    assert result.scores["thresholds"] > result.scores["default"]
    assert METRICS[metric].score(labels, result.predictions) == result.scores["thresholds"]
    assert "are used" in result.reason
    new_NC, new = draw(4000)
    score = METRICS[metric].score
    assert score(new, predictions_of(new_NC, result.label_space)) > score(new, predictions_of(new_NC, BINARY)) + 0.05


def balanced(generator, rows=2200):
    """Good probabilities of balanced classes: a threshold near a half."""
    labels = generator.integers(0, 2, rows)
    return np.column_stack([np.zeros(rows), 2 * labels - 1 + generator.normal(size=rows)]), labels


def weak(generator, rows=3000):
    """By default nearly all rows are of the frequent class, although they are ranked better than by chance."""
    labels = (generator.random(rows) < 0.7).astype(np.int64)
    return np.column_stack([np.zeros(rows), 0.8 + 0.2 * labels + 0.4 * generator.normal(size=rows)]), labels


def ordered(generator, rows=4000):
    """True probabilities of five ordered classes."""
    hidden = 2 * generator.normal(size=rows)
    above_NK = 1 / (1 + np.exp(np.array([-2.0, -0.7, 0.7, 2.0]) - hidden[:, None]))
    shares_NC = -np.diff(np.column_stack([np.ones(rows), above_NK, np.zeros(rows)]), axis=1)
    return np.log(shares_NC), (generator.random(rows)[:, None] > shares_NC.cumsum(axis=1)[:, :-1]).sum(axis=1)


@pytest.mark.parametrize(
    ("draw", "space", "metric", "fitted", "seeds", "bounds"),
    [
        (balanced, BINARY, "matthews_correlation", 200, 20, (-0.015, 0.015)),
        (weak, BINARY, "matthews_correlation", 1000, 10, (0.07, 1)),
        # Cut points that follow the noise of few labels would lose more than 0.01.
        (ordered, LabelSpace("ordinal", tuple("abcde")), "accuracy", 200, 20, (-0.005, 1)),
    ],
)
def test_the_gain_of_thresholds_on_new_rows(draw, space, metric, fitted, seeds, bounds):
    gains, score = [], METRICS[metric].score
    for seed in range(seeds):
        logits_NC, labels = draw(np.random.default_rng(seed))
        known, new = slice(None, fitted), slice(fitted, None)
        folds = np.arange(fitted) % 5
        found = fit_thresholds(logits_NC[known], labels[known], space, metric=METRICS[metric], folds=folds).label_space
        scores = [score(labels[new], predictions_of(logits_NC[new], one)) for one in (found, space)]
        gains.append(scores[0] - scores[1])
    assert bounds[0] < np.mean(gains) < bounds[1]


def test_thresholds_of_label_sets_that_do_not_help_are_not_kept():
    kept = 0
    for seed in range(20):
        generator = np.random.default_rng(seed)
        labels = generator.integers(0, 2, (200, 3))
        logits_NC = 2 * labels - 1 + generator.normal(size=(200, 3))
        result = fit_thresholds(logits_NC, labels, SETS, metric=METRICS["f1_micro"], folds=np.arange(200) % 5)
        kept += result.label_space.thresholds is not None
        if result.label_space.thresholds is None:
            assert np.array_equal(result.predictions, (logits_NC > 0).astype(int))
    assert kept <= 8


def test_thresholds_of_random_labels_have_chance_scores():
    """Thresholds that were fitted on a row's own label would be better than chance."""
    scores = []
    for seed in range(20):
        generator = np.random.default_rng(seed)
        labels, logits_NC = generator.integers(0, 2, 100), generator.normal(size=(100, 2))
        metric = METRICS["matthews_correlation"]
        result = fit_thresholds(logits_NC, labels, BINARY, metric=metric, folds=np.arange(100) % 5)
        scores.append(result.scores["thresholds"])
    assert np.mean(scores) < 3 / np.sqrt(20 * 100)


@pytest.mark.parametrize("metric", ["f1_macro", "f1_micro"])
def test_thresholds_of_label_sets(metric):
    generator = np.random.default_rng(1)
    labels = (generator.random((500, 3)) < 0.3).astype(np.int64)
    logits_NC = 2.0 * labels - 2.5 + generator.normal(size=(500, 3))
    result = fit_thresholds(logits_NC, labels, SETS, metric=METRICS[metric], folds=np.arange(500) % 5)
    assert len(result.label_space.thresholds) == 3
    assert len(set(result.label_space.thresholds)) == (3 if metric == "f1_macro" else 1)
    assert result.scores["thresholds"] > result.scores["default"] + 0.1


def test_cut_points_of_ordered_classes():
    generator = np.random.default_rng(2)
    labels = generator.integers(0, 4, 600)
    # Probabilities that lie too near to the middle: the mean class number is from 0.9 to 2.1.
    centers = 1.5 + (labels - 1.5) * 0.4 + 0.15 * generator.normal(size=600)
    logits_NC = -((np.arange(4) - centers[:, None]) ** 2)
    result = fit_thresholds(logits_NC, labels, ORDERED, metric=METRICS["accuracy"], folds=np.arange(600) % 5)
    cuts = result.label_space.thresholds
    assert len(cuts) == 3
    assert list(cuts) == sorted(cuts)
    assert result.scores["thresholds"] > result.scores["default"] + 0.1


@pytest.mark.parametrize(
    "metric", ["accuracy", "balanced_accuracy", "f1_macro", "quadratic_weighted_kappa", "mean_absolute_error"]
)
@example([(0, 0)] * 5 + [(2, 1)])
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-4, 4)), min_size=6, max_size=25))
def test_no_cut_point_of_ordered_classes_has_a_better_expected_score(metric, drawn):
    """Each row stands for a row of every class, weighted by its probability of the proportional-odds model."""
    labels, values = np.array(drawn).T
    space = LabelSpace("ordinal", ("a", "b", "c"))
    logits_NC = np.column_stack([-values / 2, np.zeros(len(values)), values / 2])
    shares_NC = np.exp(logits_NC) / np.exp(logits_NC).sum(axis=1, keepdims=True)
    means_N = shares_NC @ np.arange(3)
    found = best_thresholds(logits_NC, labels, space, METRICS[metric])
    weights_NC = _ordered_probabilities(means_N, labels, 3)
    if weights_NC is None:
        assert found == (0.5, 1.5)
        return

    def expected(cuts):
        decided = sum((means_N >= cut).astype(int) for cut in cuts)
        truth, predicted, weights = np.repeat([0, 1, 2], len(labels)), np.tile(decided, 3), weights_NC.T.reshape(-1)
        rows = weights > 0  # none of a class without labels, which has no recall
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return SCORES[metric](truth[rows], predicted[rows], sample_weight=weights[rows])

    best, values = expected(found), np.unique(means_N)
    candidates = [0.0, *(values[1:] + values[:-1]) / 2, 2.0]
    for first in (*candidates, found[0]):
        for second in (*candidates, found[1]):
            if first <= second and (first == found[0] or second == found[1]):
                assert expected((first, second)) <= best + 1e-6


def test_the_probabilities_of_ordered_classes_are_those_of_a_proportional_odds_model():
    generator = np.random.default_rng(4)
    means_N = generator.normal(size=20_000)
    above_NK = 1 / (1 + np.exp(-(1.7 * means_N[:, None] - np.array([-1.5, 0.2, 2.0]))))
    true_NC = -np.diff(np.column_stack([np.ones(20_000), above_NK, np.zeros(20_000)]), axis=1)
    labels = (generator.random(20_000)[:, None] > true_NC.cumsum(axis=1)[:, :-1]).sum(axis=1)
    found_NC = _ordered_probabilities(means_N, labels, 4)
    assert np.abs(found_NC - true_NC).max() < 0.02
    # A class without rows has no probability, and the others have the same.
    gap_NC = _ordered_probabilities(means_N, np.where(labels == 3, 4, labels), 5)
    assert not gap_NC[:, 3].any()
    assert gap_NC[:, [0, 1, 2, 4]] == pytest.approx(found_NC, abs=1e-3)
    assert _ordered_probabilities(-means_N, labels, 4) is None


def test_tasks_and_metrics_without_thresholds():
    assert not can_have_thresholds(BINARY, METRICS["accuracy"])
    assert not can_have_thresholds(LabelSpace("regression"), METRICS["pearson"])
    assert not can_have_thresholds(LabelSpace("classification", ("a", "b", "c")), METRICS["f1_macro"])
    scores_NC = np.arange(6.0)[:, None]
    space = LabelSpace("regression")
    result = fit_thresholds(scores_NC, scores_NC[:, 0], space, metric=METRICS["pearson"], folds=np.arange(6))
    assert result.label_space == space
    assert result.scores == pytest.approx({"default": 1.0})
    assert "do not apply" in result.reason
