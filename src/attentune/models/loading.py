"""Helpers to load models and tokenizers with transformers: quietly, with errors of ours, with one tokenizer setup."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from transformers import PreTrainedConfig
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.utils import logging as hf_logging

from attentune.models.architectures import ask_for_segments, keep_text_as_text

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
