"""A BERT layer's training step on a CPU, forward and backward written out, in bf16.

PyTorch makes hundreds of operations of it, most of them casts, views and allocations; for batches of short texts these
take longer than what they serve. Here products with weights are PyTorch's, and all that lies between two of them is one
pass over the memory, in C (`c/`). Attention's probabilities, GELU's output and what dropout drops are
not kept: the backward pass computes them again.

The numbers are those of autocast: bf16 factors in products, float32 in residuals and normalisation. What autocast
rounds to bf16 within GELU stays in float32 here; within attention too, but where matrix tiles multiply it.

Source: Devlin et al. 2019, section 3 (the layer of Vaswani et al. 2017, section 3.1); attention without its table as in
Dao et al. 2022, section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attentune.nn.kernels import Drop, Normed, add, attention, attention_back, gelu, gelu_back, norm, norm_back

_HALF = torch.bfloat16


class LayerWeights(NamedTuple):
    """A layer's parameters. Weights are (out, in)."""

    query: Tensor
    query_bias: Tensor
    key: Tensor
    key_bias: Tensor
    value: Tensor
    value_bias: Tensor
    joined: Tensor
    joined_bias: Tensor
    norm_1: Tensor
    norm_1_bias: Tensor
    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor
    norm_2: Tensor
    norm_2_bias: Tensor


@dataclass(frozen=True)
class LayerSettings:
    """What a layer computes with besides its weights.

    Attributes:
        heads: of attention; the hidden size over their number is their width.
        attention_dropout: the chance with which a probability is dropped.
        hidden_dropout: the chance with which a feature is dropped before it joins the residual.
        epsilon: what both normalisations add to the variance.
    """

    heads: int
    attention_dropout: float
    hidden_dropout: float
    epsilon: float


class HalfWeights:
    """A layer's weights in the precisions it computes with, in memory that stays.

    Args:
        weights: of the layer, for their sizes.
    """

    def __init__(self, weights: LayerWeights) -> None:
        hidden, inner = weights.down.shape
        with torch.inference_mode(False):  # training may come after a prediction
            self.projections = torch.empty(3 * hidden, hidden, dtype=_HALF)
            self.joined = torch.empty(hidden, hidden, dtype=_HALF)
            self.up = torch.empty(inner, hidden, dtype=_HALF)
            self.down = torch.empty(hidden, inner, dtype=_HALF)
        self._places = [*self.projections.chunk(3), self.joined, self.up, self.down]

    def copy_from(self, weights: LayerWeights) -> None:
        """Take the values of the weights of products."""
        own = (weights.query, weights.key, weights.value, weights.joined, weights.up, weights.down)
        torch._foreach_copy_(self._places, [one.detach() for one in own])


def fused_layer(
    hidden_BTD: Tensor, mask: Tensor | None, weights: LayerWeights, half: HalfWeights, settings: LayerSettings
) -> Tensor:
    """The layer's output in training, (B, T, D) float32, with dropout.

    Args:
        hidden_BTD: float32, on the CPU.
        mask: added to the scores, (B or 1, 1, T or 1, T) float32; or None.
        weights: the parameters, float32.
        half: the layer's own, which takes these weights; the backward pass must come before it takes others.
        settings: what else the layer computes with.
    """
    out_BTD: Tensor = _FusedLayer.apply(hidden_BTD, mask, half, settings, *weights)
    return out_BTD


def fused_prediction(
    hidden_BTD: Tensor, mask: Tensor | None, weights: LayerWeights, half: HalfWeights, settings: LayerSettings
) -> Tensor:
    """The layer's output without dropout and without gradients, (B, T, D), of the input's kind.

    Args:
        hidden_BTD: float32 or bf16, on the CPU.
        mask: as for `fused_layer`.
        weights: the parameters, float32 or bf16.
        half: has taken these weights.
        settings: what else the layer computes with; its dropout is not done.
    """
    with torch.autocast("cpu", enabled=False):
        wide = LayerWeights(*(one if one.ndim > 1 else one.detach().float() for one in weights))
        residual_ND = hidden_BTD.detach().reshape(-1, hidden_BTD.shape[-1]).float().contiguous()
        nothing = (Drop.of(0.0, 0),) * 3
        last, _ = _forward(residual_ND, mask, len(hidden_BTD), wide, half, settings, nothing, keep=False)
    out_ND = last.out if hidden_BTD.dtype == torch.float32 else last.narrow
    return out_ND.view(hidden_BTD.shape)


