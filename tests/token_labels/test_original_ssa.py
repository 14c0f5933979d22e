"""The released program's samples: how many are kept ones and how many originals, and how both are labelled."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from attentune.token_labels.base import LabelSource
from attentune.token_labels.plan import EpochPlan
from helpers.label_references import released_pool, released_samples, released_shares
from helpers.label_sources import Tiny, bag_answer, bag_source, generator, tiny_source, watched


def zeros_of(made: EpochPlan, number: int) -> list[int]:
    return np.flatnonzero(made.token_labels.sample(number) == 0).tolist()


def originals_of(made: EpochPlan, source: LabelSource, begin: int) -> list[int]:
    """The rows of the samples from `begin` on, after a check that they are labelled as originals."""
    for number in range(begin, len(made)):
        special = source.features.special[source.features.row(int(made.rows[number]))]
        assert made.token_labels.sample(number).tolist() == np.where(special, -1.0, 1.0).tolist()
    return made.rows[begin:].tolist()


@pytest.mark.parametrize(
    ("each", "shares"),
    [
        (0.2, [0, 0.2, 0.4, 0.6, 0.8, 0.8, 0.8]),
        (0.3, [0, 0.3, 0.6, 0.9, 0.9]),
        (0.5, [0, 0.5, 0.5]),
        (1.0, [0, 0, 0]),
        (0.0, [0, 0]),
    ],
)
@pytest.mark.parametrize("double", [False, True])
def test_the_share_of_kept_samples_rises_while_it_stays_below_one(each, shares, double):
    source = bag_source(200, length=40, wrong_share=0.0)
    maker = generator("released", source, aug_ratio_each=each, double_ori=double)
    assert shares == pytest.approx(released_shares(each, len(shares)))
    for epoch, share in enumerate(released_shares(each, len(shares))):
        made = maker.plan(epoch)
        assert len(made) == maker.samples_in_epoch(epoch) == (400 if double and share > 0 else 200)
        kept = int(share * 200)
        if kept:
            assert (made.facts["kept"], made.facts["missing"]) == (kept, 0)
        rest = originals_of(made, source, kept)
        first = rest[: 200 - kept]
        assert len(set(first)) == len(first) == 200 - kept
        assert rest[200 - kept :] == (list(range(200)) if double and share > 0 else [])
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


def test_passes_go_on_with_new_masks_until_there_are_enough() -> None:
    source = bag_source(100, length=40, wrong_share=0.5)
    made = generator("released", source, aug_ratio_each=0.8).plan(1)
    pool = released_pool(source, 1, wanted=80, ask=bag_answer)
    facts = made.facts
    assert (facts["kept"], facts["missing"]) == (80, 0)
    assert facts["passes"] > 1
    assert 0 < facts["kept_share"] <= 1
    lengths = source.features.lengths - 2
    means = (lengths[made.rows[:80]].mean(), lengths.mean())
    assert (facts["kept_tokens"], facts["row_tokens"]) == pytest.approx(means, abs=0.01)
    assert facts["pool"] == len(pool) >= 80
    rows = made.rows[:80].tolist()
    assert len(set(rows)) < 80  # a sentence can be there with several masks
    samples = [(row, tuple(zeros_of(made, number))) for number, row in enumerate(rows)]
    assert len(set(samples)) == 80
    assert len(originals_of(made, source, 80)) == 20


def test_where_a_pass_limit_is_reached_originals_fill_up() -> None:
    source = bag_source(40, length=3, wrong_share=0.8)  # such short texts have hardly any masks
    made = generator("released", source, aug_ratio_each=0.9).plan(1)
    pool = released_pool(source, 1, wanted=36, ask=bag_answer)
    assert len(pool) < 36
    assert (made.facts["passes"], made.facts["kept"], made.facts["missing"]) == (20, len(pool), 36 - len(pool))
    assert len(originals_of(made, source, len(pool))) == 40 - len(pool)


def test_no_sample_is_kept_of_a_model_that_is_always_wrong() -> None:
    source = bag_source(20, wrong_share=1.0)
    made = generator("released", source, aug_ratio_each=0.5).plan(1)
    assert made.facts["correct"] == 0
    assert sorted(originals_of(made, source, 0)) == list(range(20))


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


def test_a_score_is_kept_where_it_is_right_and_masking_hardly_moves_it(tiny: Tiny) -> None:
    source = tiny_source(tiny("bert"), "regression", rows=20)
    source = replace(source, comparator=replace(source.comparator, tolerance=0.2))
    made = generator("released", source, aug_ratio_each=0.5).plan(1)
    loop = released_samples(source, 1, wanted=10)
    assert made.facts["correct"] == 15
    assert [(int(row), zeros_of(made, number)) for number, row in enumerate(made.rows[: len(loop)])] == loop
    assert made.facts["flipped"] > 0
