"""Masks and spans: shares of the non-special tokens, in spans as the released program draws them, by their key."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentune.token_labels import corruption
from attentune.token_labels.corruption import copy_numbers, random_mask, random_spans, spread_copies
from helpers.label_references import released_spans
from helpers.label_sources import features_of
from helpers.tiers import leading


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
    spans = random_spans(features, 0, chance=0.2, rm_threshold=0.7, key=(42, 1, 0))
    assert spans.tolist() == [2, 3, 4, 6, 17, 20]
    assert spread_copies(10, 0.4, 42, 1).tolist() == [1, 4, 5, 8]
    assert spread_copies(0, 0.4, 42, 1).tolist() == []


# Random spans as the released program draws them: in quarters of each text, of one to three tokens


class Scripted:
    """Gives these arrays one after the other in place of random numbers."""

    def __init__(self, *draws: list[float]) -> None:
        self._draws = list(draws)

    def random(self, size: int) -> np.ndarray:
        drawn = np.array(self._draws.pop(0), dtype=float)
        assert len(drawn) == size
        return drawn


def spans_by_hand(
    row: str, starting: dict[int, tuple[float, float]], *, chance: float = 0.1, rm_threshold: float = 0.7
) -> list[int]:
    """The masked places if these words start spans, each with (where in the quarter, p of the length)."""
    count = row.count("o")
    script = Scripted(
        [chance / 2 if token in starting else chance for token in range(count)],
        [starting[token][0] for token in sorted(starting)],
        [starting[token][1] for token in sorted(starting)],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corruption, "numpy_generator", lambda *key: script)
        return random_spans(features_of(row), 0, chance=chance, rm_threshold=rm_threshold, key=(1,)).tolist()


SEVENTEEN = "s" + "o" * 17 + "s"  # quarters of the tokens begin at 0, 4, 8 and 12, at the places 1, 5, 9 and 13


@pytest.mark.parametrize(
    ("starting", "places"),
    [
        ({}, []),
        ({4: (0.75, 0.71)}, [6, 7, 8]),  # the second quarter's last token and two to its left
        ({7: (0.99, 0.69)}, [7, 8]),  # wherever in the quarter it started
        ({7: (0.99, 0.70)}, [8]),  # 0.7 itself is neither above nor below
        ({5: (0.99, 0.41)}, [7, 8]),
        ({5: (0.99, 0.39)}, [8]),
        ({5: (0.99, 0.0)}, [8]),
        ({5: (0.0, 0.99)}, [5]),  # too near to the quarter's start: one token, not a cut span
        ({5: (0.26, 0.99)}, [6]),
        ({5: (0.26, 0.5)}, [5, 6]),
        ({16: (0.99, 0.99)}, [15, 16, 17]),  # the last quarter has the last token
        ({0: (0.75, 0.9), 1: (0.5, 0.1), 16: (0.0, 0.5)}, [2, 3, 4, 13]),  # overlapping spans are one
    ],
)
def test_spans_by_hand(starting: dict[int, tuple[float, float]], places: list[int]) -> None:
    assert spans_by_hand(SEVENTEEN, starting) == places


def test_the_threshold_sets_the_lengths() -> None:
    lengths = [len(spans_by_hand(SEVENTEEN, {8: (0.99, p)}, rm_threshold=0.9)) for p in (0.91, 0.9, 0.81, 0.8, 0.1)]
    assert lengths == [3, 1, 2, 1, 1]


def test_each_text_of_a_pair_has_quarters_of_its_own() -> None:
    row = "s" + "o" * 9 + "s" + "o" * 17 + "s"  # texts at 1 to 9 and 11 to 27
    assert spans_by_hand(row, {8: (0.99, 0.99)}) == [7, 8, 9]
    assert spans_by_hand(row, {9: (0.99, 0.99)}) == [12, 13, 14]  # the second text's first token
    assert spans_by_hand(row, {25: (0.99, 0.99)}) == [25, 26, 27]


@given(st.text("so", min_size=1, max_size=40), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**40))
def test_spans_are_ordinary_tokens_and_a_function_of_the_key(row, chance, rm_threshold, seed):
    features = features_of("ooss", row, "so")
    places = random_spans(features, 1, chance=chance, rm_threshold=rm_threshold, key=(seed, 1))
    assert places.tolist() == sorted(set(places.tolist()))
    assert {row[place] for place in places} <= {"o"}
    alone = random_spans(features_of(row), 0, chance=chance, rm_threshold=rm_threshold, key=(seed, 1))
    assert np.array_equal(places, alone)
    assert chance > 0 or len(places) == 0
    assert chance < 1 or len(places) > 0 or max(map(len, row.split("s"))) <= 1


@leading("length, mean", [(24, 3.45), (4, 0.10), (12, 1.34)])
def test_draws_are_distributed_as_those_of_a_plain_loop(length: int, mean: float) -> None:
    check_distribution(length, mean, draws=4_000)


def check_distribution(length: int, mean: float, *, draws: int) -> None:
    """Numbers of masked tokens and their positions: means and shares within five standard errors of each other."""
    features, random = features_of("o" * length), np.random.RandomState(1)
    ours, theirs = np.zeros((2, draws, length), dtype=bool)
    for seed in range(draws):
        ours[seed, random_spans(features, 0, chance=0.1, rm_threshold=0.7, key=(seed, 1))] = True
        theirs[seed, sorted(released_spans(length, random))] = True
    counts = [part.sum(axis=1) for part in (ours, theirs)]
    error = np.hypot(*(part.std() for part in counts)) / np.sqrt(draws)
    assert counts[0].mean() == pytest.approx(mean, abs=0.01 + 5 * error)
    assert counts[0].mean() == pytest.approx(counts[1].mean(), abs=5 * error)
    for first, second in ((ours, theirs), *(tuple(one[:, None] == n for one in counts) for n in range(7))):
        share_P = (first.mean(axis=0) + second.mean(axis=0)) / 2
        errors_P = np.sqrt(2 * share_P * (1 - share_P) / draws)
        assert (np.abs(first.mean(axis=0) - second.mean(axis=0)) <= 5 * errors_P + 1e-9).all()
