"""A fused BERT layer for bf16 on a CPU, with forward and backward passes written out.

PyTorch runs hundreds of operations per layer, most of them casts, views and allocations, which dominate the time for
batches of short texts. Here PyTorch multiplies by the weights, and everything between two such products is one C
function that passes over memory once (`c/`). Attention probabilities, GELU's output and dropout masks are not stored;
the backward pass recomputes them.

Precision is that of autocast: products have bf16 factors, residuals and normalisation are float32. What autocast rounds
to bf16 within GELU stays float32 here, and so does attention, except where Intel AMX computes it.

Source: the layer is that of Devlin et al. 2019, section 3 (Vaswani et al. 2017, section 3.1); attention without
a stored matrix of probabilities follows Dao et al. 2022, section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from attentune.nn.compiled.kernels import (
    NO_DROPOUT,
    DropoutMask,
    Normed,
    attention,
    attention_back,
    disentangled,
    disentangled_back,
    gelu,
    gelu_back,
    norm,
    norm_back,
)

HALF = torch.bfloat16
# Changes the context, (B, T, D) bf16, before attention's output projection, as a blur does.
ContextTransform = Callable[[Tensor], Tensor]


class LayerWeights(NamedTuple):
    """A layer's parameters; weights are (out, in). `up` and `down` are the two linears of the feed-forward network."""

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

    @property
    def matrices(self) -> tuple[Tensor, ...]:
        """The weight matrices; see `WithMatrices`."""
        return self.query, self.key, self.value, self.attention_output, self.up, self.down


@dataclass(frozen=True)
class LayerSettings:
    """Settings of a layer."""

    heads: int  # number of attention heads
    attention_dropout: float  # dropout probability of attention weights
    hidden_dropouts: tuple[float, float]  # dropout probabilities before the two residual connections
    epsilon: float  # added to the variance by both layer normalisations
    is_gelu_tanh: bool = False  # whether GELU is its approximation by tanh
    is_disentangled: bool = False  # whether attention is disentangled, as DeBERTa's, if it gets position vectors


class WithMatrices(Protocol):
    """The parameters of a layer, of this module or of `fused_pre_norm`."""

    @property
    def matrices(self) -> tuple[Tensor, ...]:
        """The projections to query, key and value (one matrix or several), attention's output, up and down."""


class BFloat16Weights:
    """Copies of a layer's weight matrices in bf16, in buffers that are reused; all projections are one buffer."""

    def __init__(self, weights: WithMatrices) -> None:
        *projections, attention_output, up, down = weights.matrices
        rows = [len(each) for each in projections]
        with torch.inference_mode(False):  # training may come after a prediction
            self.projections = torch.empty(sum(rows), projections[0].shape[1], dtype=HALF)
            self.attention_output, self.up, self.down = (
                torch.empty(each.shape, dtype=HALF) for each in (attention_output, up, down)
            )
        self._buffers = [*self.projections.split(rows), self.attention_output, self.up, self.down]

    def copy_from(self, weights: WithMatrices) -> None:
        """Copy the current values of the weight matrices."""
        torch._foreach_copy_(self._buffers, [matrix.detach() for matrix in weights.matrices])


