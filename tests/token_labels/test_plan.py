"""The plan of an epoch: which rows, how often, with which tokens masked or labelled."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentune.config import LabelsConfig
from attentune.data.dataset import LabelSpace
from attentune.data.tokenization import Features
from attentune.token_labels.base import LabelSource, PredictionComparator
from attentune.token_labels.plan import EpochPlan, LabelSums, TokenLabels
from attentune.token_labels.planner import build_generator
from helpers.label_sources import BagOfWordsScorer, features_of

# Those that can do without an encoder.
QUICK = ("none", "masked-rows", "flip", "released", "drop", "leave-one-out", "gradient")


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
    counts = [
        10,
        10,
        2,
        2,
        0,
        0,
        16,
        16,
        1,
        1,
        4,
        4,
    ]  # half of the non-special tokens; round(1.5) is 2, round(15.5) is 16
    assert [len(places) for places in made.masked[6:]] == counts
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
@given(st.integers(0, 30), st.floats(0, 3), st.integers(0, 6), st.booleans())
def test_the_number_of_samples_is_known_before(name: str, rows: int, ratio: float, epoch: int, double: bool) -> None:
    labels = LabelsConfig(name, ratio=ratio, double_ori=double)
    maker = build_generator(labels, source_of(rows_with(*[3] * rows)))
    made = maker.plan(epoch)
    expected = {"masked-rows": rows + round(ratio * rows), "released": 2 * rows if double and epoch else rows}
    assert len(made) == len(made.rows) == maker.samples_in_epoch(epoch) == expected.get(name, rows)
    assert made.masked is None or len(made.masked) == len(made)
    assert name == "released" or set(made.rows.tolist()) == set(range(rows))
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


@pytest.mark.parametrize("name", ["flip", "drop", "leave-one-out"])
def test_nothing_is_labelled_before_the_first_epoch_ends(name: str) -> None:
    made = plan(name, epoch=0)
    assert made.token_labels is None
    assert made.facts == {"reason": "no labels exist before the first epoch ends"}
    assert plan(name, epoch=1).token_labels is not None


def test_a_plan_comes_back_from_its_tensors() -> None:
    labels = TokenLabels(np.array([1.0, -1.0, 0.25], dtype=np.float32), np.array([0, 2, 3]))
    made = EpochPlan(np.array([4, 1]), token_labels=labels, facts={"ones": 1})
    again = EpochPlan.from_tensors(made.tensors())
    assert np.array_equal(again.rows, made.rows)
    assert again.token_labels.sample(0).tolist() == [1.0, -1.0]
    assert again.token_labels.sample(1).tolist() == [0.25]
    assert EpochPlan.from_tensors(EpochPlan(np.array([2])).tensors()).token_labels is None


def test_a_token_labelled_more_than_once_gets_the_mean() -> None:
    sums = LabelSums(np.array([0, 3, 3, 5]))
    for row, places, value in [(0, [0, 2], 1.0), (0, [2], 0.0), (0, [2], 0.5), (2, [1], 0.25), (2, [], 1.0)]:
        sums.add(row, np.array(places, dtype=np.int64), value)
    means = sums.means()
    assert means.dtype == np.float32
    assert means.tolist() == [1.0, -1.0, 0.5, -1.0, 0.25]


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


def test_a_plan_without_labels_is_of_its_rows_too() -> None:
    with pytest.raises(ValueError, match="^the labels are of other rows$"):
        EpochPlan(np.array([0, 3])).check(LENGTHS)
