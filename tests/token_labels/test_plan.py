"""The plan of an epoch: which rows, how often, with which tokens masked or labelled, and what the log is told of it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentune.config import LabelsConfig
from attentune.data.dataset import LabelSpace
from attentune.data.tokenization import Features
from attentune.seeding import numpy_generator
from attentune.token_labels.base import LabelSource, PredictionComparator
from attentune.token_labels.plan import EpochPlan, TokenLabels, shuffled
from attentune.token_labels.planner import build_generator
from helpers.label_sources import BagOfWordsScorer, bag_source, features_of, generator, labels_of

# Those that can do without an encoder.
QUICK = ("none", "masked-rows", "flip")


def rows_with(*ordinary: int) -> Features:
    """One row a number: [CLS], that many non-special tokens, [SEP]."""
    return features_of(*["s" + "o" * count + "s" for count in ordinary])


FEATURES = rows_with(20, 3, 0, 31, 1, 8)


def source_of(features: Features = FEATURES, *, seed: int = 42) -> LabelSource:
    """Rows that are all good, and a model that finds them so."""
    scorer = BagOfWordsScorer(
        features, np.where(features.special, 0.0, np.tile([1.0, -0.2], len(features.ids))[: len(features.ids)])
    )
    gold = np.ones(len(features), dtype=np.int64)
    return LabelSource(
        features, gold, PredictionComparator(LabelSpace("classification", ("bad", "good"))), scorer, -1, seed
    )


def plan(name: str = "masked-rows", *, seed: int = 42, epoch: int = 0, features: Features = FEATURES, **options):
    return build_generator(LabelsConfig(name, **options), source_of(features, seed=seed)).plan(epoch)


def masks_by_copy(made: EpochPlan) -> dict[tuple[int, int], list[int]]:
    """The masked places of each copy, by its row and its number among the row's copies."""
    found: dict[tuple[int, int], list[int]] = {}
    for row, places in zip(made.rows.tolist(), made.masked, strict=True):
        if places is not None:
            found[row, sum(key[0] == row for key in found)] = places.tolist()
    return found


def test_without_a_generator_every_row_stands_once_as_it_is() -> None:
    made = plan("none")
    assert made.rows.tolist() == list(range(6))
    assert made.masked is None
    assert made.token_labels is None


def test_masked_rows_stand_beside_every_row_as_it_is() -> None:
    made = plan(ratio=2.0, mask_share=0.5)
    assert made.rows[:6].tolist() == list(range(6))
    assert made.masked[:6] == (None,) * 6
    assert made.token_labels is None
    assert made.rows[6:].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    # Half of the non-special tokens; round(1.5) is 2, round(15.5) is 16.
    assert [len(places) for places in made.masked[6::2]] == [10, 2, 0, 16, 1, 4]
    assert [len(places) for places in made.masked[7::2]] == [10, 2, 0, 16, 1, 4]
    for row, places in zip(made.rows[6:].tolist(), made.masked[6:], strict=True):
        assert set(places.tolist()) <= set(FEATURES.non_special_positions(row).tolist())


def test_masks_differ_between_copies_epochs_and_seeds() -> None:
    first = masks_by_copy(plan(ratio=2.0))
    assert first[0, 0] != first[0, 1]
    assert masks_by_copy(plan(ratio=2.0)) == first
    assert masks_by_copy(plan(ratio=2.0, epoch=1))[0, 0] != first[0, 0]
    assert masks_by_copy(plan(ratio=2.0, seed=43))[0, 0] != first[0, 0]


def test_below_one_each_epoch_takes_other_rows() -> None:
    features = rows_with(*[5] * 100)
    chosen = [plan(ratio=0.3, features=features, epoch=epoch).rows[100:].tolist() for epoch in range(2)]
    assert len(chosen[0]) == len(chosen[1]) == 30
    assert chosen[0] != chosen[1]
    assert len(set(chosen[0])) == 30


