"""Random spans as the released program draws them: in quarters, of one to three tokens, cut at the quarter's start."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attentune.token_labels import masking
from attentune.token_labels.masking import random_spans
from helpers.label_sources import features_of


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
        patch.setattr(masking, "numpy_generator", lambda *key: script)
        return random_spans(features_of(row), 0, chance=chance, rm_threshold=rm_threshold, key=(1,)).tolist()


SIXTEEN = "s" + "o" * 16 + "s"  # quarters begin at the places 1, 5, 9 and 13


@pytest.mark.parametrize(
    ("starting", "places"),
    [
        ({}, []),
        ({4: (0.75, 0.71)}, [6, 7, 8]),  # the second quarter's last token and two to its left
        ({7: (0.99, 0.70)}, [7, 8]),  # wherever in the quarter it started; 0.7 itself is not above
        ({5: (0.99, 0.41)}, [7, 8]),
        ({5: (0.99, 0.39)}, [8]),
        ({5: (0.99, 0.0)}, [8]),
        ({5: (0.0, 0.99)}, [5]),  # cut at the quarter's start
        ({5: (0.26, 0.99)}, [5, 6]),
        ({0: (0.5, 0.9), 1: (0.5, 0.1), 15: (0.0, 0.5)}, [1, 2, 3, 13]),  # overlapping spans are one
    ],
)
def test_spans_by_hand(starting: dict[int, tuple[float, float]], places: list[int]) -> None:
    assert spans_by_hand(SIXTEEN, starting) == places


def test_the_threshold_sets_the_lengths() -> None:
    lengths = [len(spans_by_hand(SIXTEEN, {8: (0.99, p)}, rm_threshold=0.9)) for p in (0.91, 0.9, 0.81, 0.8, 0.1)]
    assert lengths == [3, 2, 2, 1, 1]


def test_spans_count_ordinary_tokens_only_and_leave_special_ones() -> None:
    row = "s" + "oo" + "s" + "oooooo" + "s"  # eight non-special tokens at 1, 2, 4 .. 9: quarters of two
    assert spans_by_hand(row, {0: (0.99, 0.99), 2: (0.99, 0.99)}) == [1, 2, 4, 5]


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 40), st.data())
def test_a_span_stays_in_the_quarter_of_the_token_that_started_it(count: int, data: st.DataObject) -> None:
    token = data.draw(st.integers(0, count - 1))
    where, p = data.draw(st.floats(0, 1, exclude_max=True)), data.draw(st.floats(0, 1, exclude_max=True))
    chosen = spans_by_hand("o" * count, {token: (where, p)})
    assert 1 <= len(chosen) <= 3
    assert chosen == list(range(chosen[0], chosen[-1] + 1))
    assert {4 * place // count for place in chosen} == {4 * token // count}


@settings(max_examples=200, deadline=None)
@given(st.text("so", min_size=1, max_size=40), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**40))
def test_spans_are_ordinary_tokens_and_a_function_of_the_key(
    row: str, chance: float, rm_threshold: float, seed: int
) -> None:
    features = features_of("ooss", row, "so")
    places = random_spans(features, 1, chance=chance, rm_threshold=rm_threshold, key=(seed, 1))
    assert places.tolist() == sorted(set(places.tolist()))
    assert {row[place] for place in places} <= {"o"}
    alone = random_spans(features_of(row), 0, chance=chance, rm_threshold=rm_threshold, key=(seed, 1))
    assert np.array_equal(places, alone)
    assert chance > 0 or len(places) == 0
    assert chance < 1 or len({4 * row[:place].count("o") // row.count("o") for place in places}) == min(
        4, row.count("o")
    )


def test_ends_lengths_and_numbers_of_spans_are_distributed_as_released() -> None:
    features = features_of("o" * 8)
    draws = [
        random_spans(features, 0, chance=0.1, rm_threshold=0.7, key=(seed, 1, 0)).tolist() for seed in range(12000)
    ]
    assert sum(not places for places in draws) / len(draws) == pytest.approx(0.9**8, abs=0.015)
    # Quarters of two tokens. A span masks the first where it ends there (a half), both where it ends at the second and
    # is longer than one (half x 0.6), else the second; one of the tokens starts a span, or both do.
    pairs = Counter(tuple(place for place in places if place < 2) for places in draws)
    both_of_one, first_of_one, second_of_one = 0.5 * 0.6, 0.5, 0.5 * 0.4
    one, two = 2 * 0.1 * 0.9, 0.1 * 0.1
    assert pairs[0,] / len(draws) == pytest.approx(one * first_of_one + two * first_of_one**2, abs=0.01)
    assert pairs[1,] / len(draws) == pytest.approx(one * second_of_one + two * second_of_one**2, abs=0.007)
    both = two * (1 - first_of_one**2 - second_of_one**2)
    assert pairs[0, 1] / len(draws) == pytest.approx(one * both_of_one + both, abs=0.009)


@pytest.mark.integration
def test_of_uncut_spans_three_in_ten_have_three_tokens_and_three_two() -> None:
    features = features_of("o" * 40)  # a start in 500 tokens: nearly always one span a text
    draws = [random_spans(features, 0, chance=0.002, rm_threshold=0.7, key=(seed, 2)) for seed in range(25000)]
    spans = [places for places in draws if len(places) and places[-1] % 10 >= 2 and places[-1] - places[0] < 3]
    lengths = Counter(map(len, spans))
    assert lengths.keys() == {1, 2, 3}
    assert [lengths[size] / len(spans) for size in (1, 2, 3)] == pytest.approx([0.4, 0.3, 0.3], abs=0.05)
    ends = np.bincount([places[-1] // 10 for places in spans], minlength=4) / len(spans)
    assert ends == pytest.approx(np.full(4, 0.25), abs=0.05)
