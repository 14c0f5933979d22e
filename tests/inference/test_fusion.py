"""Fusions against plain loops over rows, and what they refuse."""

import json
import math

import numpy as np
import pytest

from attentune.inference.fusion import Fusion, fusion_features, mean_logits

NAMES = ("a", "b", "c")
GENERATOR = np.random.default_rng(0)
LOGITS = {name: GENERATOR.normal(size=(7, 3)) * 3 for name in NAMES}
SCORES = {name: GENERATOR.normal(size=(7, 1)) for name in NAMES}
WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.2}


def softmax(values):
    powers = [math.exp(value) for value in values]
    return [power / sum(powers) for power in powers]


def sigmoid(value):
    return 1 / (1 + math.exp(-value))


@pytest.mark.parametrize("task_type", ["classification", "ordinal"])
def test_the_weighted_mean_of_class_probabilities(task_type):
    fused_NC = Fusion.weighted("weights", WEIGHTS, task_type).apply(LOGITS)
    for row in range(7):
        shares = [softmax(LOGITS[name][row]) for name in NAMES]
        mean = [sum(WEIGHTS[name] * share[k] for name, share in zip(NAMES, shares, strict=True)) for k in range(3)]
        np.testing.assert_allclose(np.exp(fused_NC[row]), mean, rtol=1e-12)


def test_the_weighted_mean_of_label_probabilities():
    fused_NC = Fusion.weighted("greedy", WEIGHTS, "multi_label").apply(LOGITS)
    for row in range(7):
        for label in range(3):
            mean = sum(WEIGHTS[name] * sigmoid(LOGITS[name][row, label]) for name in NAMES)
            assert sigmoid(fused_NC[row, label]) == pytest.approx(mean, rel=1e-12)


def test_the_weighted_mean_of_scores():
    fused_NC = Fusion.weighted("weights", WEIGHTS, "regression").apply(SCORES)
    for row in range(7):
        assert fused_NC[row, 0] == pytest.approx(sum(WEIGHTS[name] * SCORES[name][row, 0] for name in NAMES))


@pytest.mark.parametrize("task_type", ["classification", "multi_label"])
def test_certain_members_leave_finite_logits(task_type):
    certain = [np.array([[900.0, -900.0, 0.0]]), np.array([[-900.0, 900.0, 0.0]])]
    assert np.isfinite(mean_logits(certain, task_type)).all()


def test_a_linear_fusion():
    coefficients, bias = GENERATOR.normal(size=(6, 3)), GENERATOR.normal(size=3)
    fused_NC = Fusion.linear(("b", "a"), "classification", coefficients, bias).apply(LOGITS)
    for row in range(7):
        inputs = [math.log(share) for name in ("b", "a") for share in softmax(LOGITS[name][row])]
        sums = [sum(x * coefficients[i, k] for i, x in enumerate(inputs)) + bias[k] for k in range(3)]
        np.testing.assert_allclose(np.exp(fused_NC[row]), softmax(sums), rtol=1e-10)
    raw_NC = Fusion.linear(("b",), "multi_label", coefficients[:3], bias).apply(LOGITS)
    np.testing.assert_allclose(raw_NC, LOGITS["b"] @ coefficients[:3] + bias)
    score = Fusion.linear(("a",), "regression", np.array([[2.0]]), np.array([1.0])).apply(SCORES)
    np.testing.assert_allclose(score, 2 * SCORES["a"] + 1)


def test_inputs_of_a_linear_fusion_are_clipped():
    logits = {"a": np.array([[0.0, 800.0]])}
    assert fusion_features(logits, ("a",), "classification").tolist() == [[-14.0, 0.0]]
    assert fusion_features(logits, ("a",), "multi_label").tolist() == [[0.0, 14.0]]
    assert fusion_features(logits, ("a",), "regression").tolist() == [[0.0, 800.0]]


def test_a_single_member_keeps_its_probabilities():
    fused_NC = Fusion.weighted("single", {"a": 1.0, "b": 0.0}, "classification").apply(LOGITS)
    np.testing.assert_allclose(np.exp(fused_NC), [softmax(row) for row in LOGITS["a"]], rtol=1e-12)


def test_weights_of_members():
    assert Fusion.weighted("greedy", {"a": 3, "b": 1, "c": 0}, "ordinal").member_weights() == {"a": 0.75, "b": 0.25}
    linear = Fusion.linear(("a", "b"), "regression", np.array([[-3.0], [1.0]]), np.array([0.0]))
    assert linear.member_weights() == {"a": 0.75, "b": 0.25}


@pytest.mark.parametrize(
    "fusion",
    [
        Fusion.weighted("weights", WEIGHTS, "classification"),
        Fusion.linear(("a", "b"), "multi_label", GENERATOR.normal(size=(4, 2)), GENERATOR.normal(size=2)),
    ],
)
def test_json_and_back(fusion):
    assert Fusion.from_json(json.loads(json.dumps(fusion.to_json()))) == fusion


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "vote"}, "expected one of single, greedy, weights, linear"),
        ({"members": ["a", "a"]}, "expected different names"),
        ({"members": [["a"], ["b"]]}, "does not describe a fusion"),
        ({"weights": [0.5, 0.6]}, "expected positive ones with sum 1"),
        ({"weights": [1.5, -0.5]}, "expected positive ones with sum 1"),
        ({"weights": ["x"]}, "could not convert"),
        ({"kind": "single"}, "got 2, expected 1"),
        ({"kind": "linear", "bias": [0.0], "coefficients": [[1.0]]}, "got 1 rows, expected 2 of 1 numbers"),
        ({"kind": "linear", "bias": [0.0], "coefficients": [[1.0], [float("nan")]]}, "not finite"),
        ({"weights": None}, "does not describe a fusion"),
    ],
)
def test_a_damaged_fusion_is_refused(changes, said):
    whole = Fusion.weighted("weights", {"a": 1, "b": 1}, "regression").to_json()
    with pytest.raises(ValueError, match=said):
        Fusion.from_json(whole | changes)


def test_weights_that_are_all_zero_are_refused():
    with pytest.raises(ValueError, match="expected positive ones"):
        Fusion.weighted("weights", {"a": 0.0}, "classification")
