"""AdamW with decoupled decay towards 0 or towards the start, gradient clipping, and the learning-rate schedule.

Source: Devlin et al. 2019, appendix A.2; the setup that all presets share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from attentune.config import TrainingConfig
from attentune.models.cpu_layers import bf16_copies, use_bf16_gradients
from attentune.nn.compiled.checks import unavailable_reason
from attentune.nn.compiled.kernels import CompiledAdamW, sum_of_squares
from attentune.training.prepare import chosen

# The key of a parameter's start among the optimiser's saved tensors; no key of AdamW's own.
_START = "start"
# The dtypes of gradients whose squares the C code sums.
_SUMMED = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class LearningRateSchedule:
    """The learning rate at each optimiser step: a warm-up from 0, then a decay (the schedules of transformers)."""

    training: TrainingConfig
    total_steps: int  # optimiser steps of the whole run

    def factor(self, step: int) -> float:
        """Return the share of the peak learning rate that optimiser step `step` (from 0) uses."""
        kind = self.training.lr_scheduler_type
        if kind == "constant":
            return 1.0
        warmup = self.training.warmup_steps or math.ceil(self.training.warmup_ratio * self.total_steps)
        if step < warmup:
            return step / warmup
        if kind == "constant_with_warmup":
            return 1.0
        done = (step - warmup) / max(1, self.total_steps - warmup)
        if kind == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))
        return max(0.0, 1.0 - done)

    def rates(self, step: int) -> dict[str, float]:
        """Return the learning rates of a step for the log; the encoder's only where it has its own."""
        factor = self.factor(step)
        rates = {"learning_rate": chosen(self.training.learning_rate) * factor}
        if self.training.encoder_learning_rate is not None:
            rates["encoder_learning_rate"] = self.training.encoder_learning_rate * factor
        return rates

    def decay_factor(self, steps: int) -> float:
        """Return the factor by which weight decay has shrunk the embeddings of unused tokens after these steps."""
        training, factor = self.training, 1.0
        if training.freeze_encoder or training.lora_rank is not None or training.l2_sp > 0:
            return factor
        # Always from the first step, so that a resumed run gets the same number.
        own = training.encoder_learning_rate
        peak = chosen(training.learning_rate) if own is None else own
        for step in range(steps):
            factor *= 1.0 - peak * self.factor(step) * training.weight_decay
        return factor


def has_weight_decay(name: str, parameter: nn.Parameter) -> bool:
    """Return whether weight decay applies: to matrices, not to biases, normalisation scales and learned sigmas."""
    return parameter.ndim > 1 and not name.endswith(("bias", "raw_sigma"))


class AdamWL2SP(torch.optim.AdamW):
    """AdamW whose decoupled decay pulls all weights towards their values at the start, not matrices towards 0.

    Source: L2-SP (Li, Grandvalet and Davoine 2018, section 3), decoupled from the gradient as in AdamW (Loshchilov and
    Hutter 2019): before each step a weight moves by lr x l2_sp x (its start - itself).
    """

    def __init__(self, groups: list[dict[str, Any]], *, l2_sp: float, **options: Any) -> None:
        super().__init__(groups, **options)
        self.l2_sp = l2_sp
        self.starts: dict[torch.Tensor, torch.Tensor] = {}
        self.set_starts()

    def set_starts(self) -> None:
        """Take the parameters' present values as their start."""
        self.starts = {one: one.detach().clone() for group in self.param_groups for one in group["params"]}

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for group in self.param_groups:
                if parameters := group["params"]:
                    share = min(1.0, group["lr"] * self.l2_sp)
                    torch._foreach_lerp_(parameters, [self.starts[one] for one in parameters], share)
        return super().step(closure)


