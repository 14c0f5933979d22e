"""Methods that need no more than one pass for a text, forward or forward and back: SSA, gradient, and chance."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attentune.attribution.base import Scored, Scorer, Settings, numpy_of
from attentune.attribution.hooks import EmbeddingLeaf
from attentune.seeding import numpy_generator


def ssa(scorer: Scorer, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> Scored:
    """The token gate's importance, from the very pass that predicts.

    Source: SSA (Kou et al. 2020, sections 3.3 and 4.7).
    """
    found = scorer.scores(rows)
    if found.token_scores is None:
        raise ValueError("ssa needs a model with a token gate")
    return Scored(found.logits_NC, scorer.ordinary_only(found.token_scores, rows))


def gradient(scorer: Scorer, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> Scored:
    """(E[t_i] - E[mask]) . df/dE[t_i], the first-order estimate of how far f falls where token i is masked.

    E are the word embeddings, f is `target_value`.
    """
    with torch.enable_grad(), EmbeddingLeaf(scorer.model) as leaf:
        logits_BC = scorer.ask(scorer.inputs(rows)).logits
        embedded_BTE, gradient_BTE = leaf.gradient(scorer.values(logits_BC, wanted_B))
    # A fall of f is a rise of -f.
    fall_BT = rise_of_loss(embedded_BTE, -gradient_BTE, mask_embedding(scorer))
    return Scored(numpy_of(logits_BC), scorer.in_rows(fall_BT, rows))


@torch.no_grad()
def mask_embedding(scorer: Scorer) -> Tensor:
    """(E,) the mask token's word embedding."""
    mask_1 = torch.tensor([scorer.mask_token_id], device=scorer.accelerator.device)
    return scorer.model.get_input_embeddings()(mask_1)[0]


def random(scorer: Scorer, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> Scored:
    """Numbers from 0 to 1 by chance, the same ones for the same tokens and seed: the floor of comparisons."""
    scores = []
    for row in rows:
        ids = scorer.features.ids[scorer.features.row(int(row))]
        scores.append(numpy_generator("random-scores", settings.seed, ids.tobytes().hex()).random(len(ids), np.float32))
    return Scored(scorer.scores(rows).logits_NC, scorer.ordinary_only(scores, rows))


def rise_of_loss(embedded_BTE: Tensor, gradient_BTE: Tensor, mask_E: Tensor) -> Tensor:
    """(B, T) float32, the first-order estimate of how far the loss rises when a token is replaced by the mask token.

    Args:
        embedded_BTE: the word embeddings of the tokens.
        gradient_BTE: the loss's gradient there.
        mask_E: the mask token's word embedding.
    """
    return ((mask_E - embedded_BTE) * gradient_BTE).sum(dim=-1).float()
