"""A BERT layer's training step on a CPU, forward and backward written out, in bf16.

PyTorch makes hundreds of operations of it, most of them casts, views and allocations; for batches of short texts these
take longer than what they serve. Here products with weights are PyTorch's, and all that lies between two of them is one
pass over the memory, in C (`c/`). Attention's probabilities, GELU's output and what dropout masks are
not kept: the backward pass computes them again.

The numbers are those of autocast: bf16 factors in products, float32 in residuals and normalisation. What autocast
rounds to bf16 within GELU stays in float32 here; within attention too, but where matrix tiles multiply it.

Source: Devlin et al. 2019, section 3 (the layer of Vaswani et al. 2017, section 3.1); attention without its table as in
Dao et al. 2022, section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attentune.nn.cpu.kernels import DropoutMask, Normed, attention, attention_back, gelu, gelu_back, norm, norm_back

_HALF = torch.bfloat16
# What changes attention's result, (B, T, D) bf16, before the product that joins the heads.
ContextTransform = Callable[[Tensor], Tensor]


class LayerWeights(NamedTuple):
    """A layer's parameters. Weights are (out, in)."""

    query: Tensor
    query_bias: Tensor
    key: Tensor
    key_bias: Tensor
    value: Tensor
    value_bias: Tensor
    attention_output: Tensor
    attention_output_bias: Tensor
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


class BFloat16Weights:
    """A layer's weights in the precisions it computes with, in memory that stays.

    Args:
        weights: of the layer, for their sizes.
    """

    def __init__(self, weights: LayerWeights) -> None:
        hidden, inner = weights.down.shape
        with torch.inference_mode(False):  # training may come after a prediction
            self.projections = torch.empty(3 * hidden, hidden, dtype=_HALF)
            self.attention_output = torch.empty(hidden, hidden, dtype=_HALF)
            self.up = torch.empty(inner, hidden, dtype=_HALF)
            self.down = torch.empty(hidden, inner, dtype=_HALF)
        self._places = [*self.projections.chunk(3), self.attention_output, self.up, self.down]

    def copy_from(self, weights: LayerWeights) -> None:
        """Take the values of the weights of products."""
        own = (weights.query, weights.key, weights.value, weights.attention_output, weights.up, weights.down)
        torch._foreach_copy_(self._places, [one.detach() for one in own])


def fused_layer(
    hidden_BTD: Tensor,
    mask: Tensor | None,
    weights: LayerWeights,
    half: BFloat16Weights,
    settings: LayerSettings,
    context_transform: ContextTransform | None = None,
) -> Tensor:
    """The layer's output in training, (B, T, D) float32, with dropout.

    Args:
        hidden_BTD: float32, on the CPU.
        mask: added to the scores, (B or 1, 1, T or 1, T) float32; or None.
        weights: the parameters, float32.
        half: the layer's own, which takes these weights; the backward pass must come before it takes others.
        settings: what else the layer computes with.
        between: applied to what attention found, as a blur is; gradients flow through it.
    """
    half.copy_from(weights)
    found_BTD: Tensor = _Attention.apply(hidden_BTD, mask, weights, half, settings, *weights[:_ATTENTION_OUTPUT])
    if context_transform is not None:
        found_BTD = context_transform(found_BTD)
    out_BTD: Tensor = _OutputAndFeedForward.apply(
        found_BTD, hidden_BTD, weights, half, settings, *weights[_ATTENTION_OUTPUT:]
    )
    return out_BTD


def fused_prediction(
    hidden_BTD: Tensor,
    mask: Tensor | None,
    weights: LayerWeights,
    half: BFloat16Weights,
    settings: LayerSettings,
    context_transform: ContextTransform | None = None,
) -> Tensor:
    """The layer's output without dropout and without gradients, (B, T, D), of the input's kind.

    Args:
        hidden_BTD: float32 or bf16, on the CPU.
        mask: as for `fused_layer`.
        weights: the parameters, float32 or bf16.
        half: has taken these weights.
        settings: what else the layer computes with; its dropout is not done.
        between: as for `fused_layer`.
    """
    wide = LayerWeights(*(one if one.ndim > 1 else one.detach().float() for one in weights))
    residual_ND = _rows(hidden_BTD.detach().float())
    with torch.autocast("cpu", enabled=False):
        context_ND = _attend(residual_ND, mask, len(hidden_BTD), wide, half, settings, _NO_DROPOUT, keep=False)[0]
    if context_transform is not None:
        context_ND = _rows(context_transform(context_ND.view(hidden_BTD.shape)).to(_HALF))
    with torch.autocast("cpu", enabled=False):
        masks = (_NO_DROPOUT, _NO_DROPOUT)
        last, _ = _output_and_feed_forward(context_ND, residual_ND, wide, half, settings, masks, keep=False)
    out_ND = last.out if hidden_BTD.dtype == torch.float32 else last.narrow
    return out_ND.view(hidden_BTD.shape)


_NO_DROPOUT = DropoutMask.of(0.0, 0)
# Where a layer's weights are parted: those before are attention's. The two functions below get their part by itself
# too, since autograd sees no tensor within a tuple.
_ATTENTION_OUTPUT = LayerWeights._fields.index("attention_output")


def _rows(x_BTD: Tensor) -> Tensor:
    return x_BTD.reshape(-1, x_BTD.shape[-1]).contiguous()


def _draw(*chances: float) -> tuple[DropoutMask, ...]:
    seeds = torch.empty(len(chances), dtype=torch.int64).random_().tolist()
    return tuple(DropoutMask.of(chance, seed) for chance, seed in zip(chances, seeds, strict=True))


