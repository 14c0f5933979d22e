"""Right, and the same: for classes and, within a tolerance, for scores."""

import numpy as np
import pytest

from attentune.data.dataset import LabelSpace
from attentune.token_labels.base import PredictionComparator

CLASSES = PredictionComparator(LabelSpace("classification", ("a", "b", "c")))
STARS = PredictionComparator(LabelSpace("ordinal", ("one", "two", "three")))
SCORES = PredictionComparator(LabelSpace("regression"), tolerance=0.25)


def column(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)[:, None]


@pytest.mark.parametrize("comparator", [CLASSES, STARS])
def test_a_class_is_right_or_the_same_only_where_it_is_equal(comparator: PredictionComparator) -> None:
    logits = np.array([[3.0, 1.0, 2.0], [0.0, 0.1, 0.0], [-1.0, -2.0, -0.5], [5.0, 0.0, 0.0]], dtype=np.float32)
    others = np.array([[9.0, 8.0, 7.0], [0.0, 0.0, 0.1], [-9.0, -8.0, -7.0], [0.0, 5.0, 0.0]], dtype=np.float32)
    assert comparator.correct(logits, np.array([0, 1, 1, 2])).tolist() == [True, True, False, False]
    assert comparator.same(logits, others).tolist() == [True, False, True, False]


def test_scores_are_the_same_within_the_tolerance_and_at_it() -> None:
    gold = np.array([2.0, 2.0, 2.0, 2.0, 2.0])
    predicted = column(2.25, 1.75, 2.2500002, 1.7499999, 2.0)
    assert SCORES.correct(predicted, gold).tolist() == [True, True, False, False, True]
    assert SCORES.same(predicted, column(*gold)).tolist() == [True, True, False, False, True]
    assert SCORES.same(column(1.0, 1.0), column(1.5, 1.2)).tolist() == [False, True]


def test_the_tolerance_of_the_paper_is_the_default() -> None:
    comparator = PredictionComparator(LabelSpace("regression"))
    assert comparator.correct(column(1.29, 1.31), np.array([1.0, 1.0])).tolist() == [True, False]


def test_a_set_of_labels_is_right_or_the_same_as_a_whole() -> None:
    comparator = PredictionComparator(LabelSpace("multi_label", ("a", "b", "c")))
    logits = np.array([[2.0, -1.0, -3.0], [2.0, 1.0, -3.0], [-2.0, -1.0, -3.0]])
    gold = np.array([[1, 0, 0], [1, 0, 0], [0, 0, 0]])
    assert comparator.correct(logits, gold).tolist() == [True, False, True]
    others = np.array([[9.0, -9.0, -1.0], [9.0, -9.0, -1.0], [-1.0, -9.0, 0.0]])
    assert comparator.same(logits, others).tolist() == [True, False, False]
