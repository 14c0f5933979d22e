"""Hooks on a model for the time of a `with` block: count its passes, and read or set its word embeddings."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


class PassCounter:
    """Counts the texts that go through a model, forward and backward; each row of a batch is one text.

    Use as a context manager: the hooks are attached while the block runs.
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
        """Return the number of texts, forward plus backward, since the last call."""
        before, self._taken = self._taken, self.forward_texts + self.backward_texts
        return self._taken - before


class _EmbeddingHook:
    """A forward hook on a model's word embeddings, attached while a `with` block runs; subclasses say what it does."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._handle: RemovableHandle | None = None

    def __enter__(self) -> Self:
        self._handle = self._model.get_input_embeddings().register_forward_hook(self._on_forward)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._handle is not None:
            self._handle.remove()
        self._handle = None
        self._clear()

    def _on_forward(self, module: nn.Module, inputs: Any, output_BTE: Tensor) -> Tensor | None:
        raise NotImplementedError

    def _clear(self) -> None:
        raise NotImplementedError


class EmbeddingGradientHook(_EmbeddingHook):
    """Keeps the word embeddings of the latest forward pass with gradients, and the gradient of its backward pass.

    It changes nothing in either pass, so it can read the backward pass of training.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._clear()

    def _clear(self) -> None:
        self._output_BTE: Tensor | None = None
        self._gradient_BTE: Tensor | None = None

    def _on_forward(self, module: nn.Module, inputs: Any, output_BTE: Tensor) -> None:
        if output_BTE.requires_grad:
            self._output_BTE, self._gradient_BTE = output_BTE.detach(), None
            output_BTE.register_hook(self._on_backward)

    def _on_backward(self, gradient_BTE: Tensor) -> None:
        self._gradient_BTE = gradient_BTE

    def take(self) -> tuple[Tensor, Tensor]:
        """Return the word embeddings (B, T, E) and the loss's gradient there, and release both."""
        output_BTE, gradient_BTE = self._output_BTE, self._gradient_BTE
        self._clear()
        if output_BTE is None or gradient_BTE is None:
            raise RuntimeError(
                "no gradient has reached the word embeddings, expected one from each backward pass: are the encoder's"
                " weights frozen?"
            )
        return output_BTE, gradient_BTE


class EmbeddingLeaf(_EmbeddingHook):
    """Replaces the word embeddings in the forward pass by a leaf tensor, at which the backward pass ends.

    Neither the encoder's weights nor their gradients are touched, so it works on a frozen encoder too.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._clear()

    def _clear(self) -> None:
        self.given_BTE: Tensor | None = None
        self.leaf_BTE: Tensor | None = None

    def _on_forward(self, module: nn.Module, inputs: Any, output_BTE: Tensor) -> Tensor:
        self.leaf_BTE = output_BTE.detach().requires_grad_() if self.given_BTE is None else self.given_BTE
        return self.leaf_BTE

    def gradient(self, values_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return the word embeddings (B, T, E) of the latest pass and the gradient of the sum of the values there."""
        if self.leaf_BTE is None:
            raise RuntimeError("no forward pass has read the word embeddings")
        (gradient_BTE,) = torch.autograd.grad(values_B.sum(), self.leaf_BTE)
        return self.leaf_BTE.detach(), gradient_BTE
