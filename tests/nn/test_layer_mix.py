"""The plain selections of layers, against plain loops."""

import pytest
import torch

from attentune.nn.layer_mix import LAYER_MIXES, MINIMUM_LAYERS, mix_layers

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


@pytest.mark.parametrize("count", [4, 6])
@pytest.mark.parametrize("kind", sorted(PLAIN))
def test_a_selection_is_that_of_a_plain_loop(kind: str, count: int) -> None:
    layers = list(torch.randn(count, 2, 3, 5, generator=torch.Generator().manual_seed(3)))
    before = [layer.clone() for layer in layers]
    mixed_BTD = mix_layers(kind, layers)
    numbers, divisor = PLAIN[kind](count)
    for b in range(2):
        for t in range(3):
            for d in range(5):
                total = sum(float(layers[number - 1][b, t, d]) for number in numbers) / divisor
                assert float(mixed_BTD[b, t, d]) == pytest.approx(total, abs=1e-6)
    assert all(torch.equal(layer, old) for layer, old in zip(layers, before, strict=True))


@pytest.mark.parametrize("kind", sorted(LAYER_MIXES))
def test_every_selection_works_from_its_fewest_layers_on(kind: str) -> None:
    fewest = MINIMUM_LAYERS.get(kind, 1)
    for count in (fewest, fewest + 1):
        layers = [torch.full((1, 2, 3), float(number)) for number in range(1, count + 1)]
        assert mix_layers(kind, layers).shape == (1, 2, 3)
    assert set(MINIMUM_LAYERS) <= set(LAYER_MIXES)


def test_a_tuple_of_layers_does_as_well_as_a_list() -> None:
    layers = tuple(torch.randn(4, 1, 2, 3))
    for kind in LAYER_MIXES:
        assert torch.equal(mix_layers(kind, layers), mix_layers(kind, list(layers)))
