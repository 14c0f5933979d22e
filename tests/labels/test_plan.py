"""The plan of an epoch: which rows, how often, with which tokens masked."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attentune.config import LabelsConfig
from attentune.data.features import Features
from attentune.labels.plan import PLANNERS, EpochContext, EpochPlan, plan_epoch, samples_per_epoch


def features_of(*ordinary: int) -> Features:
    """One row a number: [CLS], that many ordinary tokens, [SEP]."""
    special = np.concatenate([np.array([True, *[False] * count, True]) for count in ordinary] or [np.zeros(0, bool)])
    starts = np.cumsum([0, *(count + 2 for count in ordinary)])
    return Features(np.arange(len(special), dtype=np.int32), None, special, starts, np.diff(starts))


FEATURES = features_of(20, 3, 0, 31, 1, 8)


def plan(generator: str = "masked-rows", *, seed: int = 42, epoch: int = 0, features: Features = FEATURES, **options):
    return plan_epoch(LabelsConfig(generator, **options), EpochContext(features, seed, epoch))


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


def test_masked_rows_stand_beside_every_row_as_it_is() -> None:
    made = plan(ratio=2.0, mask_share=0.5)
    assert made.rows[:6].tolist() == list(range(6))
    assert made.masked[:6] == (None,) * 6
    assert made.rows[6:].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    counts = [10, 10, 2, 2, 0, 0, 16, 16, 1, 1, 4, 4]  # half of the ordinary tokens; round(1.5) is 2, round(15.5) is 16
    assert [len(places) for places in made.masked[6:]] == counts
    for row, places in zip(made.rows[6:].tolist(), made.masked[6:], strict=True):
        assert set(places.tolist()) <= set(FEATURES.ordinary_positions(row).tolist())


def test_masks_differ_between_copies_epochs_and_seeds() -> None:
    first = masks_by_copy(plan(ratio=2.0))
    assert first[0, 0] != first[0, 1]
    assert masks_by_copy(plan(ratio=2.0)) == first
    assert masks_by_copy(plan(ratio=2.0, epoch=1))[0, 0] != first[0, 0]
    assert masks_by_copy(plan(ratio=2.0, seed=43))[0, 0] != first[0, 0]


def test_the_mask_of_a_copy_does_not_depend_on_the_other_rows() -> None:
    first = masks_by_copy(plan(ratio=2.0))
    longer = masks_by_copy(plan(ratio=2.0, features=features_of(20, 3, 0, 31, 1, 8, 15, 4)))
    assert {key: longer[key] for key in first} == first
    assert masks_by_copy(plan(ratio=3.0)).items() >= first.items()


def test_below_one_each_epoch_takes_other_rows() -> None:
    features = features_of(*[5] * 100)
    chosen = [plan(ratio=0.3, features=features, epoch=epoch).rows[100:].tolist() for epoch in range(2)]
    assert len(chosen[0]) == len(chosen[1]) == 30
    assert chosen[0] != chosen[1]
    assert len(set(chosen[0])) == 30


@pytest.mark.parametrize("generator", sorted(PLANNERS))
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 30), st.floats(0, 4), st.integers(0, 5))
def test_the_number_of_samples_is_known_before(generator: str, rows: int, ratio: float, epoch: int) -> None:
    labels = LabelsConfig(generator, ratio=ratio)
    made = plan_epoch(labels, EpochContext(features_of(*[3] * rows), 1, epoch))
    assert len(made) == samples_per_epoch(labels, rows)
    assert made.masked is None or len(made.masked) == len(made)
    assert set(made.rows.tolist()) == set(range(rows))


@pytest.mark.parametrize("generator", sorted(PLANNERS))
def test_every_plan_is_a_function_of_seed_and_epoch(generator: str) -> None:
    one, again = plan(generator, ratio=1.5), plan(generator, ratio=1.5)
    assert np.array_equal(one.rows, again.rows)
    pairs = zip(one.masked or (), again.masked or (), strict=True)
    assert all((a is None and b is None) or np.array_equal(a, b) for a, b in pairs)
