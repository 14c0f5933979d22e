"""Which program computes attention."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from attentune.nn.plain_attention import plain_attention

# Under this name transformers finds our own.
PLAIN = "attentune_plain"

# Beyond this the plain program's table of T x T probabilities outgrows the caches.
_LONGEST_PLAIN = 256


def _plain(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[Tensor, Tensor]:
    """`plain_attention` as transformers calls it."""
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    return plain_attention(query, key, value, attention_mask, scaling=factor, dropout=dropout if module.training else 0)


AttentionInterface.register(PLAIN, _plain)
# Without a mask of its own a program would look at padding.
AttentionMaskInterface.register(PLAIN, eager_mask)


def use_plain_attention(model: Any) -> bool:
    """On a CPU, let short texts take plain matrix products in the place of PyTorch's fused attention.

    The fused program has no dropout on a CPU and falls back to a slow one in training, and in prediction it is slower
    on short rows too. Both compute the same up to rounding, so training, scores while training and predictions of the
    saved model must agree on one of them.

    Args:
        model: an `AttentuneForSequenceClassification` on a CPU; changed in place.

    Returns:
        Whether it now takes the plain one: not where another one than PyTorch's was chosen, nor for long texts.
    """
    encoder = model.encoder
    if encoder.config._attn_implementation != "sdpa" or model.config.longest_read > _LONGEST_PLAIN:
        return False
    encoder.set_attn_implementation(PLAIN)
    return True


@contextlib.contextmanager
def attention_by(model: Any, program: str | None = None) -> Iterator[None]:
    """While the block runs, attention is computed by this program; afterwards by the one that did it before.

    Args:
        model: an `AttentuneForSequenceClassification`; changed in place while the block runs.
        program: transformers' name of one, such as "eager", which alone gives attention probabilities; None leaves it
            to the block.
    """
    encoder = model.encoder
    before = encoder.config._attn_implementation
    try:
        if program not in (None, before):
            encoder.set_attn_implementation(program)
        yield
    finally:
        if encoder.config._attn_implementation != before:
            encoder.set_attn_implementation(before)