@pytest.mark.parametrize("name", QUICK)
@given(st.integers(0, 30), st.floats(0, 3), st.integers(0, 6))
def test_the_number_of_samples_is_known_before(name: str, rows: int, ratio: float, epoch: int) -> None:
    maker = build_generator(LabelsConfig(name, ratio=ratio), source_of(rows_with(*[3] * rows)))
    made = maker.plan(epoch)
    expected = rows + round(ratio * rows) if name == "masked-rows" else rows
    assert len(made) == len(made.rows) == maker.samples_in_epoch(epoch) == expected
    assert made.masked is None or len(made.masked) == len(made)
    assert set(made.rows.tolist()) == set(range(rows))
    if made.token_labels is not None:
        assert np.diff(made.token_labels.starts).tolist() == [5] * len(made)
        assert len(made.token_labels.values) == 5 * len(made)


@pytest.mark.parametrize("name", QUICK)
def test_every_plan_is_a_function_of_seed_and_epoch(name: str) -> None:
    one, again = plan(name, ratio=1.5, epoch=2), plan(name, ratio=1.5, epoch=2)
    assert np.array_equal(one.rows, again.rows)
    assert one.facts == again.facts
    assert one.tensors().keys() == again.tensors().keys()
    assert all(np.array_equal(one.tensors()[key], again.tensors()[key]) for key in one.tensors())
    pairs = zip(one.masked or (), again.masked or (), strict=True)
    assert all((a is None and b is None) or np.array_equal(a, b) for a, b in pairs)


def test_nothing_is_labelled_before_the_first_epoch_ends() -> None:
    made = plan("flip", epoch=0)
    assert made.token_labels is None
    assert made.facts == {"reason": "no labels exist before the first epoch ends"}
    assert plan("flip", epoch=1).token_labels is not None


def test_a_plan_comes_back_from_its_tensors() -> None:
    labels = TokenLabels(np.array([1.0, -1.0, 0.25], dtype=np.float32), np.array([0, 2, 3]))
    made = EpochPlan(np.array([4, 1]), token_labels=labels, facts={"ones": 1})
    again = EpochPlan.from_tensors(made.tensors())
    assert np.array_equal(again.rows, made.rows)
    assert again.token_labels.sample(0).tolist() == [1.0, -1.0]
    assert again.token_labels.sample(1).tolist() == [0.25]
    assert EpochPlan.from_tensors(EpochPlan(np.array([2])).tensors()).token_labels is None


LENGTHS = np.array([3, 2, 4])


def stored_plan(**changes: np.ndarray) -> EpochPlan:
    """Of rows 2, 0 and 2, as a checkpoint would have it."""
    tensors = {
        "rows": np.array([2, 0, 2]),
        "values": np.linspace(-1, 1, 11, dtype=np.float32),
        "starts": np.array([0, 4, 7, 11]),
    }
    return EpochPlan.from_tensors(tensors | changes)


