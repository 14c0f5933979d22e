"""Hooks with an owner: they read what passes through a module and are gone when the owner is done."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


class EmbeddingTap:
    """Keeps what a model's word embeddings gave in the newest forward pass with gradients, and the gradient there.

    Use as a context manager: the hook is there while the block runs.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._handle: RemovableHandle | None = None
        self._output_BTE: Tensor | None = None
        self._gradient_BTE: Tensor | None = None

    def __enter__(self) -> EmbeddingTap:
        self._handle = self._model.get_input_embeddings().register_forward_hook(self._on_forward)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._handle is not None:
            self._handle.remove()
        self._handle = self._output_BTE = self._gradient_BTE = None

    def _on_forward(self, module: nn.Module, inputs: Any, output_BTE: Tensor) -> None:
        if output_BTE.requires_grad:
            self._output_BTE, self._gradient_BTE = output_BTE.detach(), None
            output_BTE.register_hook(self._on_backward)

    def _on_backward(self, gradient_BTE: Tensor) -> None:
        self._gradient_BTE = gradient_BTE

    def take(self) -> tuple[Tensor, Tensor]:
        """The embeddings (B, T, E) and the loss's gradient there; both are let go.

        Raises:
            RuntimeError: no backward pass has reached the embeddings since the last call.
        """
        output_BTE, gradient_BTE = self._output_BTE, self._gradient_BTE
        self._output_BTE = self._gradient_BTE = None
        if output_BTE is None or gradient_BTE is None:
            raise RuntimeError(
                "no gradient has reached the word embeddings, expected one from each backward pass: are the encoder's"
                " weights frozen?"
            )
        return output_BTE, gradient_BTE
