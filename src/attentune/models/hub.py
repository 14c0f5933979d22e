"""Small things that every use of transformers here needs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from transformers import PreTrainedConfig
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.utils import logging as hf_logging

from attentune.models.architectures import ask_for_segments, keep_text_as_text

__all__ = ["Tokenizer", "first_line", "loading", "prepare_tokenizer", "quiet"]


def prepare_tokenizer(tokenizer: Tokenizer, encoder_config: PreTrainedConfig) -> Tokenizer:
    """Set a freshly loaded tokenizer as all code here expects it."""
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    keep_text_as_text(tokenizer)
    ask_for_segments(tokenizer, encoder_config)
    return tokenizer


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No bars and reports from transformers while loading: what matters is checked and said by us."""
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
    """Turn whatever the libraries raise over files that anyone may have made into an error of ours."""
    with quiet():
        try:
            yield
        except BaseException as error:
            # What panics in tokenizers' Rust is no Exception to Python.
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":
                raise error_of(first_line(error)) from error
            raise


def first_line(error: BaseException) -> str:
    lines = str(error).strip()[:1000].splitlines() or [type(error).__name__]
    said = f"there is no {lines[0]}" if isinstance(error, KeyError) else lines[0]
    return said.rstrip(".:") + "."