def _forward(
    residual_ND: Tensor,
    mask: Tensor | None,
    batch: int,
    weights: LayerWeights,
    half: HalfWeights,
    settings: LayerSettings,
    drops: tuple[Drop, Drop, Drop],
    *,
    keep: bool,
) -> tuple[Normed, tuple[Tensor | None, ...]]:
    """The layer's output, and what the backward pass wants of it; outside of autocast."""
    x_ND = residual_ND.to(_HALF)
    biases_3D = torch.cat([weights.query_bias, weights.key_bias, weights.value_bias]).detach()
    projected_N3D = torch.mm(x_ND, half.projections.t())
    found_ND, log_sums = attention(projected_N3D, biases_3D, mask, batch, settings.heads, drops[0], keep=keep)
    joined_ND = torch.mm(found_ND, half.joined.t())
    norm_1 = (weights.norm_1, weights.norm_1_bias, settings.epsilon)
    middle = norm(joined_ND, weights.joined_bias, residual_ND, *norm_1, drops[1], keep=keep)
    raised_NI = torch.mm(middle.narrow, half.up.t())
    lowered_ND = torch.mm(gelu(raised_NI, weights.up_bias), half.down.t())
    norm_2 = (weights.norm_2, weights.norm_2_bias, settings.epsilon)
    last = norm(lowered_ND, weights.down_bias, middle.out, *norm_2, drops[2], keep=keep)
    for_attention = (x_ND, projected_N3D, biases_3D, found_ND, log_sums)
    return last, (*for_attention, *middle[1:], raised_NI, *last[2:])


class _FusedLayer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_BTD: Tensor, mask: Tensor | None, half: HalfWeights, settings: LayerSettings, *given: Tensor
    ) -> Any:
        weights = LayerWeights(*given)
        seeds = torch.empty(3, dtype=torch.int64).random_().tolist()
        chances = (settings.attention_dropout, settings.hidden_dropout, settings.hidden_dropout)
        first, second, third = (Drop.of(chance, seed) for chance, seed in zip(chances, seeds, strict=True))
        drops = (first, second, third)
        with torch.autocast("cpu", enabled=False):
            half.copy_from(weights)
            residual_ND = hidden_BTD.reshape(-1, hidden_BTD.shape[-1]).contiguous()
            last, saved = _forward(residual_ND, mask, len(hidden_BTD), weights, half, settings, drops, keep=True)
        ctx.save_for_backward(*saved, *given)
        ctx.mask, ctx.half, ctx.drops = mask, half, drops
        return last.out.view(hidden_BTD.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        x_ND, projected, biases, found, log_sums, middle, normed_1, inverse_1, raised, normed_2, inverse_2, *given = (
            ctx.saved_tensors
        )
        weights, half = LayerWeights(*given), ctx.half
        drop_0, drop_1, drop_2 = ctx.drops
        shape = gradients[0].shape
        d_out_ND = gradients[0].reshape(-1, shape[-1]).contiguous()
        with torch.autocast("cpu", enabled=False):
            d_middle, d_lowered, sums_2 = norm_back(d_out_ND, None, normed_2, inverse_2, weights.norm_2, drop_2)
            d_raised = torch.mm(d_lowered, half.down)
            active, d_up_bias = gelu_back(raised, weights.up_bias, d_raised)
            d_down, d_up = _of_weight(d_lowered, active), _of_weight(d_raised, middle)
            d_more = torch.mm(d_raised, half.up)
            d_hidden, d_joined, sums_1 = norm_back(d_middle, d_more, normed_1, inverse_1, weights.norm_1, drop_1)
            d_found = torch.mm(d_joined, half.joined)
            d_projected, d_biases = attention_back(projected, biases, ctx.mask, log_sums, d_found, drop_0)
            d_projections = _of_weight(d_projected, x_ND)
            add(d_hidden, torch.mm(d_projected, half.projections))
            (d_query, d_key, d_value), (d_query_bias, d_key_bias, d_value_bias) = (
                d_projections.chunk(3),
                d_biases.chunk(3),
            )
            d_own = LayerWeights(
                query=d_query,
                query_bias=d_query_bias,
                key=d_key,
                key_bias=d_key_bias,
                value=d_value,
                value_bias=d_value_bias,
                joined=_of_weight(d_joined, found),
                joined_bias=sums_1[2],
                norm_1=sums_1[0],
                norm_1_bias=sums_1[1],
                up=d_up,
                up_bias=d_up_bias,
                down=d_down,
                down_bias=sums_2[2],
                norm_2=sums_2[0],
                norm_2_bias=sums_2[1],
            )
        return (d_hidden.view(shape), None, None, None, *d_own)


def _of_weight(d_out_NO: Tensor, input_NI: Tensor) -> Tensor:
    """The gradient of a weight (O, I), float32."""
    return torch.mm(d_out_NO.t(), input_NI).float()
