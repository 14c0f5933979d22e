"""Hooks with an owner: they count passes, or put other word embeddings in, and are gone when the owner is done."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


class PassCounter:
    """Counts what goes through a model, forward and back: each row of a batch is a text.

    Use as a context manager: the hooks are there while the block runs.

    Attributes:
        forward_calls: calls of the model since the block began.
        backward_calls: backward passes.
        forward_texts: texts in these calls.
        backward_texts: texts in these backward passes.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._handles: list[RemovableHandle] = []
        self._reset()

    def _reset(self) -> None:
        self.forward_calls = self.backward_calls = self.forward_texts = self.backward_texts = self._taken = 0

    def __enter__(self) -> PassCounter:
        self._reset()
        self._handles = [
            self._model.register_forward_pre_hook(self._before_forward, with_kwargs=True),
            self._model.register_forward_hook(self._after_forward),
        ]
        return self

    def __exit__(self, *exception: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before_forward(self, module: nn.Module, inputs: Any, options: dict[str, Any]) -> None:
        self.forward_calls += 1
        self.forward_texts += len(options["input_ids"])

    def _after_forward(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if output.logits.requires_grad:
            output.logits.register_hook(self._on_backward)

    def _on_backward(self, gradient_BC: Tensor) -> None:
        self.backward_calls += 1
        self.backward_texts += len(gradient_BC)

    def take(self) -> int:
        """How many texts there were, forward and back together, since the last call."""
        before, self._taken = self._taken, self.forward_texts + self.backward_texts
        return self._taken - before


class EmbeddingLeaf:
    """Has a model read its word embeddings from a tensor that gradients can be asked for, and end there.

    Neither the encoder's weights nor their gradients are touched, so a frozen encoder does too. Use as a context
    manager: the hook is there while the block runs.

    Attributes:
        given_BTE: the word embeddings to read in the place of the model's own; None for its own.
        leaf_BTE: those of the newest forward pass.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._handle: RemovableHandle | None = None
        self.given_BTE: Tensor | None = None
        self.leaf_BTE: Tensor | None = None

    def __enter__(self) -> EmbeddingLeaf:
        self._handle = self._model.get_input_embeddings().register_forward_hook(self._on_forward)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._handle is not None:
            self._handle.remove()
        self._handle = self.given_BTE = self.leaf_BTE = None

    def _on_forward(self, module: nn.Module, inputs: Any, output_BTE: Tensor) -> Tensor:
        self.leaf_BTE = output_BTE.detach().requires_grad_() if self.given_BTE is None else self.given_BTE
        return self.leaf_BTE

    def gradient(self, values_B: Tensor) -> tuple[Tensor, Tensor]:
        """The word embeddings (B, T, E) of the newest pass, and there the gradient of the sum of these values."""
        if self.leaf_BTE is None:
            raise RuntimeError("no forward pass has read the word embeddings")
        (gradient_BTE,) = torch.autograd.grad(values_B.sum(), self.leaf_BTE)
        return self.leaf_BTE.detach(), gradient_BTE
