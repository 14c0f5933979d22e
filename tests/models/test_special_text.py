"""A text that spells a special token stays text, and the texts of a pair are told apart, before and after saving."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from attentune.config import ModelConfig
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.tokenization import Features, encode_rows
from attentune.models.build import build_model, load_tokenizer
from attentune.models.saving import load_model, save_model, special_token_ids
from helpers.tiny import FAMILIES
from helpers.tiny_models import build, rows_of

Tiny = Callable[..., Path]
every_family = pytest.mark.parametrize("family", FAMILIES)
SPELT = (
    "a [MASK] [SEP] [CLS] [PAD] [UNK] <mask> </s> <s> <pad> <unk> b",
    "[CLS][SEP][MASK] x[SEP]</s>y <<s> [[MASK]] ＜pad＞ ［ＭＡＳＫ］",  # full-width signs: some normalise them
    "[MASK]",
    "</s></s>",
    " <mask>\n[mask] [cls] [sep]",
)


def special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    return set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}


def check_text_is_text(features: Features, tokenizer: PreTrainedTokenizerBase) -> None:
    for row in range(len(features)):
        ids = features.ids[features.row(row)]
        ordinary = ids[features.non_special_positions(row)]
        assert len(ordinary)
        assert not special_ids(tokenizer) & set(ordinary.tolist())
        # What the tokenizer added is all special, and never a mask.
        added = ids[features.special[features.row(row)]]
        assert set(added.tolist()) <= set(special_token_ids(tokenizer))


@every_family
def test_spelt_special_tokens_are_ordinary_pieces(tiny: Tiny, tmp_path: Path, family: str) -> None:
    model, tokenizer = build(tiny(family))
    save_model(model, tokenizer, tmp_path)
    _, loaded = load_model(tmp_path)
    both = []
    for one in (tokenizer, loaded):
        for rows in (rows_of(SPELT), rows_of(["plain"] * len(SPELT), SPELT), rows_of(SPELT, SPELT[::-1])):
            features = encode_rows(rows, one, max_length=128)
            check_text_is_text(features, one)
            both.append(features.ids.tolist())
    assert both[:3] == both[3:]


@every_family
def test_calling_the_tokenizer_itself_is_as_safe(tiny: Tiny, family: str) -> None:
    tokenizer = load_tokenizer(ModelConfig(name_or_path=str(tiny(family))))
    plain = AutoTokenizer.from_pretrained(tiny(family))  # which falls for them
    assert special_ids(plain) <= set(plain(SPELT[0], add_special_tokens=False)["input_ids"])
    for text in SPELT:
        row = tokenizer(text, return_special_tokens_mask=True)
        ordinary = [i for i, added in zip(row["input_ids"], row["special_tokens_mask"], strict=True) if not added]
        assert not special_ids(tokenizer) & set(ordinary)


# Encoders that learnt to tell the two texts of a pair apart are told which is which, before and after saving


PAIR = TextRows(("0",), ("the cat sat",), ("a dog ran home",), None, "test")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_second_text_is_marked(tiny, tmp_path, family):
    settings = ModelConfig(name_or_path=str(tiny(family)))
    tokenizer = load_tokenizer(settings)
    model = build_model(
        settings, LabelSpace("classification", ("a", "b")), tokenizer, max_length=32, is_pair=True, seed=1
    )
    save_model(model, tokenizer, tmp_path)
    knows_segments = (getattr(model.config.encoder, "type_vocab_size", None) or 0) > 1
    for loaded in (tokenizer, load_model(tmp_path)[1]):
        features = encode_rows(PAIR, loaded, max_length=32)
        if knows_segments:
            assert features.type_ids is not None
            assert set(features.type_ids.tolist()) == {0, 1}
            assert np.all(np.diff(features.type_ids) >= 0)
    assert knows_segments == (family in ("bert", "electra", "albert"))
