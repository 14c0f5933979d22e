"""Right, the same, and how far it fell: for classes and, within a tolerance, for scores."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentune.data.dataset import LabelSpace
from attentune.token_labels.base import PredictionComparator

CLASSES = PredictionComparator(LabelSpace("classification", ("a", "b", "c")))
STARS = PredictionComparator(LabelSpace("ordinal", ("one", "two", "three")))
SCORES = PredictionComparator(LabelSpace("regression"), tolerance=0.25, score_range=4.0)


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


def test_the_fall_is_that_of_the_gold_classes_probability() -> None:
    before = np.log(np.array([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]]))
    after = np.log(np.array([[0.4, 0.5, 0.1], [0.6, 0.3, 0.1], [0.2, 0.7, 0.1]]))
    assert CLASSES.drop(before, after, np.array([0, 0, 2])) == pytest.approx([0.3, 0.0, 0.5])
    assert CLASSES.drop(before, after, np.array([1, 1, 1])) == pytest.approx([0.0, 0.0, 0.0])


def test_the_fall_of_scores_is_the_rise_of_the_error_as_a_share_of_the_range() -> None:
    plain, gold = column(2.0, 2.0, 3.0, 2.0, 2.5), np.array([2.0, 2.0, 2.0, 2.0, 2.0])
    masked = column(3.0, 1.0, 2.5, 9.0, 1.5)
    # Wrong by 1 in either direction: a quarter of 4. Nearer than before: 0. Clipped at 1. As wrong, but below: 0.
    assert SCORES.drop(plain, masked, gold) == pytest.approx([0.25, 0.25, 0.0, 1.0, 0.0])


def test_where_all_training_scores_are_equal_any_rise_is_whole_and_none_is_no_number() -> None:
    comparator = PredictionComparator(LabelSpace("regression"), score_range=0.0)
    drops = comparator.drop(column(1.0, 1.0), column(1.5, 1.0), np.array([1.0, 1.0]))
    assert drops.tolist() == [1.0, 0.0]


@given(st.lists(st.tuples(*[st.floats(-1e4, 1e4, width=32)] * 6, st.integers(0, 2)), min_size=1, max_size=5))
def test_a_fall_lies_between_zero_and_one(rows: list[tuple[float, ...]]) -> None:
    logits, masked = (np.array([row[part] for row in rows], dtype=np.float32) for part in (slice(3), slice(3, 6)))
    gold = np.array([row[6] for row in rows])
    for drops in (CLASSES.drop(logits, masked, gold), SCORES.drop(logits[:, :1], masked[:, :1], gold.astype(float))):
        assert drops.shape == (len(rows),)
        assert ((drops >= 0) & (drops <= 1)).all()
    # Where nothing changed nothing fell.
    assert CLASSES.drop(logits, logits, gold).tolist() == [0.0] * len(rows)


def test_a_set_of_labels_is_right_or_the_same_as_a_whole() -> None:
    comparator = PredictionComparator(LabelSpace("multi_label", ("a", "b", "c")))
    logits = np.array([[2.0, -1.0, -3.0], [2.0, 1.0, -3.0], [-2.0, -1.0, -3.0]])
    gold = np.array([[1, 0, 0], [1, 0, 0], [0, 0, 0]])
    assert comparator.correct_implies_same
    assert comparator.correct(logits, gold).tolist() == [True, False, True]
    others = np.array([[9.0, -9.0, -1.0], [9.0, -9.0, -1.0], [-1.0, -9.0, 0.0]])
    assert comparator.same(logits, others).tolist() == [True, False, False]


def test_the_fall_of_a_set_is_the_mean_over_labels_of_what_is_true() -> None:
    comparator = PredictionComparator(LabelSpace("multi_label", ("a", "b")))
    before, after = np.array([[0.9, 0.2], [0.5, 0.5]]), np.array([[0.6, 0.1], [0.7, 0.2]])
    logits = [np.log(share / (1 - share)) for share in (before, after)]
    gold = np.array([[1, 0], [1, 0]])
    assert comparator.drop(*logits, gold) == pytest.approx([((0.9 - 0.6) + (0.1 - 0.2)) / 2, 0.0])
