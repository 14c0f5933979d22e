"""Methods that read attention: the token gate's scores (SSA), the last layer's weights, and these times gradient."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attentune.attribution.base import MethodScores, Scorer, Settings, numpy_of
from attentune.errors import UnsupportedEncoderError
from attentune.models.attention import attention_by
from attentune.models.text_pairs import find_texts


def ssa(scorer: Scorer, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> MethodScores:
    """Return the token gate's importance scores, computed in the same pass as the prediction.

    Source: SSA (Kou et al. 2020, sections 3.2 and 4.7).
    """
    output = scorer.scores(rows)
    if output.token_scores is None:
        raise ValueError("ssa needs a model with a token gate")
    return MethodScores(output.logits_NC, scorer.ordinary_only(output.token_scores, rows))


def attention(scorer: Scorer, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> MethodScores:
    """Return the last layer's attention weights from the first token ([CLS]), averaged over heads."""
    logits_BC, weights_BTH = first_token_attention(scorer, rows)
    return MethodScores(numpy_of(logits_BC), scorer.per_row(weights_BTH.mean(dim=-1), rows))


def attention_gradient(scorer: Scorer, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> MethodScores:
    """Multiply the last layer's attention by the gradient of f, clip it at 0 in each head, and average over heads.

    Source: Chefer et al. 2021 (Generic attention-model explainability, equation 5), applied to the last layer only.
    """
    inputs = scorer.inputs(rows)
    with torch.enable_grad(), attention_by(scorer.model, "eager"):
        output = scorer.forward(inputs, output_attentions=True)
        weights = layer_attentions(output.attentions, scorer)
        (gradient,) = torch.autograd.grad(scorer.values(output.logits, wanted_B).sum(), weights)
    scores_BTH = _first_token_rows((weights * gradient).clamp(min=0.0).detach(), inputs)
    return MethodScores(numpy_of(output.logits), scorer.per_row(scores_BTH.mean(dim=-1), rows))


@torch.no_grad()
def first_token_attention(scorer: Scorer, rows: np.ndarray, layer: int = -1) -> tuple[Tensor, Tensor]:
    """Return a layer's attention weights from the first token of the text.

    A bi-encoder encodes the two texts of a pair separately; each text's tokens then get the weights from its own first
    token.
    """
    inputs = scorer.inputs(rows)
    with attention_by(scorer.model, "eager"):
        output = scorer.forward(inputs, output_attentions=True)
    return output.logits, _first_token_rows(layer_attentions(output.attentions, scorer, layer), inputs)


def _first_token_rows(weights_NHUU: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """Take the first query token's weights of each of N encoded texts, and map them to the rows: (B, T, H)."""
    first_NUH = weights_NHUU[:, :, 0].transpose(1, 2)
    if "second_start" not in inputs:
        return first_NUH
    return find_texts(inputs["attention_mask"].bool(), inputs["second_start"]).rows(first_NUH)


def layer_attentions(attentions: tuple[Tensor | None, ...] | None, scorer: Scorer, layer: int = -1) -> Tensor:
    """Return the attention weights of one layer."""
    weights = attentions[layer] if attentions else None
    if weights is None:
        raise UnsupportedEncoderError(
            f"this {scorer.model.encoder.config.model_type} encoder does not return its attention weights, expected"
            " them for this method; use a method that does not read them, such as gradient."
        )
    return weights
