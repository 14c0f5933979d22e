"""Labels from masking tokens agree with plain loops over single sentences, for classes, pairs, scores and stars."""

from collections import Counter

import numpy as np
import pytest

from attentune.token_labels import flip as leave_one_out
from attentune.token_labels.corruption import spread_copies
from helpers.label_references import leave_one_out_labels, ordinary, probing_labels, released_samples
from helpers.label_sources import KINDS, Tiny, bag_source, generator, tiny_source, watched

every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@pytest.mark.parametrize("ratio", [0.6, 1.0, 2.0])
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


@pytest.mark.integration
@every_kind
def test_drop_is_the_loop(tiny: Tiny, kind: str) -> None:
    source = tiny_source(tiny(), kind)
    made = generator("drop", source, ratio=2.0, mask_share=0.5).plan(2)
    expected, facts = probing_labels(source, 2, ratio=2.0, mask_share=0.5, soft=True)
    assert len(np.unique(expected.round(4))) > 10
    assert made.token_labels.values == pytest.approx(expected, abs=1e-5)
    assert {name: made.facts[name] for name in ("probed", "correct", "flipped")} == facts


@every_kind
@pytest.mark.parametrize("targets", ["hard", "soft"])
def test_leave_one_out_is_the_loop(tiny: Tiny, kind: str, targets: str) -> None:
    source = tiny_source(tiny(), kind, rows=12)
    made = generator("leave-one-out", source, targets=targets).plan(1)
    expected, facts = leave_one_out_labels(source, range(12), soft=targets == "soft")
    assert 0 < facts["flipped"] < facts["correct"] < facts["probed"] == 12
    tolerance = 1e-5 if targets == "soft" else 0
    assert made.token_labels.values == pytest.approx(expected, abs=tolerance)
    assert {name: made.facts[name] for name in ("probed", "correct", "flipped")} == facts
    # Every ordinary token of a sentence that the model is right on is labelled, and no other.
    assert (made.token_labels.values >= 0).sum() == sum(
        len(ordinary(source, row)) for row in range(12) if made.token_labels.sample(row).max() >= 0
    )


def test_leave_one_out_takes_a_share_below_one_and_every_row_once_above() -> None:
    source, scorer = watched(bag_source(800))
    part = spread_copies(800, 0.25, source.seed, 1)
    made = generator("leave-one-out", source, ratio=0.25).plan(1)
    assert scorer.plain == part.tolist()
    assert made.facts["probed"] == 200
    labelled = {row for row in range(800) if made.token_labels.sample(row).max() >= 0}
    assert 130 < len(labelled) == made.facts["correct"] < 200
    assert labelled < set(part.tolist())
    scorer.asked.clear()
    whole, more = (generator("leave-one-out", source, ratio=ratio).plan(1) for ratio in (1.0, 3.0))
    assert scorer.plain == [*range(800), *range(800)]
    assert len(scorer.asked) == 6  # each time once as they are, and the masked ones in two parts
    assert whole.facts == more.facts
    assert np.array_equal(whole.token_labels.values, more.token_labels.values)
    for row in labelled:
        assert np.array_equal(whole.token_labels.sample(row), made.token_labels.sample(row))


def test_released_keeps_what_the_loop_keeps(tiny: Tiny) -> None:
    source = tiny_source(tiny(), "pair", rows=40)
    made = generator("released", source, aug_ratio_each=0.2).plan(2)
    kept = released_samples(source, 2, wanted=16)
    assert made.rows[:16].tolist() == [row for row, _ in kept]
    assert 0 < made.facts["flipped"] < made.facts["correct"] < made.facts["probed"]
    for number, (row, places) in enumerate(kept):
        expected = np.where(source.features.special[source.features.row(row)], -1.0, 1.0)
        expected[places] = 0.0
        assert made.token_labels.sample(number).tolist() == expected.tolist()
    assert sum(len(places) for _, places in kept) > 10


@pytest.mark.parametrize("name", ["flip", "drop"])
def test_only_sentences_that_the_model_is_right_on_are_asked_for_masked(name: str) -> None:
    source, scorer = watched(bag_source(100))
    facts = generator(name, source, ratio=2.0).plan(1).facts
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


@pytest.mark.parametrize("rows_at_once", [1, 3, 8, 1000])
def test_leave_one_out_does_not_depend_on_how_many_rows_are_asked_at_once(monkeypatch, rows_at_once):
    source, scorer = watched(bag_source(20))
    usual = generator("leave-one-out", source).plan(1)
    asked = len(scorer.masked)
    monkeypatch.setattr(leave_one_out, "_ROWS_AT_ONCE", rows_at_once)
    made = generator("leave-one-out", source).plan(1)
    assert np.array_equal(made.token_labels.values, usual.token_labels.values)
    assert made.facts == usual.facts
    assert 1 < usual.facts["flipped"] < usual.facts["correct"]
    assert len(scorer.masked) == 2 * asked
