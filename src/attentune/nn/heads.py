"""The head slot: from a token matrix to one vector a text.

Each head is called with the tokens, the mask of real tokens and the mask of ordinary tokens (real, and not special such
as [CLS] and [SEP]), and returns one vector a text. Padding cannot change it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from attentune.nn.masked import fall_back, masked_mean


class Pooler(nn.Module):
    """Dense and tanh on a vector, as BERT has it behind [CLS]."""

    def __init__(self, *, hidden_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, vector_BD: Tensor) -> Tensor:
        return torch.tanh(self.dense(vector_BD))


class ClsHead(nn.Module):
    """The vector of the first token, through a pooler if asked.

    Source: Devlin et al. 2019, section 3.
    """

    def __init__(self, *, hidden_size: int, with_pooler: bool) -> None:
        super().__init__()
        self.pooler = Pooler(hidden_size=hidden_size) if with_pooler else None

    def forward(self, hidden_BTD: Tensor, mask_BT: Tensor, ordinary_BT: Tensor) -> Tensor:
        first_BD = hidden_BTD[:, 0]
        return first_BD if self.pooler is None else self.pooler(first_BD)


class MeanHead(nn.Module):
    """The mean over all real tokens, special ones too."""

    def forward(self, hidden_BTD: Tensor, mask_BT: Tensor, ordinary_BT: Tensor) -> Tensor:
        return masked_mean(hidden_BTD, mask_BT)


class ClsMeanHead(nn.Module):
    """beta [CLS] + (1 - beta) mean over ordinary tokens (over all real tokens where a text has none).

    Source: SSA-H (Kou et al. 2020, section 3.4) with uniform weights: its control.
    """

    def __init__(self, *, share_of_cls: float) -> None:
        super().__init__()
        self.share_of_cls = share_of_cls

    def forward(self, hidden_BTD: Tensor, mask_BT: Tensor, ordinary_BT: Tensor) -> Tensor:
        mean_BD = masked_mean(hidden_BTD, fall_back(ordinary_BT, mask_BT))
        return self.share_of_cls * hidden_BTD[:, 0].float() + (1.0 - self.share_of_cls) * mean_BD


# One entry a kind of head; each takes (hidden_size, share_of_cls, with_pooler) and uses what it needs.
HEADS: dict[str, Callable[[int, float, bool], nn.Module]] = {
    "cls": lambda hidden_size, share_of_cls, with_pooler: ClsHead(hidden_size=hidden_size, with_pooler=with_pooler),
    "mean": lambda hidden_size, share_of_cls, with_pooler: MeanHead(),
    "cls-mean": lambda hidden_size, share_of_cls, with_pooler: ClsMeanHead(share_of_cls=share_of_cls),
}


def build_head(kind: str, *, hidden_size: int, share_of_cls: float = 0.5, with_pooler: bool = False) -> nn.Module:
    """A head by the name of its kind, a key of `HEADS`."""
    return HEADS[kind](hidden_size, share_of_cls, with_pooler)
