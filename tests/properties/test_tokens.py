"""Whatever the texts: special tokens are ours alone, no row is lost, and padding changes nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentune.config import ModelConfig
from attentune.data.tokenization import encode_rows, pad_batch, token_spans
from attentune.models.build import load_tokenizer
from attentune.models.saving import Tokenizer, special_token_ids
from helpers.bad_files import texts
from helpers.tiny_models import rows_of

some_texts = st.lists(texts, min_size=1, max_size=5)


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
