"""A copy of a model whose encoder multiplies in int8, for prediction on a CPU."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import nn

from attentune.errors import ConfigError

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
