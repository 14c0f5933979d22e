"""Reusing training-time predictions saves forward passes and changes almost no labels."""

import math

import numpy as np
import pytest
import torch

from attentune.token_labels.attribution import TrainingPredictions
from attentune.token_labels.base import LabelGenerator, LabelSource
from attentune.token_labels.flip import predict_masked_copies
from helpers.label_references import probing_labels, released_samples
from helpers.label_sources import bag_answer, bag_source, generator, watched


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
