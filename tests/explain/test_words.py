"""Pieces make words in every family's tokenizer and in many scripts; words that speak for each class over a file."""

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from attentune.config import load_config
from attentune.data.dataset import LabelSpace
from attentune.data.tokenization import encode_with_spans
from attentune.explain.by_class import HIGHER, LOWER, words_by_class
from attentune.explain.explanation import (
    Explanation,
    Subword,
    merge_subwords,
    word_spans,
    word_spans_by_character,
)
from attentune.models.build import load_tokenizer
from attentune.seeding import numpy_generator
from attentune.stats.estimate import bootstrap_interval
from helpers.tiny import FAMILIES
from helpers.tiny_models import rows_of

Tiny = Callable[..., Path]
WORDS = yaml.safe_load(Path(__file__).with_name("words.yaml").read_text("utf-8"))


def words_in(text: str) -> list[str]:
    return [text[start:end] for start, end in word_spans(text)]


@pytest.mark.parametrize(("text", "words"), WORDS["words of a text"])
def test_words_of_a_text(text: str, words: list[str]) -> None:
    assert words_in(text) == words


@given(st.text(max_size=40))
def test_words_hold_every_sign_once_and_in_order(text: str) -> None:
    spans = word_spans(text)
    places = [place for start, end in spans for place in range(start, end)]
    assert all(start < end for start, end in spans)
    assert places == [place for place, sign in enumerate(text) if not sign.isspace()]


@given(st.text(alphabet="ab5_'-.,:/ \t!\x1b<", max_size=30) | st.text(alphabet=st.characters(max_codepoint=127)))
def test_the_fast_way_for_ascii_gives_the_same(text: str) -> None:
    assert word_spans(text) == word_spans_by_character(text)


def piece(text: str, start: int, end: int, score: float, within: str = "text") -> Subword:
    return Subword(text[start:end], start, end, score, within)


def test_a_words_score_is_the_sum_if_signed_and_else_the_highest() -> None:
    text = "unwatchable film"
    pieces = [piece(text, 0, 2, 0.5), piece(text, 2, 7, -0.75), piece(text, 7, 11, 0.125), piece(text, 12, 16, -1.0)]
    signed, unsigned = (merge_subwords(pieces, text, None, signed=signed) for signed in (True, False))
    assert signed == (Subword("unwatchable", 0, 11, -0.125), Subword("film", 12, 16, -1.0))
    assert unsigned == (Subword("unwatchable", 0, 11, 0.5), Subword("film", 12, 16, -1.0))
    # The texts of a pair are kept apart.
    text, pair = "cats", "cats purr"
    pieces = [
        piece(text, 0, 4, 1.0),
        piece(pair, 0, 3, 2.0, "pair"),
        piece(pair, 3, 4, 4.0, "pair"),
        piece(pair, 5, 9, 8.0, "pair"),
    ]
    assert merge_subwords(pieces, text, pair, signed=True) == (
        Subword("cats", 0, 4, 1.0),
        Subword("cats", 0, 4, 6.0, "pair"),
        Subword("purr", 5, 9, 8.0, "pair"),
    )


@pytest.mark.parametrize(("text", "spans", "words"), WORDS["pieces that are no plain parts of words"])
def test_pieces_that_are_no_plain_parts_of_words(text: str, spans: list[tuple[int, int]], words: list[str]) -> None:
    merged = merge_subwords([piece(text, start, end, 1.0) for start, end in spans], text, None, signed=True)
    assert [word.text for word in merged] == words
    assert sum(word.score for word in merged) == len(spans)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("max_length", [14, 128])
def test_words_of_every_familys_pieces(tiny: Tiny, family: str, max_length: int) -> None:
    tokenizer = load_tokenizer(load_config(overrides={"model.name_or_path": str(tiny(family))}).model)
    text, pair = (
        "The  film wasn't unwatchable\tat 7:45, it\u2019s na\u00efve \U0001f600!",
        "Nobody plays; [SEP] \u65e5",
    )
    rows = rows_of([text], [pair])
    spans = [span for span in encode_with_spans(rows, tokenizer, max_length=max_length)[1][0] if span is not None]
    own = {"text": text, "pair": pair}
    pieces = [Subword(own[where][start:end], start, end, 1.0, where) for where, start, end in spans]
    words = merge_subwords(pieces, text, pair, signed=True)
    assert sum(word.score for word in words) == len(pieces)  # no piece is lost, and none counted twice
    assert all(own[word.within][word.start : word.end] == word.text for word in words)
    for within in own:
        places = [(word.start, word.end) for word in words if word.within == within]
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(places))
    if max_length == 128:
        expected = [*words_in(text), *words_in(pair)]
        assert [word.text for word in words] == expected


# The words that speak for each class over a file: the planted shortcut comes first, and intervals are bootstrap's.


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


def test_every_row_counts_for_both_of_two_classes_and_rare_words_are_left_out() -> None:
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
    # Rare words and punctuation are left out and repetitions summed.
    pieces = (Subword("So", 0, 2, 1.0), Subword("so", 3, 5, 0.5), Subword("!", 5, 6, 9.0))
    row = Explanation("So so!", None, "leave-one-out", "good", 0.9, "good", True, 1, 0.0, "word", "a unit", pieces)
    found = words_by_class([row] * 3 + [explained("good", rare=5.0)], LabelSpace("classification", ("bad", "good")))
    assert [(one.word, one.rows, one.score) for one in found["good"]] == [("so", 3, 1.5)]