def _attend(
    hidden_ND: Tensor,
    mask: Tensor | None,
    batch: int,
    weights: LayerWeights,
    half: BFloat16Weights,
    settings: LayerSettings,
    drop: DropoutMask,
    *,
    keep: bool,
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """What attention finds, (N, D) bf16, and what its backward pass wants; outside of autocast."""
    x_ND = hidden_ND.to(_HALF)
    biases_3D = torch.cat([weights.query_bias, weights.key_bias, weights.value_bias]).detach()
    projected_N3D = torch.mm(x_ND, half.projections.t())
    context_ND, log_sums = attention(projected_N3D, biases_3D, mask, batch, settings.heads, drop, keep=keep)
    return context_ND, (x_ND, projected_N3D, biases_3D, log_sums)


def _output_and_feed_forward(
    context_ND: Tensor,
    residual_ND: Tensor,
    weights: LayerWeights,
    half: BFloat16Weights,
    settings: LayerSettings,
    masks: tuple[DropoutMask, ...],
    *,
    keep: bool,
) -> tuple[Normed, tuple[Tensor | None, ...]]:
    """The layer's output from what attention found, and what the backward pass wants; outside of autocast."""
    attention_output_ND = torch.mm(context_ND, half.attention_output.t())
    norm_1 = (weights.norm_1, weights.norm_1_bias, settings.epsilon)
    middle = norm(attention_output_ND, weights.attention_output_bias, residual_ND, *norm_1, masks[0], keep=keep)
    raised_NI = torch.mm(middle.narrow, half.up.t())
    lowered_ND = torch.mm(gelu(raised_NI, weights.up_bias), half.down.t())
    norm_2 = (weights.norm_2, weights.norm_2_bias, settings.epsilon)
    last = norm(lowered_ND, weights.down_bias, middle.out, *norm_2, masks[1], keep=keep)
    return last, (context_ND, *middle[1:], raised_NI, *last[2:])


class _Attention(torch.autograd.Function):
    """From the hidden states to what attention finds: projections, biases, softmax, dropout."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_BTD: Tensor,
        mask: Tensor | None,
        weights: LayerWeights,
        half: BFloat16Weights,
        settings: LayerSettings,
        *own: Tensor,
    ) -> Any:
        (drop,) = _draw(settings.attention_dropout)
        with torch.autocast("cpu", enabled=False):
            hidden_ND, batch = _rows(hidden_BTD), len(hidden_BTD)
            context_ND, saved = _attend(hidden_ND, mask, batch, weights, half, settings, drop, keep=True)
        ctx.save_for_backward(*saved)
        ctx.mask, ctx.half, ctx.drop = mask, half, drop
        return context_ND.view(hidden_BTD.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        x_ND, projected, biases, log_sums = ctx.saved_tensors
        with torch.autocast("cpu", enabled=False):
            d_context = _rows(gradients[0])
            d_projected, d_biases = attention_back(projected, biases, ctx.mask, log_sums, d_context, ctx.drop)
            d_weights = _weight_gradient(d_projected, x_ND).chunk(3)
            d_hidden = torch.mm(d_projected, ctx.half.projections).float()
        d_own = (one for pair in zip(d_weights, d_biases.chunk(3), strict=True) for one in pair)
        return (d_hidden.view(gradients[0].shape), None, None, None, None, *d_own)


class _OutputAndFeedForward(torch.autograd.Function):
    """From what attention found to the layer's output: two residuals, two normalisations, GELU between."""

    @staticmethod
    def forward(
        ctx: Any,
        found_BTD: Tensor,
        hidden_BTD: Tensor,
        weights: LayerWeights,
        half: BFloat16Weights,
        settings: LayerSettings,
        *own: Tensor,
    ) -> Any:
        masks = _draw(settings.hidden_dropout, settings.hidden_dropout)
        with torch.autocast("cpu", enabled=False):
            context_ND, residual_ND = _rows(found_BTD.to(_HALF)), _rows(hidden_BTD)
            last, saved = _output_and_feed_forward(context_ND, residual_ND, weights, half, settings, masks, keep=True)
        ctx.save_for_backward(*saved, weights.norm_1, weights.up_bias, weights.norm_2)
        ctx.half, ctx.masks, ctx.kind = half, masks, found_BTD.dtype
        return last.out.view(hidden_BTD.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        context, middle, normed_1, inverse_1, raised, normed_2, inverse_2, scale_1, up_bias, scale_2 = ctx.saved_tensors
        half, shape = ctx.half, gradients[0].shape
        with torch.autocast("cpu", enabled=False):
            d_middle, d_lowered, sums_2 = norm_back(
                _rows(gradients[0]), None, normed_2, inverse_2, scale_2, ctx.masks[1]
            )
            d_raised = torch.mm(d_lowered, half.down)
            active, d_up_bias = gelu_back(raised, up_bias, d_raised)
            d_down, d_up = _weight_gradient(d_lowered, active), _weight_gradient(d_raised, middle)
            d_more = torch.mm(d_raised, half.up)
            d_hidden, d_attention_output, sums_1 = norm_back(
                d_middle, d_more, normed_1, inverse_1, scale_1, ctx.masks[0]
            )
            d_context = torch.mm(d_attention_output, half.attention_output).to(ctx.kind)
            d_join = _weight_gradient(d_attention_output, context)
        d_norms_1, d_norms_2 = (sums_1[2], sums_1[0], sums_1[1]), (sums_2[2], sums_2[0], sums_2[1])
        d_own = (d_join, *d_norms_1, d_up, d_up_bias, d_down, *d_norms_2)
        return (d_context.view(shape), d_hidden.view(shape), None, None, None, *d_own)


def _weight_gradient(d_out_NO: Tensor, input_NI: Tensor) -> Tensor:
    """The gradient of a weight (O, I), float32."""
    return torch.mm(d_out_NO.t(), input_NI).float()
