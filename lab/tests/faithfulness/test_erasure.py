"""Orders of tokens, what erasing in them does, beside plain loops, and the best and worst order there is."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentune.data.tokenization import Features
from attentune.explain.explainer import Explainer
from attentune_lab.faithfulness.measure import (
    ERASURES,
    SHARES,
    Eraser,
    NaopcBounds,
    find_naopc_bounds,
    mean_drops,
    probability_drops,
    ranked,
    top_counts,
    without_tokens,
)
from helpers.explain_references import OneText, chances
from helpers.tiny import FAMILIES
from helpers.tiny_runs import rows_for, tiny_run

Tiny = Callable[..., Path]


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=9), st.integers(0, 3))
def test_high_scores_come_first_and_all_places_come_once(scores: list[int], seed: int) -> None:
    places = np.arange(2, 2 + len(scores))
    order = ranked(np.array([0, 0, *scores], dtype=np.float32), places, seed)
    assert sorted(order) == places.tolist()
    found = [scores[place - 2] for place in order]
    assert found == sorted(scores, reverse=True)


def test_equal_scores_come_by_lot() -> None:
    orders = [ranked(np.zeros(6), np.arange(6), 0, row) for row in range(300)]
    assert np.mean(orders, axis=0) == pytest.approx(np.full(6, 2.5), abs=0.35)
    assert np.array_equal(orders[0], ranked(np.zeros(6), np.arange(6), 0, 0))


@pytest.mark.parametrize(
    ("count", "expected"), [(1, [1] * 5), (10, [1, 1, 1, 2, 5]), (30, [1, 2, 3, 6, 15]), (100, [1, 5, 10, 20, 50])]
)
def test_shares_are_rounded_up(count: int, expected: list[int]) -> None:
    assert top_counts(count) == expected


@pytest.mark.integration
@pytest.mark.parametrize("erasure", ERASURES)
@pytest.mark.parametrize("kind", ["classification", "bi-encoder"])
def test_falls_are_those_of_the_loop(tiny: Tiny, kind: str, erasure: str) -> None:
    run, every = tiny_run(tiny(), kind), rows_for(kind)
    rows = every.take([0, 1, 3, 4])
    explainer = Explainer(run, rows)
    scorer, draw = explainer.scorer, np.random.default_rng(1)
    orders = [draw.permutation(scorer.features.non_special_positions(row)) for row in range(len(rows))]
    targets = np.array([1, 0, 1, 0])
    with scorer.evaluating():
        found = probability_drops(Eraser(scorer, erasure), np.arange(4), orders, targets)
    for row, order in enumerate(orders):
        text, target = OneText(run, rows, row), targets[row]
        whole = chances(text, (), erasure)[target]
        for place, share in enumerate(SHARES):
            count = max(1, math.ceil(share * len(order) - 1e-9))
            without = chances(text, order[:count].tolist(), erasure)[target]
            only = chances(text, order[count:].tolist(), erasure)[target]
            assert found.comprehensiveness[row, place] == pytest.approx(whole - without, abs=1e-5)
            assert found.sufficiency[row, place] == pytest.approx(whole - only, abs=1e-5)


@pytest.mark.parametrize("erasure", ERASURES)
def test_a_wide_beam_finds_the_limits_of_all_orders(tiny: Tiny, erasure: str) -> None:
    run, rows = tiny_run(tiny()), rows_for("classification", 4).take([1, 3])
    scorer = Explainer(run, rows).scorer
    places = [scorer.features.non_special_positions(0)[:3], scorer.features.non_special_positions(1)[1:6]]
    numbers, targets = np.arange(2), np.array([1, 0])
    with scorer.evaluating():
        eraser = Eraser(scorer, erasure)
        limits = find_naopc_bounds(eraser, numbers, places, targets, beam=10)
        narrow = find_naopc_bounds(eraser, numbers, places, targets, beam=1)
        forwards = mean_drops(eraser, numbers, places, targets)
    for row, own in enumerate(places):
        text = OneText(run, rows, row)
        known = {
            frozenset(gone): chances(text, gone, erasure)[targets[row]]
            for count in range(len(own) + 1)
            for gone in itertools.combinations(own.tolist(), count)
        }
        means = {
            order: np.mean([known[frozenset()] - known[frozenset(order[:size])] for size in range(1, len(order) + 1)])
            for order in itertools.permutations(own.tolist())
        }
        assert limits.upper_N[row] == pytest.approx(max(means.values()), abs=1e-5)
        assert limits.lower_N[row] == pytest.approx(min(means.values()), abs=1e-5)
        assert forwards[row] == pytest.approx(means[tuple(own.tolist())], abs=1e-5)
        assert limits.lower_N[row] <= narrow.lower_N[row] <= narrow.upper_N[row] <= limits.upper_N[row]
    shares = limits.normalised(forwards)
    assert np.all((shares >= -1e-6) & (shares <= 1 + 1e-6))


def test_where_no_order_matters_there_is_no_normalised_form() -> None:
    found = NaopcBounds(np.array([0.2, 0.0]), np.array([0.2, 0.5])).normalised(np.array([0.2, 0.25]))
    assert math.isnan(found[0])
    assert found[1] == pytest.approx(0.5)


# Erasing by mask, deletion and attention is what a plain loop over single texts does.


def questions(places: list[np.ndarray], seed: int = 0) -> tuple[np.ndarray, list[np.ndarray]]:
    """Rows, and tokens of theirs to erase: none, one, some, all."""
    draw = np.random.default_rng(seed)
    rows, erased = [], []
    for row, own in enumerate(places):
        for count in {0, min(1, len(own)), len(own) // 2, len(own)}:
            rows.append(row)
            erased.append(draw.permutation(own)[:count])
    return np.array(rows), erased


@pytest.mark.parametrize("erasure", ERASURES)
@pytest.mark.parametrize("kind", ["classification", "pair", "bi-encoder", "ordinal"])
def test_probabilities_are_those_of_the_loop(tiny: Tiny, kind: str, erasure: str) -> None:
    run, rows = tiny_run(tiny(), kind), rows_for(kind)
    scorer = Explainer(run, rows).scorer
    asked, erased = questions([scorer.features.non_special_positions(row) for row in range(len(rows))])
    with scorer.evaluating():
        found = Eraser(scorer, erasure).probabilities(asked, erased)
    texts = [OneText(run, rows, row) for row in range(len(rows))]
    for row, gone, own in zip(asked, erased, found, strict=True):
        assert own == pytest.approx(chances(texts[row], gone.tolist(), erasure), abs=1e-5)
    assert np.ptp(found) > 0.05  # there is something to compare


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_forgets_what_attention_does_not_see(tiny: Tiny, family: str) -> None:
    """Whatever word stands at a hidden place, the answer is the same."""
    run, rows = tiny_run(tiny(family)), rows_for("classification", 2)
    answers = []
    for change in (0, 7):
        scorer = Explainer(run, rows).scorer
        gone = scorer.features.non_special_positions(0)[2:4]
        scorer.features.ids[gone] = scorer.features.ids[gone] + change
        with scorer.evaluating():
            answers.append(Eraser(scorer, "attention").probabilities([0, 0], [gone, gone[:1]]))
    assert answers[0][0] == pytest.approx(answers[1][0], abs=1e-6)
    assert answers[0][1] != pytest.approx(answers[1][1], abs=1e-6)


@pytest.mark.parametrize("erasure", ERASURES)
def test_each_erased_row_is_asked_once(tiny: Tiny, erasure: str) -> None:
    scorer = Explainer(tiny_run(tiny()), rows_for("classification", 1)).scorer
    eraser = Eraser(scorer, erasure)
    first, second = np.array([3, 1]), np.array([1, 3])
    with scorer.evaluating():
        found = eraser.probabilities([0, 0, 0], [first, second, first[:1]])
        assert eraser.predicted == 2
        assert np.array_equal(found[0], found[1])
        assert np.array_equal(eraser.probabilities([0], [second])[0], found[0])
        assert eraser.predicted == 2
        assert eraser.probabilities([], []).shape == (0, 2)
    assert first.tolist() == [3, 1]


@st.composite
def some_features(draw: st.DrawFn) -> tuple[Features, np.ndarray, list[np.ndarray]]:
    lengths = draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    seconds = np.array([draw(st.integers(0, length)) for length in lengths])
    features = Features(
        ids=np.arange(starts[-1], dtype=np.int32),
        type_ids=(np.arange(starts[-1]) % 2).astype(np.int8),
        special=np.arange(starts[-1]) % 3 == 0,
        starts=starts,
        full_lengths=np.diff(starts),
        second_starts=seconds if draw(st.booleans()) else None,
    )
    rows = draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=5))
    gone = [np.array(sorted(draw(st.sets(st.integers(0, lengths[row] - 1)))), dtype=np.int64) for row in rows]
    return features, np.array(rows), gone


@given(some_features())
def test_deleting_leaves_the_other_tokens_in_order(case: tuple[Features, np.ndarray, list[np.ndarray]]) -> None:
    features, rows, gone = case
    found = without_tokens(features, rows, gone)
    assert len(found) == len(rows)
    for number, (row, own) in enumerate(zip(rows, gone, strict=True)):
        kept = [place for place in range(features.lengths[row]) if place not in own]
        for name in ("ids", "type_ids", "special"):
            before, after = getattr(features, name)[features.row(int(row))], getattr(found, name)[found.row(number)]
            assert after.tolist() == [before[place] for place in kept]
        if features.second_starts is not None:
            assert found.second_starts[number] == sum(place < features.second_starts[row] for place in kept)
