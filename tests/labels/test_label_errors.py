"""Likely label errors by out-of-fold probabilities, and how many labels may be wrong."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from attentune.automl.folds import CERTAIN_SHARE, disagreement, label_note
from attentune.data.dataset import LabelSpace
from attentune.errors import ConfigError, DataError
from attentune.labels.label_check import find_label_errors
from attentune.seeding import numpy_generator
from attentune.stats.estimate import wilson_interval


def some_rows(count: int = 200, classes: int = 3, wrong: int = 20) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, probabilities of a good model, and the rows whose labels were changed."""
    generator = numpy_generator("label errors")
    true = np.arange(count) % classes
    logits_NC = generator.normal(size=(count, classes)) + 4.0 * np.eye(classes)[true]
    shares_NC = np.exp(logits_NC) / np.exp(logits_NC).sum(axis=1, keepdims=True)
    rows = generator.choice(count, wrong, replace=False)
    labels = true.copy()
    labels[rows] = (labels[rows] + 1) % classes
    return labels, shares_NC, np.sort(rows)


def test_changed_labels_are_found_least_probable_first() -> None:
    labels, shares_NC, wrong = some_rows()
    places, suggested = find_label_errors(labels, shares_NC)
    assert len(set(places) & set(wrong)) >= 18
    assert len(places) <= 30
    assert (np.diff(shares_NC[places, labels[places]]) >= 0).all()
    others = [max((p, c) for c, p in enumerate(shares_NC[row]) if c != labels[row])[1] for row in places]
    assert suggested.tolist() == others


def test_the_share_of_other_labels_is_counted_where_the_model_is_most_certain() -> None:
    labels, shares_NC, _ = some_rows(wrong=40)
    expected, count = 0, 0
    for name in range(3):
        own = [row for row in range(len(labels)) if shares_NC[row].argmax() == name]
        own.sort(key=lambda row: -shares_NC[row].max())
        for row in own[: round(CERTAIN_SHARE * len(own))]:
            expected, count = expected + (labels[row] != name), count + 1
    share = disagreement(labels, shares_NC)
    assert (share.value, share.rows) == (expected / count, count)
    assert (share.low, share.high) == wilson_interval(expected, count)
    assert share.low < 0.2 < share.high  # 40 of 200 labels are wrong


def test_a_class_without_rows_may_be_suggested() -> None:
    labels, shares_NC, _ = some_rows(classes=3, wrong=0)
    labels = np.where(labels == 1, 2, labels)  # class 1 is there, but never given
    places, suggested = find_label_errors(labels, shares_NC)
    assert 1 in suggested.tolist() or len(places) == 0
    assert set(labels[places].tolist()) <= {0, 2}


def test_rows_of_one_class_are_refused() -> None:
    with pytest.raises(DataError, match="got 4 rows of 1 class, expected rows of at least two classes"):
        find_label_errors(np.zeros(4, np.int64), np.full((4, 2), 0.5))


def test_without_cleanlab_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cleanlab.filter", None)
    with pytest.raises(ConfigError, match="needs cleanlab, which is not installed; run: pip install -e "):
        find_label_errors(np.array([0, 1]), np.full((2, 2), 0.5))


def test_auto_notes_contradicted_labels_only_if_there_are_many(tmp_path: Path) -> None:
    space = LabelSpace("classification", ("a", "b", "c"))
    labels, shares_NC, _ = some_rows(wrong=50)
    note = label_note(tmp_path, labels, np.log(shares_NC), space)
    assert note is not None
    assert re.fullmatch(
        r"Where out-of-fold predictions are most certain \(4\d rows\), \d\d\.\d % have another label"
        r" \(95 % interval \S+ to \S+ %\): wrong labels, or texts that the model gets wrong."
        r" To see which: attentune doctor --labels --run " + re.escape(str(tmp_path)),
        note,
    )
    clean, shares_NC, _ = some_rows(wrong=0)
    assert label_note(tmp_path, clean, np.log(shares_NC), space) is None
    assert label_note(tmp_path, labels, np.zeros_like(shares_NC), space) is None  # the model knows nothing
    scores = LabelSpace("regression")
    assert label_note(tmp_path, labels.astype(float), np.ones((len(labels), 1)), scores) is None
