"""Dropout whose random numbers cost little on a CPU.

PyTorch draws one number a feature; on a CPU that takes a tenth of a fine-tuning step. Here each 64 bits drawn decide
four features, with a chance that is right to 1/65536. The mask is a function of PyTorch's generator alone: the same on
any number of threads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_LEVELS = 1 << 16


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, factors: Tensor) -> Tensor:
        ctx.save_for_backward(factors)
        return values * factors

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (factors,) = ctx.saved_tensors
        return gradients[0] * factors, None


def draw_kept(shape: torch.Size, dropped_levels: int, generator: torch.Generator | None = None) -> Tensor:
    """0 with the chance dropped_levels / 65536, else 1, as int16 on the CPU; of PyTorch's default generator if none."""
    count = shape.numel()
    bits = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None, generator=generator)
    return bits.view(torch.int16)[:count].view(shape).ge_(dropped_levels - _LEVELS // 2)


def draw_factors(shape: torch.Size, dropped_levels: int, dtype: torch.dtype) -> Tensor:
    """What dropout multiplies with, on the CPU, from PyTorch's default generator.

    0 with the chance dropped_levels / 65536, else what keeps the mean. Of the values' own kind: a boolean mask would be
    turned into one anew in each product.
    """
    return draw_kept(shape, dropped_levels).to(dtype).mul_(upscale(dropped_levels))


def upscale(dropped_levels: int) -> float:
    """What keeps the mean when this share of 65536 is dropped."""
    return _LEVELS / (_LEVELS - dropped_levels)


def fast_dropout(values: Tensor, dropped_levels: int) -> Tensor:
    """Zeroes each of these values, on the CPU, with the chance dropped_levels / 65536, and scales the others up."""
    if dropped_levels == 0 or values.numel() == 0:
        return values
    return _Dropout.apply(values, draw_factors(values.shape, dropped_levels, values.dtype))


def levels(p: float) -> int:
    """The chance p in 65536ths."""
    return round(p * _LEVELS)


class FastDropout(nn.Module):
    """`nn.Dropout` for the CPU: in training zeroes features with chance p and scales the others by 1 / (1 - p)."""

    def __init__(self, *, p: float) -> None:
        super().__init__()
        self.p = p
        self.dropped_levels = levels(p)

    def forward(self, values: Tensor) -> Tensor:
        return fast_dropout(values, self.dropped_levels) if self.training else values

    def extra_repr(self) -> str:
        return f"p={self.p}"


def use_fast_dropout(model: nn.Module) -> int:
    """Put `FastDropout` in the place of every `nn.Dropout` inside a model; how many there were is returned.

    For a model that trains on the CPU. Weights and saved files are not touched.
    """
    count = 0
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout and child.p < 1:
                replacement = FastDropout(p=child.p)
                replacement.train(child.training)
                setattr(parent, name, replacement)
                count += 1
    return count
