"""Pairs whose texts are encoded apart: each as if it were alone, side by side in one row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from attentune.config import ModelConfig
from attentune.data import tokenization as features_module
from attentune.data.tokenization import encode_rows, pad_batch, token_spans
from attentune.errors import DataError
from attentune.models.build import load_tokenizer
from helpers.tiny import CORPUS, FAMILIES
from helpers.tiny_models import rows_of

Tiny = Callable[..., Path]
every_family = pytest.mark.parametrize("family", FAMILIES)
TEXTS = [*CORPUS.splitlines()[:6], "", " ", "😀 日本語 \u200b\x00 ﬁ", "word " * 60, "Yes.", ""]
PAIRS = [*CORPUS.splitlines()[6:12], "", "x", "y " * 90, "[SEP]  two   spaces", "word " * 50, "Yes."]


@pytest.fixture(scope="module")
def tokenizers(tiny: Tiny) -> dict[str, PreTrainedTokenizerBase]:
    return {family: load_tokenizer(ModelConfig(name_or_path=str(tiny(family)))) for family in FAMILIES}


@every_family
@pytest.mark.parametrize("max_length", [4, 16, 128])
def test_each_text_is_encoded_and_cut_as_alone(tokenizers, family: str, max_length: int) -> None:
    features = encode_rows(rows_of(TEXTS, PAIRS), tokenizers[family], max_length=max_length, bi_encoder=True)
    alone = [encode_rows(rows_of(texts), tokenizers[family], max_length=max_length) for texts in (TEXTS, PAIRS)]
    assert len(features) == len(TEXTS)
    for row in range(len(TEXTS)):
        place, begin = features.row(row), features.second_starts[row]
        for part, half in zip(alone, (slice(None, begin), slice(begin, None)), strict=True):
            own = part.row(row)
            assert features.ids[place][half].tolist() == part.ids[own].tolist()
            assert features.special[place][half].tolist() == part.special[own].tolist()
            assert 2 <= len(part.ids[own]) <= max_length
            if part.type_ids is None:
                assert features.type_ids is None
            else:
                assert features.type_ids[place][half].tolist() == part.type_ids[own].tolist()
                assert not features.type_ids[place].any()
        longer = max(int(part.full_lengths[row]) for part in alone)
        assert features.full_lengths[row] == longer
        assert features.padded_lengths[row] == 2 * max(int(part.lengths[row]) for part in alone)
        assert features.lengths[row] == sum(int(part.lengths[row]) for part in alone)
    assert (features.full_lengths > max_length).any() == any((part.lengths < part.full_lengths).any() for part in alone)


def test_chunks_change_nothing(tokenizers, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = encode_rows(rows_of(TEXTS, PAIRS), tokenizers["bert"], max_length=16, bi_encoder=True)
    monkeypatch.setattr(features_module, "_CHUNK_ROWS", 5)
    part = encode_rows(rows_of(TEXTS, PAIRS), tokenizers["bert"], max_length=16, bi_encoder=True)
    for name in ("ids", "type_ids", "special", "starts", "full_lengths", "second_starts"):
        assert np.array_equal(getattr(part, name), getattr(whole, name))
        assert getattr(part, name).dtype == getattr(whole, name).dtype
    dtypes = (whole.ids.dtype, whole.type_ids.dtype, whole.special.dtype, whole.starts.dtype, whole.second_starts.dtype)
    assert dtypes == (np.int32, np.int8, np.bool_, np.int64, np.int64)


def test_single_texts_and_pairs_in_one_row_are_as_ever(tokenizers) -> None:
    for rows, apart in ((rows_of(TEXTS), True), (rows_of(TEXTS, PAIRS), False)):
        features = encode_rows(rows, tokenizers["bert"], max_length=16, bi_encoder=apart)
        assert features.second_starts is None
        assert np.array_equal(features.padded_lengths, features.lengths)
        assert "second_start" not in pad_batch(features, [0, 1], pad_token_id=0).inputs
    apart = encode_rows(rows_of(TEXTS), tokenizers["bert"], max_length=16, bi_encoder=True)
    assert np.array_equal(apart.ids, encode_rows(rows_of(TEXTS), tokenizers["bert"], max_length=16).ids)
    assert len(encode_rows(rows_of([], []), tokenizers["bert"], max_length=16, bi_encoder=True)) == 0


@every_family
@pytest.mark.parametrize("max_length", [5, 12, 128])
def test_spans_lie_under_the_tokens_that_the_model_sees(tokenizers, family: str, max_length: int) -> None:
    rows = rows_of(TEXTS, PAIRS)
    features = encode_rows(rows, tokenizers[family], max_length=max_length, bi_encoder=True)
    spans = token_spans(rows, tokenizers[family], max_length=max_length, bi_encoder=True)
    for row, own in enumerate(spans):
        assert [span is None for span in own] == features.special[features.row(row)].tolist()
        begin = int(features.second_starts[row])
        assert {span[0] for span in own[:begin] if span} <= {"text"}
        assert {span[0] for span in own[begin:] if span} <= {"pair"}
        for part, texts in ((own[:begin], TEXTS), (own[begin:], PAIRS)):
            alone = token_spans(rows_of([texts[row]]), tokenizers[family], max_length=max_length)[0]
            assert [span and span[1:] for span in part] == [span and span[1:] for span in alone]


def test_a_batch_says_where_the_second_texts_begin(tokenizers) -> None:
    features = encode_rows(rows_of(TEXTS, PAIRS), tokenizers["bert"], max_length=16, bi_encoder=True)
    rows = [8, 3, 11, 8]
    batch = pad_batch(features, rows, pad_token_id=0, mask_token_id=4, masked=[None, np.array([1]), None, None])
    begins = batch.inputs["second_start"]
    assert begins.dtype == torch.int64
    assert begins.tolist() == [int(features.second_starts[row]) for row in rows]
    ids_BT, mask_BT = batch.inputs["input_ids"], batch.inputs["attention_mask"]
    tokenizer = tokenizers["bert"]
    assert (ids_BT[:, 0] == tokenizer.cls_token_id).all()
    assert (ids_BT[torch.arange(4), begins] == tokenizer.cls_token_id).all()
    assert (ids_BT[torch.arange(4), begins - 1] == tokenizer.sep_token_id).all()
    assert ids_BT[1, 1] == 4
    assert batch.tokens == int(mask_BT.sum()) == int(features.lengths[rows].sum())


def test_half_of_a_surrogate_pair_is_refused_and_the_row_named(tokenizers) -> None:
    for rows in (rows_of(["a", "b \ud83d"], ["c", "d"]), rows_of(["a", "b"], ["c", "\udc00"])):
        with pytest.raises(DataError, match=r"texts: row 1 holds half of a surrogate pair"):
            encode_rows(rows, tokenizers["bert"], max_length=16, bi_encoder=True)
