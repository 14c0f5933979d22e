"""The words of tokenised rows."""

from __future__ import annotations

import numpy as np
import pytest

from attentune.config import ModelConfig
from attentune.data.tokenization import encode_rows, words_of
from attentune.models.build import load_tokenizer
from helpers.tiny_models import rows_of

TEXTS = ["The sailors rode the breeze!", "don't stop", "", "a  b", "unbelievably long-winded"]


@pytest.mark.parametrize("family", ["bert", "roberta", "deberta-v2"])
@pytest.mark.parametrize("bi_encoder", [False, True])
def test_words_are_made_of_the_tokens_between_spaces_and_signs(tiny, family, bi_encoder):
    tokenizer = load_tokenizer(ModelConfig(str(tiny(family))))
    rows = rows_of(TEXTS, TEXTS[::-1]) if bi_encoder else rows_of(TEXTS)
    features = encode_rows(rows, tokenizer, max_length=64, bi_encoder=bi_encoder)
    words = words_of(rows, tokenizer, max_length=64, bi_encoder=bi_encoder)
    assert len(words.starts) == len(rows) + 1
    assert words.starts[-1] == len(words.texts) == len(words.first) == len(words.end)
    covered = np.concatenate([np.arange(*span) for span in zip(words.first, words.end, strict=True)])
    # Every token that is not special belongs to one word.
    assert sorted(covered.tolist()) == np.flatnonzero(~features.special).tolist()
    first_row = [text for text in words.texts[words.starts[0] : words.starts[1]] if text.strip()]
    assert first_row[:6] == ["the", "sailors", "rode", "the", "breeze", "!"]


def test_the_words_of_cut_rows_end_with_the_row(tiny):
    tokenizer = load_tokenizer(ModelConfig(str(tiny("bert"))))
    rows = rows_of(["one two three four five six seven"])
    words = words_of(rows, tokenizer, max_length=5)
    assert words.end.max() <= 4
