"""Metrics against examples worked by hand and against plain loops."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentune.data.dataset import LabelSpace
from attentune.errors import ConfigError
from attentune.metrics.metrics import (
    GLUE_TASKS,
    METRICS,
    choose_metric,
    glue_average,
    predictions_of,
    probabilities_of,
    score_predictions,
    task_score,
)

TWO, THREE = LabelSpace("classification", ("bad", "good")), LabelSpace("classification", ("a", "b", "c"))
STARS, SCORE = LabelSpace("ordinal", ("1", "2", "3", "4", "5")), LabelSpace("regression")
SETS = LabelSpace("multi_label", ("a", "b", "c"))

CLASSES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=40)
NUMBERS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=40)


def score(name: str, labels: list, predictions: list) -> float:
    return METRICS[name].score(np.array(labels), np.array(predictions))


def plain_matthews(pairs: list[tuple[int, int]]) -> float:
    """Gorodkin's R_K from the confusion counts."""
    classes = range(5)
    count = {(i, j): sum(pair == (i, j) for pair in pairs) for i in classes for j in classes}
    total, right = len(pairs), sum(count[k, k] for k in classes)
    true = [sum(count[k, j] for j in classes) for k in classes]
    said = [sum(count[i, k] for i in classes) for k in classes]
    top = right * total - sum(t * s for t, s in zip(true, said, strict=True))
    below = math.sqrt(total**2 - sum(s * s for s in said)) * math.sqrt(total**2 - sum(t * t for t in true))
    return top / below if below else 0.0


def plain_pearson(one: list[float], other: list[float]) -> float:
    mean_1, mean_2 = math.fsum(one) / len(one), math.fsum(other) / len(other)
    together = math.fsum((a - mean_1) * (b - mean_2) for a, b in zip(one, other, strict=True))
    square = math.fsum((a - mean_1) ** 2 for a in one) * math.fsum((b - mean_2) ** 2 for b in other)
    return together / math.sqrt(square) if square > 0 else math.nan


def ranks(values: list[float]) -> list[float]:
    """Ranks from 1; ties share the mean of theirs."""
    return [sum(v < value for v in values) + (sum(v == value for v in values) + 1) / 2 for value in values]


def plain_kappa(pairs: list[tuple[int, int]]) -> float:
    observed = sum((t - p) ** 2 for t, p in pairs) / len(pairs)
    expected = sum((t - p) ** 2 for t, _ in pairs for _, p in pairs) / len(pairs) ** 2
    return 1 - observed / expected if expected else 1.0


def plain_f1(pairs: list[tuple[int, int]], k: int) -> float:
    hit = sum(t == p == k for t, p in pairs)
    miss = sum((t == k) != (p == k) for t, p in pairs)
    return 2 * hit / (2 * hit + miss) if hit else 0.0


# labels 1 1 1 0 0 0, predictions 1 1 0 0 0 1: 2 true positives, 1 false, 1 missed, 2 true negatives
HAND = ([1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 1])


