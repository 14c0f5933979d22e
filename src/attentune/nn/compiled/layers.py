"""Fused encoder layers for bf16 on a CPU, with forward and backward passes written out: BERT's and ModernBERT's.

PyTorch runs hundreds of operations per layer, most of them casts, views and allocations, which dominate the time for
batches of short texts. Here PyTorch multiplies by the weights, and everything between two such products is one C
function that passes over memory once (`c/`). Attention probabilities, GELU's output and dropout masks are not stored;
the backward pass recomputes them.

A layer has two halves, each a forward pass and its gradients: `attend`, from the hidden states to the context, and
`finish`, from the context to the layer's output. Between them the context may be changed, as by a blur. `PostNorm` has
the halves of BERT's layer, which normalises after each block, `PreNorm` those of ModernBERT's, which normalises before
and has rotary positions, a gated feed-forward network (GeGLU), no biases and no dropout.

Precision is that of autocast: products have bf16 factors, residuals and normalisation are float32. What autocast rounds
to bf16 within GELU stays float32 here, and so does attention, except where Intel AMX computes it.

Source: Devlin et al. 2019, section 3 (Vaswani et al. 2017, section 3.1); Warner et al. 2024 (ModernBERT), section 2.1;
attention without a stored matrix of probabilities follows Dao et al. 2022, section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attentune.nn.compiled.kernels import (
    NO_DROPOUT,
    DropoutMask,
    PreNormed,
    attention,
    attention_back,
    geglu,
    geglu_back,
    gelu,
    gelu_back,
    norm,
    norm_back,
    pre_norm,
    pre_norm_back,
    rotate,
)

HALF = torch.bfloat16
# Changes the context, (B, T, D) bf16, before attention's output projection, as a blur does.
ContextTransform = Callable[[Tensor], Tensor]
# Cosines and sines of rotary positions, (T, E) each.
Angles = tuple[Tensor, Tensor]


class LayerWeights(NamedTuple):
    """BERT's parameters; weights are (out, in). `up` and `down` are the two linears of the feed-forward network."""

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
        return self.query, self.key, self.value, self.attention_output, self.up, self.down


class PreNormWeights(NamedTuple):
    """ModernBERT's parameters; weights are (out, in)."""

    norm_1: Tensor | None  # scale of the normalisation before attention; None for none, as in the first layer
    projections: Tensor  # of query, key and value, (3 D, D)
    attention_output: Tensor  # attention's output projection
    norm_2: Tensor  # scale of the normalisation before the feed-forward network
    up: Tensor  # of the feed-forward network, (2 I, D): what is activated, then the gate
    down: Tensor  # of the feed-forward network, (D, I)

    @property
    def matrices(self) -> tuple[Tensor, ...]:
        return self.projections, self.attention_output, self.up, self.down


Weights = LayerWeights | PreNormWeights
State = tuple[tuple[int, int], ...]


def state_of(weights: Weights) -> State:
    """Return where the matrices are in memory, and how often each was changed in place (not through its `data`)."""
    return tuple((matrix.data_ptr(), matrix._version) for matrix in weights.matrices)


@dataclass(frozen=True)
class LayerSettings:
    """Settings of a layer; those of dropout and disentangled attention are for BERT's only."""

    heads: int  # number of attention heads
    epsilon: float  # added to the variance by both layer normalisations
    attention_dropout: float = 0.0  # dropout probability of attention weights
    hidden_dropouts: tuple[float, float] = (0.0, 0.0)  # before the two residual connections
    is_gelu_tanh: bool = False  # whether GELU is its approximation by tanh
    is_disentangled: bool = False  # whether attention is disentangled, as DeBERTa's, if it gets position vectors


class BFloat16Weights:
    """Copies of a layer's weight matrices in bf16, in reused `buffers` in the order of `Weights.matrices`."""

    def __init__(self, weights: Weights) -> None:
        *projections, attention_output, up, down = weights.matrices
        rows = [len(each) for each in projections]
        with torch.inference_mode(False):  # training may come after a prediction
            self.projections = torch.empty(sum(rows), projections[0].shape[1], dtype=HALF)
            self.attention_output, self.up, self.down = (
                torch.empty(each.shape, dtype=HALF) for each in (attention_output, up, down)
            )
        self.buffers = [*self.projections.split(rows), self.attention_output, self.up, self.down]

        self._written: State | None = None

    def refresh(self, weights: Weights) -> None:
        """Copy the current values of the weight matrices, unless they are here as the optimiser wrote them."""
        if self._written is None or self._written != state_of(weights):
            self._written = None
            self.copy_from(weights)

    def copy_from(self, weights: Weights) -> None:
        torch._foreach_copy_(self.buffers, [matrix.detach() for matrix in weights.matrices])

    def note_written(self, weights: Weights) -> None:
        """Note that all copies have the present values of these weight matrices."""
        self._written = state_of(weights)


