"""Methods that read the last layer's attention: as it is, and times its gradient."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attentune.attribution.base import Scored, Scorer, Settings, numpy_of
from attentune.errors import UnsupportedEncoderError
from attentune.models.attention import attention_by
from attentune.models.text_pairs import find_texts


def attention(scorer: Scorer, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> Scored:
    """What the first token ([CLS]) of the last layer attends to, the mean over heads."""
    logits_BC, shares_BTH = first_token_attention(scorer, rows)
    return Scored(numpy_of(logits_BC), scorer.in_rows(shares_BTH.mean(dim=-1), rows))


def attention_gradient(scorer: Scorer, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> Scored:
    """The same attention times the gradient of f there, clipped at 0 in each head; the mean over heads.

    Source: Chefer et al. 2021 (Generic attention-model explainability, equation 5), of the last layer alone.
    """
    inputs = scorer.inputs(rows)
    with torch.enable_grad(), attention_by(scorer.model, "eager"):
        output = scorer.ask(inputs, output_attentions=True)
        shares = _of_layer(output.attentions, scorer)
        (slope,) = torch.autograd.grad(scorer.values(output.logits, wanted_B).sum(), shares)
    scores_BTH = _first_token_rows((shares * slope).clamp(min=0.0).detach(), inputs)
    return Scored(numpy_of(output.logits), scorer.in_rows(scores_BTH.mean(dim=-1), rows))


@torch.no_grad()
def first_token_attention(scorer: Scorer, rows: np.ndarray, layer: int = -1) -> tuple[Tensor, Tensor]:
    """The logits (B, C) and what the first token of a layer attends to, (B, T, H) at the tokens' places in the rows.

    Where the texts of a pair are read apart, each has a first token of its own, and its tokens are asked about that.

    Args:
        scorer: what to ask.
        rows: which rows.
        layer: its place among all layers, as in a list.

    Raises:
        UnsupportedEncoderError: the encoder does not give its attention.
    """
    inputs = scorer.inputs(rows)
    with attention_by(scorer.model, "eager"):
        output = scorer.ask(inputs, output_attentions=True)
    return output.logits, _first_token_rows(_of_layer(output.attentions, scorer, layer), inputs)


def _first_token_rows(values_NHUU: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """(B, T, H): of a table (N, H, U, U) for each text that was read and each head the first token's row."""
    first_NUH = values_NHUU[:, :, 0].transpose(1, 2)
    if "second_start" not in inputs:
        return first_NUH
    return find_texts(inputs["attention_mask"].bool(), inputs["second_start"]).rows(first_NUH)


def _of_layer(attentions: tuple[Tensor | None, ...] | None, scorer: Scorer, layer: int = -1) -> Tensor:
    found = attentions[layer] if attentions else None
    if found is None:
        raise UnsupportedEncoderError(
            f"this {scorer.model.encoder.config.model_type} encoder does not give its attention; take a method"
            " that does not need it, such as gradient."
        )
    return found
