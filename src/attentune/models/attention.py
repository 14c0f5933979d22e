"""Which program computes attention."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from attentune.nn.cpu.attention import added_mask, long_attention, plain_attention

# Under these names transformers finds our own.
PLAIN = "attentune_plain"
LONG = "attentune_long"

# A model that reads more tokens than this predicts by PyTorch's fused program.
_LONGEST_PLAIN = 256
# In batches of longer texts the tables of T x T probabilities outgrow the caches.
_SHORT = 96


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    fused: bool,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Our own programs as transformers calls them; `fused`: PyTorch's wherever nothing is dropped."""
    if fused and not (module.training and dropout):
        given = {"scaling": scaling, "dropout": 0.0, **others}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **given)
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    if module.training:
        return _in_training(query, key, value, attention_mask, factor, dropout)
    return plain_attention(query, key, value, attention_mask, scaling=factor, dropout=0.0)


def _in_training(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, dropout: float
) -> tuple[Tensor, Tensor | None]:
    """Plain products where the batch's texts are short, else piece by piece."""
    if torch.is_autocast_enabled("cpu"):
        narrow = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(narrow), key.to(narrow), value.to(narrow)
    if max(query.shape[2], key.shape[2]) > _SHORT:
        return long_attention(query, key, value, mask, scaling=scaling, dropout=dropout), None
    if mask is not None and mask.dtype == torch.bool:
        mask = added_mask(mask, torch.float32)
    return plain_attention(query, key, value, mask, scaling=scaling, dropout=dropout)


def _mask(*given: Any, made_by: Callable[..., Tensor | None], **named: Any) -> Tensor | None:
    """The mask that transformers makes, (B, 1, T, S); (B, 1, 1, S) where all queries may look at the same keys."""
    mask_B1TS = made_by(*given, **named)
    if mask_B1TS is None:
        return None
    first_B11S = mask_B1TS[:, :, :1]
    return first_B11S if torch.equal(mask_B1TS, first_B11S.expand_as(mask_B1TS)) else mask_B1TS


AttentionInterface.register(PLAIN, partial(_attention, fused=False))
AttentionInterface.register(LONG, partial(_attention, fused=True))
# Without a mask of its own a program would look at padding.
AttentionMaskInterface.register(PLAIN, partial(_mask, made_by=eager_mask))
AttentionMaskInterface.register(LONG, partial(_mask, made_by=sdpa_mask))


def use_own_attention(model: Any) -> str | None:
    """On a CPU, put our own programs in the place of PyTorch's fused attention.

    That one has no dropout on a CPU and falls back to a slow one in training. Short texts take plain matrix products,
    which are faster in prediction too; long ones train piece by piece and predict by the fused one. All compute the
    same up to rounding, and training, scores while training and predictions of the saved model must agree on which.

    Args:
        model: an `AttentuneForSequenceClassification` on a CPU; changed in place.

    Returns:
        The name that transformers has for what it takes now; None where another one than PyTorch's was chosen, which
        stays.
    """
    encoder = model.encoder
    if encoder.config._attn_implementation != "sdpa":
        return None
    chosen = LONG if model.config.longest_read > _LONGEST_PLAIN else PLAIN
    encoder.set_attn_implementation(chosen)
    return chosen


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
