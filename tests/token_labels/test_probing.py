"""Labels from masking tokens agree with plain loops over single sentences, for classes, pairs, scores and stars."""

import math
from collections import Counter

import numpy as np
import pytest
import torch

from attentune.token_labels import flip as leave_one_out
from attentune.token_labels.attribution import TrainingPredictions
from attentune.token_labels.base import LabelGenerator, LabelSource
from attentune.token_labels.corruption import spread_copies
from attentune.token_labels.flip import predict_masked_copies
from helpers.label_references import leave_one_out_labels, ordinary, probing_labels, released_samples
from helpers.label_sources import KINDS, Tiny, bag_answer, bag_source, generator, tiny_source, watched
from helpers.tiers import covering

every_kind = pytest.mark.parametrize("kind", KINDS)


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


@pytest.mark.integration
@every_kind
def test_drop_is_the_loop(tiny: Tiny, kind: str) -> None:
    source = tiny_source(tiny(), kind)
    made = generator("drop", source, ratio=2.0, mask_share=0.5).plan(2)
    expected, facts = probing_labels(source, 2, ratio=2.0, mask_share=0.5, soft=True)
    assert len(np.unique(expected.round(4))) > 10
    assert made.token_labels.values == pytest.approx(expected, abs=1e-5)
    assert {name: made.facts[name] for name in ("probed", "correct", "flipped")} == facts


@covering("kind, targets", KINDS, ["hard", "soft"])
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


# Reusing training-time predictions saves forward passes and changes almost no labels


def tell(maker: LabelGenerator, right_N: np.ndarray) -> None:
    """Show the generator a training pass that was right on these rows, in batches of an odd size."""
    gold = maker.source.gold
    for begin in range(0, len(gold), 7):
        rows = np.arange(begin, min(begin + 7, len(gold)))
        said = np.where(right_N[rows], gold[rows], 1 - gold[rows])
        maker.on_backward(rows, {}, torch.nn.functional.one_hot(torch.as_tensor(said), 2).float())


def right_now(source: LabelSource) -> np.ndarray:
    rows = np.arange(len(source.features))
    return source.scorer.logits(rows).argmax(axis=1) == source.gold


def mistaken(source: LabelSource, share: float = 0.4) -> np.ndarray:
    """A training pass that errs on a share of the rows, both ways."""
    wrong = np.random.default_rng(3).random(len(source.features)) < share
    return right_now(source) ^ wrong


@pytest.mark.parametrize("ratio", [0.6, 1.0, 2.0])
def test_flip_is_the_loop_with_the_same_rows_believed(ratio: float) -> None:
    source = bag_source(300)
    maker = generator("flip", source, ratio=ratio, reuse_predictions=True)
    believed_N = mistaken(source)
    tell(maker, believed_N)
    made = maker.plan(1)
    assumed_correct = np.flatnonzero(believed_N).tolist()
    expected, facts = probing_labels(source, 1, ratio=ratio, assumed_correct=assumed_correct, ask=bag_answer)
    assert np.array_equal(made.token_labels.values, expected.astype(np.float32))
    assert {name: made.facts[name] for name in ("probed", "correct", "flipped")} == facts
    asked_again = generator("flip", source, ratio=ratio).plan(1)
    assert not np.array_equal(made.token_labels.values, asked_again.token_labels.values)  # so that it says something


@pytest.mark.parametrize("name", ["flip", "released"])
def test_a_training_pass_that_is_true_changes_no_label(name: str) -> None:
    source, scorer = watched(bag_source(300))
    settings = {"aug_ratio_each": 0.5} if name == "released" else {}
    asking = generator(name, source, **settings)
    tell(asking, right_now(source))
    scorer.asked.clear()
    expected = asking.plan(1)
    questions = len(scorer.plain)
    trusting = generator(name, source, reuse_predictions=True, **settings)
    tell(trusting, right_now(source))
    scorer.asked.clear()
    made = trusting.plan(1)
    assert np.array_equal(made.token_labels.values, expected.token_labels.values)
    assert np.array_equal(made.rows, expected.rows)
    reused = {name: made.facts.pop(name) for name in ("reused", "reused_checked", "reused_wrong_share")}
    assert made.facts == expected.facts
    assert reused["reused"] > 150
    assert (reused["reused_checked"], reused["reused_wrong_share"]) == (math.ceil(reused["reused"] / 10), 0.0)
    # Asked for as they are: the rows it was wrong on, and (flip) those whose masked copy is predicted wrong.
    assert 0 < len(scorer.plain) < 0.5 * questions


