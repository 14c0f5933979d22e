"""AdamW with bias correction, weight decay where it belongs, and the learning rate's course.

Source: Devlin et al. 2019, appendix A.2; the regime that all presets share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from attentune.config import TrainingConfig
from attentune.nn.cpu.kernels import sum_of_squares
from attentune.nn.cpu.native import unavailable_reason


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Whether weight decay applies: to matrices, not to biases, the scales of normalisations and learned sigmas."""
    return parameter.ndim > 1 and not name.endswith(("bias", "raw_sigma"))


def is_encoders(name: str) -> bool:
    """Whether a parameter of this name is the encoder's own; slots and classifier are not."""
    return name.startswith("encoder.")


def encoder_peak_rate(settings: TrainingConfig) -> float:
    """The peak learning rate of the encoder's parameters: 0 where they are frozen."""
    if settings.freeze_encoder:
        return 0.0
    return settings.learning_rate if settings.encoder_learning_rate is None else settings.encoder_learning_rate


def build_optimizer(model: nn.Module, settings: TrainingConfig) -> torch.optim.AdamW:
    """AdamW over the trainable parameters, in groups with weight decay and without.

    Where the encoder has a learning rate of its own there are two groups more, for it; those without a parameter are
    left out. Each group knows its peak learning rate as `peak_lr`.
    """
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    has_own_rate = settings.encoder_learning_rate is not None and not settings.freeze_encoder
    groups = []
    for of_encoder in (False, True) if has_own_rate else (None,):
        members = [(name, p) for name, p in named if of_encoder is None or is_encoders(name) == of_encoder]
        rate = encoder_peak_rate(settings) if of_encoder else settings.learning_rate
        for decayed, weight_decay in ((True, settings.weight_decay), (False, 0.0)):
            own = [p for name, p in members if decays(name, p) == decayed]
            if own or not has_own_rate:
                groups.append({"params": own, "weight_decay": weight_decay, "lr": rate, "peak_lr": rate})
    return torch.optim.AdamW(
        groups,
        lr=settings.learning_rate,
        betas=(settings.adam_beta1, settings.adam_beta2),
        eps=settings.adam_epsilon,
        fused=named[0][1].device.type in ("cpu", "cuda"),
    )


def clip_gradients(accelerator: Accelerator, optimizer: Any, parameters: Iterable[nn.Parameter], limit: float) -> float:
    """The norm of all gradients together; where it is beyond the limit, the next step takes them scaled down to it.

    On a CPU the optimiser's fused program scales as it reads them, which spares a pass over all gradients.

    Args:
        accelerator: which device, and what scales losses.
        optimizer: what steps them, from `build_optimizer`, as it is or prepared by Accelerate.
        parameters: those it steps.
        limit: the norm they may have; 0 for any.
    """
    if accelerator.device.type != "cpu":
        return float(accelerator.clip_grad_norm_(parameters, limit or float("inf")))
    norm = _norm([p.grad for p in parameters if p.grad is not None])
    fused = getattr(optimizer, "optimizer", optimizer)
    # The same small number as in torch.nn.utils.clip_grad_norm_.
    fused.grad_scale = torch.tensor((norm + 1e-6) / limit) if limit and norm > limit else None
    return norm


def _norm(gradients: list[torch.Tensor]) -> float:
    """Of all together; on the CPU."""
    if unavailable_reason() is None and all(one.dtype == torch.float32 and one.is_contiguous() for one in gradients):
        return math.sqrt(sum_of_squares(gradients))
    return float(torch.nn.utils.get_total_norm(gradients))


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
    """What weight decay alone makes of an encoder's weight without gradients in the first `steps` steps, as a factor.

    Computed anew from the schedule, never from the last value, so that a resumed run gets the same number.
    """
    # With adapters the word embeddings are no parameter at all.
    factor, peak = 1.0, 0.0 if settings.lora_rank is not None else encoder_peak_rate(settings)
    for step in range(steps):
        rate = peak * learning_rate_factor(settings, step, total_steps)
        factor *= 1.0 - rate * settings.weight_decay
    return factor


def set_learning_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Give every group this share of its own peak learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor


def logged_rates(settings: TrainingConfig, factor: float) -> dict[str, float]:
    """The learning rate at this share of the peak; the encoder's too, where it has one of its own."""
    rates = {"learning_rate": settings.learning_rate * factor}
    if settings.encoder_learning_rate is not None:
        rates["encoder_learning_rate"] = encoder_peak_rate(settings) * factor
    return rates


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
    """Put a saved state back; the inverse of `optimizer_tensors`.

    Raises:
        KeyError, ValueError: it is of another model.
    """
    parameters = dict(model.named_parameters())
    for full_name, value in tensors.items():
        key, name = full_name.split(".", 1)
        parameter = parameters[name]
        if value.numel() != 1 and value.shape != parameter.shape:
            raise ValueError(f"{full_name} has the shape {tuple(value.shape)}, not {tuple(parameter.shape)}")
        # AdamW's fused form keeps the step beside the parameter, the plain one on the CPU.
        optimizer.state[parameter][key] = value.to(parameter.device)