def fused_layer(
    hidden_BTD: Tensor,
    mask: Tensor | None,
    weights: Weights,
    half: BFloat16Weights,
    settings: LayerSettings,
    context_transform: ContextTransform | None = None,
    positions: Tensor | Angles | None = None,
) -> Tensor:
    """Compute the layer's output in training, with dropout and gradients.

    `positions` are, for BERT's layer, what scores get by relative position: a bias (heads, 2 T - 1), or packed vectors
    (2 T - 1, 2 D) for disentangled attention; for ModernBERT's the `Angles`.
    """
    half.refresh(weights)
    layer = _layer(weights, half, settings, mask, positions, is_training=True)
    trained = positions if isinstance(positions, Tensor) else None
    # Parameters are arguments of their own, since autograd does not look into tuples.
    first = weights._fields.index("attention_output")
    context_BTD: Tensor = _Attention.apply(layer, hidden_BTD, trained, *weights[:first])
    if context_transform is not None:
        context_BTD = context_transform(context_BTD)
    out_BTD: Tensor = _OutputAndFeedForward.apply(layer, context_BTD, hidden_BTD, *weights[first:])
    return out_BTD


def fused_prediction(
    hidden_BTD: Tensor,
    mask: Tensor | None,
    weights: Weights,
    half: BFloat16Weights,
    settings: LayerSettings,
    context_transform: ContextTransform | None = None,
    positions: Tensor | Angles | None = None,
) -> Tensor:
    """Compute the layer's output without dropout and without gradients; see `fused_layer`."""
    layer = _layer(weights, half, settings, mask, positions, is_training=False)
    residual_ND = rows_of(hidden_BTD.detach())
    with torch.autocast("cpu", enabled=False):
        context_ND, _ = layer.attend(residual_ND, len(hidden_BTD), keep=False)
    if context_transform is not None:
        context_ND = rows_of(context_transform(context_ND.view(hidden_BTD.shape)).to(HALF))
    with torch.autocast("cpu", enabled=False):
        out_ND, _ = layer.finish(context_ND, residual_ND, keep=False)
    return out_ND.view(hidden_BTD.shape)


def _layer(
    weights: Weights,
    half: BFloat16Weights,
    settings: LayerSettings,
    mask: Tensor | None,
    positions: Any,
    *,
    is_training: bool,
) -> PostNorm | PreNorm:
    """Return the two halves of the layer that has these weights, with the dropout masks of this pass."""
    if isinstance(weights, PreNormWeights):
        return PreNorm(weights, half, settings, mask, positions)
    masks: tuple[DropoutMask, ...] = (NO_DROPOUT,) * 3
    if is_training:
        seeds = torch.empty(3, dtype=torch.int64).random_().tolist()
        probabilities = (settings.attention_dropout, *settings.hidden_dropouts)
        masks = tuple(DropoutMask.of(p, seed) for p, seed in zip(probabilities, seeds, strict=True))
    return PostNorm(weights, half, settings, mask, positions, masks)


