"""The written-out layers are the layers: values and gradients against the formula in float64, dropout included."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear

from attentune.nn.compiled.checks import plain_pre_norm_layer
from attentune.nn.compiled.kernels import DropoutMask
from attentune.nn.compiled.layers import (
    BFloat16Weights,
    LayerSettings,
    LayerWeights,
    PreNormWeights,
    fused_layer,
    fused_prediction,
)
from helpers.native import factors, far, needs_native, weight_maker

pytestmark = needs_native

BATCH, LENGTH, HEADS, HIDDEN, INNER = 3, 11, 2, 64, 160


def weights(dtype: torch.dtype = torch.float32) -> LayerWeights:
    some = weight_maker(dtype)

    square = (HIDDEN, HIDDEN)
    sizes = (square, square, square, square, None, (INNER, HIDDEN), (HIDDEN, INNER), None)
    parts: list[Tensor] = []
    for size in sizes:
        parts += [some(HIDDEN, around=1.0), some(HIDDEN)] if size is None else [some(*size), some(size[0])]
    return LayerWeights(*parts)


def plain(
    hidden: Tensor,
    mask: Tensor | None,
    w: LayerWeights,
    settings: LayerSettings,
    seeds: list[int],
    position_bias: Tensor | None = None,
) -> Tensor:
    """Vaswani et al. 2017, with BERT's order of sums and normalisations."""
    batch, length, width = hidden.shape
    first, second, third = (
        DropoutMask.of(chance, seed)
        for chance, seed in zip((settings.attention_dropout, *settings.hidden_dropouts), seeds, strict=True)
    )

    def heads(x: Tensor) -> Tensor:
        return x.view(batch, length, settings.heads, -1).transpose(1, 2)

    query, key, value = (
        heads(linear(hidden, one, bias))
        for one, bias in ((w.query, w.query_bias), (w.key, w.key_bias), (w.value, w.value_bias))
    )
    scores = query @ key.transpose(2, 3) / math.sqrt(width // settings.heads)
    if position_bias is not None:
        places = torch.arange(length)
        scores = scores + position_bias[:, places - places[:, None] + length - 1]
    probabilities = (scores if mask is None else scores + mask.double()).softmax(dim=-1)
    kept = factors(first, batch * settings.heads * length, length).view(probabilities.shape)
    found = ((probabilities * kept) @ value).transpose(1, 2).reshape(hidden.shape)
    rows = (batch, length, width)
    joined = linear(found, w.attention_output, w.attention_output_bias) * factors(second, batch * length, width).view(
        rows
    )
    middle = layer_norm(hidden + joined, (width,), w.norm_1, w.norm_1_bias, settings.epsilon)
    form = "tanh" if settings.is_gelu_tanh else "none"
    lowered = linear(gelu(linear(middle, w.up, w.up_bias), approximate=form), w.down, w.down_bias)
    lowered = lowered * factors(third, batch * length, width).view(rows)
    return layer_norm(middle + lowered, (width,), w.norm_2, w.norm_2_bias, settings.epsilon)


def batch() -> tuple[Tensor, Tensor]:
    hidden = torch.randn(BATCH, LENGTH, HIDDEN, generator=torch.Generator().manual_seed(2))
    mask = torch.zeros(BATCH, 1, 1, LENGTH)
    mask[1, :, :, 6:] = torch.finfo(torch.float32).min
    return hidden, mask


@pytest.mark.parametrize(
    ("chance", "is_tanh", "is_biased"),
    [(0.0, False, False), (0.2, False, False), (0.1, True, False), (0.1, False, True)],
)
def test_values_and_gradients(chance: float, is_tanh: bool, is_biased: bool) -> None:
    settings = LayerSettings(HEADS, 1e-6, chance, (chance / 2, chance / 3), is_gelu_tanh=is_tanh)
    hidden, mask = batch()
    d_out = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(3))
    own, wide = weights(), weights(torch.float64)
    bias = torch.randn(HEADS, 2 * LENGTH - 1, generator=torch.Generator().manual_seed(5)).requires_grad_()
    biases = [bias] if is_biased else []
    x, x_wide = hidden.clone().requires_grad_(), hidden.double().requires_grad_()
    torch.manual_seed(4)
    seeds = torch.empty(3, dtype=torch.int64).random_().tolist()
    wanted = plain(x_wide, mask, wide, settings, seeds, *biases)
    wanted_back = torch.autograd.grad(wanted, (x_wide, *wide, *biases), d_out.double())
    torch.manual_seed(4)
    ours = fused_layer(x, mask, own, BFloat16Weights(own), settings, None, *biases)
    back = torch.autograd.grad(ours, (x, *own, *biases), d_out)
    assert far(ours.detach(), wanted.detach()) < 0.006
    for name, found, right in zip(
        ("input", *LayerWeights._fields, *["bias"] * is_biased), back, wanted_back, strict=True
    ):
        assert found.dtype == torch.float32
        if name == "key_bias":  # softmax is blind to it: rounding is all there is
            assert float(found.norm()) < 0.02 * float(back[2].norm())
        else:
            assert far(found, right) < 0.015, name


def test_the_same_seed_gives_the_same_bits_and_another_one_others() -> None:
    settings, (hidden, mask), own = LayerSettings(HEADS, 1e-6, 0.1, (0.1, 0.1)), batch(), weights()
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        out = fused_layer(hidden, mask, own, BFloat16Weights(own), settings)
        found.append((out.detach(), torch.autograd.grad(out.square().sum(), own.up)[0]))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert not torch.equal(found[0][0], found[2][0])


