"""Which program computes attention."""

from __future__ import annotations

from typing import Any

# Beyond this the plain program's table of T x T probabilities outgrows the caches.
_LONGEST_PLAIN = 256


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
    if encoder.config._attn_implementation != "sdpa" or model.config.max_seq_length > _LONGEST_PLAIN:
        return False
    encoder.set_attn_implementation("eager")
    return True
