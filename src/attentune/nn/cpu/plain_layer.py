"""The layers of `fused_layer` and `fused_pre_norm` by PyTorch's operations: what compiled code is compared with."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear, scaled_dot_product_attention

from attentune.nn.cpu.fused_layer import LayerSettings, LayerWeights
from attentune.nn.cpu.fused_pre_norm import Angles, PreNormSettings, PreNormWeights


def random_weights(hidden: int, inner: int, generator: torch.Generator) -> LayerWeights:
    """Return a layer's weights, of the size that weights have; matrices hold numbers that bf16 represents exactly."""

    def matrix(rows: int, columns: int) -> Tensor:
        values = torch.randn(rows, columns, generator=generator) / math.sqrt(columns)
        return values.bfloat16().float().requires_grad_()

    def vector(size: int, around: float = 0.0) -> Tensor:
        return (around + 0.1 * torch.randn(size, generator=generator)).requires_grad_()

    square, norm = (hidden, hidden), None
    sizes = (square, square, square, square, norm, (inner, hidden), (hidden, inner), norm)
    parts: list[Tensor] = []
    for size in sizes:
        parts += [vector(hidden, 1.0), vector(hidden)] if size is None else [matrix(*size), vector(size[0])]
    return LayerWeights(*parts)


def plain_layer(
    hidden_BTD: Tensor,
    mask: Tensor,
    w: LayerWeights,
    settings: LayerSettings,
    positions: Tensor | None = None,
) -> Tensor:
    """Compute the layer in float32 with PyTorch's operations, without dropout (Devlin et al. 2019, section 3)."""
    batch, length, width = hidden_BTD.shape

    def heads(weight: Tensor, bias: Tensor) -> Tensor:
        return linear(hidden_BTD, weight, bias).view(batch, length, settings.heads, -1).transpose(1, 2)

    query, key, value = heads(w.query, w.query_bias), heads(w.key, w.key_bias), heads(w.value, w.value_bias)
    terms = 3 if settings.is_disentangled else 1
    scale = (terms * width // settings.heads) ** -0.5
    if positions is not None:
        places = torch.arange(length)
        places_TT = places - places[:, None] + length - 1
        if settings.is_disentangled:
            keys, queries = positions.view(-1, 2, settings.heads, width // settings.heads)[places_TT].unbind(2)
            added = torch.einsum("bhte,tshe->bhts", query, keys) + torch.einsum("bhse,tshe->bhts", key, queries)
            mask = mask + scale * added
        else:
            mask = mask + positions[:, places_TT]
    context_BHTE = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    context_BTD = context_BHTE.transpose(1, 2).reshape(hidden_BTD.shape)
    attended = hidden_BTD + linear(context_BTD, w.attention_output, w.attention_output_bias)
    middle = layer_norm(attended, (width,), w.norm_1, w.norm_1_bias, settings.epsilon)
    raised = gelu(linear(middle, w.up, w.up_bias), approximate="tanh" if settings.is_gelu_tanh else "none")
    lowered = linear(raised, w.down, w.down_bias)
    return layer_norm(middle + lowered, (width,), w.norm_2, w.norm_2_bias, settings.epsilon)


def plain_pre_norm_layer(
    hidden_BTD: Tensor, mask: Tensor, angles: Angles, w: PreNormWeights, settings: PreNormSettings
) -> Tensor:
    """Compute a ModernBERT layer in the inputs' precision by PyTorch's operations (Warner et al. 2024, section 2.1)."""
    batch, length, width = hidden_BTD.shape
    cosine_TE, sine_TE = angles

    def rotated(x_BHTE: Tensor) -> Tensor:
        first, second = x_BHTE.chunk(2, dim=-1)
        return x_BHTE * cosine_TE + torch.cat([-second, first], dim=-1) * sine_TE

    x_BTD = hidden_BTD if w.norm_1 is None else layer_norm(hidden_BTD, (width,), w.norm_1, None, settings.epsilon)
    projected = linear(x_BTD, w.projections).view(batch, length, 3, settings.heads, -1)
    query, key, value = projected.permute(2, 0, 3, 1, 4)
    context_BHTE = scaled_dot_product_attention(rotated(query), rotated(key), value, attn_mask=mask)
    context_BTD = context_BHTE.transpose(1, 2).reshape(hidden_BTD.shape)
    middle = hidden_BTD + linear(context_BTD, w.attention_output)
    raised = linear(layer_norm(middle, (width,), w.norm_2, None, settings.epsilon), w.up)
    activated, gate = raised.chunk(2, dim=-1)
    active = gelu(activated, approximate="tanh" if settings.is_gelu_tanh else "none") * gate
    return middle + linear(active, w.down)