def test_prediction_is_training_without_dropout() -> None:
    settings, (hidden, mask), own = LayerSettings(HEADS, 1e-6, 0.3, (0.3, 0.3)), batch(), weights()
    half = BFloat16Weights(own)
    half.copy_from(own)
    predicted = fused_prediction(hidden, mask, own, half, settings)
    trained = fused_layer(hidden, mask, own, half, LayerSettings(HEADS, 1e-6))
    assert not predicted.requires_grad
    assert torch.equal(predicted, trained.detach())


def test_disentangled_attention_within_the_layer() -> None:
    """`test_kernels` has the formula; here the layer passes vectors and gradients on; of zeros it is BERT's."""
    settings = LayerSettings(HEADS, 1e-6, is_disentangled=True)
    (hidden, mask), own = batch(), weights()
    half = BFloat16Weights(own)
    positions = torch.randn(2 * LENGTH - 1, 2 * HIDDEN, generator=torch.Generator().manual_seed(6)).requires_grad_()
    out = fused_layer(hidden, mask, own, half, settings, positions=positions)
    (d_positions,) = torch.autograd.grad(out[0, 0].sum(), positions)
    assert d_positions.dtype == torch.float32
    reached = d_positions.abs().sum(dim=1) > 0  # the first token meets itself and those after it, as a query
    assert reached[LENGTH - 1 :].all()
    assert not reached[: LENGTH - 1].any()
    predicted = fused_prediction(hidden, mask, own, half, settings, positions=positions)
    assert torch.equal(predicted, out.detach())
    scaled = own._replace(query=own.query * 3**0.5, query_bias=own.query_bias * 3**0.5)
    plain = fused_layer(hidden, mask, scaled, BFloat16Weights(own), LayerSettings(HEADS, 1e-6))
    none = fused_layer(hidden, mask, scaled, half, settings, positions=torch.zeros_like(positions))
    # Its scores are divided by the root of three times the width.
    assert not torch.allclose(none, plain, atol=0.01)
    widened = scaled._replace(query=own.query * 3, query_bias=own.query_bias * 3)
    same = fused_layer(hidden, mask, widened, half, settings, positions=torch.zeros_like(positions))
    torch.testing.assert_close(same, plain, rtol=0.03, atol=0.03)


# ModernBERT's layer against the formula in float64: values, gradients, prediction


pytestmark = needs_native

GATED = 80
ANGLES = torch.linspace(0, 3, LENGTH)[:, None] * torch.logspace(0, -2, HIDDEN // HEADS // 2).repeat(2)


def pre_norm_weights(dtype: torch.dtype = torch.float32, *, first_layer: bool = False) -> PreNormWeights:
    some = weight_maker(dtype)

    projections, output = some(3 * HIDDEN, HIDDEN), some(HIDDEN, HIDDEN)
    up, down = some(2 * GATED, HIDDEN), some(HIDDEN, GATED)
    norm_1, norm_2 = some(HIDDEN, around=1.0), some(HIDDEN, around=1.0)
    return PreNormWeights(None if first_layer else norm_1, projections, output, norm_2, up, down)


def windowed_batch() -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Hidden states; a mask with padding and a window of three tokens to each side; angles."""
    hidden = torch.randn(BATCH, LENGTH, HIDDEN, generator=torch.Generator().manual_seed(2))
    place = torch.arange(LENGTH)
    seen = ((place - place[:, None]).abs() <= 3).expand(BATCH, 1, LENGTH, LENGTH).clone()
    seen[1, :, :, 8:] = False
    seen[1, :, 8:, 7] = True  # so that padding sees something
    mask = torch.zeros(seen.shape).masked_fill_(~seen, torch.finfo(torch.float32).min)
    return hidden, mask, (ANGLES.cos(), ANGLES.sin())


@pytest.mark.parametrize("is_tanh", [False, True])
@pytest.mark.parametrize("first_layer", [False, True])
def test_modernberts_values_and_gradients(first_layer: bool, is_tanh: bool) -> None:
    settings, (hidden, mask, angles) = LayerSettings(HEADS, 1e-5, is_gelu_tanh=is_tanh), windowed_batch()
    own, wide = pre_norm_weights(first_layer=first_layer), pre_norm_weights(torch.float64, first_layer=first_layer)
    x, x_wide = hidden.clone().requires_grad_(), hidden.double().requires_grad_()
    d_out = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(3))
    inputs, inputs_wide = ([one, *(w for w in given if w is not None)] for one, given in ((x, own), (x_wide, wide)))
    wide_angles = (angles[0].double(), angles[1].double())
    wanted = plain_pre_norm_layer(x_wide, mask.double(), wide, settings, wide_angles)
    wanted_back = torch.autograd.grad(wanted, inputs_wide, d_out.double())
    ours = fused_layer(x, mask, own, BFloat16Weights(own), settings, positions=angles)
    back = torch.autograd.grad(ours, inputs, d_out)
    assert far(ours.detach(), wanted.detach()) < 0.006
    assert all(far(one, other) < 0.015 for one, other in zip(back, wanted_back, strict=True))


def test_modernberts_prediction_is_training() -> None:
    settings, (hidden, mask, angles), own = LayerSettings(HEADS, 1e-5), windowed_batch(), pre_norm_weights()
    half = BFloat16Weights(own)
    half.copy_from(own)
    predicted = fused_prediction(hidden, mask, own, half, settings, positions=angles)
    trained = fused_layer(hidden, mask, own, half, settings, positions=angles)
    assert not predicted.requires_grad
    assert torch.equal(predicted, trained.detach())
