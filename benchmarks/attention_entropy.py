"""Entropy-based attention regularisation, a contender of `benchmarks.shortcuts`: no token may draw all attention.

    loss + alpha * mean over rows of (sum over layers of (mean over tokens t of sum over tokens s of q_ts log q_ts))

q_t is the softmax over the row's tokens of the attention of token t, averaged over the heads; padding is left out.

Source: Attanasio, Nozza, Hovy and Baralis 2022 ("Entropy-based Attention Regularization Frees Unintended Bias
Mitigation from Lists"), section 3; alpha is theirs.
"""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from attentune.training import building
from attentune.training.objective import Objective

ALPHA = 0.01
_NAME = "attentune_benchmark_entropy"


@contextlib.contextmanager
def regularised(alpha: float = ALPHA) -> Iterator[None]:
    """Train with the regularisation while the block runs, by attention in plain PyTorch."""
    layers: list[Tensor] = []  # of the batch at hand, (B,) each
    sums = Objective.sums

    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask_B1TS: Tensor | None, **settings: Any
    ) -> tuple[Tensor, Tensor]:
        scores_BHTS = query @ key.transpose(2, 3) * settings["scaling"]
        shares_BHTS = (scores_BHTS if mask_B1TS is None else scores_BHTS + mask_B1TS).float().softmax(dim=-1)
        if module.training:
            layers.append(negative_entropy(shares_BHTS, None if mask_B1TS is None else mask_B1TS[:, 0, 0] == 0))
        kept_BHTS = nn.functional.dropout(shares_BHTS, settings.get("dropout", 0.0), module.training)
        return (kept_BHTS.to(value.dtype) @ value).transpose(1, 2).contiguous(), shares_BHTS

    def with_entropy(self: Objective, *args: Any, **given: Any) -> Tensor:
        sums_3 = sums(self, *args, **given)
        added = alpha * torch.stack(layers).sum()
        layers.clear()
        return torch.cat([sums_3[:1] + added, sums_3[1:]])

    AttentionInterface.register(_NAME, attention)
    AttentionMaskInterface.register(_NAME, eager_mask)

    def use_it(model: Any) -> None:
        model.encoder.set_attn_implementation(_NAME)

    with patch.object(Objective, "sums", with_entropy), patch.object(building, "use_own_attention", use_it):
        yield


def negative_entropy(shares_BHTS: Tensor, real_BT: Tensor | None) -> Tensor:
    """Return (B,): a layer's negative entropy in nats, averaged over the real tokens of each row."""
    means_BTS = shares_BHTS.mean(dim=1)
    if real_BT is None:
        real_BT = means_BTS.new_ones(means_BTS.shape[:2], dtype=torch.bool)
    logs_BTS = means_BTS.masked_fill(~real_BT[:, None], -torch.inf).log_softmax(dim=-1)
    tokens_BT = (logs_BTS.exp() * logs_BTS.masked_fill(~real_BT[:, None], 0.0)).sum(dim=-1)
    return (tokens_BT * real_BT).sum(dim=1) / real_BT.sum(dim=1)
