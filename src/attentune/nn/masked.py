"""Means, maxima and softmax that padding cannot change. Each is computed in float32 whatever the input's precision."""

from __future__ import annotations

import torch
from torch import Tensor


def fall_back(preferred_BT: Tensor, otherwise_BT: Tensor) -> Tensor:
    """`preferred_BT`, but `otherwise_BT` in rows where nothing is preferred (a text without ordinary tokens, say)."""
    has_some_B1 = preferred_BT.any(dim=1, keepdim=True)
    # Not `torch.where`: of booleans, onnxruntime has none.
    return (preferred_BT & has_some_B1) | (otherwise_BT & ~has_some_B1)


def masked_mean(values_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """The mean over the tokens in the mask.

    Args:
        values_BTD: what to average; places outside the mask may hold anything, NaN too.
        mask_BT: True at the tokens that count.

    Returns:
        (B, D) float32; zeros in rows without a token in the mask.
    """
    kept_BTD = values_BTD.float().masked_fill(~mask_BT.unsqueeze(-1), 0.0)
    count_B1 = mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    return kept_BTD.sum(dim=1) / count_B1


def masked_max(values_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """The maximum over the tokens in the mask, each feature by itself: (B, D) float32; zeros in rows without one."""
    kept_BTD = values_BTD.float().masked_fill(~mask_BT.unsqueeze(-1), float("-inf"))
    return kept_BTD.amax(dim=1).masked_fill(~mask_BT.any(dim=1, keepdim=True), 0.0)


def masked_softmax(scores_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Softmax over the tokens in the mask: (B, T) float32, zero outside; all zeros in rows without a token in it."""
    scores_BT = scores_BT.float().masked_fill(~mask_BT, float("-inf"))
    empty_B1 = ~mask_BT.any(dim=1, keepdim=True)
    return torch.softmax(scores_BT.masked_fill(empty_B1, 0.0), dim=1).masked_fill(~mask_BT, 0.0)
