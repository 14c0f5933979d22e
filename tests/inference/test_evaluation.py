"""The evaluation of a split: classes, confusions and errors as counted by hand, for each kind of labels."""

import numpy as np
import pytest

from attentune.data.dataset import LabelSpace, TextRows
from attentune.errors import DataError
from attentune.inference.evaluation import evaluate_split
from attentune.stats.estimate import wilson_interval

THREE = LabelSpace("classification", ("a", "b", "c"))


def rows_of(labels):
    count = len(labels)
    return TextRows(tuple(f"r{n}" for n in range(count)), tuple(f"text {n}" for n in range(count)), None, labels, "x")


def drawn(count=60, classes=3, seed=0):
    generator = np.random.default_rng(seed)
    labels = generator.integers(classes, size=count)
    return labels, 1.5 * np.eye(classes)[labels] + generator.normal(size=(count, classes))


def test_classes_and_confusions_are_counts():
    labels, logits = drawn()
    given = logits.argmax(axis=1)
    found = evaluate_split("validation", rows_of(labels), logits, THREE, ("accuracy", "f1_macro"))
    for true in range(3):
        one = found.classes[true]
        both = sum(1 for x, y in zip(labels, given, strict=True) if x == y == true)
        assert one.rows == sum(labels == true)
        assert one.predicted == sum(given == true)
        assert one.precision == pytest.approx(both / one.predicted)
        assert one.recall == pytest.approx(both / one.rows)
        for other in range(3):
            assert found.confusion[true, other] == sum((labels == true) & (given == other))
    accuracy, macro = found.metrics
    hits = int((labels == given).sum())
    assert (accuracy.value, accuracy.low, accuracy.high) == (hits / 60, *wilson_interval(hits, 60))
    assert macro.value == pytest.approx(np.mean([one.f1 for one in found.classes]))
    assert macro.low < macro.value < macro.high
    assert 0 < found.calibration_error < 0.5


def test_errors_are_the_wrong_rows_with_the_most_certain_first():
    labels, logits = drawn()
    found = evaluate_split("validation", rows_of(labels), logits, THREE, ("accuracy",))
    wrong = np.flatnonzero(logits.argmax(axis=1) != labels)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    sizes = {int(n): shares[n].max() - shares[n, labels[n]] for n in wrong}
    assert [one.row for one in found.errors] == sorted(sizes, key=lambda n: -sizes[n])
    first = found.errors[0]
    assert first.size == pytest.approx(sizes[first.row])
    assert (first.id, first.label) == (f"r{first.row}", THREE.names[labels[first.row]])
    assert first.prediction == THREE.names[logits[first.row].argmax()]


def test_thresholds_decide():
    labels, logits = drawn(classes=2)
    space = LabelSpace("classification", ("no", "yes"), thresholds=(0.9,))
    found = evaluate_split("validation", rows_of(labels), logits, space, ("accuracy",))
    shares = 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))
    assert found.classes[1].predicted == int((shares >= 0.9).sum())


def test_several_labels():
    generator = np.random.default_rng(1)
    labels = generator.integers(2, size=(40, 3))
    logits = 2.0 * (2 * labels - 1) + 2 * generator.normal(size=(40, 3))
    space = LabelSpace("multi_label", ("x", "y", "z"))
    found = evaluate_split("test", rows_of(labels), logits, space, ("f1_micro",))
    given = (logits >= 0).astype(int)
    assert found.confusion is None
    for place, one in enumerate(found.classes):
        assert one.rows == labels[:, place].sum()
        assert one.predicted == given[:, place].sum()
    assert {one.row for one in found.errors} == set(np.flatnonzero((labels != given).any(axis=1)))


def test_scores_list_the_largest_distances():
    labels = np.linspace(0, 5, 30)
    logits = (labels + np.random.default_rng(2).normal(size=30))[:, None]
    found = evaluate_split("test", rows_of(labels), logits, LabelSpace("regression"), ("pearson",))
    assert (found.classes, found.confusion, found.calibration_error) == ((), None, None)
    assert len(found.errors) == 30
    assert found.errors[0].row == int(np.abs(labels - logits[:, 0]).argmax())
    assert found.to_dict()["wrong_rows"] is None


def test_rows_without_labels_are_refused():
    rows = TextRows(("1",), ("a",), None, None, "x")
    with pytest.raises(DataError, match="test: has no labels to score against"):
        evaluate_split("test", rows, np.zeros((1, 3)), THREE, ("accuracy",))
