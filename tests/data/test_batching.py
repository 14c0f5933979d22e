"""Batches: every row once, like lengths together, padded as the tokenizer pads, masks in their places."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attentune.config import ModelConfig
from attentune.data.tokenization import bucketed_order, budget_order, encode_rows, pad_batch, sorted_order
from attentune.models.build import load_tokenizer
from helpers.tiny import CORPUS, FAMILIES
from helpers.tiny_models import rows_of

Tiny = Callable[..., Path]
LENGTHS = st.lists(st.integers(2, 128), max_size=400).map(lambda values: np.array(values, dtype=np.int64))
TEXTS = [*CORPUS.splitlines()[:8], "", "Yes."]


def padding(lengths: np.ndarray, batches: list[np.ndarray]) -> int:
    return sum(int(lengths[batch].max() * len(batch) - lengths[batch].sum()) for batch in batches)


@given(LENGTHS, st.integers(1, 40), st.integers(0, 2**40), st.integers(0, 9))
def test_every_place_stands_in_exactly_one_batch(lengths: np.ndarray, rows: int, seed: int, epoch: int) -> None:
    by_rows = bucketed_order(lengths, rows, seed=seed, epoch=epoch)
    by_tokens = bucketed_order(lengths, rows, seed=seed, epoch=epoch, by_tokens=True)
    for batches in (by_rows, by_tokens, sorted_order(lengths, rows)):
        placed = np.concatenate(batches) if batches else np.zeros(0)
        assert sorted(placed.tolist()) == list(range(len(lengths)))
        assert len(batches) == -(-len(lengths) // rows)
        assert all(len(batch) for batch in batches)
        assert batches is by_tokens or sorted(map(len, batches))[1:] == [rows] * (len(batches) - 1)


def test_batches_by_tokens_have_about_equally_many() -> None:
    lengths = np.random.default_rng(0).integers(2, 128, 1000)
    batches = bucketed_order(lengths, 16, seed=1, epoch=0, by_tokens=True)
    tokens = [int(lengths[batch].sum()) for batch in batches]
    assert max(tokens) - min(tokens) <= 2 * 128  # a row less or more at either end
    rows = [len(batch) for batch in batches]
    assert max(rows) > 3 * min(rows), "short rows are many in a batch"
    by_rows = [int(lengths[batch].sum()) for batch in bucketed_order(lengths, 16, seed=1, epoch=0)]
    assert max(by_rows) > 5 * min(by_rows)


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    lengths = np.random.default_rng(0).integers(2, 128, 500)

    def order(seed: int, epoch: int) -> list[list[int]]:
        np.random.seed(epoch)
        return [batch.tolist() for batch in bucketed_order(lengths, 16, seed=seed, epoch=epoch)]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)
    # Not only the batches' order: the same rows do not always meet.
    assert {frozenset(batch) for batch in order(1, 0)} != {frozenset(batch) for batch in order(1, 1)}


@pytest.mark.parametrize(("rows", "size"), [(2000, 16), (5000, 8), (900, 32)])
def test_far_less_is_padded_than_in_random_batches(rows: int, size: int) -> None:
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.lognormal(2.7, 0.6, rows).astype(np.int64), 3, 128)
    shuffled = generator.permutation(rows)
    random = [shuffled[place : place + size] for place in range(0, rows, size)]
    assert padding(lengths, bucketed_order(lengths, size, seed=1, epoch=0)) < padding(lengths, random) / 4
    assert padding(lengths, sorted_order(lengths, size)) < padding(lengths, random) / 5


def test_an_evaluation_begins_with_the_longest_rows() -> None:
    lengths = np.array([3, 9, 5, 9, 4])
    assert [batch.tolist() for batch in sorted_order(lengths, 2)] == [[1, 3], [2, 4], [0]]


@given(LENGTHS, st.integers(1, 3000))
def test_a_budget_of_tokens_is_kept_and_used(lengths: np.ndarray, budget: int) -> None:
    batches = budget_order(lengths, budget)
    placed = np.concatenate(batches) if batches else np.zeros(0)
    assert sorted(placed.tolist()) == list(range(len(lengths)))
    ordered = lengths[placed.astype(np.int64)]
    assert (ordered[:-1] >= ordered[1:]).all()
    for batch in batches:
        assert lengths[batch].max() * len(batch) <= budget or len(batch) == 1
    for batch in batches[:-1]:  # one row more, padded as these are, would have been too many
        assert lengths[batch].max() * (len(batch) + 1) > budget


def test_a_row_that_is_longer_than_the_budget_stands_alone() -> None:
    lengths = np.array([3, 50, 4, 60, 3, 10])
    assert [batch.tolist() for batch in budget_order(lengths, 20)] == [[3], [1], [5, 2], [0, 4]]
    assert [batch.tolist() for batch in budget_order(lengths, 1)] == [[3], [1], [5], [2], [0], [4]]
    assert budget_order(lengths[:0], 20) == []


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pairs", [None, TEXTS[::-1]], ids=["single", "pairs"])
def test_a_batch_is_what_the_tokenizer_pads(tiny: Tiny, family: str, pairs: list[str] | None) -> None:
    tokenizer = load_tokenizer(ModelConfig(name_or_path=str(tiny(family))))
    features = encode_rows(rows_of(TEXTS, pairs), tokenizer, max_length=16)
    rows = [8, 3, 0, 9, 3]
    batch = pad_batch(features, rows, pad_token_id=tokenizer.pad_token_id)
    texts, second = [TEXTS[row] for row in rows], None if pairs is None else [pairs[row] for row in rows]
    expected = tokenizer(texts, second, truncation=True, max_length=16, padding=True, return_tensors="pt")
    assert batch.inputs.keys() == expected.keys()
    for name, tensor in batch.inputs.items():
        assert torch.equal(tensor, expected[name])
        assert tensor.dtype == torch.int64
    assert batch.samples.tolist() == rows
    assert batch.tokens == int(expected["attention_mask"].sum())


def test_masks_stand_in_their_places_and_nowhere_else(tiny: Tiny) -> None:
    tokenizer = load_tokenizer(ModelConfig(name_or_path=str(tiny("bert"))))
    features = encode_rows(rows_of(TEXTS), tokenizer, max_length=16)
    ids_before = features.ids.copy()
    rows, places = [2, 0, 2, 8], [np.array([1, 4]), None, np.array([2]), np.zeros(0, dtype=np.int64)]
    options = {"pad_token_id": tokenizer.pad_token_id, "samples": np.array([7, 0, 9, 5])}
    plain = pad_batch(features, rows, **options)
    batch = pad_batch(features, rows, mask_token_id=tokenizer.mask_token_id, masked=places, **options)
    changed = (batch.inputs["input_ids"] != plain.inputs["input_ids"]).nonzero().tolist()
    assert changed == [[0, 1], [0, 4], [2, 2]]
    assert {int(batch.inputs["input_ids"][row, place]) for row, place in changed} == {tokenizer.mask_token_id}
    assert torch.equal(batch.inputs["attention_mask"], plain.inputs["attention_mask"])
    assert (batch.tokens, batch.samples.tolist()) == (plain.tokens, [7, 0, 9, 5])
    assert np.array_equal(features.ids, ids_before)
    with pytest.raises(ValueError, match="need a mask_token_id"):
        pad_batch(features, rows, masked=places, **options)
    empty = pad_batch(features, [], pad_token_id=0)
    assert (empty.inputs["input_ids"].shape, empty.tokens) == ((0, 1), 0)


def test_token_labels_stand_beside_their_tokens_and_padding_has_none(tiny: Tiny) -> None:
    tokenizer = load_tokenizer(ModelConfig(name_or_path=str(tiny("bert"))))
    features = encode_rows(rows_of(TEXTS), tokenizer, max_length=16)
    rows = [9, 0, 9]
    # A row that stands in a batch twice has labels of its own each time.
    given = [np.linspace(0, 1, features.lengths[row], dtype=np.float32) / (n + 1) for n, row in enumerate(rows)]
    given[1][[0, -1]] = -1.0
    batch = pad_batch(features, rows, pad_token_id=tokenizer.pad_token_id, token_labels=given)
    assert batch.token_labels.dtype == torch.float32
    assert batch.token_labels.shape == batch.inputs["input_ids"].shape
    for number, row in enumerate(rows):
        length = features.lengths[row]
        assert batch.token_labels[number, :length].tolist() == given[number].tolist()
        assert (batch.token_labels[number, length:] == -1.0).all()
    assert features.lengths[9] < features.lengths[0]
    assert pad_batch(features, rows, pad_token_id=tokenizer.pad_token_id).token_labels is None
