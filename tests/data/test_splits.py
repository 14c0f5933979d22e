"""Stratified parts: the right size, the right balance, the file's order, and nothing but the key decides."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from attentune.data.splits import (
    fold_rows,
    normalised,
    row_groups,
    split_rows,
    stratified_folds,
    stratified_sample,
    stratified_split,
)
from helpers.samples import make_rows

class_labels = st.lists(st.integers(0, 4), min_size=1, max_size=60).map(lambda values: np.array(values, dtype=np.int64))


@given(labels=class_labels, size=st.integers(1, 70))
def test_a_part_has_its_size_balance_and_order(labels: np.ndarray, size: int) -> None:
    places = stratified_sample(labels, size, 1)
    size = min(size, len(labels))
    assert len(places) == size
    assert np.all(np.diff(places) > 0)
    classes, counts = np.unique(labels, return_counts=True)
    taken = np.array([np.count_nonzero(labels[places] == label) for label in classes])
    assert np.all(taken <= counts)
    if size >= len(classes):
        assert np.all(taken >= 1)
    # Within one row of the exact share, but for the rows that the least of one a class moves about.
    assert np.all(np.abs(taken - counts * size / len(labels)) < 1 + len(classes))


def test_shares_are_exact_where_they_can_be() -> None:
    labels = np.repeat([0, 1, 2], [600, 300, 100])
    assert np.bincount(labels[stratified_sample(labels, 100, 3)]).tolist() == [60, 30, 10]
    assert np.bincount(labels[stratified_sample(labels, 10, 3)]).tolist() == [6, 3, 1]


def test_only_the_key_decides() -> None:
    labels = np.arange(1000) % 3
    first = stratified_sample(labels, 50, 1, "train")
    np.random.default_rng(0).random(5)
    assert np.array_equal(first, stratified_sample(labels, 50, 1, "train"))
    assert not np.array_equal(first, stratified_sample(labels, 50, 2, "train"))
    assert not np.array_equal(first, stratified_sample(labels, 50, 1, "validation"))


def test_scores_keep_their_spread() -> None:
    scores = np.linspace(0.0, 5.0, 1000)
    part = scores[stratified_sample(scores, 100, 1)]
    tenths = np.histogram(part, bins=10, range=(0, 5))[0]
    assert np.all(np.abs(tenths - 10) <= 1)
    constant = stratified_sample(np.zeros(20), 5, 1)
    assert len(constant) == 5


def test_without_labels_all_rows_count_alike() -> None:
    places = stratified_sample(None, 10, 1, num_rows=100)
    assert len(np.unique(places)) == 10
    assert places.max() < 100
    assert not np.array_equal(places, np.arange(10))


@given(labels=class_labels.filter(lambda values: len(values) > 1), share=st.floats(0.001, 0.9), seed=st.integers(0, 9))
def test_a_cut_loses_nothing_and_keeps_every_class_in_the_first_part(
    labels: np.ndarray, share: float, seed: int
) -> None:
    first, second = stratified_split(labels, share, seed)
    assert np.array_equal(np.sort(np.concatenate([first, second])), np.arange(len(labels)))
    assert len(first) >= 1
    assert len(second) >= 1
    if np.bincount(labels).max() > 1:
        assert set(labels[first]) == set(labels)
    assert np.all(np.diff(first) > 0)
    assert np.all(np.diff(second) > 0)


def test_a_cut_has_the_share_and_the_balance() -> None:
    labels = np.repeat([0, 1], [800, 200])
    first, second = stratified_split(labels, 0.1, 42)
    assert np.bincount(labels[second]).tolist() == [80, 20]
    assert np.bincount(labels[first]).tolist() == [720, 180]
    assert not np.array_equal(second, stratified_split(labels, 0.1, 43)[1])


def overlap(rows, first, second):
    keys = [tuple(map(normalised, row)) for row in zip(rows.texts, rows.pairs or rows.texts, strict=True)]
    return {keys[place] for place in first} & {keys[place] for place in second}


WORDS = st.lists(st.sampled_from("abcdefghijkl"), min_size=1, max_size=3).map(" ".join)


@given(
    drawn=st.lists(st.tuples(WORDS, WORDS, st.integers(0, 2)), min_size=2, max_size=40),
    share=st.floats(0.05, 0.5),
    is_pair=st.booleans(),
)
def test_equal_texts_are_on_one_side_unless_the_note_warns(drawn, share, is_pair):
    texts, pairs, labels = zip(*drawn, strict=True)
    rows = make_rows(texts, labels, pairs if is_pair else None)
    first, second, note = split_rows(rows, share, 1)
    assert sorted([*first, *second]) == list(range(len(rows)))
    assert len(first) >= 1
    assert len(second) >= 1
    assert not overlap(rows, first, second) or "Warning" in note
    if len(set(row_groups(rows, largest=1.0))) == len(rows):
        plain = stratified_split(rows.labels, share, 1)
        assert note == ""
        assert np.array_equal(second, plain[1])


def test_a_grouped_cut_has_the_share_and_the_balance():
    words = [f"{first}{second}" for first in "abcdefghijklmnopqrst" for second in "abcdefghij"]
    texts = [f"{word} {word}x" for word in words for _ in range(1 + hash_of(word) % 4)]
    labels = [hash_of(text) % 3 // 2 for text in texts]
    rows = make_rows(texts, labels)
    first, second, note = split_rows(rows, 0.2, 1)
    assert not overlap(rows, first, second)
    assert "stay together" in note
    shares = np.bincount(rows.labels[second]) / np.bincount(rows.labels)
    assert np.abs(shares - 0.2).max() < 0.02
    folds, _ = fold_rows(rows, 5, 1)
    assert sorted(np.concatenate(folds)) == list(range(len(rows)))
    for fold in folds:
        assert not overlap(rows, fold, np.setdiff1d(np.arange(len(rows)), fold))
        shares = np.bincount(rows.labels[fold]) / np.bincount(rows.labels)
        assert np.abs(shares - 0.2).max() < 0.02


def hash_of(text):
    return sum(place * ord(sign) for place, sign in enumerate(text, start=3)) // 3


def test_invisible_differences_case_and_the_order_of_pairs_do_not_separate_rows():
    twins = ["caf\u00e9 au lait", "Cafe\u0301  au\u200b lait\n"]
    others = [f"{word} {word}" for word in "bcdefghijklmnopqrstuvwxyz"]
    groups = row_groups(make_rows([*twins, *others], [0, 1] * 13 + [0]))
    assert groups[0] == groups[1]
    assert len(set(groups)) == 26
    swapped = row_groups(make_rows(["a b", "C", *others], [0, 1] * 13 + [0], ["c", "A B", *map(str.upper, others)]))
    assert swapped[0] == swapped[1]
    assert len(set(swapped)) == 26


def test_texts_that_cannot_be_separated_are_split_plainly_with_a_warning():
    rows = make_rows(["same"] * 20, [0, 1] * 10)
    first, second, note = split_rows(rows, 0.2, 1)
    assert np.array_equal(second, stratified_split(rows.labels, 0.2, 1)[1])
    assert "Warning: 20 rows (100.0 %)" in note
    folds, note = fold_rows(rows, 4, 1)
    assert [*map(len, folds)] == [5] * 4
    assert "Warning" in note
    # One text for most of the rows: it stays in the first part.
    rows = make_rows(["same"] * 15 + [*"abcde"], [0, 1] * 10)
    first, second, note = split_rows(rows, 0.2, 1)
    assert not overlap(rows, first, second)
    assert {rows.texts[place] for place in second} <= set("abcde")
    # Each text has a class of its own, which no part may lose.
    rows = make_rows(["no"] * 10 + ["yes"] * 10, [0] * 10 + [1] * 10)
    first, second, note = split_rows(rows, 0.2, 1)
    assert np.bincount(rows.labels[first]).tolist() == [8, 8]
    assert "Warning" in note


def test_folds_without_equal_texts_are_those_without_groups():
    rows = make_rows([f"{word}{word}" for word in "abcdefghijklmnopqrstuvwxyz"], [0, 1] * 13)
    folds, note = fold_rows(rows, 5, "folds", 1)
    assert all(map(np.array_equal, folds, stratified_folds(rows.labels, 5, "folds", 1)))
    assert note == ""