def fused_layer(
    hidden_BTD: Tensor,
    mask: Tensor | None,
    weights: LayerWeights,
    half: BFloat16Weights,
    settings: LayerSettings,
    context_transform: ContextTransform | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """Compute the layer's output in training, with dropout and gradients."""
    half.copy_from(weights)
    context_BTD: Tensor = _Attention.apply(
        hidden_BTD, mask, positions, weights, half, settings, *weights[:_ATTENTION_OUTPUT]
    )
    if context_transform is not None:
        context_BTD = context_transform(context_BTD)
    out_BTD: Tensor = _OutputAndFeedForward.apply(
        context_BTD, hidden_BTD, weights, half, settings, *weights[_ATTENTION_OUTPUT:]
    )
    return out_BTD


def fused_prediction(
    hidden_BTD: Tensor,
    mask: Tensor | None,
    weights: LayerWeights,
    half: BFloat16Weights,
    settings: LayerSettings,
    context_transform: ContextTransform | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """Compute the layer's output without dropout and without gradients."""
    wide = LayerWeights(*(each if each.ndim > 1 else each.detach().float() for each in weights))
    residual_ND = rows_of(hidden_BTD.detach().float())
    with torch.autocast("cpu", enabled=False):
        context_ND, _ = _attend(
            residual_ND, mask, positions, len(hidden_BTD), wide, half, settings, NO_DROPOUT, keep=False
        )
    if context_transform is not None:
        context_ND = rows_of(context_transform(context_ND.view(hidden_BTD.shape)).to(HALF))
    with torch.autocast("cpu", enabled=False):
        masks = (NO_DROPOUT, NO_DROPOUT)
        last, _ = _output_and_feed_forward(context_ND, residual_ND, wide, half, settings, masks, keep=False)
    out_ND = last.out if hidden_BTD.dtype == torch.float32 else last.out_bf16
    return out_ND.view(hidden_BTD.shape)


# The parameters before this index are attention's. The autograd functions below take their parameters as arguments of
# their own too, since autograd does not look into tuples.
_ATTENTION_OUTPUT = LayerWeights._fields.index("attention_output")


def rows_of(x_BTD: Tensor) -> Tensor:
    """Return the features of all tokens, (N, D), contiguous."""
    return x_BTD.reshape(-1, x_BTD.shape[-1]).contiguous()


def _draw_masks(*probabilities: float) -> tuple[DropoutMask, ...]:
    seeds = torch.empty(len(probabilities), dtype=torch.int64).random_().tolist()
    return tuple(DropoutMask.of(probability, seed) for probability, seed in zip(probabilities, seeds, strict=True))


def _attend(
    hidden_ND: Tensor,
    mask: Tensor | None,
    positions: Tensor | None,
    batch: int,
    weights: LayerWeights,
    half: BFloat16Weights,
    settings: LayerSettings,
    dropout: DropoutMask,
    *,
    keep: bool,
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Compute the context, (N, D) bf16, and the tensors that the backward pass needs; call outside of autocast."""
    x_ND = hidden_ND.to(HALF)
    biases_3D = torch.cat([weights.query_bias, weights.key_bias, weights.value_bias]).detach()
    projected_N3D = torch.mm(x_ND, half.projections.t())
    given = (projected_N3D, biases_3D, mask, batch, settings.heads, dropout)
    if settings.is_disentangled and positions is not None:
        positions = positions.detach().to(HALF).contiguous()
        context_ND, log_sums = disentangled(*given, positions, keep=keep)
    else:
        positions = None if positions is None else positions.detach().float()
        context_ND, log_sums = attention(*given, position_bias=positions, keep=keep)
    return context_ND, (x_ND, projected_N3D, biases_3D, log_sums, positions)


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
    """Compute the layer's output from the context, and the tensors for the backward pass; call outside of autocast."""
    attention_output_ND = torch.mm(context_ND, half.attention_output.t())
    norm_1 = (weights.norm_1, weights.norm_1_bias, settings.epsilon)
    middle = norm(attention_output_ND, weights.attention_output_bias, residual_ND, *norm_1, masks[0], keep=keep)
    raised_NI = torch.mm(middle.out_bf16, half.up.t())
    active_NI = gelu(raised_NI, weights.up_bias, is_tanh=settings.is_gelu_tanh)
    lowered_ND = torch.mm(active_NI, half.down.t())
    norm_2 = (weights.norm_2, weights.norm_2_bias, settings.epsilon)
    last = norm(lowered_ND, weights.down_bias, middle.out, *norm_2, masks[1], keep=keep)
    return last, (context_ND, *middle[1:], raised_NI, *last[2:])


class _Attention(torch.autograd.Function):
    """From the hidden states to the context: query, key and value projections, softmax, dropout."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_BTD: Tensor,
        mask: Tensor | None,
        positions: Tensor | None,
        weights: LayerWeights,
        half: BFloat16Weights,
        settings: LayerSettings,
        *parameters: Tensor,
    ) -> Any:
        (dropout,) = _draw_masks(settings.attention_dropout)
        with torch.autocast("cpu", enabled=False):
            hidden_ND, batch = rows_of(hidden_BTD), len(hidden_BTD)
            context_ND, saved = _attend(hidden_ND, mask, positions, batch, weights, half, settings, dropout, keep=True)
        ctx.save_for_backward(*saved)
        ctx.mask, ctx.half, ctx.dropout, ctx.is_disentangled = mask, half, dropout, settings.is_disentangled
        return context_ND.view(hidden_BTD.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        x_ND, projected, biases, log_sums, positions = ctx.saved_tensors
        with torch.autocast("cpu", enabled=False):
            d_context = rows_of(gradients[0])
            given = (projected, biases, ctx.mask, log_sums, d_context, ctx.dropout)
            d_positions: Tensor | None
            if ctx.is_disentangled and positions is not None:
                d_projected, d_biases, d_positions = disentangled_back(*given, positions)
            else:
                d_projected, d_biases, d_positions = attention_back(*given, position_bias=positions)
            d_weights = weight_gradient(d_projected, x_ND).chunk(3)
            d_hidden = torch.mm(d_projected, ctx.half.projections).float()
        d_parameters = (one for pair in zip(d_weights, d_biases.chunk(3), strict=True) for one in pair)
        return (d_hidden.view(gradients[0].shape), None, d_positions, None, None, None, *d_parameters)


class _OutputAndFeedForward(torch.autograd.Function):
    """From the context to the layer's output: output projection, add & norm, feed-forward network, add & norm."""

    @staticmethod
    def forward(
        ctx: Any,
        context_BTD: Tensor,
        hidden_BTD: Tensor,
        weights: LayerWeights,
        half: BFloat16Weights,
        settings: LayerSettings,
        *parameters: Tensor,
    ) -> Any:
        masks = _draw_masks(*settings.hidden_dropouts)
        with torch.autocast("cpu", enabled=False):
            context_ND, residual_ND = rows_of(context_BTD.to(HALF)), rows_of(hidden_BTD)
            last, saved = _output_and_feed_forward(context_ND, residual_ND, weights, half, settings, masks, keep=True)
        ctx.save_for_backward(*saved, weights.norm_1, weights.up_bias, weights.norm_2)
        ctx.half, ctx.masks, ctx.dtype, ctx.is_tanh = half, masks, context_BTD.dtype, settings.is_gelu_tanh
        return last.out.view(hidden_BTD.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        context, middle, normed_1, inverse_1, raised, normed_2, inverse_2, scale_1, up_bias, scale_2 = ctx.saved_tensors
        half, shape = ctx.half, gradients[0].shape
        with torch.autocast("cpu", enabled=False):
            d_middle, d_lowered, sums_2 = norm_back(
                rows_of(gradients[0]), None, normed_2, inverse_2, scale_2, ctx.masks[1]
            )
            d_raised = torch.mm(d_lowered, half.down)
            active, d_up_bias = gelu_back(raised, up_bias, d_raised, is_tanh=ctx.is_tanh)
            d_down, d_up = weight_gradient(d_lowered, active), weight_gradient(d_raised, middle)
            d_more = torch.mm(d_raised, half.up)
            d_hidden, d_attention_output, sums_1 = norm_back(
                d_middle, d_more, normed_1, inverse_1, scale_1, ctx.masks[0]
            )
            d_context = torch.mm(d_attention_output, half.attention_output).to(ctx.dtype)
            d_output_weight = weight_gradient(d_attention_output, context)
        d_norms_1, d_norms_2 = (sums_1[2], sums_1[0], sums_1[1]), (sums_2[2], sums_2[0], sums_2[1])
        d_parameters = (d_output_weight, *d_norms_1, d_up, d_up_bias, d_down, *d_norms_2)
        return (d_context.view(shape), d_hidden.view(shape), None, None, None, *d_parameters)


def weight_gradient(d_out_NO: Tensor, input_NI: Tensor) -> Tensor:
    """Compute the gradient of a weight, (O, I) bf16; autograd converts it to the weight's `grad_dtype`."""
    return torch.mm(d_out_NO.t(), input_NI)
