"""A fused ModernBERT layer for bf16 on a CPU: `fused_layer`'s counterpart with normalisation before each block.

Attention has rotary position embeddings and perhaps a local window, which is part of the mask; the feed-forward network
is gated (GeGLU). Linears and normalisations have no biases, and there is no dropout, as in ModernBERT's checkpoints.
Division of labour and precision are those of `fused_layer`.

Source: Warner et al. 2024 (ModernBERT), section 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attentune.nn.compiled.fused_layer import HALF, BFloat16Weights, ContextTransform, rows_of, weight_gradient
from attentune.nn.compiled.kernels import (
    NO_DROPOUT,
    PreNormed,
    attention,
    attention_back,
    geglu,
    geglu_back,
    pre_norm,
    pre_norm_back,
    rotate,
)

Angles = tuple[Tensor, Tensor]


class PreNormWeights(NamedTuple):
    """A layer's parameters; weights are (out, in)."""

    projections: Tensor  # of query, key and value, (3 D, D)
    attention_output: Tensor  # attention's output projection
    up: Tensor  # of the feed-forward network, (2 I, D): what is activated, then the gate
    down: Tensor  # of the feed-forward network, (D, I)
    norm_1: Tensor | None  # scale of the normalisation before attention; None for none, as in the first layer
    norm_2: Tensor  # scale of that before the feed-forward network

    @property
    def matrices(self) -> tuple[Tensor, ...]:
        """The weight matrices; see `WithMatrices`."""
        return self.projections, self.attention_output, self.up, self.down


@dataclass(frozen=True)
class PreNormSettings:
    """Settings of a layer: number of heads, what is added to variances, and whether GELU is that by tanh."""

    heads: int
    epsilon: float
    is_gelu_tanh: bool = False


def fused_pre_norm_layer(
    hidden_BTD: Tensor,
    mask: Tensor | None,
    angles: Angles,
    weights: PreNormWeights,
    half: BFloat16Weights,
    settings: PreNormSettings,
    context_transform: ContextTransform | None = None,
) -> Tensor:
    """Compute the layer's output in training, with gradients."""
    half.copy_from(weights)
    context_BTD: Tensor = _Attention.apply(
        hidden_BTD, mask, angles, half, settings, weights.norm_1, weights.projections
    )
    if context_transform is not None:
        context_BTD = context_transform(context_BTD)
    parameters = (weights.attention_output, weights.norm_2, weights.up, weights.down)
    out_BTD: Tensor = _OutputAndFeedForward.apply(context_BTD, hidden_BTD, half, settings, *parameters)
    return out_BTD


def fused_pre_norm_prediction(
    hidden_BTD: Tensor,
    mask: Tensor | None,
    angles: Angles,
    weights: PreNormWeights,
    half: BFloat16Weights,
    settings: PreNormSettings,
    context_transform: ContextTransform | None = None,
) -> Tensor:
    """Compute the layer's output without gradients."""
    residual_ND = rows_of(hidden_BTD.detach().float())
    scale_1 = None if weights.norm_1 is None else weights.norm_1.detach().float()
    with torch.autocast("cpu", enabled=False):
        context_ND, _ = _attend(residual_ND, mask, angles, len(hidden_BTD), scale_1, half, settings, keep=False)
    if context_transform is not None:
        context_ND = rows_of(context_transform(context_ND.view(hidden_BTD.shape)).to(HALF))
    with torch.autocast("cpu", enabled=False):
        out_ND, _ = _output_and_feed_forward(context_ND, residual_ND, weights.norm_2.detach().float(), half, settings)
    return out_ND.view(hidden_BTD.shape).to(hidden_BTD.dtype)


