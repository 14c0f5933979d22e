"""ModernBERT's layer against the formula in float64: values, gradients, prediction."""

import pytest
import torch
from torch import Tensor

from attentune.nn.compiled.checks import plain_pre_norm_layer
from attentune.nn.compiled.layers import (
    BFloat16Weights,
    LayerSettings,
    PreNormWeights,
    fused_layer,
    fused_prediction,
)
from helpers.native import far, needs_native, weight_maker

pytestmark = needs_native

BATCH, LENGTH, HEADS, HIDDEN, INNER = 3, 11, 2, 64, 80
ANGLES = torch.linspace(0, 3, LENGTH)[:, None] * torch.logspace(0, -2, HIDDEN // HEADS // 2).repeat(2)


def weights(dtype: torch.dtype = torch.float32, *, first_layer: bool = False) -> PreNormWeights:
    some = weight_maker(dtype)

    projections, output = some(3 * HIDDEN, HIDDEN), some(HIDDEN, HIDDEN)
    up, down = some(2 * INNER, HIDDEN), some(HIDDEN, INNER)
    norm_1, norm_2 = some(HIDDEN, around=1.0), some(HIDDEN, around=1.0)
    return PreNormWeights(None if first_layer else norm_1, projections, output, norm_2, up, down)


def batch() -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
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
def test_values_and_gradients(first_layer: bool, is_tanh: bool) -> None:
    settings, (hidden, mask, angles) = LayerSettings(HEADS, 1e-5, is_gelu_tanh=is_tanh), batch()
    own, wide = weights(first_layer=first_layer), weights(torch.float64, first_layer=first_layer)
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


def test_prediction_is_training() -> None:
    settings, (hidden, mask, angles), own = LayerSettings(HEADS, 1e-5), batch(), weights()
    half = BFloat16Weights(own)
    half.copy_from(own)
    predicted = fused_prediction(hidden, mask, own, half, settings, positions=angles)
    trained = fused_layer(hidden, mask, own, half, settings, positions=angles)
    assert not predicted.requires_grad
    assert torch.equal(predicted, trained.detach())
