"""Shared by tests of the C code: their marker, processor features, and a reference implementation of dropout masks."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attentune.nn.compiled.kernels import DropoutMask
from attentune.nn.compiled.native import load_library, unavailable_reason

needs_native = pytest.mark.native  # conftest.py deselects these where the C code cannot be compiled
_WORD, _LONG = (1 << 32) - 1, (1 << 64) - 1


def has_amx() -> bool:
    """Return whether this processor has AMX tiles for bf16 that the C code may use."""
    return unavailable_reason() is None and use_amx(True)


def use_amx(wanted: bool) -> bool:
    """Enable or disable Intel AMX for attention in this process; it is enabled by default where available."""
    return bool(load_library().attentune_amx(int(wanted)))


def weight_maker(dtype: torch.dtype) -> Callable[..., Tensor]:
    """Return what makes the same random weights at each call: those that bf16 holds exactly, with gradients."""
    generator = torch.Generator().manual_seed(1)

    def some(*shape: int, around: float = 0.0) -> Tensor:
        values = around + torch.randn(*shape, generator=generator) / math.sqrt(shape[-1])
        # What bf16 holds exactly, so that only what is computed can differ.
        return values.bfloat16().to(dtype).requires_grad_()

    return some


def far(ours: Tensor, wanted: Tensor) -> float:
    """Return the norm of the difference as a share of what is wanted."""
    return float((ours.double() - wanted.detach()).norm() / wanted.detach().norm())


def near(ours: Tensor, wanted: Tensor, share: float, lost: float = 0.0) -> None:
    """Check that each number is within this share of the largest one, plus `lost`; bf16 rounds each by up to 1/256."""
    assert ours.shape == wanted.shape
    limit = share * float(wanted.detach().abs().max()) + lost
    assert float((ours.double() - wanted.detach()).abs().max()) <= limit


def plain_attention(
    projected: Tensor,
    biases: Tensor,
    mask: Tensor | None,
    batch: int,
    heads: int,
    dropped: Tensor | float = 1.0,
    position_bias: Tensor | None = None,
) -> Tensor:
    """Return the attention of joint projections (rows, 3 x heads x width), as rows."""
    rows, wide = projected.shape
    length, width = rows // batch, wide // 3 // heads
    query, key, value = (projected + biases).view(batch, length, 3, heads, width).permute(2, 0, 3, 1, 4)
    scores = query @ key.transpose(2, 3) / math.sqrt(width)
    if mask is not None:
        scores = scores + mask.double()
    if position_bias is not None:
        places = torch.arange(length)
        scores = scores + position_bias[:, places - places[:, None] + length - 1]
    found = (scores.softmax(dim=-1) * dropped) @ value
    return found.transpose(1, 2).reshape(rows, heads * width)


def kept(drop: DropoutMask, row: int, columns: int) -> list[bool]:
    """Return which elements of a row dropout keeps, as `row_key` and `kept` in vectors.h do."""
    key = _finalised((drop.seed + (row + 1) * 0x9E3779B97F4A7C15) & _LONG)
    return [_drawn(key, column) >= drop.threshold for column in range(columns)]


def factors(drop: DropoutMask, rows: int, columns: int) -> torch.Tensor:
    """Return the dropout factors (rows, columns) as float64."""
    if drop.threshold == 0:
        return torch.ones(rows, columns, dtype=torch.float64)
    return torch.tensor([kept(drop, row, columns) for row in range(rows)], dtype=torch.float64) * drop.scale_kept


def _finalised(x: int) -> int:
    """Return the finalizer of splitmix64."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _LONG
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _LONG
    return x ^ (x >> 31)


def _drawn(key: int, column: int) -> int:
    x = ((column * 0x9E3779B9) & _WORD) ^ (key & _WORD)
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _WORD
    x = ((x + (key >> 32)) & _WORD) ^ (x >> 15)
    x = (x * 0x846CA68B) & _WORD
    return x ^ (x >> 16)
