"""Gradient-based methods: gradient times the difference of embeddings, and integrated gradients."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from attentune.explain.scorer import MethodScores, Scorer, Settings
from attentune.inference.scoring import BATCH_TOKENS, numpy_of


class PassCounter:
    """Counts the texts that go through a model, forward plus backward, while a `with` block runs."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.texts = 0  # the number so far

    def __enter__(self) -> PassCounter:
        self._handles = [
            self._model.register_forward_pre_hook(self._before_forward, with_kwargs=True),
            self._model.register_forward_hook(self._after_forward),
        ]
        return self

    def __exit__(self, *exception: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _before_forward(self, module: nn.Module, inputs: Any, options: dict[str, Any]) -> None:
        self.texts += len(options["input_ids"])

    def _after_forward(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if output.logits.requires_grad:
            output.logits.register_hook(self._on_backward)

    def _on_backward(self, gradient_BC: Tensor) -> None:
        self.texts += len(gradient_BC)


class EmbeddingLeaf:
    """Replaces the word embeddings in the forward pass by a leaf tensor while a `with` block runs.

    The backward pass ends there. Neither the encoder's weights nor their gradients are touched, so it works on a frozen
    encoder too.
    """

    leaf_BTE: Tensor  # the word embeddings of the latest pass

    def __init__(self, model: Any) -> None:
        self._embeddings = model.get_input_embeddings()
        self.given_BTE: Tensor | None = None  # replaces the model's own word embeddings

    def __enter__(self) -> Self:
        self._handle = self._embeddings.register_forward_hook(self._on_forward)
        return self

    def __exit__(self, *exception: object) -> None:
        self._handle.remove()

    def _on_forward(self, module: nn.Module, inputs: Any, output_BTE: Tensor) -> Tensor:
        self.leaf_BTE = output_BTE.detach().requires_grad_() if self.given_BTE is None else self.given_BTE
        return self.leaf_BTE


def gradient(scorer: Scorer, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> MethodScores:
    """Compute (E[t_i] - E[mask]) . df/dE[t_i], the first-order estimate of how far f falls if token i is masked.

    E are the word embeddings, f is `target_value`. One forward and one backward pass per batch.
    """
    with torch.enable_grad(), EmbeddingLeaf(scorer.model) as leaf:
        logits_BC = scorer.forward(scorer.inputs(rows)).logits
        (gradient_BTE,) = torch.autograd.grad(scorer.values(logits_BC, wanted_B).sum(), leaf.leaf_BTE)
    mask_1 = torch.tensor([scorer.mask_token_id], device=logits_BC.device)
    mask_1E = scorer.model.get_input_embeddings()(mask_1).detach()
    fall_BT = ((leaf.leaf_BTE.detach() - mask_1E) * gradient_BTE).sum(dim=-1).float()
    return MethodScores(numpy_of(logits_BC), scorer.per_row(fall_BT, rows))


def integrated_gradients(scorer: Scorer, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> MethodScores:
    """Integrate the gradient of f from the mask token's word embeddings to those of one row, by Captum.

    The scores add up to f(text) - f(text with all tokens masked), f being `target_value`, up to the integration error
    of `settings.steps` steps.

    Source: Sundararajan et al. 2017.
    """
    from captum.attr import IntegratedGradients

    logits_1C, inputs = scorer.scores(rows).logits_NC, scorer.inputs(rows)
    target_1 = torch.from_numpy(scorer.targets(logits_1C, wanted_B)).to(scorer.accelerator.device)
    ids_1T, masked_1T = inputs["input_ids"], inputs["input_ids"].clone()
    masked_1T[0, torch.from_numpy(scorer.features.non_special_positions(int(rows[0])))] = scorer.mask_token_id
    if torch.equal(ids_1T, masked_1T):
        return MethodScores(logits_1C, [np.zeros(ids_1T.shape[1], dtype=np.float32)])
    with torch.no_grad():
        text_1TE, masked_1TE = map(scorer.model.get_input_embeddings(), (ids_1T, masked_1T))
    with EmbeddingLeaf(scorer.model) as leaf:

        def value(embedded_STE: Tensor) -> Tensor:
            leaf.given_BTE, count = embedded_STE, len(embedded_STE)
            copies = {name: tensor.expand(count, *tensor.shape[1:]) for name, tensor in inputs.items()}
            return scorer.value(scorer.forward(copies).logits, target_1.repeat(count))

        attributed_1TE = IntegratedGradients(value).attribute(
            text_1TE,
            baselines=masked_1TE,
            n_steps=settings.steps,
            internal_batch_size=max(1, BATCH_TOKENS // ids_1T.shape[1]),
        )
    return MethodScores(logits_1C, scorer.per_row(attributed_1TE.sum(dim=-1), rows))
