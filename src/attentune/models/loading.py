"""Helpers to load models and tokenizers with transformers: quietly, with errors of ours, with one tokenizer setup."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

from tokenizers import Regex
from tokenizers.pre_tokenizers import Sequence, Split
from torch import nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)
from transformers.utils import logging as hf_logging

from attentune.errors import UnsupportedEncoderError


def pooler_dense(encoder: nn.Module) -> nn.Linear | None:
    """Return the dense layer of the encoder's pooler; None without one.

    It is `pooler.dense` in BERT, RoBERTa, XLM-R and MPNet, `pooler` in ALBERT; all apply tanh to its output.
    """
    pooler = getattr(encoder, "pooler", None)
    dense = getattr(pooler, "dense", pooler)
    return dense if isinstance(dense, nn.Linear) else None


def is_pooler_weight(name: str) -> bool:
    """Whether a weight of this name belongs to a pooler."""
    return "pooler" in name.split(".")


def check_is_encoder(name: str, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that a model is a bidirectional text encoder with a usable tokenizer."""
    hint = "Choose an encoder such as embedded, bert-base-uncased, roberta-base or answerdotai/ModernBERT-base."
    kind = config.model_type
    causal = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if causal or getattr(config, "is_encoder_decoder", False) or getattr(config, "is_decoder", False):
        raise UnsupportedEncoderError(
            f"{name}: is a {config.model_type} model with a decoder, expected an encoder. {hint}"
        )
    if not tokenizer.is_fast:
        raise UnsupportedEncoderError(
            f"{name}: its tokenizer ({type(tokenizer).__name__}) has no fast version, expected a tokenizer.json. {hint}"
        )
    # If its files are missing, transformers creates a tokenizer with the special tokens and little else.
    if len(tokenizer) < len(tokenizer.all_special_ids) + 8:
        raise UnsupportedEncoderError(
            f"{name}: its tokenizer has no vocabulary; are tokenizer.json or the vocabulary's files missing?"
            " Expected the tokenizer that the encoder was trained with."
        )
    missing = [kind for kind in ("cls", "pad", "mask") if getattr(tokenizer, f"{kind}_token_id") is None]
    if missing:
        raise UnsupportedEncoderError(
            f"{name}: its tokenizer has no {', '.join(missing)} token, expected those of an encoder trained on masked"
            f" text. {hint}"
        )


def readable_positions(encoder: nn.Module) -> int | None:
    """Return the maximum length that the encoder's position embeddings allow; None if it is not known.

    RoBERTa and its relatives count positions from the padding id + 1, so the first embeddings are never used.
    """
    positions = getattr(encoder.config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions <= 0:
        return None
    table = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
    first = getattr(table, "padding_idx", None)
    return positions if first is None else positions - first - 1


def special_token_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of start, end, separator and padding tokens; mask and unknown tokens stand for words."""
    kinds = ("cls", "sep", "bos", "eos", "pad")
    ids = {getattr(tokenizer, f"{kind}_token_id", None) for kind in kinds}
    return sorted(int(i) for i in ids - {None, tokenizer.mask_token_id, tokenizer.unk_token_id} if i is not None)


def pair_separators(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the number of special tokens between the two texts of a row; None unless a text has one at each end.

    One in BERT's rows, [CLS] a [SEP] b [SEP], two in RoBERTa's, <s> a </s></s> b </s>.
    """
    if tokenizer.num_special_tokens_to_add(pair=False) != 2:
        return None
    return tokenizer.num_special_tokens_to_add(pair=True) - 2


def keep_text_as_text(tokenizer: PreTrainedTokenizerBase) -> None:
    """Make the tokenizer encode a text such as "[MASK] </s>" as plain characters, not as special tokens.

    `split_special_tokens` does this for most families. The Unigram vocabularies of ALBERT, DeBERTa-v2 and XLM-R contain
    the special tokens as pieces too, so a pre-tokenizer splits these first. Neither is saved with the tokenizer: call
    this after every load.
    """
    tokenizer.split_special_tokens = True
    backend = tokenizer.backend_tokenizer
    if type(backend.model).__name__ != "Unigram":
        return
    special = [token for token in tokenizer.all_special_tokens if len(token) > 1]
    parts = "|".join(f"{re.escape(token[0])}(?={re.escape(token[1:])})" for token in special)
    split = Split(Regex(f"▁?(?:{parts})"), "isolated")
    backend.pre_tokenizer = split if backend.pre_tokenizer is None else Sequence([backend.pre_tokenizer, split])


def ask_for_segments(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    """Make the tokenizer return token type ids if the encoder has segment embeddings.

    ALBERT's tokenizer omits them by default, so that the encoder could not tell the two texts of a pair.
    """
    if (getattr(config, "type_vocab_size", None) or 0) > 1 and "token_type_ids" not in tokenizer.model_input_names:
        tokenizer.model_input_names = [*tokenizer.model_input_names, "token_type_ids"]


__all__ = ["Tokenizer", "first_line", "loading", "prepare_tokenizer", "quiet"]


def prepare_tokenizer(tokenizer: Tokenizer, encoder_config: PreTrainedConfig) -> Tokenizer:
    """Configure a loaded tokenizer: pad and truncate on the right, no special tokens from text, segment ids."""
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    keep_text_as_text(tokenizer)
    ask_for_segments(tokenizer, encoder_config)
    return tokenizer


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' progress bars and loading reports; our own checks report problems."""
    level, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(level)
        if bars:
            hf_logging.enable_progress_bar()


@contextlib.contextmanager
def loading(error_of: Callable[[str], Exception]) -> Iterator[None]:
    """Convert any exception that libraries raise while they load untrusted files."""
    with quiet():
        try:
            yield
        except BaseException as error:
            # A panic in the Rust code of tokenizers is not an Exception.
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":
                raise error_of(first_line(error)) from error
            raise


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message as a sentence."""
    lines = str(error).strip()[:1000].splitlines() or [type(error).__name__]
    message = f"there is no {lines[0]}" if isinstance(error, KeyError) else lines[0]
    return message.rstrip(".:") + "."
