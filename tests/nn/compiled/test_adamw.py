"""The compiled AdamW against AdamW written out in float64 and against PyTorch's, in float32 and with bf16 gradients."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attentune.nn.compiled.kernels import CompiledAdamW
from helpers.native import needs_native

pytestmark = [needs_native, pytest.mark.usefixtures("threads")]

SHAPES = ((32, 48), (7,), (1,), (5, 33), (16,))
OPTIONS: dict[str, Any] = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
HALF = torch.bfloat16


def parameters(*, half: bool = False) -> list[nn.Parameter]:
    made = [nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(3))) for shape in SHAPES]
    for one in made[::2] if half else ():
        one.grad_dtype = HALF
    return made


def set_gradients(weights: list[nn.Parameter], step: int) -> None:
    """Give the same gradients whichever their dtype: numbers that bf16 represents exactly."""
    for number, one in enumerate(weights):
        gradient = torch.randn(one.shape, generator=torch.Generator().manual_seed(100 * step + number)).to(HALF)
        one.grad = gradient.to(one.grad_dtype)


def written_out(weights: list[nn.Parameter], steps: int, scale: float) -> list[Tensor]:
    """Algorithm 2 of Loshchilov and Hutter 2019, element by element, in float64."""
    rate, (beta_1, beta_2), epsilon, decay = (OPTIONS[name] for name in ("lr", "betas", "eps", "weight_decay"))
    results = []
    for number, one in enumerate(weights):
        values = one.detach().double().flatten().tolist()
        means, squares = [0.0] * len(values), [0.0] * len(values)
        for step in range(1, steps + 1):
            generator = torch.Generator().manual_seed(100 * step + number)
            gradient = torch.randn(one.shape, generator=generator).to(HALF).double().flatten().tolist()
            for i, raw in enumerate(gradient):
                g = raw / scale
                means[i] = beta_1 * means[i] + (1 - beta_1) * g
                squares[i] = beta_2 * squares[i] + (1 - beta_2) * g * g
                mean, square = means[i] / (1 - beta_1**step), squares[i] / (1 - beta_2**step)
                values[i] -= rate * (mean / (square**0.5 + epsilon) + decay * values[i])
        results.append(torch.tensor(values).view(one.shape))
    return results


def trained(optimizer: torch.optim.AdamW, weights: list[nn.Parameter], steps: range, scale: float) -> None:
    for step in steps:
        set_gradients(weights, step)
        optimizer.grad_scale = None if scale == 1.0 else torch.tensor(scale)
        optimizer.step()


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_the_steps_are_the_algorithm(half: bool, scale: float) -> None:
    weights = parameters(half=half)
    wanted = written_out(weights, 6, scale)
    trained(CompiledAdamW(weights, **OPTIONS), weights, range(1, 7), scale)
    for ours, theirs in zip(weights, wanted, strict=True):
        torch.testing.assert_close(ours.detach(), theirs.float(), rtol=0, atol=2e-6)


def test_it_goes_on_from_pytorchs_state_and_pytorch_from_its_own() -> None:
    ours, theirs = parameters(), parameters()
    first, second = CompiledAdamW(ours, **OPTIONS), torch.optim.AdamW(theirs, fused=True, **OPTIONS)
    trained(first, ours, range(1, 4), 1.0)
    trained(second, theirs, range(1, 4), 1.0)
    states = [copy.deepcopy(one.state_dict()) for one in (first, second)]
    first.load_state_dict(states[1])
    second.load_state_dict(states[0])
    trained(first, ours, range(4, 7), 1.0)
    trained(second, theirs, range(4, 7), 1.0)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=2e-6)
        for name, value in first.state[mine].items():
            torch.testing.assert_close(value, second.state[other][name], rtol=1e-5, atol=1e-8)


def test_bf16_gradients_give_the_bits_of_float32_ones() -> None:
    wide, half = parameters(), parameters(half=True)
    for weights in (wide, half):
        trained(CompiledAdamW(weights, **OPTIONS), weights, range(1, 4), 1.7)
    assert [one.grad.dtype for one in half] == [HALF, torch.float32, HALF, torch.float32, HALF]
    assert all(torch.equal(one, other) for one, other in zip(wide, half, strict=True))


def test_copies_have_the_weights_and_are_reported_once_all_of_a_group_are_written() -> None:
    weights, reported = parameters(half=True), []
    kept = [torch.zeros_like(one, dtype=HALF) for one in weights]
    groups = [dict(zip(weights[part], kept[part], strict=True)) for part in (slice(2), slice(2, 4))]
    optimizer = CompiledAdamW(weights, **OPTIONS)
    optimizer.copies = lambda: [(group, partial(reported.append, number)) for number, group in enumerate(groups)]
    trained(optimizer, weights, range(1, 3), 1.0)
    assert reported == [0, 1, 0, 1]
    assert all(torch.equal(one.to(HALF), copy) for one, copy in zip(weights[:4], kept[:4], strict=True))
    assert not kept[4].any()
    weights[0].grad = None
    optimizer.step()
    assert reported[4:] == [1]


def test_a_parameter_without_a_gradient_stays_and_counts_its_own_steps() -> None:
    weights, others = parameters(), parameters()
    optimizer, reference = CompiledAdamW(weights, **OPTIONS), torch.optim.AdamW(others, fused=True, **OPTIONS)
    before = weights[0].detach().clone()
    for step in range(1, 5):
        for own in (weights, others):
            set_gradients(own, step)
            if step < 3:
                own[0].grad = None
        optimizer.step()
        reference.step()
        if step == 2:
            assert torch.equal(weights[0], before)
            assert not optimizer.state[weights[0]]
    assert float(optimizer.state[weights[0]]["step"]) == 2
    assert float(optimizer.state[weights[1]]["step"]) == 4
    for mine, other in zip(weights, others, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=2e-6)


def test_autograd_notices_that_weights_were_changed() -> None:
    weight = nn.Parameter(torch.ones(16, 16))
    loss = (torch.ones(2, 16, requires_grad=True) @ weight).sum()
    weight.grad = torch.ones(16, 16)
    CompiledAdamW([weight], **OPTIONS).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
