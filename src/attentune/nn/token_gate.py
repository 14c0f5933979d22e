"""The token gate slot: predicts each token's importance and pools token vectors by it.

Source: Self-Supervised Attention (Kou et al. 2020, sections 3.2 and 3.3); the threshold is the released program's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from attentune.nn.masked import fall_back, masked_softmax


class TokenHead(nn.Module):
    """Predicts two logits per token, "not important" and "important": dense, activation, LayerNorm, linear."""

    def __init__(self, *, hidden_size: int, activation: Callable[[Tensor], Tensor], positions: int | None) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.activation = activation
        self.norm = nn.LayerNorm(hidden_size)
        self.output = nn.Linear(hidden_size, 2) if positions is None else PositionLinear(positions, hidden_size)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Compute the logits, (B, T, 2) float32."""
        changed_BTD = self.norm(self.activation(self.dense(hidden_BTD.to(self.dense.weight.dtype))))
        return self.output(changed_BTD).float()


class PositionLinear(nn.Module):
    """A separate linear layer D -> 2 without bias for each position; rows longer than that are an error.

    Source: the paper's w^i ("share_weights" off); the released program creates biases and never applies them.
    """

    def __init__(self, positions: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(positions, 2, hidden_size).normal_(std=0.02))

    def forward(self, values_BTD: Tensor) -> Tensor:
        length, positions = values_BTD.shape[1], len(self.weight)
        if length > positions:
            raise ValueError(
                f"got {length} tokens, expected at most {positions}: with share_weights off the token head has one set"
                " of weights for each position up to the max_length that it was trained with."
            )
        return torch.einsum("btd,tcd->btc", values_BTD, self.weight[:length])


def token_importance(token_logits_BT2: Tensor, mask_BT: Tensor) -> Tensor:
    """Compute the probability that each token is important, (B, T) float32; zero at padding."""
    return token_logits_BT2.float().softmax(dim=-1)[..., 1].masked_fill(~mask_BT, 0.0)


def importance_weights(scores_BT: Tensor, mask_BT: Tensor, ordinary_BT: Tensor, *, threshold: float = 0.0) -> Tensor:
    """Compute each token's weight in the sentence vector: a softmax over importance; each row sums to 1.

    Ordinary tokens, those that are real and not special, get weight 0 below the threshold; if none passes it, all real
    tokens are used.

    Source: SSA section 3.3 (threshold 0); the released program (attention_threshold 0.3).
    """
    return masked_softmax(scores_BT, fall_back(ordinary_BT & (scores_BT >= threshold), mask_BT))


class ImportanceGate(nn.Module):
    """Returns beta x the head's vector + (1 - beta) x the importance-weighted sum of the tokens.

    With beta 1 the head's vector is unchanged, and the token head acts through its loss only (co-training).

    Source: SSA sections 3.2 (co-training) and 3.3 (hybrid).
    """

    def __init__(self, *, token_head: TokenHead, share_of_head: float, threshold: float) -> None:
        super().__init__()
        self.token_head = token_head
        self.share_of_head = share_of_head
        self.threshold = threshold

    def forward(
        self, hidden_BTD: Tensor, mask_BT: Tensor, ordinary_BT: Tensor, sentence_BD: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the gated sentence vector (B, D), the token logits (B, T, 2) and the tokens' importance (B, T)."""
        token_logits_BT2 = self.token_head(hidden_BTD)
        importance_BT = token_importance(token_logits_BT2, mask_BT)
        if self.share_of_head < 1.0:
            weights_BT = importance_weights(importance_BT, mask_BT, ordinary_BT, threshold=self.threshold)
            # Padding may hold NaN, so multiplying by a weight of zero is not enough.
            kept_BTD = hidden_BTD.float().masked_fill(~mask_BT.unsqueeze(-1), 0.0)
            pooled_BD = (weights_BT.unsqueeze(-1) * kept_BTD).sum(dim=1)
            sentence_BD = self.share_of_head * sentence_BD.float() + (1.0 - self.share_of_head) * pooled_BD
        return sentence_BD, token_logits_BT2, importance_BT


# The kinds of gate; with "none" tokens are not scored.
TOKEN_GATES = ("none", "ssa")
