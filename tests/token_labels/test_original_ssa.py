"""The released program's samples: how many are kept ones and how many originals, and how both are labelled."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from attentune.token_labels import original_ssa as released
from attentune.token_labels.base import LabelSource
from attentune.token_labels.plan import EpochPlan
from helpers.label_references import released_samples
from helpers.label_sources import Tiny, bag_source, generator, tiny_source, watched


def bag_answer(source: LabelSource, row: int, places: list[int] | None = None) -> torch.Tensor:
    masked = None if places is None else [np.array(places, dtype=np.int64)]
    return torch.from_numpy(source.scorer.logits(np.array([row]), masked)[0])


def zeros_of(made: EpochPlan, number: int) -> list[int]:
    return np.flatnonzero(made.token_labels.sample(number) == 0).tolist()


def originals_of(made: EpochPlan, source: LabelSource, begin: int) -> list[int]:
    """The rows of the samples from `begin` on, after a check that they are labelled as originals."""
    for number in range(begin, len(made)):
        special = source.features.special[source.features.row(int(made.rows[number]))]
        assert made.token_labels.sample(number).tolist() == np.where(special, -1.0, 1.0).tolist()
    return made.rows[begin:].tolist()


@pytest.mark.parametrize(
    ("each", "shares"), [(0.2, [0, 0.2, 0.4, 0.6, 0.8, 1, 1]), (0.5, [0, 0.5, 1, 1]), (0.0, [0, 0])]
)
@pytest.mark.parametrize("double", [False, True])
def test_the_share_of_kept_samples_rises_each_epoch(each: float, shares: list[float], double: bool) -> None:
    source = bag_source(200, length=40, wrong_share=0.0)
    maker = generator("released", source, aug_ratio_each=each, double_ori=double)
    for epoch, share in enumerate(shares):
        made = maker.plan(epoch)
        assert len(made) == maker.samples_per_epoch == (400 if double else 200)
        wanted = round(share * 200)
        most = len(released_samples(source, epoch, wanted=200, ask=bag_answer))  # not all rows outlive masking
        assert 150 < most < 200
        kept = min(wanted, most)
        assert len(set(made.rows[:kept].tolist())) == kept
        rest = originals_of(made, source, kept)
        first = rest[: 200 - kept]
        assert len(set(first)) == len(first) == 200 - kept
        assert rest[200 - kept :] == (list(range(200)) if double else [])
        assert made.masked is None  # the text is trained on as it is


def test_epoch_zero_is_the_originals_and_asks_nothing() -> None:
    source, scorer = watched(bag_source(30))
    made = generator("released", source).plan(0)
    assert sorted(originals_of(made, source, 0)) == list(range(30))
    assert not scorer.masked
    assert not scorer.plain
    ordinary = int((~source.features.special).sum())
    assert made.facts == {"probed": 0, "correct": 0, "flipped": 0, "ones": ordinary, "zeros": 0}


def test_what_is_kept_is_right_and_outlives_masking_and_zeros_are_the_masks() -> None:
    source = bag_source(300)
    made = generator("released", source, aug_ratio_each=0.5).plan(1)
    loop = released_samples(source, 1, wanted=150, ask=bag_answer)
    assert [(int(row), zeros_of(made, number)) for number, row in enumerate(made.rows[:150])] == loop
    for row, places in loop:
        plain, masked = bag_answer(source, row), bag_answer(source, row, places)
        assert plain.argmax() == masked.argmax() == source.gold[row]
    assert made.facts["flipped"] > 0
    assert made.facts["correct"] < made.facts["probed"]
    assert Counter(made.token_labels.values.tolist()).keys() == {-1.0, 0.0, 1.0}


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_what_is_kept_does_not_depend_on_how_many_are_tried_at_once(
    monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    source, scorer = watched(bag_source(300))
    usual = generator("released", source, aug_ratio_each=0.4).plan(1)
    sizes = [len(rows) for rows, masked in scorer.asked if masked is None]
    scorer.asked.clear()
    # The size of a chunk is the module's only use of `max`.
    monkeypatch.setattr(released, "max", lambda *sizes: chunk, raising=False)
    other = generator("released", source, aug_ratio_each=0.4).plan(1)
    assert [len(rows) for rows, masked in scorer.asked if masked is None] != sizes
    assert np.array_equal(other.rows, usual.rows)
    assert np.array_equal(other.token_labels.values, usual.token_labels.values)
    facts = other.facts
    assert facts["probed"] == sum(len(rows) for rows, masked in scorer.asked if masked is None)
    assert facts["correct"] == sum(len(rows) for rows, masked in scorer.asked if masked is not None)
    assert 120 <= facts["correct"] - facts["flipped"] < 120 + chunk


def test_where_too_few_can_be_kept_originals_fill_up() -> None:
    source = bag_source(100, wrong_share=0.6)
    made = generator("released", source, aug_ratio_each=1.0).plan(1)
    kept = released_samples(source, 1, wanted=100, ask=bag_answer)
    assert 10 < len(kept) < 60
    assert made.rows[: len(kept)].tolist() == [row for row, _ in kept]
    assert len(originals_of(made, source, len(kept))) == 100 - len(kept)
    assert made.facts["probed"] == 100


def test_kept_samples_masks_and_originals_differ_between_epochs_and_seeds() -> None:
    source = bag_source(100)
    first = generator("released", source, aug_ratio_each=0.2).plan(2)
    again = generator("released", source, aug_ratio_each=0.2).plan(2)
    assert np.array_equal(first.rows, again.rows)
    assert np.array_equal(first.token_labels.values, again.token_labels.values)
    # Another share an epoch keeps the number: only the epoch's own draws differ.
    epoch = generator("released", source, aug_ratio_each=0.4).plan(1)
    seed = generator("released", replace(source, seed=8), aug_ratio_each=0.2).plan(2)
    masks = {row: zeros_of(first, number) for number, row in enumerate(first.rows[:40].tolist())}
    for other in (epoch, seed):
        assert set(other.rows[:40].tolist()) != set(first.rows[:40].tolist())
        assert set(other.rows[40:].tolist()) != set(first.rows[40:].tolist())
        shared = [(number, row) for number, row in enumerate(other.rows[:40].tolist()) if row in masks]
        assert len(shared) > 5
        assert any(zeros_of(other, number) != masks[row] for number, row in shared)


def test_the_settings_of_the_spans_reach_them() -> None:
    source = bag_source(100, length=40, wrong_share=0.0)

    def zeros(**settings: float) -> int:
        return generator("released", source, aug_ratio_each=0.5, **settings).plan(1).facts["zeros"]

    assert zeros(aug_threshold=0.0) == 0
    assert zeros(aug_threshold=0.05) < 0.7 * zeros(aug_threshold=0.1)
    # Of the kept 50 each span is one token long, or three.
    assert 1.5 * zeros(rm_threshold=1.0, aug_threshold=0.02) < zeros(rm_threshold=0.0, aug_threshold=0.02)


def test_a_score_is_kept_where_it_is_right_and_masking_hardly_moves_it(tiny: Tiny) -> None:
    source = tiny_source(tiny("bert"), "regression", rows=20)
    source = replace(source, comparator=replace(source.comparator, tolerance=0.2))
    made = generator("released", source, aug_ratio_each=1.0).plan(1)
    loop = released_samples(source, 1, wanted=20)
    assert 3 < len(loop) < made.facts["correct"] == 15
    assert [(int(row), zeros_of(made, number)) for number, row in enumerate(made.rows[: len(loop)])] == loop
    assert made.facts["flipped"] == 15 - len(loop)


def test_special_tokens_of_pairs_have_no_label(tiny: Tiny) -> None:
    source = tiny_source(tiny("roberta"), "pair", rows=12)
    made = generator("released", source, aug_ratio_each=0.5).plan(1)
    for number, row in enumerate(made.rows.tolist()):
        special = source.features.special[source.features.row(row)]
        assert special.sum() == 4  # <s> a </s></s> b </s>
        assert ((made.token_labels.sample(number) == -1) == special).all()
    assert made.facts["zeros"] > 0
