"""Masked mean, maximum and softmax, computed in float32 whatever the input's dtype."""

from __future__ import annotations

import torch
from torch import Tensor


def fall_back(preferred_BT: Tensor, otherwise_BT: Tensor) -> Tensor:
    """Return `preferred_BT`, but `otherwise_BT` in rows where it is all False (a text of special tokens only, say)."""
    has_some_B1 = preferred_BT.any(dim=1, keepdim=True)
    # Not `torch.where`, which onnxruntime does not have for booleans.
    return (preferred_BT & has_some_B1) | (otherwise_BT & ~has_some_B1)


def masked_mean(values_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """Average over the tokens in the mask, (B, D) float32: zeros in rows without any. Outside of it NaN may stand."""
    kept_BTD = values_BTD.float().masked_fill(~mask_BT.unsqueeze(-1), 0.0)
    count_B1 = mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    return kept_BTD.sum(dim=1) / count_B1


def masked_max(values_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """Take each feature's maximum over the tokens in the mask: (B, D) float32; zeros in rows without any."""
    kept_BTD = values_BTD.float().masked_fill(~mask_BT.unsqueeze(-1), float("-inf"))
    return kept_BTD.amax(dim=1).masked_fill(~mask_BT.any(dim=1, keepdim=True), 0.0)


def masked_softmax(scores_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Compute the softmax over the tokens in the mask: (B, T) float32, zero outside; all zeros in rows without any."""
    scores_BT = scores_BT.float().masked_fill(~mask_BT, float("-inf"))
    empty_B1 = ~mask_BT.any(dim=1, keepdim=True)
    return torch.softmax(scores_BT.masked_fill(empty_B1, 0.0), dim=1).masked_fill(~mask_BT, 0.0)
