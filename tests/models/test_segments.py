"""Encoders that learnt to tell the two texts of a pair apart are told which is which, before and after saving."""

import numpy as np
import pytest

from attentune.config import ModelConfig
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.tokenization import encode_rows
from attentune.models.build import build_model, load_tokenizer
from attentune.models.saving import load_model, save_model
from helpers.tiny import FAMILIES

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
