"""Numeric precision: what a device computes fast."""

import functools
import time

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
    """Whether the device multiplies bf16 faster than fp32: some GPUs, a CPU with AMX, or with fast AVX512-BF16."""
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
