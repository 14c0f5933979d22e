"""What differs between transformers 4 and 5 is the same for the rest of the code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from transformers import BertTokenizer

from attentune.models import compatibility
from attentune.models.attention import attention_by, use_own_attention
from attentune.models.compatibility import IS_TRANSFORMERS_4, PreTrainedConfig, bert_tokenizer
from attentune.models.fused import use_fused_layers
from attentune.models.saving import load_model, save_model
from attentune.testing.tiny import FAMILIES
from helpers.tiny_models import FIRST, SECOND, build, encoded

Tiny = Callable[..., Path]
TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "fine", "##r")
VOCAB = {token: number for number, token in enumerate(TOKENS)}


def test_the_base_class_of_configurations() -> None:
    assert issubclass(transformers.BertConfig, PreTrainedConfig)


def test_a_tokenizer_of_a_vocabulary() -> None:
    made = bert_tokenizer(VOCAB)
    assert made.is_fast
    assert made("A finer", "a")["input_ids"] == [2, 5, 6, 7, 3, 5, 3]
    assert made("A finer", "a")["token_type_ids"] == [0, 0, 0, 0, 0, 1, 1]
    assert bert_tokenizer(VOCAB, do_lower_case=False)("A a")["input_ids"] == [2, 1, 5, 3]


def test_the_tokenizer_for_transformers_4_is_that_of_5(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = bert_tokenizer(VOCAB)

    class Fast(transformers.PreTrainedTokenizerFast):
        """As BertTokenizerFast of transformers 4, it takes a pipeline."""

    monkeypatch.setattr(compatibility, "IS_TRANSFORMERS_4", True)
    monkeypatch.setattr(transformers, "BertTokenizerFast", Fast)
    ours = bert_tokenizer(VOCAB, cls=BertTokenizer)
    assert ours.backend_tokenizer.to_str() != ""
    for texts in (("A finer",), ("a", "Fine a")):
        assert ours(*texts)["input_ids"] == theirs(*texts)["input_ids"]
        assert ours.backend_tokenizer.encode(*texts).type_ids == theirs.backend_tokenizer.encode(*texts).type_ids


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_probabilities_are_there_for_every_family(tiny: Tiny, family: str) -> None:
    built = model, _ = build(tiny(family))
    with torch.no_grad(), attention_by(model, "eager"):
        found = model(**encoded(built[1], FIRST, SECOND), output_attentions=True).attentions
    assert len(found) == 3
    assert all(torch.allclose(layer.sum(-1)[0], torch.ones(())) for layer in found)


@pytest.mark.skipif(not IS_TRANSFORMERS_4, reason="about transformers 4")
def test_encoders_of_transformers_4_attend_eagerly_when_built_and_when_loaded(tiny: Tiny, tmp_path: Path) -> None:
    model, tokenizer = build(tiny("bert"))
    save_model(model, tokenizer, tmp_path)
    for one in (model, load_model(tmp_path)[0]):
        assert one.encoder.config._attn_implementation == "eager"
        assert (use_own_attention(one), use_fused_layers(one)) == (None, 0)
