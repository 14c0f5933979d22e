"""AdamW with bias correction, weight decay where it belongs, and the learning rate's course.

Source: Devlin et al. 2019, appendix A.2; the regime that all presets share.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from attentune.config import TrainingConfig


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Whether weight decay applies: to matrices, not to biases, the scales of normalisations and learned sigmas."""
    return parameter.ndim > 1 and not name.endswith(("bias", "raw_sigma"))


def build_optimizer(model: nn.Module, settings: TrainingConfig) -> torch.optim.AdamW:
    """AdamW over the trainable parameters, in two groups: with weight decay and without."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for name, p in named if decays(name, p)], "weight_decay": settings.weight_decay},
        {"params": [p for name, p in named if not decays(name, p)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=settings.learning_rate,
        betas=(settings.adam_beta1, settings.adam_beta2),
        eps=settings.adam_epsilon,
        fused=named[0][1].device.type in ("cpu", "cuda"),
    )


def learning_rate_factor(settings: TrainingConfig, step: int, total_steps: int) -> float:
    """The share of the peak learning rate with which optimiser step `step` (from 0) of `total_steps` is done."""
    if settings.lr_scheduler_type == "constant":
        return 1.0
    warmup = settings.warmup_steps or math.ceil(settings.warmup_ratio * total_steps)
    if step < warmup:
        return step / warmup
    if settings.lr_scheduler_type == "constant_with_warmup":
        return 1.0
    done = (step - warmup) / max(1, total_steps - warmup)
    if settings.lr_scheduler_type == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))
    return max(0.0, 1.0 - done)


def decay_factor(settings: TrainingConfig, steps: int, total_steps: int) -> float:
    """What weight decay alone makes of a weight without gradients in the first `steps` steps, as a factor.

    Computed anew from the schedule, never from the last value, so that a resumed run gets the same number.
    """
    factor = 1.0
    for step in range(steps):
        rate = settings.learning_rate * learning_rate_factor(settings, step, total_steps)
        factor *= 1.0 - rate * settings.weight_decay
    return factor


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, torch.Tensor]:
    """The optimiser's state as named tensors, ready for safetensors."""
    return {
        f"{key}.{name}": value.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, torch.Tensor]
) -> None:
    """Put a saved state back; the inverse of `optimizer_tensors`."""
    parameters = dict(model.named_parameters())
    for full_name, value in tensors.items():
        key, name = full_name.split(".", 1)
        parameter = parameters[name]
        # AdamW's fused form keeps the step beside the parameter, the plain one on the CPU.
        optimizer.state[parameter][key] = value.to(parameter.device)
