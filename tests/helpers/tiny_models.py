"""Builds rows and models for tests from a tiny checkpoint."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from attentune.config import Config, ModelConfig
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.tokenization import encode_rows, pad_batch
from attentune.models.build import build_model, load_tokenizer
from attentune.models.modeling import AttentuneForSequenceClassification
from attentune.nn.heads import HEADS, PAIR_HEADS

TWO = LabelSpace("classification", ("bad", "good"))
FIRST, SECOND = "The movie was not unwatchable.", "Nobody plays the guitar in 1990."
LONG = "Birds are singing outside my window, and the train leaves at 7:45 although nobody knows why; it is cold."

# The heads that support single texts.
SINGLE_HEADS = sorted(kind for kind in HEADS if kind not in PAIR_HEADS)

Built = tuple[AttentuneForSequenceClassification, PreTrainedTokenizerBase]


def rows_of(
    texts: Sequence[str], pairs: Sequence[str] | None = None, labels: Sequence[float] | None = None
) -> TextRows:
    ids = tuple(map(str, range(len(texts))))
    values = None if labels is None else np.asarray(labels)
    return TextRows(ids, tuple(texts), None if pairs is None else tuple(pairs), values, "texts")


def build(
    folder: Path,
    *,
    settings: ModelConfig | None = None,
    label_space: LabelSpace = TWO,
    max_length: int = 128,
    is_pair: bool = False,
    seed: int = 1,
    loss: str = "auto",
    **model: Any,
) -> Built:
    """Return a fresh model on the checkpoint in `folder`, in evaluation mode, and its tokenizer.

    `settings` default to those of `Config`; the keyword arguments `model` override some of them.
    """
    settings = replace(settings or Config().model, name_or_path=str(folder), **model)
    tokenizer = load_tokenizer(settings)
    rows = {"max_length": max_length, "is_pair": is_pair}
    made = build_model(settings, label_space, tokenizer, **rows, seed=seed, loss=loss)
    return made.eval(), tokenizer


def encoded(tokenizer: PreTrainedTokenizerBase, *texts: str) -> dict[str, torch.Tensor]:
    return dict(tokenizer(list(texts), padding=True, return_tensors="pt"))


def encoded_apart(
    tokenizer: PreTrainedTokenizerBase, *pairs: tuple[str, str], max_length: int = 128
) -> dict[str, torch.Tensor]:
    """Return these pairs as one batch for a bi-encoder."""
    rows = rows_of([first for first, _ in pairs], [second for _, second in pairs])
    features = encode_rows(rows, tokenizer, max_length=max_length, bi_encoder=True)
    return pad_batch(features, range(len(pairs)), pad_token_id=tokenizer.pad_token_id).inputs


@torch.no_grad()
def logits_of(built: Built, *texts: str) -> torch.Tensor:
    """Return the logits (B, C) of these texts as one batch."""
    model, tokenizer = built
    return model(**encoded(tokenizer, *texts)).logits
