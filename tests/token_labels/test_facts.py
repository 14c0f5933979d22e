"""What the log is told of an epoch's labels, why there are none, and the shuffled control."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attentune.data.dataset import LabelSpace
from attentune.seeding import numpy_generator
from attentune.token_labels.base import LabelSource, PredictionComparator
from attentune.token_labels.plan import shuffled
from helpers.label_sources import (
    BagOfWordsScorer,
    bag_source,
    features_of,
    generator,
    labels_of,
)

NOT_PROBED = "no sentence was probed: labels.ratio or labels.mask_share is too small for these rows"
NOT_RIGHT = "the model is not yet right on any of the sentences probed, and only those say which words matter"
NO_TOKEN = "no token of the sentences that the model is right on was masked or could be labelled; see labels.mask_share"


def plan(name: str, source: LabelSource, **settings: Any):
    return generator(name, source, **settings).plan(1)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("flip", {"ratio": 2.0}),
        ("drop", {"mask_share": 0.05}),
        ("leave-one-out", {}),
        ("leave-one-out", {"targets": "soft"}),
        ("released", {"aug_ratio_each": 0.5}),
    ],
)
def test_ones_and_zeros_are_counted_at_a_half(name: str, settings: dict[str, Any]) -> None:
    made = plan(name, bag_source(400), **settings)
    labels = made.token_labels.values.tolist()
    assert made.facts["ones"] == sum(label >= 0.5 for label in labels)
    assert made.facts["zeros"] == sum(0 <= label < 0.5 for label in labels)
    assert 0 < made.facts["flipped"] < made.facts["correct"] < made.facts["probed"]
    assert min(made.facts["ones"], made.facts["zeros"]) > 0
    assert "reason" not in made.facts
    more = {"passes", "pool", "kept", "missing", "kept_share", "kept_tokens", "row_tokens"}
    assert set(made.facts) == {"probed", "correct", "flipped", "ones", "zeros", *(more if name == "released" else ())}


@pytest.mark.parametrize("name", ["flip", "drop", "leave-one-out"])
def test_where_no_row_is_right_there_are_no_labels_and_the_reason_says_so(name: str) -> None:
    made = plan(name, bag_source(30, wrong_share=1.1))
    assert made.token_labels is None
    assert made.rows.tolist() == list(range(30))
    assert made.facts == {"probed": 30, "correct": 0, "flipped": 0, "ones": 0, "zeros": 0, "reason": NOT_RIGHT}


@pytest.mark.parametrize("name", ["flip", "drop", "leave-one-out"])
def test_where_nothing_is_probed_the_reason_names_the_settings(name: str) -> None:
    for settings in ({"ratio": 0.0}, {"ratio": 0.01}):
        made = plan(name, bag_source(30), **settings)
        assert made.token_labels is None
        assert made.facts == {"probed": 0, "correct": 0, "flipped": 0, "ones": 0, "zeros": 0, "reason": NOT_PROBED}


@pytest.mark.parametrize("name", ["flip", "drop", "leave-one-out"])
def test_texts_without_ordinary_tokens_give_no_labels(name: str) -> None:
    features = features_of("ss", "s", "sss")
    scorer = BagOfWordsScorer(features, np.zeros(6))
    comparator = PredictionComparator(LabelSpace("classification", ("bad", "good")))
    made = plan(name, LabelSource(features, np.zeros(3, dtype=np.int64), comparator, scorer, -1, 1))
    assert made.token_labels is None
    assert made.facts["reason"] == NO_TOKEN
    assert made.facts["correct"] == 3


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("flip", {"ratio": 2.0}),
        ("drop", {}),
        ("leave-one-out", {"targets": "soft"}),
        ("released", {"aug_ratio_each": 0.5}),
    ],
)
def test_shuffled_labels_are_the_same_ones_elsewhere(name: str, settings: dict[str, Any]) -> None:
    source = bag_source(60)
    usual, mixed = (plan(name, source, shuffle=shuffle, **settings) for shuffle in (False, True))
    values, dealt = usual.token_labels.values, mixed.token_labels.values
    assert sorted(dealt.tolist()) == sorted(values.tolist())
    assert np.array_equal(dealt < 0, values < 0)
    assert (dealt != values).sum() > 20
    assert mixed.facts == usual.facts
    assert np.array_equal(mixed.rows, usual.rows)
    assert np.array_equal(labels_of(name, source, shuffle=True, **settings), dealt)


def test_the_shuffle_of_a_seed_and_epoch_is_the_same_in_every_version() -> None:
    source, flip = replace(bag_source(4, length=4), seed=42), {"ratio": 2.0, "mask_share": 0.5}
    plain, mixed = (generator("flip", source, shuffle=shuffle, **flip).plan(3) for shuffle in (False, True))
    draws = numpy_generator("shuffled labels", 42, 3)
    assert np.array_equal(mixed.token_labels.values, shuffled(plain.token_labels.values, draws))
