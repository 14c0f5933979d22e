"""Erasing by mask, deletion and attention is what a plain loop over single texts does."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentune.data.tokenization import Features
from attentune.explain.explainer import Explainer
from attentune_lab.faithfulness.measure import ERASURES, Eraser, without_tokens
from helpers.explain_references import OneText, chances
from helpers.tiny import FAMILIES
from helpers.tiny_runs import rows_for, tiny_run

Tiny = Callable[..., Path]


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