@pytest.mark.parametrize(
    ("name", "labels", "predictions", "expected"),
    [
        ("accuracy", *HAND, 4 / 6),
        ("f1", *HAND, 2 / 3),
        ("f1_macro", *HAND, 2 / 3),
        ("precision", *HAND, 2 / 3),
        ("recall", [1, 1, 1, 0], [1, 0, 0, 0], 1 / 3),
        ("precision", [1, 0], [0, 0], 0.0),
        ("balanced_accuracy", [0, 0, 0, 0, 1], [0, 0, 0, 1, 1], (3 / 4 + 1) / 2),
        ("balanced_accuracy", [0, 0], [2, 0], 1 / 2),
        ("f1_micro", [0, 0, 1, 2], [0, 1, 1, 2], 3 / 4),
        ("f1_weighted", [0, 0, 1, 2], [0, 1, 1, 2], (2 * 2 / 3 + 2 / 3 + 1) / 4),
        ("precision_macro", [0, 0, 1, 2], [0, 1, 1, 2], (1 + 1 / 2 + 1) / 3),
        ("recall_macro", [0, 0, 1, 2], [0, 1, 1, 2], (1 / 2 + 1 + 1) / 3),
        ("matthews_correlation", *HAND, (2 * 2 - 1 * 1) / math.sqrt(3 * 3 * 3 * 3)),
        ("f1", [1, 1, 0], [0, 0, 0], 0.0),
        ("f1_macro", [0, 0, 1, 2], [0, 1, 1, 2], (2 / 3 + 2 / 3 + 1) / 3),
        ("matthews_correlation", [1, 1, 0], [1, 1, 1], 0.0),
        ("matthews_correlation", [1, 1], [1, 1], 0.0),  # as GLUE has it: a single label says nothing
        ("quadratic_weighted_kappa", [0, 1, 2], [0, 1, 1], 1 - (1 / 3) / (9 / 9)),
        ("quadratic_weighted_kappa", [0, 0, 4], [0, 4, 4], 1 - (16 / 3) / (80 / 9)),
        ("quadratic_weighted_kappa", [0, 1, 4], [0, 4, 4], 1 - (9 / 3) / (67 / 9)),  # classes 2 and 3 never occur
        ("quadratic_weighted_kappa", [2, 2], [2, 2], 1.0),
        ("quadratic_weighted_kappa", [0, 0], [1, 1], 0.0),
        ("pearson", [1.0, 2.0, 3.0], [2.0, 4.0, 6.0], 1.0),
        ("pearson", [1.0, 2.0, 3.0], [1.0, 3.0, 2.0], 0.5),
        ("spearmanr", [1.0, 2.0, 3.0], [1.0, 8.0, 9.0], 1.0),
        ("spearmanr", [1.0, 2.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0], 4.5 / math.sqrt(4.5 * 5)),
        ("mean_absolute_error", [1.0, 2.0], [2.0, 4.5], 1.75),
        ("mean_squared_error", [1.0, 2.0], [2.0, 4.0], 2.5),
    ],
)
def test_examples_worked_by_hand(name: str, labels: list, predictions: list, expected: float) -> None:
    assert score(name, labels, predictions) == pytest.approx(expected, abs=1e-9)


@given(CLASSES)
def test_metrics_of_classes_are_those_of_plain_loops(pairs: list[tuple[int, int]]) -> None:
    labels, predictions = [t for t, _ in pairs], [p for _, p in pairs]
    seen = sorted({*labels, *predictions})
    plain = {
        "accuracy": sum(t == p for t, p in pairs) / len(pairs),
        "f1_macro": math.fsum(plain_f1(pairs, k) for k in seen) / len(seen),
        "matthews_correlation": plain_matthews(pairs),
        "quadratic_weighted_kappa": plain_kappa(pairs),
    }
    for name, expected in plain.items():
        assert score(name, labels, predictions) == pytest.approx(expected, abs=1e-9), name
    binary = [(t % 2, p % 2) for t, p in pairs]
    found = score("f1", [t for t, _ in binary], [p for _, p in binary])
    assert found == pytest.approx(plain_f1(binary, 1), abs=1e-9)


@given(NUMBERS)
def test_correlations_and_errors_are_those_of_plain_loops(pairs: list[tuple[int, int]]) -> None:
    labels, predictions = [t / 2 for t, _ in pairs], [p / 3 for _, p in pairs]
    plain = {
        "pearson": plain_pearson(labels, predictions),
        "spearmanr": plain_pearson(ranks(labels), ranks(predictions)),
        "mean_absolute_error": math.fsum(abs(t - p) for t, p in zip(labels, predictions, strict=True)) / len(pairs),
        "mean_squared_error": math.fsum((t - p) ** 2 for t, p in zip(labels, predictions, strict=True)) / len(pairs),
    }
    for name, expected in plain.items():
        assert score(name, labels, predictions) == pytest.approx(expected, abs=1e-9, nan_ok=True), name


@pytest.mark.parametrize("name", ["pearson", "spearmanr"])
@pytest.mark.parametrize(
    ("labels", "predictions"), [([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]), ([1.0, 2.0], [3.0, 3.0]), ([1.0], [2.0]), ([], [])]
)
def test_a_constant_has_no_correlation(name: str, labels: list, predictions: list, recwarn) -> None:
    assert math.isnan(score(name, labels, predictions))
    for name in ("accuracy", "f1", "f1_macro", "matthews_correlation", "quadratic_weighted_kappa"):  # of one class
        assert math.isfinite(score(name, [0, 0, 0], [0, 0, 0]))
        assert math.isfinite(score(name, [0, 0, 0], [1, 1, 1]))
    assert not recwarn.list


def test_predictions_are_the_largest_logit_or_the_score() -> None:
    logits_NC = np.array([[0.1, 2.0, -1.0], [5.0, 4.0, 3.0]], dtype=np.float32)
    assert predictions_of(logits_NC, THREE).tolist() == [1, 0]
    assert predictions_of(np.array([[1.5], [-2.0]]), SCORE).tolist() == [1.5, -2.0]


