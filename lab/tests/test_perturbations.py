"""Changed copies of texts."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentune_lab.robustness import PERTURBATIONS, label_indicative_words, overlap, words_of
from helpers.tiny_models import rows_of

BY_NAME = {kind.name: kind for kind in PERTURBATIONS}
TEXTS = ["The quick, brown fox doesn't jump!", "", "a b c", "Überraschung: 3.5 points (again)"]
PAIRS = ["A fox jumps.", "nothing here", "c b a", "It was great, great!"]


def changed(name: str, indicative_words: frozenset[str] = frozenset(), seed: int = 1):
    return BY_NAME[name].change(rows_of(TEXTS, PAIRS, [0, 1, 0, 1]), seed, indicative_words)


@pytest.mark.parametrize("name", BY_NAME)
def test_ids_and_labels_stay(name: str) -> None:
    before, after = rows_of(TEXTS, PAIRS, [0, 1, 0, 1]), changed(name, frozenset({"fox"}))
    assert after.ids == before.ids
    assert np.array_equal(after.labels, before.labels)
    assert (after.texts, after.pairs) != (before.texts, before.pairs)


def test_one_text_alone_and_swapped() -> None:
    assert changed("first text only").pairs == ("",) * 4
    assert changed("first text only").texts == tuple(TEXTS)
    assert changed("second text only").texts == ("",) * 4
    assert (changed("swapped").texts, changed("swapped").pairs) == (tuple(PAIRS), tuple(TEXTS))


def test_case_and_punctuation() -> None:
    assert changed("lower case").texts[0] == "the quick, brown fox doesn't jump!"
    assert changed("upper case").texts[3] == "ÜBERRASCHUNG: 3.5 POINTS (AGAIN)"
    assert changed("no punctuation").texts[0] == "The quick brown fox doesn t jump"
    assert changed("no punctuation").texts[3] == "Überraschung 3 5 points again"


@given(st.text(max_size=80), st.integers(0, 5))
def test_a_typo_moves_neighbouring_letters_of_some_words_and_nothing_else(text: str, seed: int) -> None:
    after = BY_NAME["typos"].change(rows_of([text]), seed, frozenset()).texts[0]
    assert Counter(after) == Counter(text)
    moved = [place for place, (a, b) in enumerate(zip(text, after, strict=True)) if a != b]
    long_words = [word for word in words_of(text) if len(word) >= 4]
    assert len(moved) <= 2 * max(1, len(long_words) // 8)
    assert long_words or not moved


def test_typos_are_functions_of_seed_and_row() -> None:
    assert changed("typos").texts == changed("typos").texts
    several = {changed("typos", seed=seed).texts[0] for seed in range(8)}
    assert len(several) > 2


def test_the_word_that_tells_the_label_is_found_and_left_out() -> None:
    texts = [f"the film was {'dull' if n % 2 else 'fine'} word{n} {'and long' if n % 3 else ''}" for n in range(60)]
    rows = rows_of(texts, labels=[n % 2 for n in range(60)])
    assert label_indicative_words(rows, count=2) == {"dull", "fine"}
    after = BY_NAME["label-indicative words removed"].change(rows, 1, frozenset({"dull", "fine"})).texts
    assert after[1] == "the film was word1 and long"
    assert not {"dull", "fine"} & {word for text in after for word in words_of(text)}


def test_for_scores_the_word_that_goes_with_them_is_found() -> None:
    rows = rows_of([f"a {'big' if n >= 30 else 'small'} thing" for n in range(60)], labels=[n / 60 for n in range(60)])
    assert label_indicative_words(rows, count=2) == {"big", "small"}


def test_for_several_labels_the_words_of_any_of_them_are_found() -> None:
    labels = [[n % 2, int(n >= 30)] for n in range(60)]
    rows = rows_of(
        [
            f"a {'big' if late else 'small'} {'red' if odd else 'blue'} thing{n % 7}"
            for n, (odd, late) in enumerate(labels)
        ],
        labels=labels,
    )
    assert label_indicative_words(rows, count=4) == {"big", "small", "red", "blue"}


def test_rare_and_omnipresent_words_tell_nothing() -> None:
    rows = rows_of([f"the{' once' if n == 0 else ''}" for n in range(20)], labels=[int(n == 0) for n in range(20)])
    assert label_indicative_words(rows) == frozenset()


def test_overlap_is_the_share_of_the_second_texts_words() -> None:
    assert overlap("The cat sat", "the cat slept") == pytest.approx(2 / 3)
    assert overlap("anything", "") == 0.0
