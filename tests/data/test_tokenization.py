"""Texts to token ids: the same as one by one, cut where they are too long, whatever the text."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from attentune.config import ModelConfig
from attentune.data import tokenization as features_module
from attentune.data.tokenization import Features, encode_rows, pad_batch, token_spans, words_of
from attentune.errors import DataError
from attentune.models.build import load_tokenizer
from helpers.tiny import CORPUS, FAMILIES
from helpers.tiny_models import FIRST, LONG, SECOND, rows_of

Tiny = Callable[..., Path]
every_family = pytest.mark.parametrize("family", FAMILIES)
TEXTS = [*CORPUS.splitlines()[:6], "", " ", "😀 日本語 \u200b\x00 ﬁ", "word " * 60, "Yes."]
PAIRS = [*CORPUS.splitlines()[6:12], "", "x", "y " * 90, "short", "word " * 50]


@pytest.fixture(scope="module")
def tokenizers(tiny: Tiny) -> dict[str, PreTrainedTokenizerBase]:
    return {family: load_tokenizer(ModelConfig(name_or_path=str(tiny(family)))) for family in FAMILIES}


def check_against_one_by_one(
    features: Features, tokenizer: PreTrainedTokenizerBase, texts: list[str], pairs: list[str] | None, max_length: int
) -> None:
    assert len(features) == len(texts)
    for row, text in enumerate(texts):
        # A list of one: called with two texts, transformers drops a second one that is empty.
        both = ([text],) if pairs is None else ([text], [pairs[row]])
        cut = tokenizer(*both, truncation="longest_first", max_length=max_length, return_special_tokens_mask=True)
        one = {name: values[0] for name, values in cut.items()}
        place = features.row(row)
        assert features.ids[place].tolist() == one["input_ids"]
        assert features.special[place].tolist() == [bool(mark) for mark in one["special_tokens_mask"]]
        assert features.non_special_positions(row).tolist() == np.flatnonzero(~features.special[place]).tolist()
        assert features.lengths[row] == len(one["input_ids"]) <= max_length
        assert features.full_lengths[row] == len(tokenizer(*both)["input_ids"][0])
        if "token_type_ids" in one:
            assert features.type_ids[place].tolist() == one["token_type_ids"]
        else:
            assert features.type_ids is None


@every_family
@pytest.mark.parametrize("max_length", [4, 16, 128])
@pytest.mark.parametrize("pairs", [None, PAIRS], ids=["single", "pairs"])
def test_rows_are_encoded_as_one_by_one(tokenizers, family: str, pairs: list[str] | None, max_length: int) -> None:
    features = encode_rows(rows_of(TEXTS, pairs), tokenizers[family], max_length=max_length)
    check_against_one_by_one(features, tokenizers[family], TEXTS, pairs, max_length)
    assert (features.full_lengths > features.lengths).any()
    assert (features.full_lengths >= features.lengths).all()


@every_family
@pytest.mark.parametrize("max_length", [12, 128])
def test_spans_lie_under_the_tokens_that_the_model_sees(tokenizers, family: str, max_length: int) -> None:
    rows = rows_of([FIRST, LONG, "[SEP]  two   spaces"], [SECOND, "é ünïcode", ""])
    features = encode_rows(rows, tokenizers[family], max_length=max_length)
    for number, spans in enumerate(token_spans(rows, tokenizers[family], max_length=max_length)):
        assert [span is None for span in spans] == features.special[features.row(number)].tolist()
        for where, start, end in filter(None, spans):
            text = rows.texts[number] if where == "text" else rows.pairs[number]
            assert 0 <= start <= end <= len(text)  # RoBERTa's token for a space alone spans nothing
            assert text[start:end] == text[start:end].strip() or text[start:end].isspace()
        covered = {place for where, start, end in filter(None, spans) if where == "text" for place in range(start, end)}
        if max_length == 128:
            assert covered >= {place for place, sign in enumerate(rows.texts[number]) if not sign.isspace()}


def test_chunks_change_nothing(tokenizers, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = encode_rows(rows_of(TEXTS, PAIRS), tokenizers["bert"], max_length=16)
    for rows, characters in ((1, 99), (4, 1 << 20), (len(TEXTS), 1), (100, 1), (100, 120), (100, 1 << 20)):
        monkeypatch.setattr(features_module, "_CHUNK_ROWS", rows)
        monkeypatch.setattr(features_module, "_CHUNK_CHARACTERS", characters)
        part = encode_rows(rows_of(TEXTS, PAIRS), tokenizers["bert"], max_length=16)
        for name in ("ids", "type_ids", "special", "starts", "full_lengths"):
            assert np.array_equal(getattr(part, name), getattr(whole, name))


def test_of_a_pair_the_longer_text_is_cut_first(tokenizers) -> None:
    tokenizer = tokenizers["bert"]
    features = encode_rows(rows_of(["x " * 50, "x"], ["y y", "y " * 50]), tokenizer, max_length=20)
    x, y = (tokenizer(mark, add_special_tokens=False)["input_ids"][0] for mark in "xy")
    counts = [[(features.ids[features.row(row)] == mark).sum() for mark in (x, y)] for row in range(2)]
    assert counts == [[15, 2], [1, 16]]
    assert features.full_lengths.tolist() == [55, 54]


def test_half_of_a_surrogate_pair_is_refused_and_the_row_named(tokenizers) -> None:
    for rows in (rows_of(["fine", "fine", "half \ud83d"]), rows_of(["a", "b", "c"], ["d", "e", "\udc00"])):
        with pytest.raises(DataError, match=r"texts: row 2 holds half of a surrogate pair"):
            encode_rows(rows, tokenizers["bert"], max_length=16)


# Texts of a pair that are encoded apart, each as if it were alone, side by side in one row

FIRSTS = [*TEXTS, ""]
SECONDS = [*CORPUS.splitlines()[6:12], "", "x", "y " * 90, "[SEP]  two   spaces", "word " * 50, "Yes."]


@every_family
@pytest.mark.parametrize("max_length", [4, 16, 128])
def test_each_text_is_encoded_and_cut_as_alone(tokenizers, family: str, max_length: int) -> None:
    features = encode_rows(rows_of(FIRSTS, SECONDS), tokenizers[family], max_length=max_length, bi_encoder=True)
    alone = [encode_rows(rows_of(texts), tokenizers[family], max_length=max_length) for texts in (FIRSTS, SECONDS)]
    assert len(features) == len(FIRSTS)
    for row in range(len(FIRSTS)):
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


def test_single_texts_and_pairs_in_one_row_are_as_ever(tokenizers) -> None:
    for rows, apart in ((rows_of(FIRSTS), True), (rows_of(FIRSTS, SECONDS), False)):
        features = encode_rows(rows, tokenizers["bert"], max_length=16, bi_encoder=apart)
        assert features.second_starts is None
        assert np.array_equal(features.padded_lengths, features.lengths)
        assert "second_start" not in pad_batch(features, [0, 1], pad_token_id=0).inputs
    apart = encode_rows(rows_of(FIRSTS), tokenizers["bert"], max_length=16, bi_encoder=True)
    assert np.array_equal(apart.ids, encode_rows(rows_of(FIRSTS), tokenizers["bert"], max_length=16).ids)
    assert len(encode_rows(rows_of([], []), tokenizers["bert"], max_length=16, bi_encoder=True)) == 0


@every_family
@pytest.mark.parametrize("max_length", [5, 12, 128])
def test_spans_of_texts_apart_are_those_of_each_alone(tokenizers, family: str, max_length: int) -> None:
    rows = rows_of(FIRSTS, SECONDS)
    features = encode_rows(rows, tokenizers[family], max_length=max_length, bi_encoder=True)
    spans = token_spans(rows, tokenizers[family], max_length=max_length, bi_encoder=True)
    for row, own in enumerate(spans):
        assert [span is None for span in own] == features.special[features.row(row)].tolist()
        begin = int(features.second_starts[row])
        assert {span[0] for span in own[:begin] if span} <= {"text"}
        assert {span[0] for span in own[begin:] if span} <= {"pair"}
        for part, texts in ((own[:begin], FIRSTS), (own[begin:], SECONDS)):
            alone = token_spans(rows_of([texts[row]]), tokenizers[family], max_length=max_length)[0]
            assert [span and span[1:] for span in part] == [span and span[1:] for span in alone]


def test_a_batch_says_where_the_second_texts_begin(tokenizers) -> None:
    features = encode_rows(rows_of(FIRSTS, SECONDS), tokenizers["bert"], max_length=16, bi_encoder=True)
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


WORDS = ["The sailors rode the breeze!", "don't stop", "", "a  b", "unbelievably long-winded"]


@pytest.mark.parametrize("family", ["bert", "roberta", "deberta-v2"])
@pytest.mark.parametrize("bi_encoder", [False, True])
def test_words_are_made_of_the_tokens_between_spaces_and_signs(tokenizers, family, bi_encoder):
    tokenizer = tokenizers[family]
    rows = rows_of(WORDS, WORDS[::-1]) if bi_encoder else rows_of(WORDS)
    features = encode_rows(rows, tokenizer, max_length=64, bi_encoder=bi_encoder)
    words = words_of(rows, tokenizer, max_length=64, bi_encoder=bi_encoder)
    assert len(words.starts) == len(rows) + 1
    assert words.starts[-1] == len(words.texts) == len(words.first) == len(words.end)
    covered = np.concatenate([np.arange(*span) for span in zip(words.first, words.end, strict=True)])
    # Every token that is not special belongs to one word.
    assert sorted(covered.tolist()) == np.flatnonzero(~features.special).tolist()
    first_row = [text for text in words.texts[words.starts[0] : words.starts[1]] if text.strip()]
    assert first_row[:6] == ["the", "sailors", "rode", "the", "breeze", "!"]


def test_the_words_of_cut_rows_end_with_the_row(tokenizers):
    tokenizer = tokenizers["bert"]
    rows = rows_of(["one two three four five six seven"])
    words = words_of(rows, tokenizer, max_length=5)
    assert words.end.max() <= 4