def test_the_expected_value_is_the_class_nearest_to_the_mean_of_class_numbers() -> None:
    mean = replace(STARS, ordinal_prediction="expected-value")
    draw = np.random.default_rng(3)
    shares_NC = draw.dirichlet([0.4] * 5, size=200)
    logits_NC = np.log(np.maximum(shares_NC, 1e-30)).astype(np.float32) + draw.normal(size=(200, 1)).astype(np.float32)
    expected = []
    for shares in shares_NC:
        middle = math.fsum(number * share for number, share in enumerate(shares))
        expected.append(min(range(5), key=lambda number: abs(number - middle)))
    found = predictions_of(logits_NC, mean)
    assert found.dtype == np.int64
    assert found.tolist() == expected
    assert (found != predictions_of(logits_NC, STARS)).mean() > 0.2, "the two ways differ"
    split = np.full((2, 5), -np.inf)  # of two classes as near to the mean the higher one is predicted
    split[0, [1, 2]], split[1, [0, 4]] = 0.0, 0.0
    assert predictions_of(split, mean).tolist() == [2, 2]
    assert predictions_of(split, STARS).tolist() == [1, 0]


def test_probabilities_are_a_softmax_even_of_large_logits() -> None:
    logits_NC = np.array([[0.0, math.log(3.0)], [1000.0, 0.0], [-1000.0, -1000.0]], dtype=np.float32)
    found = probabilities_of(logits_NC, THREE)
    assert found.dtype == np.float64
    assert found == pytest.approx(np.array([[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]]), abs=1e-7)


def test_several_labels_have_probabilities_of_their_own() -> None:
    logits_NC = np.array([[0.0, math.log(3.0), -math.log(4.0)], [1000.0, -1000.0, 0.1]], dtype=np.float32)
    expected = np.array([[0.5, 0.75, 0.2], [1.0, 0.0, 1 / (1 + math.exp(-0.1))]])
    assert probabilities_of(logits_NC, SETS) == pytest.approx(expected, abs=1e-7)
    found = predictions_of(logits_NC, SETS)
    assert found.dtype == np.int64
    assert found.tolist() == [[1, 1, 0], [1, 0, 1]]


# Rows {a}, {a, b}, {}, {c}; predicted {a}, {a}, {b}, {c}: of a 2 of 2, of b 0 of 1 and 1 false, of c 1 of 1.
GOLD_SETS = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 0, 1]])
SAID_SETS = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("f1_micro", 2 * 3 / (4 + 4)),
        ("f1_macro", (1 + 0 + 1) / 3),
        ("f1_weighted", (2 * 1 + 1 * 0 + 1 * 1) / 4),
        ("precision_macro", 2 / 3),
        ("recall_macro", 2 / 3),
        ("f1_samples", (1 + 2 / 3 + 0 + 1) / 4),
        ("subset_accuracy", 2 / 4),
        ("hamming_loss", 2 / 12),
    ],
)
def test_metrics_of_several_labels_worked_by_hand(name: str, expected: float) -> None:
    assert METRICS[name].score(GOLD_SETS, SAID_SETS) == pytest.approx(expected)
    assert choose_metric(name, ("f1_micro",), SETS).name == name


def test_scores_come_by_name_in_the_order_asked() -> None:
    logits_NC = np.array([[2.0, 1.0], [0.0, 1.0], [0.0, 3.0]])
    scores = score_predictions(("f1", "accuracy"), np.array([0, 1, 0]), logits_NC, TWO)
    assert list(scores.items()) == [("f1", pytest.approx(2 / 3)), ("accuracy", pytest.approx(2 / 3))]
    scores = score_predictions(("pearson",), np.array([1.0, 2.0, 2.5]), np.array([[1.0], [2.0], [2.5]]), SCORE)
    assert scores == {"pearson": pytest.approx(1.0)}
    assert math.isnan(score_predictions(("pearson",), np.array([1.0, 2.0]), np.zeros((2, 1)), SCORE)["pearson"])


@pytest.mark.parametrize(
    ("wanted", "space", "name"),
    [
        (None, TWO, "matthews_correlation"),
        ("accuracy", TWO, "accuracy"),
        ("eval_f1", TWO, "f1"),
        ("f1_macro", THREE, "f1_macro"),
        ("quadratic_weighted_kappa", STARS, "quadratic_weighted_kappa"),
        ("spearmanr", STARS, "spearmanr"),
        ("eval_mean_squared_error", SCORE, "mean_squared_error"),
    ],
)
def test_the_metric_that_tells_the_best(wanted: str | None, space: LabelSpace, name: str) -> None:
    assert choose_metric(wanted, ("matthews_correlation", "accuracy"), space).name == name


