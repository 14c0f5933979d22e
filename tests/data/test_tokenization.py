"""Texts to token ids, the same as one by one, and to batches, padded as the tokenizer pads."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attentune.config import ModelConfig
from attentune.data import tokenization as features_module
from attentune.data.tables import ChunkLimit
from attentune.data.tokenization import (
    bucketed_order,
    budget_order,
    encode_rows,
    encode_with_spans,
    pad_batch,
    sorted_order,
    words_of,
)
from attentune.errors import DataError
from attentune.models.build import load_tokenizer
from attentune.models.saving import special_token_ids
from helpers.bad_files import texts
from helpers.tiny import CORPUS, FAMILIES
from helpers.tiny_models import FIRST, LONG, SECOND, rows_of

every_family = pytest.mark.parametrize("family", FAMILIES)
TEXTS = [*CORPUS.splitlines()[:6], "", " ", "😀 日本語 \u200b\x00 ﬁ", "word " * 60, "Yes."]
PAIRS = [*CORPUS.splitlines()[6:12], "", "x", "y " * 90, "short", "word " * 50]


@pytest.fixture(scope="module")
def tokenizers(tiny):
    return {family: load_tokenizer(ModelConfig(name_or_path=str(tiny(family)))) for family in FAMILIES}


@every_family
@pytest.mark.parametrize("max_length", [4, 16, 128])
@pytest.mark.parametrize("pairs", [None, PAIRS], ids=["single", "pairs"])
def test_rows_are_encoded_as_one_by_one(tokenizers, family, pairs, max_length):
    features = encode_rows(rows_of(TEXTS, pairs), tokenizers[family], max_length=max_length)
    assert len(features) == len(TEXTS)
    for row, text in enumerate(TEXTS):
        # A list of one: called with two texts, transformers drops a second one that is empty.
        both = ([text],) if pairs is None else ([text], [pairs[row]])
        cut = tokenizers[family](
            *both, truncation="longest_first", max_length=max_length, return_special_tokens_mask=True
        )
        one = {name: values[0] for name, values in cut.items()}
        place = features.row(row)
        assert features.ids[place].tolist() == one["input_ids"]
        assert features.special[place].tolist() == [bool(mark) for mark in one["special_tokens_mask"]]
        assert features.non_special_positions(row).tolist() == np.flatnonzero(~features.special[place]).tolist()
        assert features.lengths[row] == len(one["input_ids"]) <= max_length
        assert features.full_lengths[row] == len(tokenizers[family](*both)["input_ids"][0])
        if "token_type_ids" in one:
            assert features.type_ids[place].tolist() == one["token_type_ids"]
        else:
            assert features.type_ids is None
    assert (features.full_lengths > features.lengths).any()
    assert (features.full_lengths >= features.lengths).all()


@every_family
@pytest.mark.parametrize("max_length", [12, 128])
def test_spans_lie_under_the_tokens_that_the_model_sees(tokenizers, family, max_length):
    rows = rows_of([FIRST, LONG, "[SEP]  two   spaces"], [SECOND, "é ünïcode", ""])
    features = encode_rows(rows, tokenizers[family], max_length=max_length)
    for number, spans in enumerate(encode_with_spans(rows, tokenizers[family], max_length=max_length)[1]):
        assert [span is None for span in spans] == features.special[features.row(number)].tolist()
        for where, start, end in filter(None, spans):
            text = rows.texts[number] if where == "text" else rows.pairs[number]
            assert 0 <= start <= end <= len(text)  # RoBERTa's token for a space alone spans nothing
            assert text[start:end] == text[start:end].strip() or text[start:end].isspace()
        covered = {place for where, start, end in filter(None, spans) if where == "text" for place in range(start, end)}
        if max_length == 128:
            assert covered >= {place for place, sign in enumerate(rows.texts[number]) if not sign.isspace()}


def test_chunks_change_nothing(tokenizers, monkeypatch):
    whole = encode_rows(rows_of(TEXTS, PAIRS), tokenizers["bert"], max_length=16)
    for rows, characters in ((1, 99), (4, 1 << 20), (len(TEXTS), 1), (100, 1), (100, 120), (100, 1 << 20)):
        monkeypatch.setattr(features_module, "_CHUNK", ChunkLimit(rows, characters))
        part = encode_rows(rows_of(TEXTS, PAIRS), tokenizers["bert"], max_length=16)
        for name in ("ids", "type_ids", "special", "starts", "full_lengths"):
            assert np.array_equal(getattr(part, name), getattr(whole, name))


def test_of_a_pair_the_longer_text_is_cut_first(tokenizers):
    tokenizer = tokenizers["bert"]
    features = encode_rows(rows_of(["x " * 50, "x"], ["y y", "y " * 50]), tokenizer, max_length=20)
    x, y = (tokenizer(mark, add_special_tokens=False)["input_ids"][0] for mark in "xy")
    counts = [[(features.ids[features.row(row)] == mark).sum() for mark in (x, y)] for row in range(2)]
    assert counts == [[15, 2], [1, 16]]
    assert features.full_lengths.tolist() == [55, 54]


def test_half_of_a_surrogate_pair_is_refused_and_the_row_named(tokenizers):
    for rows in (rows_of(["fine", "fine", "half \ud83d"]), rows_of(["a", "b", "c"], ["d", "e", "\udc00"])):
        with pytest.raises(DataError, match=r"texts: row 2 holds half of a surrogate pair"):
            encode_rows(rows, tokenizers["bert"], max_length=16)


# Texts of a pair that are encoded apart, each as if it were alone, side by side in one row

FIRSTS = [*TEXTS, ""]
SECONDS = [*CORPUS.splitlines()[6:12], "", "x", "y " * 90, "[SEP]  two   spaces", "word " * 50, "Yes."]


@every_family
@pytest.mark.parametrize("max_length", [4, 16, 128])
def test_each_text_is_encoded_and_cut_as_alone(tokenizers, family, max_length):
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


def test_single_texts_and_pairs_in_one_row_are_as_ever(tokenizers):
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
def test_spans_of_texts_apart_are_those_of_each_alone(tokenizers, family, max_length):
    rows = rows_of(FIRSTS, SECONDS)
    features = encode_rows(rows, tokenizers[family], max_length=max_length, bi_encoder=True)
    spans = encode_with_spans(rows, tokenizers[family], max_length=max_length, bi_encoder=True)[1]
    for row, own in enumerate(spans):
        assert [span is None for span in own] == features.special[features.row(row)].tolist()
        begin = int(features.second_starts[row])
        assert {span[0] for span in own[:begin] if span} <= {"text"}
        assert {span[0] for span in own[begin:] if span} <= {"pair"}
        for part, own_texts in ((own[:begin], FIRSTS), (own[begin:], SECONDS)):
            alone = encode_with_spans(rows_of([own_texts[row]]), tokenizers[family], max_length=max_length)[1][0]
            assert [span and span[1:] for span in part] == [span and span[1:] for span in alone]


def test_a_batch_says_where_the_second_texts_begin(tokenizers):
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


# Batches: every row once, like lengths together, padded as the tokenizer pads, masks in their places


LENGTHS = st.lists(st.integers(2, 128), max_size=400).map(lambda values: np.array(values, dtype=np.int64))
SOME_TEXTS = [*CORPUS.splitlines()[:8], "", "Yes."]


def padding(lengths: np.ndarray, batches: list[np.ndarray]) -> int:
    return sum(int(lengths[batch].max() * len(batch) - lengths[batch].sum()) for batch in batches)


@given(LENGTHS, st.integers(1, 40), st.integers(0, 2**40), st.integers(0, 9))
def test_every_place_stands_in_exactly_one_batch(lengths, rows, seed, epoch):
    by_rows = bucketed_order(lengths, rows, seed=seed, epoch=epoch)
    for batches in (by_rows, sorted_order(lengths, rows)):
        placed = np.concatenate(batches) if batches else np.zeros(0)
        assert sorted(placed.tolist()) == list(range(len(lengths)))
        assert len(batches) == -(-len(lengths) // rows)
        assert all(len(batch) for batch in batches)
        assert sorted(map(len, batches))[1:] == [rows] * (len(batches) - 1)


def test_the_order_is_a_function_of_seed_and_epoch():
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
def test_far_less_is_padded_than_in_random_batches(rows, size):
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.lognormal(2.7, 0.6, rows).astype(np.int64), 3, 128)
    shuffled = generator.permutation(rows)
    random = [shuffled[place : place + size] for place in range(0, rows, size)]
    assert padding(lengths, bucketed_order(lengths, size, seed=1, epoch=0)) < padding(lengths, random) / 4
    assert padding(lengths, sorted_order(lengths, size)) < padding(lengths, random) / 5


def test_an_evaluation_begins_with_the_longest_rows():
    lengths = np.array([3, 9, 5, 9, 4])
    assert [batch.tolist() for batch in sorted_order(lengths, 2)] == [[1, 3], [2, 4], [0]]


@given(LENGTHS, st.integers(1, 3000))
def test_a_budget_of_tokens_is_kept_and_used(lengths, budget):
    batches = budget_order(lengths, budget)
    placed = np.concatenate(batches) if batches else np.zeros(0)
    assert sorted(placed.tolist()) == list(range(len(lengths)))
    ordered = lengths[placed.astype(np.int64)]
    assert (ordered[:-1] >= ordered[1:]).all()
    for batch in batches:
        assert lengths[batch].max() * len(batch) <= budget or len(batch) == 1
    for batch, after in pairwise(batches):
        longest = lengths[batch].max()
        # One row more would have been too many, or more padded than a batch of a quarter of the tokens may have.
        is_full = longest * (len(batch) + 1) > budget
        assert is_full or (4 * lengths[after].max() <= 3 * longest and 4 * longest * len(batch) >= budget)
    for batch in batches:
        longest = lengths[batch].max()
        padded = int((4 * lengths[batch] <= 3 * longest).sum())
        assert not padded or 4 * longest * (len(batch) - 1) < budget


def test_few_short_rows_are_padded_little():
    """Two batches would hold all, and be padded by more than half of what the texts have."""
    lengths = np.clip(np.random.default_rng(0).lognormal(2.3, 0.5, 200).astype(np.int64), 3, 64)
    assert padding(lengths, budget_order(lengths, 2048)) < lengths.sum() / 4
    assert padding(lengths, sorted_order(lengths, 100)) > lengths.sum() / 2


def test_a_row_that_is_longer_than_the_budget_stands_alone():
    lengths = np.array([3, 50, 4, 60, 3, 10])
    assert [batch.tolist() for batch in budget_order(lengths, 20)] == [[3], [1], [5], [2, 0], [4]]
    assert [batch.tolist() for batch in budget_order(lengths, 1)] == [[3], [1], [5], [2], [0], [4]]
    assert budget_order(lengths[:0], 20) == []


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pairs", [None, SOME_TEXTS[::-1]], ids=["single", "pairs"])
def test_a_batch_is_what_the_tokenizer_pads(tiny, family, pairs):
    tokenizer = load_tokenizer(ModelConfig(name_or_path=str(tiny(family))))
    features = encode_rows(rows_of(SOME_TEXTS, pairs), tokenizer, max_length=16)
    rows = [8, 3, 0, 9, 3]
    batch = pad_batch(features, rows, pad_token_id=tokenizer.pad_token_id)
    first, second = [SOME_TEXTS[row] for row in rows], None if pairs is None else [pairs[row] for row in rows]
    expected = tokenizer(first, second, truncation=True, max_length=16, padding=True, return_tensors="pt")
    assert batch.inputs.keys() == expected.keys()
    for name, tensor in batch.inputs.items():
        assert torch.equal(tensor, expected[name])
        assert tensor.dtype == torch.int64
    assert batch.samples.tolist() == rows
    assert batch.tokens == int(expected["attention_mask"].sum())


def test_masks_stand_in_their_places_and_nowhere_else(tiny):
    tokenizer = load_tokenizer(ModelConfig(name_or_path=str(tiny("bert"))))
    features = encode_rows(rows_of(SOME_TEXTS), tokenizer, max_length=16)
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


def test_token_labels_stand_beside_their_tokens_and_padding_has_none(tiny):
    tokenizer = load_tokenizer(ModelConfig(name_or_path=str(tiny("bert"))))
    features = encode_rows(rows_of(SOME_TEXTS), tokenizer, max_length=16)
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


# Whatever the texts: special tokens are ours alone, no row is lost, and padding changes nothing


some_texts = st.lists(texts, min_size=1, max_size=5)


@pytest.fixture(scope="module", params=["bert", "roberta"])
def tokenizer(tiny, request):
    return load_tokenizer(ModelConfig(name_or_path=str(tiny(request.param))))


@given(found=some_texts, pairs=st.booleans(), max_length=st.integers(6, 40))
def test_special_tokens_are_those_that_were_added(tokenizer, found, pairs, max_length):
    rows = rows_of(found, found[::-1] if pairs else None)
    features = encode_rows(rows, tokenizer, max_length=max_length)
    known = set(special_token_ids(tokenizer)) | {tokenizer.mask_token_id}
    assert len(features) == len(found)
    for row in range(len(features)):
        ids = features.ids[features.row(row)]
        assert 2 <= len(ids) <= max_length
        assert not set(ids[features.non_special_positions(row)].tolist()) & (known - {tokenizer.unk_token_id})
        assert features.special[features.row(row)].sum() >= 2
