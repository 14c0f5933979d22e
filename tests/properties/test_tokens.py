"""Whatever the texts: special tokens are ours alone, no row is lost, and padding changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

from attentune.config import ModelConfig
from attentune.data.batching import bucketed_order, budget_order, pad_batch, sorted_order
from attentune.data.tokenization import encode_rows, token_spans
from attentune.models.architectures import special_token_ids
from attentune.models.build import load_tokenizer
from attentune.models.loading import Tokenizer
from attentune.nn.masked import masked_max, masked_mean, masked_softmax
from attentune.token_labels.masking import random_mask, random_spans, spread_copies
from helpers.tiny_models import rows_of
from helpers.written import texts

some_texts = st.lists(texts, min_size=1, max_size=5)
lengths = hn.arrays(np.int64, st.integers(1, 60), elements=st.integers(1, 50))


@pytest.fixture(scope="module", params=["bert", "roberta"])
def tokenizer(tiny: Callable[..., Path], request: pytest.FixtureRequest) -> Tokenizer:
    return load_tokenizer(ModelConfig(name_or_path=str(tiny(request.param))))


@given(found=some_texts, pairs=st.booleans(), max_length=st.integers(6, 40))
def test_special_tokens_are_those_that_were_added(
    tokenizer: Tokenizer, found: list[str], pairs: bool, max_length: int
) -> None:
    rows = rows_of(found, found[::-1] if pairs else None)
    features = encode_rows(rows, tokenizer, max_length=max_length)
    known = set(special_token_ids(tokenizer)) | {tokenizer.mask_token_id}
    assert len(features) == len(found)
    for row in range(len(features)):
        ids = features.ids[features.row(row)]
        assert 2 <= len(ids) <= max_length
        assert not set(ids[features.non_special_positions(row)].tolist()) & (known - {tokenizer.unk_token_id})
        assert features.special[features.row(row)].sum() >= 2


@given(found=some_texts, data=st.data())
def test_a_row_has_its_tokens_whatever_stands_beside_it(
    tokenizer: Tokenizer, found: list[str], data: st.DataObject
) -> None:
    whole = encode_rows(rows_of(found), tokenizer, max_length=24)
    order = data.draw(st.permutations(range(len(found))))
    other = encode_rows(rows_of([found[place] for place in order]), tokenizer, max_length=24)
    for number, place in enumerate(order):
        assert whole.ids[whole.row(place)].tolist() == other.ids[other.row(number)].tolist()


@given(found=some_texts)
def test_spans_lie_in_their_text_and_in_order(tokenizer: Tokenizer, found: list[str]) -> None:
    for text, spans in zip(found, token_spans(rows_of(found), tokenizer, max_length=40), strict=True):
        places = [span[1:] for span in spans if span is not None]
        assert all(0 <= start <= end <= len(text) for start, end in places)
        assert [start for start, _ in places] == sorted(start for start, _ in places)


@given(found=some_texts, more=st.integers(0, 9))
def test_padding_can_be_taken_off_again(tokenizer: Tokenizer, found: list[str], more: int) -> None:
    features = encode_rows(rows_of([*found, "word " * more]), tokenizer, max_length=30)
    batch = pad_batch(features, range(len(features)), pad_token_id=tokenizer.pad_token_id)
    ids, mask = batch.inputs["input_ids"], batch.inputs["attention_mask"].bool()
    for row in range(len(features)):
        assert ids[row][mask[row]].tolist() == features.ids[features.row(row)].tolist()
        assert set(ids[row][~mask[row]].tolist()) <= {tokenizer.pad_token_id}
    assert batch.tokens == int(mask.sum())


@given(found=lengths, size=st.integers(1, 9), seed=st.integers(0, 99), epoch=st.integers(0, 9))
def test_each_row_is_in_one_batch_of_an_epoch(found: np.ndarray, size: int, seed: int, epoch: int) -> None:
    for batches in (
        bucketed_order(found, size, seed=seed, epoch=epoch),
        sorted_order(found, size),
        budget_order(found, 50),
    ):
        assert sorted(np.concatenate(batches)) == list(range(len(found)))
    assert all(len(batch) <= size for batch in bucketed_order(found, size, seed=seed, epoch=epoch))
    again = bucketed_order(found, size, seed=seed, epoch=epoch)
    assert [batch.tolist() for batch in again] == [
        batch.tolist() for batch in bucketed_order(found, size, seed=seed, epoch=epoch)
    ]


@given(found=some_texts, share=st.floats(0, 1), seed=st.integers(0, 99))
def test_masks_are_of_ordinary_tokens_and_a_function_of_their_key(
    tokenizer: Tokenizer, found: list[str], share: float, seed: int
) -> None:
    features = encode_rows(rows_of(found), tokenizer, max_length=24)
    for row in range(len(features)):
        ordinary = features.non_special_positions(row)
        places = random_mask(features, row, share, seed, row)
        assert set(places) <= set(ordinary)
        assert list(places) == sorted(set(places))
        wanted = 0 if share <= 0 else min(max(1, round(share * len(ordinary))), len(ordinary))
        assert len(places) == (wanted if len(ordinary) else 0)
        assert places.tolist() == random_mask(features, row, share, seed, row).tolist()
        spans = random_spans(features, row, chance=share, rm_threshold=0.7, key=(seed, row))
        assert set(spans) <= set(ordinary)


@given(rows=st.integers(0, 40), ratio=st.floats(0, 5), seed=st.integers(0, 9))
def test_copies_are_spread_evenly(rows: int, ratio: float, seed: int) -> None:
    copies = spread_copies(rows, ratio, seed)
    assert len(copies) == (round(ratio * rows) if rows else 0)
    counts = np.bincount(copies, minlength=rows) if rows else np.zeros(1, int)
    assert counts.max(initial=0) - counts.min(initial=counts.max(initial=0)) <= 1


@given(data=st.data(), rows=st.integers(1, 4), width=st.integers(1, 6), more=st.integers(1, 5))
def test_padding_changes_no_mean_maximum_or_softmax(data: st.DataObject, rows: int, width: int, more: int) -> None:
    numbers = st.floats(-50, 50, width=32)
    values = torch.from_numpy(data.draw(hn.arrays(np.float32, (rows, width, 2), elements=numbers)))
    mask = torch.from_numpy(data.draw(hn.arrays(np.bool_, (rows, width))))
    rubbish = data.draw(st.sampled_from([float("nan"), float("inf"), 1e30]))
    longer = torch.cat([values, torch.full((rows, more, 2), rubbish)], dim=1)
    longer_mask = torch.cat([mask, torch.zeros(rows, more, dtype=torch.bool)], dim=1)
    for function in (masked_mean, masked_max):
        found = function(longer, longer_mask)
        torch.testing.assert_close(found, function(values, mask))
        assert torch.isfinite(found).all()
    shares = masked_softmax(longer[..., 0], longer_mask)
    torch.testing.assert_close(shares[:, :width], masked_softmax(values[..., 0], mask))
    assert (shares[:, width:] == 0).all()
    torch.testing.assert_close(shares.sum(dim=1), mask.any(dim=1).float())
