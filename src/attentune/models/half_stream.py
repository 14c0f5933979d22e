"""What flows between an encoder's layers, kept in bf16 where autocast would widen it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class HalfStream:
    """Owns two hooks on an encoder: under autocast on a CPU its embeddings' output is narrowed, its own widened again.

    Autocast multiplies in bf16, but adds in the wider kind of both summands, so that fp32 embeddings make everything
    between the products fp32, with a cast before and after each of them. Begun in bf16 it stays bf16; weights, their
    gradients and all that is outside of the encoder keep their kind. Without autocast, or on a GPU, nothing changes.

    Args:
        encoder: a transformers encoder; one without a part `embeddings` is left as it is.
    """

    def __init__(self, encoder: nn.Module) -> None:
        self._handles: list[Any] = []
        embeddings = getattr(encoder, "embeddings", None)
        if isinstance(embeddings, nn.Module):
            self._handles.append(embeddings.register_forward_hook(self._after_embeddings))
            self._handles.append(encoder.register_forward_hook(self._after_encoder))

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _after_embeddings(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        if isinstance(output, Tensor) and _narrows(output):
            return output.to(torch.get_autocast_dtype("cpu"))
        return output

    def _after_encoder(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        for name in ("last_hidden_state", "hidden_states"):
            value = output.get(name) if hasattr(output, "get") else None
            if value is not None:
                output[name] = tuple(map(_wide, value)) if isinstance(value, tuple) else _wide(value)
        return output


def _narrows(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32 and torch.is_autocast_enabled("cpu")


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.device.type == "cpu" and torch.is_autocast_enabled("cpu") else tensor
