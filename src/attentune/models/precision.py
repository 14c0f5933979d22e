"""Which arithmetic a device does fast."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import nn

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


# What `--precision` calls it, for prediction alone: "bf16" by itself is autocast.
TRUE_BF16 = "bf16-true"


def bf16_copy(model: Any) -> Any:
    """The model in evaluation mode, its weights in bf16; buffers, such as the angles of rotary positions, stay."""
    # With each weight's bf16 twin in the memo, no fp32 copy is made on the way.
    twins = {id(p): torch.nn.Parameter(p.detach().to(torch.bfloat16)) for p in model.parameters()}
    return copy.deepcopy(model, dict(twins)).eval().requires_grad_(False)


class BFloat16Copy:
    """A second model whose weights are the first's in bf16, which follows it and holds memory only while it is asked.

    Autocast keeps what lies between the matrix products in fp32 and casts to and fro; for short texts on a CPU a model
    that is bf16 throughout answers about 1.4 times as fast, to within bf16's two to three digits.

    Args:
        model: the model to follow, before Accelerate has wrapped its forward pass.
    """

    def __init__(self, model: Any) -> None:
        self._source = model
        self._copy = bf16_copy(model)
        self._is_fresh = False
        self.release()

    def fresh(self) -> Any:
        """The copy, with the weights that the model had at the first call since `release`."""
        if not self._is_fresh:
            for mine, theirs in zip(self._copy.parameters(), self._source.parameters(), strict=True):
                mine.data = theirs.detach().to(torch.bfloat16)
            self._is_fresh = True
        return self._copy

    def release(self) -> None:
        """Give the copy's memory back; to be called when the model moves on."""
        for mine in self._copy.parameters():
            mine.data = mine.new_empty(0)
        self._is_fresh = False


# What `--precision` calls it; for prediction alone.
INT8 = "int8"


def int8_copy(model: Any) -> Any:
    """The model in evaluation mode, its encoder's linear layers with weights of eight bits.

    Dynamic quantisation: weights are scaled once to 256 levels, what comes in is scaled row of products by row of
    products as it comes. The slots after the encoder, which are small, stay float32. The model itself is not changed.

    Args:
        model: an `AttentuneForSequenceClassification` in float32 on a CPU.

    Raises:
        ConfigError: this PyTorch cannot.
    """
    try:
        from torch.ao.quantization import quantize_dynamic
    except ImportError as error:
        raise ConfigError(
            f"precision: int8 needs torch.ao.quantization, which PyTorch {torch.__version__} has not; expected auto,"
            " fp32, bf16 or fp16. attentune export --quantize int8 makes a graph that onnxruntime runs."
        ) from error
    copied = copy.deepcopy(model).eval().requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the same program is moving to a package of its own
        quantize_dynamic(copied.encoder, {nn.Linear}, dtype=torch.qint8, inplace=True)
    return copied
