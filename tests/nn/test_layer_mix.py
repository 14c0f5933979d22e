"""Layer mixes and squeeze-and-excitation, against plain loops."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from attentune.nn.layer_mix import LAYER_MIXES, MINIMUM_LAYERS, SELECTIONS, Excitation, LayerMix, NeutralLinear

D = 5
# The second text ends before the row does, the third stands at its end, and the last has no token.
MASK_BT = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]]).bool()
REAL = [(b, t) for b in range(4) for t in range(4) if MASK_BT[b, t]]
# What each kind is, with the layers numbered 1..L, and what their sum is divided by.
PLAIN = {
    "first": lambda count: ([1], 1),
    "second": lambda count: ([2], 1),
    "second-to-last": lambda count: ([count - 1], 1),
    "last": lambda count: ([count], 1),
    "sum-last-4": lambda count: ([count - 3, count - 2, count - 1, count], 1),
    "sum-all": lambda count: (list(range(1, count + 1)), 1),
    "mean-all": lambda count: (list(range(1, count + 1)), count),
}


def layers_of(count: int) -> list[Tensor]:
    """Layers whose means are unlike each other's."""
    draws = torch.randn(count, 4, 4, D, generator=torch.Generator().manual_seed(3))
    return list(draws + torch.linspace(-2, 2, count)[:, None, None, None])


def mix_of(kind: str, count: int, *, squeeze: bool, neutral: bool = True) -> LayerMix:
    """A mix whose weights are all unlike each other."""
    mix = LayerMix(kind=kind, num_layers=count, hidden_size=D, squeeze=squeeze, neutral=neutral)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in mix.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        if mix.excitation is not None:
            mix.excitation.squeeze.bias.fill_(1.5)  # enough of the bottleneck is above 0
    return mix


def numbers_of(parameter: Tensor) -> Any:
    return parameter.double().tolist()


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def excitation_by_loop(excitation: Excitation, layers: list[Tensor], b: int) -> list[float]:
    """methods, 3.1: z, then sigmoid(W2 relu(W1 z + b1) + b2), for one text."""
    tokens = [t for t in range(4) if MASK_BT[b, t]]
    z = [sum(float(layer[b, t, d]) for t in tokens for d in range(D)) / (max(1, len(tokens)) * D) for layer in layers]
    w1, b1 = numbers_of(excitation.squeeze.weight), numbers_of(excitation.squeeze.bias)
    w2, b2 = numbers_of(excitation.excite.weight), numbers_of(excitation.excite.bias)
    inner = [max(0.0, sum(w * v for w, v in zip(row, z, strict=True)) + bias) for row, bias in zip(w1, b1, strict=True)]
    return [
        sigmoid(sum(w * v for w, v in zip(row, inner, strict=True)) + bias) for row, bias in zip(w2, b2, strict=True)
    ]


def mixed_by_loop(mix: LayerMix, layers: list[Tensor], b: int, t: int) -> list[float]:
    """One token's mixed vector: layers times e, and with the neutral start times 2 e."""
    count = len(layers)
    scales = [1.0] * count if mix.excitation is None else excitation_by_loop(mix.excitation, layers, b)
    if mix.excitation is not None and isinstance(mix.excitation.excite, NeutralLinear):
        scales = [2 * scale for scale in scales]
    scaled = [[scale * float(value) for value in layer[b, t]] for scale, layer in zip(scales, layers, strict=True)]
    if mix.kind == "concat-last-4":
        joint = [value for vector in scaled[-4:] for value in vector]
        weight, bias = numbers_of(mix.linear.weight), numbers_of(mix.linear.bias)
        return [sum(w * v for w, v in zip(row, joint, strict=True)) + b0 for row, b0 in zip(weight, bias, strict=True)]
    if mix.kind == "weighted" and mix.excitation is None:
        heights = [math.exp(value) for value in numbers_of(mix.layer_weights)]
        return [
            sum(height * vector[d] for height, vector in zip(heights, scaled, strict=True)) / sum(heights)
            for d in range(D)
        ]
    if mix.kind == "weighted":
        return [sum(vector[d] for vector in scaled) / sum(scales) for d in range(D)]
    numbers, divisor = PLAIN[mix.kind](count)
    return [sum(scaled[number - 1][d] for number in numbers) / divisor for d in range(D)]