@pytest.mark.parametrize(
    ("wanted", "space"),
    [("acuracy", TWO), ("accuracy", SCORE), ("f1", THREE), ("eval_loss", TWO), ("accuracy", SETS), ("f1_samples", TWO)],
)
def test_a_metric_that_does_not_fit_is_refused_and_those_that_do_are_named(wanted: str, space: LabelSpace) -> None:
    with pytest.raises(ConfigError, match=f"metric_for_best_model: got {wanted!r}, expected one of ") as caught:
        choose_metric(wanted, ("accuracy",), space)
    named = str(caught.value).split("expected one of ")[1].split(".")[0].split(", ")
    assert wanted not in named
    for name in named:
        assert choose_metric(name, ("accuracy",), space).name == name
    assert [name for name in METRICS if name not in named and _fits(name, space)] == []
    for wanted in ("macro_f1", "macro-F1", "f1_marco", "eval_macro_f1"):
        with pytest.raises(ConfigError, match="Did you mean 'f1_macro'"):
            choose_metric(wanted, ("accuracy",), THREE)


def _fits(name: str, space: LabelSpace) -> bool:
    try:
        choose_metric(name, ("accuracy",), space)
    except ConfigError:
        return False
    return True


def test_better_predictions_never_score_worse() -> None:
    """Each metric's direction is the right one: mending one prediction after the other leads to its best value."""
    plain = np.array([0, 1, 1, 0, 1, 0, 0, 1])
    for name, metric in METRICS.items():
        labels = np.stack([plain, plain], axis=1) if metric.needs == "sets" else plain
        wrong, found = 1 - labels, []
        for mended in range(len(labels) + 1):
            found.append(metric.score(labels, np.concatenate([labels[:mended], wrong[mended:]])))
        sign = 1 if metric.greater_is_better else -1
        assert all(sign * (b - a) >= -1e-12 for a, b in pairwise(found)), name
        assert sign * (found[-1] - found[0]) > 0
    smaller = {name for name, metric in METRICS.items() if not metric.greater_is_better}
    assert smaller == {"hamming_loss", "mean_absolute_error", "mean_squared_error"}


# The GLUE average: each task once, WNLI as the majority class, AX left out.


# BERT-base of the SESAME paper's table 1, with second metrics that are made up.
SCORES = {
    "cola": {"validation": {"matthews_correlation": 0.521}},
    "sst2": {"validation": {"accuracy": 0.935}},
    "mrpc": {"validation": {"f1": 0.889, "accuracy": 0.848}},
    "stsb": {"validation": {"pearson": 0.871, "spearmanr": 0.858}},
    "qqp": {"validation": {"f1": 0.712, "accuracy": 0.892}},
    "mnli": {"validation_matched": {"accuracy": 0.846}, "validation_mismatched": {"accuracy": 0.834}},
    "qnli": {"validation": {"accuracy": 0.905}},
    "rte": {"validation": {"accuracy": 0.664}},
}


def test_all_tasks_are_averaged_with_wnli_as_the_majority_class():
    found = glue_average({**SCORES, "wnli": {"validation": {"accuracy": 0.2}}, "ax": {"validation": {"accuracy": 0.3}}})
    by_hand = [0.521, 0.935, (0.889 + 0.848) / 2, (0.871 + 0.858) / 2, (0.712 + 0.892) / 2, 0.84, 0.905, 0.664, 0.651]
    assert found.value == pytest.approx(sum(by_hand) / 9)
    assert (found.name, found.is_complete, found.tasks) == ("GLUE average", True, GLUE_TASKS)


def test_without_some_tasks_it_says_what_is_averaged_and_only_validation_splits_count():
    found = glue_average({"rte": SCORES["rte"], "mnli": SCORES["mnli"], "reviews": {"validation": {"accuracy": 1.0}}})
    assert found.value == pytest.approx((0.664 + 0.84) / 2)
    assert (found.name, found.is_complete, found.tasks) == ("mean of 2 GLUE tasks", False, ("mnli", "rte"))
    assert glue_average({"rte": SCORES["rte"], "wnli": SCORES["rte"]}) is None
    assert task_score({"train": {"accuracy": 1.0}, "validation": {"accuracy": 0.5}, "test": {"accuracy": 0.0}}) == 0.5
    assert math.isnan(task_score({"test": {"accuracy": 0.5}}))
    assert math.isnan(glue_average({"rte": SCORES["rte"], "stsb": {"validation": {"pearson": None}}}).value)
