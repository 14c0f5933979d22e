"""Which arithmetic a device does fast."""

from __future__ import annotations

import torch

from attentune.errors import ConfigError

# What Accelerate calls them.
MIXED_PRECISION = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}


def resolve_precision(wanted: str, device: torch.device) -> str:
    """What "auto" stands for on this device: bf16 where the hardware multiplies it fast, else fp32.

    Args:
        wanted: "auto", "fp32", "bf16" or "fp16".
        device: where the model runs.

    Raises:
        ConfigError: the device cannot do what is wanted.
    """
    if wanted == "auto":
        return "bf16" if has_fast_bf16(device) else "fp32"
    if wanted == "fp16" and device.type == "cpu":
        raise ConfigError("training.precision: fp16 needs a GPU; expected auto, bf16 or fp32 on a CPU.")
    if wanted == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise ConfigError("training.precision: this GPU does not multiply bf16; expected auto, fp16 or fp32.")
    return wanted


def has_fast_bf16(device: torch.device) -> bool:
    """Whether the device multiplies bf16 in hardware (GPU; CPU with AVX512-BF16 or AMX)."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    probes = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(bool(probe()) for probe in probes if probe is not None)
