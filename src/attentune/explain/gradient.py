"""Gradient-based methods: gradient times the difference of embeddings, and integrated gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attentune.explain.scorer import MethodScores, Scorer, Settings
from attentune.inference.scoring import BATCH_TOKENS, numpy_of


class PassCounter:
    """Counts the texts that go through a model, forward plus backward, while a `with` block runs."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._handles: list[RemovableHandle] = []
        self._texts = 0

    def __enter__(self) -> PassCounter:
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
        self._texts += len(options["input_ids"])

    def _after_forward(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if output.logits.requires_grad:
            output.logits.register_hook(self._on_backward)

    def _on_backward(self, gradient_BC: Tensor) -> None:
        self._texts += len(gradient_BC)

    def take(self) -> int:
        """Return the number of texts since the last call."""
        count, self._texts = self._texts, 0
        return count


class EmbeddingLeaf:
    """Replaces the word embeddings in the forward pass by a leaf tensor while a `with` block runs.

    The backward pass ends there. Neither the encoder's weights nor their gradients are touched, so it works on a frozen
    encoder too.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._handle: RemovableHandle | None = None
        self._clear()

    def __enter__(self) -> Self:
        self._handle = self._model.get_input_embeddings().register_forward_hook(self._on_forward)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._handle is not None:
            self._handle.remove()
        self._handle = None
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


def gradient(scorer: Scorer, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> MethodScores:
    """Compute (E[t_i] - E[mask]) . df/dE[t_i], the first-order estimate of how far f falls if token i is masked.

    E are the word embeddings, f is `target_value`. One forward and one backward pass per batch.
    """
    with torch.enable_grad(), EmbeddingLeaf(scorer.model) as leaf:
        logits_BC = scorer.forward(scorer.inputs(rows)).logits
        embedded_BTE, gradient_BTE = leaf.gradient(scorer.values(logits_BC, wanted_B))
    mask_E = mask_embedding(scorer.model, scorer.mask_token_id)
    fall_BT = ((embedded_BTE - mask_E) * gradient_BTE).sum(dim=-1).float()
    return MethodScores(numpy_of(logits_BC), scorer.per_row(fall_BT, rows))


@torch.no_grad()
def mask_embedding(model: Any, mask_token_id: int) -> Tensor:
    """Return the mask token's word embedding, (E,)."""
    return model.get_input_embeddings()(torch.tensor([mask_token_id], device=model.device))[0]


def integrated_gradients(scorer: Scorer, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> MethodScores:
    """Integrate the gradient of f along the straight path from the mask token's word embeddings to the tokens' own.

    The scores add up to f(text) - f(text with all tokens masked), f being `target_value`, up to the integration error
    of `settings.steps` steps.

    Source: Sundararajan et al. 2017.
    """
    logits_BC = scorer.scores(rows).logits_NC
    target_B = scorer.targets(logits_BC, wanted_B)
    scores = []
    for row, target in zip(rows.tolist(), target_B.tolist(), strict=True):

        def value(inputs: dict[str, Tensor], target: int = target) -> Tensor:
            logits_SC = scorer.forward(inputs).logits
            target_S = torch.full((len(logits_SC),), target, device=logits_SC.device)
            return scorer.value(logits_SC, target_S)

        inputs, places = scorer.inputs([row]), scorer.features.non_special_positions(row)
        copies = max(1, BATCH_TOKENS // inputs["input_ids"].shape[1])
        masked_1T = masked_ids(inputs["input_ids"], places, scorer.mask_token_id)
        scores.append(integrate(value, scorer.model, inputs, masked_1T, steps=settings.steps, copies_per_pass=copies))
    return MethodScores(logits_BC, scorer.ordinary_only(scores, rows))


def integrate(
    value: Callable[[dict[str, Tensor]], Tensor],
    model: Any,
    inputs: dict[str, Tensor],
    masked_1T: Tensor,
    *,
    steps: int,
    copies_per_pass: int,
) -> np.ndarray:
    """Integrated gradients of any function of a text's word embeddings, by `captum.attr.IntegratedGradients`."""
    from captum.attr import IntegratedGradients

    with torch.no_grad():
        embed = model.get_input_embeddings()
        text_1TE, masked_1TE = embed(inputs["input_ids"]), embed(masked_1T)
    if torch.equal(inputs["input_ids"], masked_1T):
        return np.zeros(masked_1T.shape[1], dtype=np.float32)
    with EmbeddingLeaf(model) as leaf:

        def value_of(embedded_STE: Tensor) -> Tensor:
            leaf.given_BTE = embedded_STE
            return value({name: tensor.expand(len(embedded_STE), *tensor.shape[1:]) for name, tensor in inputs.items()})

        attributed_1TE = IntegratedGradients(value_of).attribute(
            text_1TE, baselines=masked_1TE, n_steps=steps, internal_batch_size=copies_per_pass
        )
    return numpy_of(attributed_1TE.sum(dim=-1)[0])


def masked_ids(input_ids_1T: Tensor, places: np.ndarray, mask_token_id: int) -> Tensor:
    """Return a copy of the token ids with the mask token at these places."""
    masked_1T = input_ids_1T.clone()
    masked_1T[0, torch.as_tensor(places, device=masked_1T.device)] = mask_token_id
    return masked_1T
