"""Masks: shares of the non-special tokens, by their key."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from attentune.token_labels.flip import copy_numbers, random_mask, spread_copies
from helpers.label_sources import features_of


@given(st.text("so", min_size=1, max_size=40), st.floats(0, 1), st.integers(0, 2**40))
def test_a_mask_is_a_share_of_the_ordinary_tokens(row: str, share: float, seed: int) -> None:
    features = features_of("ooss", row, "so")
    places = random_mask(features, 1, share, seed, 1)
    ordinary = [place for place, mark in enumerate(row) if mark == "o"]
    expected = max(1, round(share * len(ordinary))) if share > 0 and ordinary else 0
    assert len(places) == expected
    assert places.dtype == np.int64
    assert places.tolist() == sorted(set(places.tolist()))
    assert set(places.tolist()) <= set(ordinary)


def test_a_mask_is_a_function_of_the_key_alone() -> None:
    features = features_of("s" + "o" * 30 + "s")
    first = random_mask(features, 0, 0.3, 42, 1, 5, 0)
    random_mask(features, 0, 0.3, 1)
    np.random.seed(3)
    assert np.array_equal(random_mask(features, 0, 0.3, 42, 1, 5, 0), first)
    others = [(43, 1, 5, 0), (42, 2, 5, 0), (42, 1, 6, 0), (42, 1, 5, 1)]
    assert all(not np.array_equal(random_mask(features, 0, 0.3, *key), first) for key in others)


@given(st.integers(0, 60), st.floats(0, 5), st.integers(0, 2**40))
def test_copies_are_spread_evenly(rows: int, ratio: float, seed: int) -> None:
    copies = spread_copies(rows, ratio, seed)
    assert len(copies) == round(ratio * rows)
    assert copies.dtype == np.int64
    assert copies.tolist() == sorted(copies.tolist())
    counts = np.bincount(copies, minlength=rows)
    assert len(counts) == rows
    assert not rows or counts.max() - counts.min() <= 1


def test_copies_of_a_row_are_numbered_from_zero() -> None:
    assert copy_numbers(np.array([0, 0, 0, 2, 5, 5])).tolist() == [0, 1, 2, 0, 0, 1]
    assert copy_numbers(np.zeros(0, dtype=np.int64)).tolist() == []


def test_a_key_stands_for_the_same_draws_in_every_version() -> None:
    """A run begun with one release goes on with the next: these numbers may change with a major version only."""
    features = features_of("s" + "o" * 20 + "s")
    assert random_mask(features, 0, 0.2, 42, 1, 0, 0).tolist() == [3, 4, 7, 12]
    assert spread_copies(10, 0.4, 42, 1).tolist() == [1, 4, 5, 8]
    assert spread_copies(0, 0.4, 42, 1).tolist() == []