class _Attention(torch.autograd.Function):
    """From the hidden states to the context."""

    @staticmethod
    def forward(
        ctx: Any, layer: PostNorm | PreNorm, hidden_BTD: Tensor, positions: Tensor | None, *parameters: Tensor
    ) -> Any:
        with torch.autocast("cpu", enabled=False):
            context_ND, saved = layer.attend(rows_of(hidden_BTD), len(hidden_BTD), keep=True)
        ctx.save_for_backward(*saved)
        ctx.layer = layer
        return context_ND.view(hidden_BTD.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            d_hidden, d_positions, d_parameters = ctx.layer.attend_back(rows_of(gradients[0]), ctx.saved_tensors)
        return (None, d_hidden.view(gradients[0].shape), d_positions, *d_parameters)


class _OutputAndFeedForward(torch.autograd.Function):
    """From the context to the layer's output."""

    @staticmethod
    def forward(
        ctx: Any, layer: PostNorm | PreNorm, context_BTD: Tensor, hidden_BTD: Tensor, *parameters: Tensor
    ) -> Any:
        with torch.autocast("cpu", enabled=False):
            out_ND, saved = layer.finish(rows_of(context_BTD.to(HALF)), rows_of(hidden_BTD), keep=True)
        ctx.save_for_backward(*saved)
        ctx.layer, ctx.dtype = layer, context_BTD.dtype
        return out_ND.view(hidden_BTD.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        shape = gradients[0].shape
        with torch.autocast("cpu", enabled=False):
            d_context, d_hidden, d_parameters = ctx.layer.finish_back(rows_of(gradients[0]), ctx.saved_tensors)
        return (None, d_context.to(ctx.dtype).view(shape), d_hidden.view(shape), *d_parameters)


def rows_of(x_BTD: Tensor) -> Tensor:
    """Return the features of all tokens, (N, D), contiguous."""
    return x_BTD.reshape(-1, x_BTD.shape[-1]).contiguous()


def weight_gradient(d_out_NO: Tensor, input_NI: Tensor) -> Tensor:
    return torch.mm(d_out_NO.t(), input_NI)


# The halves compute outside of autocast. With `keep` they also return the tensors that their gradients need.
Saved = tuple[Tensor | None, ...]


class PostNorm(NamedTuple):
    """BERT's layer: projections, softmax; output projection, add & norm, feed-forward network, add & norm."""

    weights: LayerWeights
    half: BFloat16Weights
    settings: LayerSettings
    mask: Tensor | None
    positions: Tensor | None
    dropouts: tuple[DropoutMask, ...]  # of attention weights, and before the two residual connections

    def attend(self, hidden_ND: Tensor, batch: int, *, keep: bool) -> tuple[Tensor, Saved]:
        """Compute the context, (N, D) bf16."""
        x_ND, w = hidden_ND.to(HALF), self.weights
        biases_3D = torch.cat([w.query_bias, w.key_bias, w.value_bias]).detach()
        projected_N3D = torch.mm(x_ND, self.half.projections.t())
        positions = self.positions
        if positions is not None:
            positions = positions.detach().to(HALF if self.settings.is_disentangled else torch.float32).contiguous()
        given = (projected_N3D, biases_3D, self.mask, batch, self.settings.heads, self.dropouts[0], positions)
        context_ND, log_sums = attention(*given, keep=keep)
        return context_ND, (x_ND, projected_N3D, biases_3D, log_sums, positions)

    def attend_back(self, d_context_ND: Tensor, saved: Sequence[Any]) -> tuple[Tensor, Tensor | None, Saved]:
        """Return the gradients of the hidden states, the positions and the parameters."""
        x_ND, projected, biases, log_sums, positions = saved
        given = (projected, biases, self.mask, log_sums, d_context_ND, self.dropouts[0], positions)
        d_projected, d_biases, d_positions = attention_back(*given)
        d_weights = weight_gradient(d_projected, x_ND).chunk(3)
        d_hidden = torch.mm(d_projected, self.half.projections).float()
        pairs = zip(d_weights, d_biases.chunk(3), strict=True)
        return d_hidden, d_positions, tuple(one for pair in pairs for one in pair)

    def finish(self, context_ND: Tensor, residual_ND: Tensor, *, keep: bool) -> tuple[Tensor, Saved]:
        """Compute the layer's output, (N, D) float32."""
        w, half, epsilon = self.weights, self.half, self.settings.epsilon
        projected_ND = torch.mm(context_ND, half.attention_output.t())
        norm_1 = (w.norm_1, w.norm_1_bias, epsilon)
        middle = norm(projected_ND, w.attention_output_bias, residual_ND, *norm_1, self.dropouts[1], keep=keep)
        raised_NI = torch.mm(middle.out_bf16, half.up.t())
        active_NI = gelu(raised_NI, w.up_bias, is_tanh=self.settings.is_gelu_tanh)
        lowered_ND = torch.mm(active_NI, half.down.t())
        norm_2 = (w.norm_2, w.norm_2_bias, epsilon)
        last = norm(lowered_ND, w.down_bias, middle.out, *norm_2, self.dropouts[2], keep=keep)
        return last.out, (context_ND, *middle[1:], raised_NI, *last[2:])

    def finish_back(self, d_out_ND: Tensor, saved: Sequence[Any]) -> tuple[Tensor, Tensor, Saved]:
        """Return the gradients of the context, the hidden states and the parameters."""
        context, middle, normed_1, inverse_1, raised, normed_2, inverse_2 = saved
        w, half = self.weights, self.half
        d_middle, d_lowered, sums_2 = norm_back(d_out_ND, None, normed_2, inverse_2, w.norm_2, self.dropouts[2])
        d_raised = torch.mm(d_lowered, half.down)
        active, d_up_bias = gelu_back(raised, w.up_bias, d_raised, is_tanh=self.settings.is_gelu_tanh)
        d_down, d_up = weight_gradient(d_lowered, active), weight_gradient(d_raised, middle)
        d_more = torch.mm(d_raised, half.up)
        d_hidden, d_projected, sums_1 = norm_back(d_middle, d_more, normed_1, inverse_1, w.norm_1, self.dropouts[1])
        d_context = torch.mm(d_projected, half.attention_output)
        # `norm_back` sums the gradients of scale, shift and the bias before it.
        d_first, d_second = (sums_1[2], sums_1[0], sums_1[1]), (sums_2[2], sums_2[0], sums_2[1])
        d_parameters = (weight_gradient(d_projected, context), *d_first, d_up, d_up_bias, d_down, *d_second)
        return d_context, d_hidden, d_parameters


class PreNorm(NamedTuple):
    """ModernBERT's layer: normalisation, projections, rotation, softmax; output projection, sum, normalisation, GeGLU.

    A local window of its attention is part of the mask.
    """

    weights: PreNormWeights
    half: BFloat16Weights
    settings: LayerSettings
    mask: Tensor | None
    angles: Angles

    def attend(self, hidden_ND: Tensor, batch: int, *, keep: bool) -> tuple[Tensor, Saved]:
        scale_D, heads = self.weights.norm_1, self.settings.heads
        before = None if scale_D is None else pre_norm(None, hidden_ND, scale_D, self.settings.epsilon)
        x_ND = hidden_ND.to(HALF) if before is None else before.out_bf16
        projected_N3D = torch.mm(x_ND, self.half.projections.t())
        rotate(projected_N3D, *self.angles, heads)
        biases_3D = torch.zeros(projected_N3D.shape[1])
        context_ND, log_sums = attention(projected_N3D, biases_3D, self.mask, batch, heads, NO_DROPOUT, keep=keep)
        norms = (None, None) if before is None else before[2:]
        return context_ND, (x_ND, projected_N3D, biases_3D, log_sums, *norms)

    def attend_back(self, d_context_ND: Tensor, saved: Sequence[Any]) -> tuple[Tensor, None, Saved]:
        x_ND, projected, biases, log_sums, normed, inverse = saved
        d_projected = attention_back(projected, biases, self.mask, log_sums, d_context_ND, NO_DROPOUT)[0]
        rotate(d_projected, *self.angles, self.settings.heads, back=True)
        d_weight, d_x = weight_gradient(d_projected, x_ND), torch.mm(d_projected, self.half.projections)
        if self.weights.norm_1 is None:
            return d_x.float(), None, (None, d_weight)
        made = PreNormed(x_ND, x_ND, normed, inverse)
        d_hidden, _, d_scale = pre_norm_back(d_x, None, made, self.weights.norm_1)
        return d_hidden, None, (d_scale, d_weight)

    def finish(self, context_ND: Tensor, residual_ND: Tensor, *, keep: bool) -> tuple[Tensor, Saved]:
        projected_ND = torch.mm(context_ND, self.half.attention_output.t())
        middle = pre_norm(projected_ND, residual_ND, self.weights.norm_2, self.settings.epsilon)
        raised_N2I = torch.mm(middle.out_bf16, self.half.up.t())
        lowered_ND = torch.mm(geglu(raised_N2I, is_tanh=self.settings.is_gelu_tanh), self.half.down.t())
        return middle.total + lowered_ND, (context_ND, *middle[1:], raised_N2I)

    def finish_back(self, d_out_ND: Tensor, saved: Sequence[Any]) -> tuple[Tensor, Tensor, Saved]:
        context, middle, normed, inverse, raised = saved
        d_lowered = d_out_ND.to(HALF)
        d_active = torch.mm(d_lowered, self.half.down)
        active, d_raised = geglu_back(raised, d_active, is_tanh=self.settings.is_gelu_tanh)
        d_down, d_up = weight_gradient(d_lowered, active), weight_gradient(d_raised, middle)
        made = PreNormed(d_out_ND, middle, normed, inverse)
        d_normed = torch.mm(d_raised, self.half.up)
        d_hidden, d_projected, d_scale = pre_norm_back(d_normed, d_out_ND, made, self.weights.norm_2)
        d_context = torch.mm(d_projected, self.half.attention_output)
        return d_context, d_hidden, (weight_gradient(d_projected, context), d_scale, d_up, d_down)