def build_optimizer(training: TrainingConfig, model: nn.Module, *, processes: int = 1) -> torch.optim.AdamW:
    """Build AdamW over the trainable parameters, grouped by weight decay and by the encoder's own learning rate."""
    own_rate = training.encoder_learning_rate
    trainable = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    rates: dict[bool | None, float] = {None: chosen(training.learning_rate)}
    if own_rate is not None:
        rates = {False: chosen(training.learning_rate), True: own_rate}
    groups = []
    for is_encoder, rate in rates.items():
        members = [(name, p) for name, p in trainable if is_encoder in (None, name.startswith("encoder."))]
        for decayed, decay in ((True, 0.0 if training.l2_sp > 0 else training.weight_decay), (False, 0.0)):
            parameters = [p for name, p in members if has_weight_decay(name, p) == decayed]
            if parameters or own_rate is None:
                groups.append({"params": parameters, "weight_decay": decay, "lr": rate, "peak_lr": rate})
    options: dict[str, Any] = {
        "lr": chosen(training.learning_rate),
        "betas": (training.adam_beta1, training.adam_beta2),
        "eps": training.adam_epsilon,
        "fused": trainable[0][1].device.type in ("cpu", "cuda"),
    }
    if training.l2_sp > 0:
        return AdamWL2SP(groups, l2_sp=training.l2_sp, **options)
    if unavailable_reason() is not None or not all(_fits_compiled_step(one) for _, one in trainable):
        return torch.optim.AdamW(groups, **options)
    optimizer = CompiledAdamW(groups, **options)
    optimizer.copies = partial(bf16_copies, model)
    # Fused layers compute gradients in bf16; as long as nothing is added to one, keeping it so changes no number.
    if training.gradient_accumulation_steps == 1 and processes == 1:
        use_bf16_gradients(model)
    return optimizer


def _fits_compiled_step(parameter: nn.Parameter) -> bool:
    return parameter.device.type == "cpu" and parameter.dtype == torch.float32 and parameter.is_contiguous()


def bare_optimizer(optimizer: Any) -> Any:
    return getattr(optimizer, "optimizer", optimizer)


def clip_gradients(
    accelerator: Accelerator, optimizer: Any, parameters: Iterable[nn.Parameter], max_norm: float
) -> float:
    """Clip the gradients to a norm, and return the norm that they had."""
    if accelerator.device.type != "cpu":
        return float(accelerator.clip_grad_norm_(parameters, max_norm or float("inf")))
    norm = _total_norm([p.grad for p in parameters if p.grad is not None])
    fused = bare_optimizer(optimizer)
    # The fused step scales gradients as it reads them; 1e-6 as in torch.nn.utils.clip_grad_norm_.
    fused.grad_scale = torch.tensor((norm + 1e-6) / max_norm) if max_norm and norm > max_norm else None
    return norm


def _total_norm(gradients: list[torch.Tensor]) -> float:
    if unavailable_reason() is None and all(one.dtype in _SUMMED and one.is_contiguous() for one in gradients):
        return math.sqrt(sum_of_squares(gradients))
    return float(torch.nn.utils.get_total_norm(gradients))


def set_learning_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set every group's learning rate to this share of its own peak."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the optimiser's state, and with L2-SP the starts, as named tensors, ready for safetensors."""
    starts = optimizer.starts if isinstance(optimizer, AdamWL2SP) else {}
    return {
        f"{key}.{name}": value.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        for key, value in (
            *optimizer.state.get(parameter, {}).items(),
            *([(_START, starts[parameter])] if parameter in starts else []),
        )
    }


def load_optimizer_tensors(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, torch.Tensor]
) -> None:
    parameters = dict(model.named_parameters())
    starts = optimizer.starts if isinstance(optimizer, AdamWL2SP) else {}
    missing = [name for name, one in parameters.items() if one in starts and f"{_START}.{name}" not in tensors]
    if missing:
        raise KeyError(f"{_START}.{missing[0]}")
    for full_name, value in tensors.items():
        key, name = full_name.split(".", 1)
        parameter = parameters[name]
        if value.numel() != 1 and value.shape != parameter.shape:
            raise ValueError(f"{full_name} has the shape {tuple(value.shape)}, not {tuple(parameter.shape)}")
        if key == _START:
            starts[parameter].copy_(value)
            continue
        # The fused AdamW keeps its step count on the parameter's device, the plain one on the CPU.
        optimizer.state[parameter][key] = value.to(parameter.device)
