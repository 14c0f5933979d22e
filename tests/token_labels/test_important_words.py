"""Words labelled important, by class: joined subwords, one count a row, ranked by the lower bound of the interval."""

from __future__ import annotations

import math

import pytest

from attentune.stats.estimate import wilson_interval
from attentune.token_labels.listing import important_words


def line(gold, *tokens):
    """A listed row; tokens are (text, start, label, score)."""
    made = [
        {"text": text, "start": start, "end": start + len(text), "in": "text", "label": label, "score": score}
        for text, start, label, score in tokens
    ]
    return {"id": "1", "text": "", "gold": gold, "predicted": "no", "tokens": made}


def test_words_are_joined_and_counted_once_a_row():
    rows = [
        # "Unwatch" + "able" is one word; it occurs twice; the full stop is none.
        line(
            "bad", ("Unwatch", 0, None, 0.2), ("able", 7, 1.0, 0.6), (".", 11, 1.0, 0.9), ("unwatchable", 13, 0.0, 0.1)
        ),
        line("bad", ("unwatchable", 0, 0.0, 0.4), ("film", 12, 0.0, 0.1)),
        line("bad", ("unwatchable", 0, 1.0, 0.8), ("film", 12, 1.0, 0.3)),
        line("good", ("unwatchable", 0, None, 0.3), ("film", 12, 0.0, 0.2)),
    ]
    found = important_words(rows, least_rows=2)
    assert list(found) == ["bad", "good"]
    first, second = found["bad"]
    assert (first.word, first.rows, first.important) == ("unwatchable", 3, pytest.approx(2 / 3))
    assert (first.low, first.high) == wilson_interval(2, 3)
    assert first.score == pytest.approx((0.6 + 0.4 + 0.8) / 3)
    assert (second.word, second.rows, second.important) == ("film", 2, 0.5)
    assert found["good"] == []  # no word in two rows with a label


def test_without_labels_the_scores_count():
    rows = [line("bad", ("dull", 0, None, score), ("film", 5, None, 0.1)) for score in (0.9, 0.7, 0.4)]
    (words,) = important_words(rows).values()
    assert [(one.word, one.important) for one in words] == [("dull", pytest.approx(2 / 3)), ("film", 0.0)]


def test_many_rows_outrank_a_few():
    rows = [line("bad", ("dull", 0, 1.0, None)) for _ in range(30)]
    rows += [line("bad", ("slow", 0, 1.0, None)) for _ in range(3)]
    words = important_words(rows)["bad"]
    assert [one.word for one in words] == ["dull", "slow"]
    assert math.isnan(words[0].score)
    assert [one.word for one in important_words(rows, top=1)["bad"]] == ["dull"]


def test_scores_are_one_class():
    rows = [line(2.5, ("dull", 0, 1.0, None)), line(0.5, ("dull", 0, 1.0, None))]
    assert list(important_words(rows, least_rows=1)) == ["all rows"]
