"""Faster dropout for the CPU.

PyTorch draws one random number per feature, which on a CPU takes a tenth of a fine-tuning step. Here each 64-bit random
number is used for four features, so probabilities are multiples of 1/65536. The mask depends only on the state of
PyTorch's generator, not on the number of threads.
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
    """Draw an int16 mask on the CPU: 0 with probability dropped_levels / 65536, else 1."""
    count = shape.numel()
    bits = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None, generator=generator)
    return bits.view(torch.int16)[:count].view(shape).ge_(dropped_levels - _LEVELS // 2)


def draw_factors(shape: torch.Size, dropped_levels: int, dtype: torch.dtype) -> Tensor:
    """Draw the factors of dropout on the CPU: 0 with probability dropped_levels / 65536, else `upscale`.

    The factors have the dtype of the values, since a boolean mask would be converted in every product.
    """
    return draw_kept(shape, dropped_levels).to(dtype).mul_(upscale(dropped_levels))


def upscale(dropped_levels: int) -> float:
    """Return the factor for kept features that preserves the mean, 1 / (1 - p)."""
    return _LEVELS / (_LEVELS - dropped_levels)


def fast_dropout(values: Tensor, dropped_levels: int) -> Tensor:
    """Set each value to 0 with probability dropped_levels / 65536 and scale the others by `upscale`, on the CPU."""
    if dropped_levels == 0 or values.numel() == 0:
        return values
    return _Dropout.apply(values, draw_factors(values.shape, dropped_levels, values.dtype))


def levels(p: float) -> int:
    """Convert a probability to units of 1/65536, rounded."""
    return round(p * _LEVELS)


class FastDropout(nn.Module):
    """`nn.Dropout` for the CPU: in training, zeroes features with probability p and scales the rest by 1 / (1 - p)."""

    def __init__(self, *, p: float) -> None:
        super().__init__()
        self.p = p
        self.dropped_levels = levels(p)

    def forward(self, values: Tensor) -> Tensor:
        return fast_dropout(values, self.dropped_levels) if self.training else values

    def extra_repr(self) -> str:
        return f"p={self.p}"


def use_fast_dropout(model: nn.Module) -> int:
    """Replace every `nn.Dropout` in a model with `FastDropout`, for training on the CPU.

    Weights and saved files do not change.
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
