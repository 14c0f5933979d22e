"""AdamW against AdamW written out, what decays, and the learning rate's course against transformers' schedules."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch import nn
from transformers import (
    get_constant_schedule,
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_linear_schedule_with_warmup,
)

from attentune.config import BlurConfig, LayerMixConfig, TrainingConfig
from attentune.training.optimizer import (
    LearningRateSchedule,
    build_optimizer,
    clip_gradients,
    load_optimizer_tensors,
    optimizer_tensors,
    set_learning_rate,
)
from helpers.tiny import FAMILIES
from helpers.tiny_models import build

Tiny = Callable[..., Path]
SETTINGS = TrainingConfig(learning_rate=0.1, weight_decay=0.3, adam_beta1=0.8, adam_beta2=0.95, adam_epsilon=1e-3)
PLAIN = TrainingConfig(learning_rate=5e-5)


class Small(nn.Module):
    """A matrix, a bias and a normalisation, with a loss that reaches all of them."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.dense, self.norm, self.frozen = nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 4)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        self.frozen.requires_grad_(False)

    def loss(self, step: int) -> torch.Tensor:
        inputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
        return (self.norm(self.dense(inputs)) ** 3).sum()


def train(model: Small, optimizer: torch.optim.Optimizer, steps: range) -> list[dict[str, np.ndarray]]:
    """The gradients of each step."""
    gradients = []
    for step in steps:
        optimizer.zero_grad()
        model.loss(step).backward()
        gradients.append({n: p.grad.numpy().astype(np.float64) for n, p in model.named_parameters() if p.requires_grad})
        optimizer.step()
    return gradients


@pytest.mark.parametrize("pull", [0.0, 2.0], ids=["decay", "l2-sp"])
def test_steps_are_those_of_adamw_written_out(pull: float) -> None:
    """With L2-SP all weights are pulled to their start before each step of AdamW; without, matrices decay to 0."""
    model = Small()
    starts = {name: p.detach().numpy().astype(np.float64) for name, p in model.named_parameters()}
    optimizer = build_optimizer(replace(SETTINGS, l2_sp=pull), model)
    gradients = train(model, optimizer, range(3))
    learnt = {"dense.weight", "dense.bias", "norm.weight", "norm.bias"}
    assert set(gradients[0]) == learnt
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 4, "frozen weights are not the optimiser's"
    for name, start in starts.items():
        weight, mean, square = start, np.zeros_like(start), np.zeros_like(start)
        for step, gradient in enumerate(gradients if name in learnt else [], start=1):
            # Decoupled: neither is part of the gradient. Biases and norms are pulled, too.
            shrink = 0.3 * weight if name == "dense.weight" and not pull else pull * (weight - start)
            weight = weight - 0.1 * shrink
            mean = 0.8 * mean + 0.2 * gradient[name]
            square = 0.95 * square + 0.05 * gradient[name] ** 2
            unbiased = mean / (1 - 0.8**step), square / (1 - 0.95**step)
            weight = weight - 0.1 * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-3)
        found = model.get_parameter(name).detach().numpy()
        np.testing.assert_allclose(found, weight, rtol=1e-5, atol=1e-6, err_msg=name)


def test_the_starts_of_l2_sp_are_saved_and_needed() -> None:
    model, other = Small(), Small()
    pulled = replace(SETTINGS, l2_sp=2.0)
    optimizer = build_optimizer(pulled, model)
    train(model, optimizer, range(2))
    saved = optimizer_tensors(optimizer, model)
    assert saved["start.dense.weight"].equal(Small().dense.weight.detach())
    with torch.no_grad():
        other.dense.weight.zero_()
    loaded = build_optimizer(pulled, other)
    load_optimizer_tensors(loaded, other, saved)
    assert loaded.starts[other.dense.weight].equal(saved["start.dense.weight"])
    del saved["start.norm.bias"]
    with pytest.raises(KeyError, match="start.norm.bias"):
        load_optimizer_tensors(loaded, other, saved)