def test_a_row_that_was_unlearned_is_labelled_only_if_its_masked_copy_is_right() -> None:
    source = bag_source(300)
    maker = generator("flip", source, reuse_predictions=True)
    tell(maker, np.ones(300, dtype=bool))
    labels = maker.plan(1).token_labels
    wrong_now = np.flatnonzero(~right_now(source))
    found = [labels.sample(row) for row in wrong_now]
    assert not any((own == 1).any() for own in found)
    assert 0 < sum((own == 0).any() for own in found) < len(wrong_now) / 2


@pytest.mark.parametrize("name", ["flip", "released"])
def test_a_sample_of_the_rows_whose_prediction_is_reused_is_predicted(name: str) -> None:
    source = bag_source(2000)
    maker = generator(name, source, reuse_predictions=True, **({"aug_ratio_each": 0.5} if name == "released" else {}))
    tell(maker, np.ones(2000, dtype=bool))
    reused = np.arange(2000)
    if name == "flip":  # a row whose masked copy is wrong is predicted again
        reused = predict_masked_copies(source, 1.0, 0.3, 1, np.ones(2000, dtype=bool)).reused
    facts = maker.plan(1).facts
    assert (facts["reused"], facts["reused_checked"]) == (len(reused), 64)
    assert "reused" not in maker.plan(2).facts  # no training pass since

    tell(maker, np.ones(2000, dtype=bool))
    shares = [maker.check_reused(reused, epoch)["reused_wrong_share"] for epoch in range(200)]
    assert np.mean(shares) == pytest.approx(1 - right_now(source)[reused].mean(), rel=0.1)


def test_released_keeps_what_the_loop_keeps_with_the_same_rows_believed() -> None:
    source = bag_source(300, length=40)
    maker = generator("released", source, aug_ratio_each=0.5, reuse_predictions=True)
    believed_N = mistaken(source)
    tell(maker, believed_N)
    made = maker.plan(1)
    kept = released_samples(source, 1, wanted=150, ask=bag_answer, assumed_correct=np.flatnonzero(believed_N).tolist())
    assert made.rows[:150].tolist() == [row for row, _ in kept]
    assert kept != released_samples(source, 1, wanted=150, ask=bag_answer)


def test_what_was_noted_comes_back_from_a_checkpoint() -> None:
    source = bag_source(40)
    first, second = (generator("flip", source, reuse_predictions=True) for _ in range(2))
    tell(first, mistaken(source, 0.5))
    second.restore(first.tensors())
    assert np.array_equal(second.assumed_correct(), mistaken(source, 0.5))
    assert np.array_equal(first.plan(1).token_labels.values, second.plan(1).token_labels.values)
    assert not first.assumed_correct().any()


def test_rows_are_right_that_were_right_whenever_they_were_seen() -> None:
    source = bag_source(10)
    maker = generator("flip", source, reuse_predictions=True)
    rows = np.array([2, 5, 5, 7, 7])
    right = np.array([True, True, False, True, True])
    said = np.where(right, source.gold[rows], 1 - source.gold[rows])
    maker.on_backward(rows, {}, torch.nn.functional.one_hot(torch.as_tensor(said), 2).float())
    assert np.flatnonzero(maker.assumed_correct()).tolist() == [2, 7]
    noted = TrainingPredictions(source)
    noted.restore(maker.tensors())
    assert [counts.tolist()[2:8] for counts in noted.summed()] == [[1, 0, 0, 2, 0, 2], [1, 0, 0, 1, 0, 2]]