@pytest.mark.parametrize("count", [4, 7])
@pytest.mark.parametrize(("squeeze", "neutral"), [(False, True), (True, True), (True, False)])
@pytest.mark.parametrize("kind", LAYER_MIXES)
def test_a_mix_is_that_of_a_plain_loop(kind: str, squeeze: bool, neutral: bool, count: int) -> None:
    mix, layers = mix_of(kind, count, squeeze=squeeze, neutral=neutral), layers_of(count)
    before = [layer.clone() for layer in layers]
    mixed_BTD, weights_BL = mix(tuple(layers), MASK_BT)
    assert mixed_BTD.shape == (4, 4, D)
    for b, t in REAL:
        assert mixed_BTD[b, t].tolist() == pytest.approx(mixed_by_loop(mix, layers, b, t), abs=2e-5)
    assert (weights_BL is None) == (not squeeze)
    if squeeze:
        expected = [excitation_by_loop(mix.excitation, layers, b) for b in range(4)]
        torch.testing.assert_close(weights_BL, torch.tensor(expected), atol=1e-5, rtol=0)
        assert weights_BL.std(dim=0).min() > 1e-3, "texts differ"
        assert weights_BL.std(dim=1).min() > 1e-3, "layers differ"
    assert all(torch.equal(layer, old) for layer, old in zip(layers, before, strict=True))


@pytest.mark.parametrize("kind", LAYER_MIXES)
def test_the_neutral_start_changes_no_scale_and_no_order(kind: str) -> None:
    """Whatever the seed; the released start multiplies the last layer by a random factor."""
    layers = [0.05 * layer for layer in layers_of(6)]  # means up to 0.1, as after a normalisation
    factors = {True: [], False: []}
    for seed, neutral in [(seed, neutral) for seed in range(20) for neutral in (True, False)]:
        torch.manual_seed(seed)
        mix = LayerMix(kind=kind, num_layers=6, hidden_size=D, squeeze=True, neutral=neutral)
        plain = LayerMix(kind=kind, num_layers=6, hidden_size=D, squeeze=False)
        if plain.linear is not None:
            plain.linear.load_state_dict(mix.linear.state_dict())
        mixed_BTD, plain_BTD = mix(layers, MASK_BT)[0][MASK_BT], plain(layers, MASK_BT)[0][MASK_BT]
        factors[neutral].append((mixed_BTD.norm() / plain_BTD.norm()).item())
    assert max(abs(factor - 1) for factor in factors[True]) < 0.02
    if kind in ("last", "first", "second"):
        assert max(factors[False]) / min(factors[False]) > 1.5


def test_the_kinds_are_those_of_this_page() -> None:
    assert list(LAYER_MIXES) == [*SELECTIONS, "weighted", "concat-last-4"]
    assert set(SELECTIONS) == set(PLAIN)
    assert set(MINIMUM_LAYERS) <= set(LAYER_MIXES)


def test_the_first_weights_are_those_of_the_released_program() -> None:
    """Biases 0.8; weights drawn around 0 with the variance 2 / inputs, from a truncated normal distribution."""
    torch.manual_seed(0)
    excitation = Excitation(num_layers=600, ratio=3, neutral=False)
    for linear, inputs in ((excitation.squeeze, 600), (excitation.excite, 200)):
        assert linear.bias.unique().tolist() == [pytest.approx(0.8)]
        weights = linear.weight.detach() * math.sqrt(inputs / 2)  # 120 000 draws
        assert abs(weights.mean().item()) < 0.02
        assert weights.var().item() == pytest.approx(1, abs=0.03)
        assert 0.64 < (weights.abs() < 1).float().mean().item() < 0.66, "normal, not uniform"
        assert 2.2 < weights.abs().max().item() <= 2 * math.sqrt(1.3) + 1e-6
    before = excitation.squeeze.weight.detach().clone()
    excitation.squeeze.reset_parameters()
    assert not torch.equal(excitation.squeeze.weight, before)


def test_without_squeeze_a_selection_hands_on_the_layer_itself_and_learned_weights_begin_equal() -> None:
    layers = layers_of(4)
    mixed_BTD, _ = LayerMix(kind="weighted", num_layers=4, hidden_size=D, squeeze=False)(layers, MASK_BT)
    torch.testing.assert_close(mixed_BTD, torch.stack(layers).mean(dim=0))
    for kind, place in (("first", 0), ("second", 1), ("second-to-last", 2), ("last", 3)):
        mixed_BTD, _ = mix_of(kind, 4, squeeze=False)(layers, MASK_BT)
        assert mixed_BTD is layers[place]


@pytest.mark.parametrize("squeeze", [False, True])
@pytest.mark.parametrize("kind", LAYER_MIXES)
def test_half_precision_layers_stay_so_beside_full_precision_weights(kind: str, squeeze: bool) -> None:
    """As under autocast: the layers are bf16, the weights fp32; what a linear gives has its weights' precision."""
    mix, layers = mix_of(kind, 6, squeeze=squeeze), layers_of(6)
    mixed_BTD, weights_BL = mix([layer.bfloat16() for layer in layers], MASK_BT)
    assert mixed_BTD.dtype == (torch.float32 if kind == "concat-last-4" else torch.bfloat16)
    exact_BTD, _ = mix(layers, MASK_BT)
    error = (mixed_BTD.float() - exact_BTD)[MASK_BT].abs().max() / exact_BTD[MASK_BT].abs().max()
    assert error < 0.03
    assert weights_BL is None or weights_BL.dtype == torch.float32
