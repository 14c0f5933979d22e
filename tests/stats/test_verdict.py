"""The sentence of a verdict, from fields set by hand."""

import dataclasses
import math
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from attentune.stats.verdict import Comparison, class_probabilities, predict_labels

SHOWN = Comparison(
    baseline="bert",
    method="ssa-hybrid",
    task="RTE",
    metric="accuracy",
    difference=0.0187,
    low=0.0041,
    high=0.0333,
    p=0.0025,
    p_holm=0.01,
    family=4,
    seeds=5,
    examples=None,
    over="seeds",
    minimum_detectable_effect=0.0212,
    p_sign_flip=0.0625,
    baseline_mean=0.61,
    method_mean=0.6287,
    alpha=0.05,
    greater_is_better=True,
    notes=(),
)


def sentence(**fields) -> str:
    return dataclasses.replace(SHOWN, **fields).sentence


SENTENCES = yaml.safe_load(Path(__file__).with_name("sentences.yaml").read_text("utf-8"))


@pytest.mark.parametrize(("fields", "expected"), SENTENCES)
def test_the_sentence_of_a_verdict(fields: dict[str, object], expected: str) -> None:
    text = sentence(**fields)
    assert text == expected or (expected[:3] == "..." and text.endswith(expected[3:]))


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (0.0004, "p < 0.001"),
        (0.001, "p = 0.001"),
        (0.0123, "p = 0.012"),
        (0.0499, "p = 0.05"),
        (0.05, "p = 0.05"),
        (0.0501, "p = 0.0501"),
        (0.00996, "p = 0.01"),
        (0.01004, "p = 0.01004"),
        (0.9999, "p = 1"),
    ],
)
def test_rounding_takes_no_p_across_a_level(p: float, text: str) -> None:
    assert f"{text}, 5 seeds" in sentence(family=1, p=p, p_holm=0.0)


@given(p=st.floats(0.001, 1))
def test_the_p_that_is_written_is_on_the_same_side_of_the_levels(p: float) -> None:
    written = float(re.search(r"p = ([\d.e-]+),", sentence(family=1, p=p, p_holm=0.0))[1])
    assert written == pytest.approx(p, rel=0.06)
    assert (written <= 0.05) == (p <= 0.05 or f"{p:.4g}" == "0.05")


@pytest.mark.parametrize(
    ("low", "text"), [(0.0003, "0.03"), (-0.0004, "-0.04"), (0.0, "0.0"), (0.00051, "0.1"), (-1e-9, "-1e-07")]
)
def test_a_bound_that_is_not_zero_is_not_written_as_zero(low: float, text: str) -> None:
    assert f"95 % CI {text} to 3.3" in sentence(low=low)


def test_the_level_is_in_the_interval() -> None:
    assert "99 % CI" in sentence(alpha=0.01)
    assert SHOWN.shown
    assert not dataclasses.replace(SHOWN, alpha=0.009).shown
    assert not dataclasses.replace(SHOWN, seeds=1).shown
    assert "p = 0.05 uncorrected, 0.1 after Holm" in sentence(p=0.05, p_holm=0.1)
    assert "alone" not in sentence(p=0.05, p_holm=0.05)


# From logits to probabilities and predictions, beside the same written in loops.


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
    ).tolist() == [0, 0, 0]
    assert predict_labels(pairs, task_type="classification", thresholds=[0.0]).tolist() == [1, 1, 1]
