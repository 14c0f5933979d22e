"""Numeric precision: what a device computes fast, and a copy of a model in bf16."""

from __future__ import annotations

import copy
import functools
import time
from typing import Any

import torch

from attentune.errors import ConfigError

# bf16 is used where it multiplies at least this many times as fast as fp32. On an Intel Xeon with AVX512-BF16 but
# without AMX that is 0.55 times, and fp32 trains 1.5 times as fast (benchmarks/README.md).
_FAST_BF16 = 1.1
# The product that is timed, as of a layer of a small encoder, and how often; the shortest time counts.
_TIMED_SHAPE, _TIMED = (256, 384, 1536), 8

# Accelerate's names.
MIXED_PRECISION = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}


def resolve_precision(wanted: str, device: torch.device) -> str:
    """Resolve "auto" for a device: bf16 if its hardware multiplies bf16, else fp32."""
    if wanted == "auto":
        return "bf16" if has_fast_bf16(device) else "fp32"
    if wanted == "fp16" and device.type == "cpu":
        raise ConfigError("training.precision: fp16 needs a GPU; expected auto, bf16 or fp32 on a CPU.")
    if wanted == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise ConfigError("training.precision: this GPU does not multiply bf16; expected auto, fp16 or fp32.")
    return wanted


def has_fast_bf16(device: torch.device) -> bool:
    """Whether the device multiplies bf16 faster than fp32: a GPU that has it, a CPU with AMX, or with fast AVX512-BF16.

    How fast AVX512-BF16 is depends on the processor, so there it is measured, once in a process, in about 40 ms.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    if _supports("amx_tile"):
        return True
    return _supports("avx512_bf16") and _bf16_speed() >= _FAST_BF16


def _supports(instructions: str) -> bool:
    check = getattr(torch.cpu, f"_is_{instructions}_supported", None)
    return check is not None and bool(check())


@functools.cache
def _bf16_speed() -> float:
    """Return how many times as fast as fp32 this CPU multiplies bf16."""
    rows, width, inner = _TIMED_SHAPE
    seconds: dict[torch.dtype, list[float]] = {torch.float32: [], torch.bfloat16: []}
    for _ in range(_TIMED):  # in turn, so that other work on the machine disturbs both; the first ones also compile
        for dtype, times in seconds.items():
            times.append(_timed_product(torch.ones(rows, width, dtype=dtype), torch.ones(width, inner, dtype=dtype)))
    return min(seconds[torch.float32]) / min(seconds[torch.bfloat16])


def _timed_product(left: torch.Tensor, right: torch.Tensor) -> float:
    """Return the seconds of processor time: with other programs on all cores, the time that passes is mostly theirs."""
    began = time.process_time()
    torch.mm(left, right)
    return time.process_time() - began


def bf16_copy(model: Any) -> Any:
    """Copy a model in evaluation mode with its weights in bf16; classifier and buffers keep their dtype."""
    # deepcopy finds each parameter's bf16 version in the memo, so no fp32 copy is made.
    exact = {id(p) for p in model.classifier.parameters()}
    twins = {
        id(p): torch.nn.Parameter(p.detach().to(p.dtype if id(p) in exact else torch.bfloat16, copy=True))
        for p in model.parameters()
    }
    return copy.deepcopy(model, dict(twins)).eval().requires_grad_(False)


class BFloat16Copy:
    """A bf16 copy of a model that follows its weights and holds memory only while it is used.

    Autocast keeps everything but matrix products in fp32 and converts back and forth. For short texts on a CPU, where
    layers are not fused, a model completely in bf16 predicts 1.3 to 1.6 times as fast, with two to three digits.
    """

    def __init__(self, model: Any) -> None:
        self._source = model
        self._copy = bf16_copy(model)
        self._is_fresh = False
        self.release()

    def fresh(self) -> Any:
        """Return the copy, with the model's weights as of the first call since `release`."""
        if not self._is_fresh:
            for parameter, source in zip(self._copy.parameters(), self._source.parameters(), strict=True):
                parameter.data = source.detach().to(parameter.dtype, copy=True)
            self._is_fresh = True
        return self._copy

    def release(self) -> None:
        """Free the copy's memory; call it when the model's weights change."""
        for parameter in self._copy.parameters():
            parameter.data = parameter.new_empty(0)
        self._is_fresh = False
