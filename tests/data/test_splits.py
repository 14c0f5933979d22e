"""Stratified parts: the right size, the right balance, the file's order, and nothing but the key decides."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from attentune.data.splits import stratified_sample, stratified_split

class_labels = st.lists(st.integers(0, 4), min_size=1, max_size=60).map(lambda values: np.array(values, dtype=np.int64))


@settings(deadline=None)
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


def test_a_rare_class_is_not_lost() -> None:
    labels = np.repeat([0, 1], [9999, 1])
    assert 1 in labels[stratified_sample(labels, 10, 3)]


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


@settings(deadline=None)
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