def test_a_plan_fits_the_rows_that_it_was_made_for() -> None:
    stored_plan().check(LENGTHS)
    EpochPlan(np.array([2, 1, 0, 0])).check(LENGTHS)
    EpochPlan(np.zeros(0, dtype=np.int64)).check(LENGTHS)
    EpochPlan.from_tensors({"rows": np.array([2])}).check(LENGTHS)
    with pytest.raises(ValueError, match="^the labels are of other rows$"):
        EpochPlan(np.array([0, 3])).check(LENGTHS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": np.array([2, 0, 3])}, "the labels are of other rows"),
        ({"rows": np.array([2, -1, 2])}, "the labels are of other rows"),
        ({"rows": np.array([2.0, 0.0, 2.0])}, "the labels are of other rows"),
        ({"rows": np.array([[2, 0, 2]])}, "the labels are of other rows"),
        ({"starts": np.array([0.0, 4.0, 7.0, 11.0])}, "the labels are of another kind"),
        ({"values": np.zeros(10, dtype=np.float32)}, "the labels are of another kind"),
        ({"values": np.zeros((11, 1), dtype=np.float32)}, "the labels are of another kind"),
        ({"values": np.zeros(11, dtype=np.int64)}, "the labels are of another kind"),
        ({"rows": np.array([2, 1, 2])}, "the labels are of other tokens"),
        ({"rows": np.array([2, 0])}, "the labels are of other tokens"),
        ({"starts": np.array([0, 3, 7, 11])}, "the labels are of other tokens"),
    ],
)
def test_a_plan_of_other_rows_is_refused(changes: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        stored_plan(**changes).check(LENGTHS)


# What the log is told of an epoch's labels, why there are none, and the shuffled control


NOT_PROBED = "no sentence was probed: labels.ratio or labels.mask_share is too small for these rows"
NOT_RIGHT = "the model is not yet right on any of the sentences probed, and only those say which words matter"
NO_TOKEN = "no token of the sentences that the model is right on was masked or could be labelled; see labels.mask_share"


def planned(name: str, source: LabelSource, **settings: Any):
    return generator(name, source, **settings).plan(1)


def test_ones_and_zeros_are_counted_at_a_half() -> None:
    made = planned("flip", bag_source(400), ratio=2.0)
    labels = made.token_labels.values.tolist()
    assert made.facts["ones"] == sum(label >= 0.5 for label in labels)
    assert made.facts["zeros"] == sum(0 <= label < 0.5 for label in labels)
    assert 0 < made.facts["flipped"] < made.facts["correct"] < made.facts["probed"]
    assert min(made.facts["ones"], made.facts["zeros"]) > 0
    assert "reason" not in made.facts
    assert set(made.facts) == {"probed", "correct", "flipped", "ones", "zeros"}


def without_tokens() -> LabelSource:
    """Texts without ordinary tokens."""
    features = features_of("ss", "s", "sss")
    comparator = PredictionComparator(LabelSpace("classification", ("bad", "good")))
    return LabelSource(
        features, np.zeros(3, dtype=np.int64), comparator, BagOfWordsScorer(features, np.zeros(6)), -1, 1
    )


@pytest.mark.parametrize(
    ("source", "settings", "facts"),
    [
        (bag_source(30, wrong_share=1.1), {}, {"probed": 30, "correct": 0, "reason": NOT_RIGHT}),
        (bag_source(30), {"ratio": 0.0}, {"probed": 0, "correct": 0, "reason": NOT_PROBED}),
        (bag_source(30), {"ratio": 0.01}, {"probed": 0, "correct": 0, "reason": NOT_PROBED}),
        (without_tokens(), {}, {"probed": 3, "correct": 3, "reason": NO_TOKEN}),
    ],
    ids=["none is right", "none is probed", "nearly none is probed", "no tokens"],
)
def test_where_nothing_can_be_labelled_there_are_no_labels_and_the_reason_says_so(source, settings, facts):
    made = planned("flip", source, **settings)
    assert made.token_labels is None
    assert made.rows.tolist() == list(range(len(source.features)))
    assert made.facts == {"flipped": 0, "ones": 0, "zeros": 0} | facts


def test_shuffled_labels_are_the_same_ones_elsewhere() -> None:
    source = bag_source(60)
    usual, mixed = (planned("flip", source, shuffle=shuffle, ratio=2.0) for shuffle in (False, True))
    values, dealt = usual.token_labels.values, mixed.token_labels.values
    assert sorted(dealt.tolist()) == sorted(values.tolist())
    assert np.array_equal(dealt < 0, values < 0)
    assert (dealt != values).sum() > 20
    assert mixed.facts == usual.facts
    assert np.array_equal(mixed.rows, usual.rows)
    assert np.array_equal(labels_of("flip", source, shuffle=True, ratio=2.0), dealt)


def test_the_shuffle_of_a_seed_and_epoch_is_the_same_in_every_version() -> None:
    source, flip = replace(bag_source(4, length=4), seed=42), {"ratio": 2.0, "mask_share": 0.5}
    plain, mixed = (generator("flip", source, shuffle=shuffle, **flip).plan(3) for shuffle in (False, True))
    draws = numpy_generator("shuffled labels", 42, 3)
    assert np.array_equal(mixed.token_labels.values, shuffled(plain.token_labels.values, draws))


def test_shuffling_deals_every_label_to_every_labelled_place_alike() -> None:
    values = np.array([1.0, -1.0, 0.0, 0.0, -1.0, 0.0], dtype=np.float32)
    draws = np.array([shuffled(values, np.random.default_rng(seed)) for seed in range(2000)])
    assert (draws[:, [0, 2, 3, 5]] == 1).mean(axis=0) == pytest.approx(np.full(4, 0.25), abs=0.05)
