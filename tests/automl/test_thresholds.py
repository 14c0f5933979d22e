"""Thresholds: the best, kept only if they do well out of fold, and carried by the label space."""

import itertools
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


def with_thresholds(space, values):
    return LabelSpace(space.task_type, space.names, thresholds=values)


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
        decided = (shares_N >= value).astype(int)
        truth, predicted = np.repeat([0, 1], len(labels)), np.tile(decided, 2)
        given = {"sample_weight": weights.T.reshape(-1)}
        scorers = {
            "f1": lambda: f1_score(truth, predicted, **given),
            "f1_macro": lambda: f1_score(truth, predicted, average="macro", **given),
            "matthews_correlation": lambda: matthews_corrcoef(truth, predicted, **given),
            "balanced_accuracy": lambda: balanced_accuracy_score(truth, predicted, **given),
        }
        return scorers[metric]()

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


def test_a_threshold_that_is_not_needed_is_near_a_half():
    """With balanced classes and good probabilities nothing is lost on new rows."""
    differences = []
    for seed in range(20):
        generator = np.random.default_rng(seed)
        labels = generator.integers(0, 2, 2200)
        logits_NC = np.column_stack([np.zeros(2200), 2 * labels - 1 + generator.normal(size=2200)])
        metric = METRICS["matthews_correlation"]
        result = fit_thresholds(logits_NC[:200], labels[:200], BINARY, metric=metric, folds=np.arange(200) % 5)
        new = [predictions_of(logits_NC[200:], space) for space in (result.label_space, BINARY)]
        differences.append(metric.score(labels[200:], new[0]) - metric.score(labels[200:], new[1]))
    assert abs(np.mean(differences)) < 0.015


def test_a_weak_model_of_a_frequent_class_needs_a_threshold():
    """By default it predicts the frequent class for nearly all rows, although it ranks them better than chance."""
    scores = []
    for seed in range(10):
        generator = np.random.default_rng(seed)
        labels = (generator.random(3000) < 0.7).astype(np.int64)
        logits_NC = np.column_stack([np.zeros(3000), 0.8 + 0.2 * labels + 0.4 * generator.normal(size=3000)])
        metric = METRICS["matthews_correlation"]
        result = fit_thresholds(logits_NC[:1000], labels[:1000], BINARY, metric=metric, folds=np.arange(1000) % 5)
        scores.append(
            [
                metric.score(labels[1000:], predictions_of(logits_NC[1000:], space))
                for space in (result.label_space, BINARY)
            ]
        )
    with_threshold, without = np.mean(scores, axis=0)
    assert with_threshold > without + 0.07


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
    # A grid over all cut points is no better.
    shares_NC = np.exp(logits_NC) / np.exp(logits_NC).sum(axis=1, keepdims=True)
    means_N = shares_NC @ np.arange(4)
    grid = itertools.combinations(np.linspace(0.8, 2.2, 15), 3)
    best = max(np.mean(sum((means_N >= cut).astype(int) for cut in values) == labels) for values in grid)
    assert np.mean(predictions_of(logits_NC, result.label_space) == labels) > best - 0.01


ORDERED_SCORES = {
    "accuracy": accuracy_score,
    "balanced_accuracy": balanced_accuracy_score,
    "f1_macro": partial(f1_score, average="macro"),
    "quadratic_weighted_kappa": partial(cohen_kappa_score, weights="quadratic"),
    "mean_absolute_error": lambda *rows, **given: -mean_absolute_error(*rows, **given),
}


@pytest.mark.parametrize("metric", sorted(ORDERED_SCORES))
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
            return ORDERED_SCORES[metric](truth[rows], predicted[rows], sample_weight=weights[rows])

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


def test_cut_points_that_are_not_needed_cost_little():
    """With few rows, cut points that follow the noise of their labels would lose more than 0.01 on new rows."""
    differences = []
    for seed in range(20):
        generator = np.random.default_rng(seed)
        hidden = 2 * generator.normal(size=4000)
        edges = np.array([-2.0, -0.7, 0.7, 2.0])
        above_NK = 1 / (1 + np.exp(edges - hidden[:, None]))
        shares_NC = -np.diff(np.column_stack([np.ones(4000), above_NK, np.zeros(4000)]), axis=1)
        labels = (generator.random(4000)[:, None] > shares_NC.cumsum(axis=1)[:, :-1]).sum(axis=1)
        logits_NC, space, metric = np.log(shares_NC), LabelSpace("ordinal", tuple("abcde")), METRICS["accuracy"]
        result = fit_thresholds(logits_NC[:200], labels[:200], space, metric=metric, folds=np.arange(200) % 5)
        new = [predictions_of(logits_NC[200:], one) for one in (result.label_space, space)]
        differences.append(metric.score(labels[200:], new[0]) - metric.score(labels[200:], new[1]))
    assert np.mean(differences) > -0.005


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
