"""Selects the attention implementation, and registers our own for the CPU with transformers."""

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

from attentune.nn.compiled.attention import added_mask, long_attention, plain_attention

# Names under which our implementations are registered with transformers.
PLAIN = "attentune_plain"
LONG = "attentune_long"

# Models with a longer maximum length predict with PyTorch's fused attention.
_LONGEST_PLAIN = 256
# In batches of longer texts the T x T matrices of probabilities do not fit into the caches.
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
    """Compute attention with transformers' signature; `fused` selects PyTorch's wherever there is no dropout."""
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
    """Use plain products for batches of short texts, block by block for others."""
    if torch.is_autocast_enabled("cpu"):
        narrow = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(narrow), key.to(narrow), value.to(narrow)
    if max(query.shape[2], key.shape[2]) > _SHORT:
        return long_attention(query, key, value, mask, scaling=scaling, dropout=dropout), None
    if mask is not None and mask.dtype == torch.bool:
        mask = added_mask(mask, torch.float32)
    return plain_attention(query, key, value, mask, scaling=scaling, dropout=dropout)


def _mask(*args: Any, made_by: Callable[..., Tensor | None], **kwargs: Any) -> Tensor | None:
    """Make transformers' mask, (B, 1, T, S), reduced to (B, 1, 1, S) if it is the same for all queries."""
    mask_B1TS = made_by(*args, **kwargs)
    if mask_B1TS is None:
        return None
    first_B11S = mask_B1TS[:, :, :1]
    return first_B11S if torch.equal(mask_B1TS, first_B11S.expand_as(mask_B1TS)) else mask_B1TS


AttentionInterface.register(PLAIN, partial(_attention, fused=False))
AttentionInterface.register(LONG, partial(_attention, fused=True))
# Without a registered mask function transformers would pass no mask, and padding would be attended to.
AttentionMaskInterface.register(PLAIN, partial(_mask, made_by=eager_mask))
AttentionMaskInterface.register(LONG, partial(_mask, made_by=sdpa_mask))


def use_own_attention(model: Any) -> str | None:
    """Replace PyTorch's fused attention by our own on a CPU.

    PyTorch's does not support dropout on a CPU and falls back to a slow implementation in training. Models for short
    texts use plain matrix products, which are faster in prediction too; those for long texts train block by block and
    predict with PyTorch's. All agree up to rounding; training, evaluation and prediction of one model use the same.
    """
    encoder = model.encoder
    if encoder.config._attn_implementation != "sdpa":
        return None
    chosen = LONG if model.config.longest_read > _LONGEST_PLAIN else PLAIN
    encoder.set_attn_implementation(chosen)
    return chosen


@contextlib.contextmanager
def attention_by(model: Any, program: str | None = None) -> Iterator[None]:
    """Use another attention implementation while the block runs, and restore the present one after."""
    encoder = model.encoder
    before = encoder.config._attn_implementation
    try:
        if program not in (None, before):
            encoder.set_attn_implementation(program)
        yield
    finally:
        if encoder.config._attn_implementation != before:
            encoder.set_attn_implementation(before)
