"""The words that speak for each class over a file: the planted shortcut comes first, and intervals are bootstrap's."""

import re

import numpy as np
import pytest

from attentune.cli.explain import class_tables
from attentune.data.dataset import LabelSpace
from attentune.explain.by_class import HIGHER, LOWER, predictions_by_overlap, words_by_class
from attentune.explain.explanation import Explanation, Subword
from attentune.seeding import numpy_generator
from attentune.stats.estimate import bootstrap_interval, wilson_interval


def explained(label: str | float, **scores: float) -> Explanation:
    text = " ".join(scores)
    pieces, start = [], 0
    for word, score in scores.items():
        pieces.append(Subword(word, start, start + len(word), score))
        start += len(word) + 1
    return Explanation(text, None, "leave-one-out", label, 0.9, label, True, 1, 0.0, "word", "a unit", tuple(pieces))


def test_counts_means_and_intervals_are_those_of_a_plain_loop() -> None:
    draw = numpy_generator("rows")
    rows = [
        explained("ab"[row % 2], **{word: float(draw.normal(1.0)) for word in "xyz" if draw.random() < 0.6}, always=2.0)
        for row in range(60)
    ]
    found = words_by_class(rows, LabelSpace("classification", ("a", "b", "c")), resamples=3000)
    assert list(found) == ["a", "b", "c"]
    assert found["c"] == []
    assert found["a"][0].word == "always"
    for name in "ab":
        own = [row for row in rows if row.label == name]
        for one in found[name]:
            values = np.array([next((p.score for p in row.pieces if p.text == one.word), np.nan) for row in own])
            assert one.rows == int(np.isfinite(values).sum())
            assert one.score == pytest.approx(np.nanmean(values))
            low, high = bootstrap_interval(
                lambda drawn, v=values: float(np.nanmean(v[drawn])),
                len(own),
                generator=numpy_generator("other draws"),
                resamples=3000,
            )
            spread = max(high - low, 1e-9)
            assert one.low == pytest.approx(low, abs=0.08 * spread)
            assert one.high == pytest.approx(high, abs=0.08 * spread)
        order = [one.low * one.rows for one in found[name]]
        assert order == sorted(order, reverse=True)


def test_with_two_classes_and_for_scores_every_row_counts_for_both() -> None:
    rows = [explained("bad", dull=2.0, film=-1.0), explained("good", dull=-1.0, film=1.0)] * 2
    found = words_by_class(rows, LabelSpace("classification", ("bad", "good")))
    (dull,), (film,) = found["bad"], found["good"]
    assert (dull.word, dull.rows, dull.score) == ("dull", 4, 1.5)
    assert (film.word, film.rows, film.score) == ("film", 4, 1.0)
    scores = [explained(2.5, warm=0.5, cold=-1.0)] * 3
    found = words_by_class(scores, LabelSpace("regression"))
    assert [(name, [one.word for one in words]) for name, words in found.items()] == [
        (HIGHER, ["warm"]),
        (LOWER, ["cold"]),
    ]


def test_rare_words_and_punctuation_are_left_out_and_repetitions_summed() -> None:
    pieces = (Subword("So", 0, 2, 1.0), Subword("so", 3, 5, 0.5), Subword("!", 5, 6, 9.0))
    row = Explanation("So so!", None, "leave-one-out", "good", 0.9, "good", True, 1, 0.0, "word", "a unit", pieces)
    found = words_by_class([row] * 3 + [explained("good", rare=5.0)], LabelSpace("classification", ("bad", "good")))
    assert [(one.word, one.rows, one.score) for one in found["good"]] == [("so", 3, 1.5)]


def pair_of(first: str, second: str, prediction: str) -> Explanation:
    pieces = tuple(
        Subword(found.group(), found.start(), found.end(), 0.0, within)
        for within, text in (("text", first), ("pair", second))
        for found in re.finditer(r"\S+", text)
    )
    return Explanation(
        first, second, "leave-one-out", prediction, 0.9, prediction, True, 1, 0.0, "word", "a unit", pieces
    )


def test_predictions_are_counted_by_the_words_that_both_texts_have() -> None:
    space = LabelSpace("classification", ("no", "yes"))
    rows = [
        *[pair_of("The doctor paid the actor .", "the actor paid the doctor !", "yes")] * 3,
        pair_of("The doctor paid the actor", "the actor paid the doctor", "no"),
        pair_of("the doctor paid", "a lawyer ran the court", "no"),  # one of five
        pair_of("the doctor paid", "the doctor", "yes"),
        pair_of("the doctor paid", "...", "no"),  # no word
    ]
    few, every = predictions_by_overlap(rows, space)
    assert (few.low, few.high, few.rows, few.predicted["no"][0]) == (0.0, 0.5, 1, 1.0)
    assert (every.low, every.high, every.rows) == (1.0, 1.0, 5)
    assert every.predicted["yes"] == (0.8, *wilson_interval(4, 5))
    half, most = predictions_by_overlap([pair_of("a b c", "a x", "no"), pair_of("a b c", "a b c x", "no")], space)
    assert [(half.low, half.high), (most.low, most.high)] == [(0.5, 0.75), (0.75, 1.0)]
    assert predictions_by_overlap([explained("no", fine=1.0)], space) == []
    assert predictions_by_overlap(rows, LabelSpace("regression")) == []
    shown = class_tables({"no": [], "yes": []}, {}, [few, every], "ssa", 7)
    assert "0 to 50 %        1  100 % (21 to 100)  0 % (0 to 79)" in shown
    assert "all              5  20 % (4 to 62)     80 % (38 to 96)" in shown
    assert every.to_dict()["predicted"]["yes"]["share"] == 0.8
