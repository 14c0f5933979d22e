"""Attention as plain matrix products, for short texts on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from attentune.nn.cpu.dropout import fast_dropout, levels


def plain_attention(
    query_BHTE: Tensor,
    key_BHSE: Tensor,
    value_BHSE: Tensor,
    bias_B1TS: Tensor | None,
    *,
    scaling: float,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """softmax(scaling x query key' + bias) value, with dropout on the probabilities.

    Args:
        query_BHTE: H heads of width E.
        key_BHSE: likewise.
        value_BHSE: likewise.
        bias_B1TS: added to the scores; very low where a token must not be looked at. None: all may be.
        scaling: what the scores are multiplied with.
        dropout: the chance with which a probability is dropped; 0 outside of training.

    Returns:
        What each token gets, (B, T, H, E), and the probabilities, (B, H, T, S).
    """
    scores_BHTS = torch.matmul(query_BHTE * scaling, key_BHSE.transpose(2, 3))
    if bias_B1TS is not None:
        scores_BHTS = scores_BHTS + bias_B1TS
    probabilities_BHTS = fast_dropout(torch.softmax(scores_BHTS, dim=-1), levels(dropout))
    return torch.matmul(probabilities_BHTS, value_BHSE).transpose(1, 2).contiguous(), probabilities_BHTS
