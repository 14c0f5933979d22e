"""Labels from masking tokens agree with plain loops over single sentences, for classes, pairs, scores and stars."""

from collections import Counter

import numpy as np
import pytest

from helpers.label_references import probing_labels
from helpers.label_sources import KINDS, Tiny, bag_source, generator, tiny_source, watched
from helpers.tiers import covering


@covering("kind, ratio", KINDS, [0.6, 1.0, 2.0])
def test_flip_is_the_loop(tiny: Tiny, kind: str, ratio: float) -> None:
    source = tiny_source(tiny(), kind, rows=30)
    made = generator("flip", source, ratio=ratio).plan(1)
    expected, facts = probing_labels(source, 1, ratio=ratio)
    assert 0 < facts["flipped"] < facts["correct"] < facts["probed"] == round(ratio * 30)
    assert np.array_equal(made.token_labels.values, expected.astype(np.float32))
    assert np.array_equal(made.token_labels.starts, source.features.starts)
    assert {name: made.facts[name] for name in ("probed", "correct", "flipped")} == facts
    assert made.rows.tolist() == list(range(30))
    assert made.masked is None


def test_only_sentences_that_the_model_is_right_on_are_asked_for_masked() -> None:
    source, scorer = watched(bag_source(100))
    facts = generator("flip", source, ratio=2.0).plan(1).facts
    right = set(np.flatnonzero(scorer.logits(np.arange(100)).argmax(axis=1) == source.gold).tolist())
    assert 50 < len(right) < 100
    assert {row for row, _ in scorer.masked} == right
    assert Counter(Counter(row for row, _ in scorer.masked).values()) == {2: len(right)}
    assert facts["correct"] == len(scorer.masked) == 2 * len(right)
    # Each sentence is asked for as it is once, however often it is masked.
    assert scorer.asked[0] == (list(range(100)), None)
    assert len(scorer.asked) == 3  # the third is this test's own


@pytest.mark.parametrize("ratio", [0.6, 1.0, 2.0, 2.5])
def test_the_ratio_sets_how_often_sentences_are_masked_and_repeats_are_averaged(ratio: float) -> None:
    source, scorer = watched(bag_source(50, wrong_share=0.0))
    made = generator("flip", source, ratio=ratio, mask_share=0.5).plan(3)
    assert made.facts["probed"] == made.facts["correct"] == len(scorer.masked) == round(ratio * 50)
    times = Counter(row for row, _ in scorer.masked)
    assert max(times.values()) == int(np.ceil(ratio))
    assert len(times) == min(50, round(ratio * 50))
    masks = {(row, tuple(places)) for row, places in scorer.masked}
    assert len(masks) >= 0.95 * len(scorer.masked)  # repeats have masks of their own
    for row in range(50):
        seen = Counter(place for own, places in scorer.masked if own == row for place in places)
        labels = made.token_labels.sample(row)
        assert set(np.flatnonzero(labels >= 0)) == set(seen)
        assert all((labels[place] * count) % 1 == pytest.approx(0, abs=1e-6) for place, count in seen.items())
    shares = {float(value) for value in np.unique(made.token_labels.values.round(3)) if value >= 0}
    assert shares >= {0.0, 1.0}
    assert (0.5 in shares) == (ratio > 1)