def test_a_pull_of_more_than_the_whole_way_stops_at_the_start() -> None:
    model = Small()
    # With this epsilon AdamW's own step is nothing.
    optimizer = build_optimizer(TrainingConfig(learning_rate=1.0, l2_sp=5.0, adam_epsilon=1e30), model)
    start = model.dense.weight.detach().clone()
    with torch.no_grad():
        model.dense.weight.add_(1.0)
    train(model, optimizer, range(1))
    torch.testing.assert_close(model.dense.weight.detach(), start)


@pytest.mark.parametrize("family", FAMILIES)
def test_matrices_decay_and_biases_and_norms_do_not(tiny: Tiny, family: str) -> None:
    model, _ = build(tiny(family))
    optimizer = build_optimizer(replace(PLAIN, weight_decay=0.05), model)
    decayed, plain = ({id(p) for p in group["params"]} for group in optimizer.param_groups)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.05, 0.0]
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(prefix, recurse=False):
            is_matrix = isinstance(module, (nn.Linear, nn.Embedding)) and name.endswith("weight")
            is_other_matrix = not isinstance(module, (nn.Linear, nn.Embedding, nn.LayerNorm)) and parameter.ndim > 1
            if "bias" in name.rsplit(".", 1)[-1] or isinstance(module, nn.LayerNorm):
                assert id(parameter) in plain, name
            elif is_matrix or is_other_matrix:
                assert id(parameter) in decayed, name
    assert len(decayed) + len(plain) == len(list(model.parameters()))
    assert not decayed & plain
    # With a rate of the encoder's own, embeddings too, the same weights decay.
    own = TrainingConfig(learning_rate=1e-3, encoder_learning_rate=2e-5, weight_decay=0.05)
    optimizer = build_optimizer(own, model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = {(group["peak_lr"], group["weight_decay"]): group["params"] for group in optimizer.param_groups}
    assert set(groups) == {(rate, decay) for rate in (1e-3, 2e-5) for decay in (0.05, 0.0)}
    for (rate, _), parameters in groups.items():
        assert {names[id(p)].startswith("encoder.") for p in parameters} == {rate == 2e-5}
    assert decayed == {id(p) for (_, decay), parameters in groups.items() for p in parameters if decay}
    assert sum(map(len, groups.values())) == len(names)
    assert any(parameter is model.get_input_embeddings().weight for parameter in groups[2e-5, 0.05])


@pytest.mark.parametrize("learnable", ["layer", "head"])
def test_learned_sigmas_and_layer_weights_do_not_decay_and_excitation_does(tiny: Tiny, learnable: str) -> None:
    """Decay would draw a sigma to softplus(0), whatever the data say."""
    for squeeze in (False, True):
        blur, mix = BlurConfig("context", learnable=learnable), LayerMixConfig("weighted", squeeze)
        model, _ = build(tiny("bert"), blur=blur, layer_mix=mix)
        names = {id(weight): name for name, weight in model.named_parameters() if not name.startswith("encoder.")}
        decayed, plain = (
            {names[id(p)] for p in group["params"] if id(p) in names}
            for group in build_optimizer(PLAIN, model).param_groups
        )
        assert "blur.raw_sigma" in plain
        assert ("layer_mix.layer_weights" in plain) == (not squeeze)
        assert {name for name in decayed if "blur" in name or "layer_mix" in name} == (
            {f"layer_mix.excitation.{part}.weight" for part in ("squeeze", "excite")} if squeeze else set()
        )


SCHEDULES = {
    "constant": lambda optimizer, warmup, total: get_constant_schedule(optimizer),
    "linear": get_linear_schedule_with_warmup,
    "cosine": get_cosine_schedule_with_warmup,
    "constant_with_warmup": lambda optimizer, warmup, total: get_constant_schedule_with_warmup(optimizer, warmup),
}


@pytest.mark.parametrize("kind", sorted(SCHEDULES))
@pytest.mark.parametrize(
    ("total", "ratio", "steps"), [(100, 0.1, 0), (7, 0.25, 0), (50, 0.1, 20), (5, 0.0, 0), (1, 0.1, 0)]
)
def test_the_learning_rate_is_that_of_transformers_schedules(kind: str, total: int, ratio: float, steps: int) -> None:
    own = LearningRateSchedule(TrainingConfig(lr_scheduler_type=kind, warmup_ratio=ratio, warmup_steps=steps), total)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = SCHEDULES[kind](optimizer, steps or math.ceil(ratio * total), total)
    for step in range(total):
        assert own.factor(step) == pytest.approx(schedule.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        schedule.step()


# A learning rate of the encoder's own


def test_each_group_keeps_its_own_peak_over_the_schedule() -> None:
    """The steps are those of AdamW with the encoder's rate on the encoder and the other one elsewhere."""
    training = TrainingConfig(learning_rate=0.1, encoder_learning_rate=0.004, warmup_ratio=0.4)
    schedule = LearningRateSchedule(training, 10)
    model = nn.ModuleDict({"encoder": nn.Linear(2, 2), "classifier": nn.Linear(2, 2)})
    optimizer = build_optimizer(training, model)
    for step in range(10):
        factor = schedule.factor(step)
        set_learning_rate(optimizer, factor)
        assert sorted({group["lr"] for group in optimizer.param_groups}) == sorted({0.004 * factor, 0.1 * factor})
        assert schedule.rates(step) == {"learning_rate": 0.1 * factor, "encoder_learning_rate": 0.004 * factor}
    set_learning_rate(optimizer, 1.0)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    model["classifier"](model["encoder"](torch.ones(1, 2))).sum().backward()
    optimizer.step()
    moved = {name: float((weight - before[name]).abs().max()) for name, weight in model.state_dict().items()}
    assert moved["encoder.bias"] == pytest.approx(0.004, rel=1e-3)
    assert moved["classifier.bias"] == pytest.approx(0.1, rel=1e-3)
    plain = LearningRateSchedule(TrainingConfig(learning_rate=0.2, warmup_ratio=0.0), 2)
    assert plain.rates(1) == {"learning_rate": 0.1}, "the encoder is logged with the rest"


def test_untouched_embeddings_decay_by_the_encoders_rate_and_not_at_all_when_it_is_frozen() -> None:
    same = TrainingConfig(learning_rate=0.1, warmup_ratio=0.0, weight_decay=0.3)
    own = replace(same, encoder_learning_rate=0.02)
    for training, rate in ((own, 0.02), (same, 0.1)):
        written_out = math.prod(1 - rate * 0.3 * (1 - step / 8) for step in range(5))
        assert LearningRateSchedule(training, 8).decay_factor(5) == pytest.approx(written_out, rel=1e-12)
    for others in ({"freeze_encoder": True}, {"lora_rank": 8}, {"l2_sp": 0.5}):
        assert LearningRateSchedule(replace(same, **others), 8).decay_factor(5) == 1.0


@pytest.mark.parametrize("limit", [0.0, 0.5, 1e9])
def test_clipping_in_the_optimiser_is_clipping_before_it(limit: float) -> None:
    generator = torch.Generator().manual_seed(1)
    own, plain = Small(), Small()
    plain.load_state_dict(own.state_dict())
    optimizers = [build_optimizer(SETTINGS, model) for model in (own, plain)]
    for size in (3.0, 0.01, 3.0):  # beyond the limit of 0.5, below it, and beyond it once more
        for mine, other in zip(own.parameters(), plain.parameters(), strict=True):
            mine.grad = size * torch.randn(mine.shape, generator=generator)
            other.grad = mine.grad.clone()
        norm = clip_gradients(Accelerator(cpu=True), optimizers[0], own.parameters(), limit)
        expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), limit or math.inf)
        assert norm == pytest.approx(float(expected), rel=1e-6)
        for optimizer in optimizers:
            optimizer.step()
    for mine, other in zip(own.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-7)