def _attend(
    hidden_ND: Tensor,
    mask: Tensor | None,
    angles: Angles,
    batch: int,
    scale_D: Tensor | None,
    half: BFloat16Weights,
    settings: PreNormSettings,
    *,
    keep: bool,
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Compute the context, (N, D) bf16, and the tensors that the backward pass needs; call outside of autocast."""
    before = None if scale_D is None else pre_norm(None, hidden_ND, scale_D, settings.epsilon)
    x_ND = hidden_ND.to(HALF) if before is None else before.out_bf16
    projected_N3D = torch.mm(x_ND, half.projections.t())
    rotate(projected_N3D, *angles, settings.heads)
    biases_3D = torch.zeros(projected_N3D.shape[1])
    context_ND, log_sums = attention(projected_N3D, biases_3D, mask, batch, settings.heads, NO_DROPOUT, keep=keep)
    norms = (None, None) if before is None else before[2:]
    return context_ND, (x_ND, projected_N3D, biases_3D, log_sums, *norms)


def _output_and_feed_forward(
    context_ND: Tensor, residual_ND: Tensor, scale_D: Tensor, half: BFloat16Weights, settings: PreNormSettings
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Compute the layer's output from the context, and the tensors for the backward pass; call outside of autocast."""
    middle = pre_norm(torch.mm(context_ND, half.attention_output.t()), residual_ND, scale_D, settings.epsilon)
    raised_N2I = torch.mm(middle.out_bf16, half.up.t())
    lowered_ND = torch.mm(geglu(raised_N2I, is_tanh=settings.is_gelu_tanh), half.down.t())
    return middle.total + lowered_ND, (context_ND, *middle[1:], raised_N2I)


class _Attention(torch.autograd.Function):
    """From the hidden states to the context: normalisation, projections, rotation, softmax."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_BTD: Tensor,
        mask: Tensor | None,
        angles: Angles,
        half: BFloat16Weights,
        settings: PreNormSettings,
        scale_D: Tensor | None,
        projections: Tensor,
    ) -> Any:
        with torch.autocast("cpu", enabled=False):
            hidden_ND, batch = rows_of(hidden_BTD), len(hidden_BTD)
            context_ND, saved = _attend(hidden_ND, mask, angles, batch, scale_D, half, settings, keep=True)
        ctx.save_for_backward(*saved, scale_D)
        ctx.mask, ctx.angles, ctx.half, ctx.heads = mask, angles, half, settings.heads
        return context_ND.view(hidden_BTD.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        x_ND, projected, biases, log_sums, normed, inverse, scale_D = ctx.saved_tensors
        cosine_TE, sine_TE = ctx.angles
        with torch.autocast("cpu", enabled=False):
            given = (projected, biases, ctx.mask, log_sums, rows_of(gradients[0]), NO_DROPOUT)
            d_projected = attention_back(*given)[0]
            rotate(d_projected, cosine_TE, sine_TE, ctx.heads, back=True)
            d_weight, d_x = weight_gradient(d_projected, x_ND), torch.mm(d_projected, ctx.half.projections)
            d_scale = None
            if scale_D is None:
                d_hidden = d_x.float()
            else:
                d_hidden, _, d_scale = pre_norm_back(d_x, None, PreNormed(x_ND, x_ND, normed, inverse), scale_D)
        return (d_hidden.view(gradients[0].shape), None, None, None, None, d_scale, d_weight)


class _OutputAndFeedForward(torch.autograd.Function):
    """From the context to the layer's output: output projection, sum, normalisation, feed-forward network, sum."""

    @staticmethod
    def forward(
        ctx: Any,
        context_BTD: Tensor,
        hidden_BTD: Tensor,
        half: BFloat16Weights,
        settings: PreNormSettings,
        attention_output: Tensor,
        scale_D: Tensor,
        up: Tensor,
        down: Tensor,
    ) -> Any:
        with torch.autocast("cpu", enabled=False):
            context_ND, residual_ND = rows_of(context_BTD.to(HALF)), rows_of(hidden_BTD)
            out_ND, saved = _output_and_feed_forward(context_ND, residual_ND, scale_D, half, settings)
        ctx.save_for_backward(*saved, scale_D)
        ctx.half, ctx.dtype, ctx.is_tanh = half, context_BTD.dtype, settings.is_gelu_tanh
        return out_ND.view(hidden_BTD.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        context, middle, normed, inverse, raised, scale_D = ctx.saved_tensors
        half, shape = ctx.half, gradients[0].shape
        with torch.autocast("cpu", enabled=False):
            d_out = rows_of(gradients[0])
            d_lowered = d_out.to(HALF)
            active, d_raised = geglu_back(raised, torch.mm(d_lowered, half.down), is_tanh=ctx.is_tanh)
            d_down, d_up = weight_gradient(d_lowered, active), weight_gradient(d_raised, middle)
            made = PreNormed(d_out, middle, normed, inverse)
            d_hidden, d_attention, d_scale = pre_norm_back(torch.mm(d_raised, half.up), d_out, made, scale_D)
            d_context = torch.mm(d_attention, half.attention_output).to(ctx.dtype)
            d_attention_output = weight_gradient(d_attention, context)
        d_parameters = (d_attention_output, d_scale, d_up, d_down)
        return (d_context.view(shape), d_hidden.view(shape), None, None, *d_parameters)
