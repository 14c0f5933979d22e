"""From logits to probabilities and predictions, beside the same written in loops."""

import math

import numpy as np
import pytest

from attentune.stats.verdict import class_probabilities, predict_labels

LOGITS = np.array([[0.5, -1.25, 2.0], [3.0, 3.0, -4.0], [-700.0, 0.0, 800.0]], dtype=np.float32)


def softmax(row: list[float]) -> list[float]:
    top = max(row)
    exponents = [math.exp(value - top) for value in row]
    return [value / sum(exponents) for value in exponents]


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value > -700 else math.exp(value)


def test_of_one_label_a_row_probabilities_are_a_softmax():
    found = class_probabilities(LOGITS, is_multilabel=False)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, [softmax(row) for row in LOGITS.tolist()], rtol=1e-14, atol=1e-300)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-15)


def test_of_several_labels_a_row_each_has_its_sigmoid_without_overflow():
    with np.errstate(over="raise", invalid="raise"):
        found = class_probabilities(LOGITS, is_multilabel=True)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, [[sigmoid(value) for value in row] for row in LOGITS.tolist()], rtol=1e-14)


def test_half_precision_is_widened_before_anything_is_computed():
    narrow = np.array([[10.0, -10.0]], dtype=np.float16)
    for is_multilabel in (False, True):
        assert np.array_equal(
            class_probabilities(narrow, is_multilabel=is_multilabel),
            class_probabilities(narrow.astype(np.float64), is_multilabel=is_multilabel),
        )


SHARES = np.array([[0.2, 0.5, 0.3], [0.4, 0.2, 0.4], [0.1, 0.1, 0.8]])


@pytest.mark.parametrize("task_type", ["classification", "ordinal"])
def test_the_likeliest_class_and_of_equals_the_first(task_type):
    assert predict_labels(SHARES, task_type=task_type).tolist() == [1, 0, 2]


def test_the_class_nearest_to_the_mean_and_halves_go_up():
    # Means 1.1, 1.0, 1.7; then 0.5 and 1.5.
    assert predict_labels(SHARES, task_type="ordinal", ordinal_prediction="expected-value").tolist() == [1, 1, 2]
    halves = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
    assert predict_labels(halves, task_type="ordinal", ordinal_prediction="expected-value").tolist() == [1, 2]


def test_of_several_labels_each_from_a_half_or_from_its_threshold_on():
    found = predict_labels(SHARES, task_type="multi_label")
    assert found.dtype == np.int64
    assert found.tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 1]]
    own = predict_labels(SHARES, task_type="multi_label", thresholds=[0.4, 0.15, 0.8])
    assert own.tolist() == [[0, 1, 0], [1, 1, 0], [0, 0, 1]]


def test_the_second_of_two_classes_from_its_threshold_on():
    pairs = np.array([[0.8, 0.2], [0.7, 0.3], [0.1, 0.9]])
    found = predict_labels(pairs, task_type="classification", thresholds=[0.3])
    assert found.dtype == np.int64
    assert found.tolist() == [0, 1, 1]
    # A threshold goes before the mean, and one of nothing is one.
    assert predict_labels(
        pairs, task_type="ordinal", ordinal_prediction="expected-value", thresholds=[0.95]
    ).tolist() == [
        0,
        0,
        0,
    ]
    assert predict_labels(pairs, task_type="classification", thresholds=[0.0]).tolist() == [1, 1, 1]
