"""The head slot: from a token matrix to one vector a text.

Each head is called with the tokens, the mask of real tokens and the mask of ordinary tokens (real, and not special such
as [CLS] and [SEP]), and returns one vector a text. Padding cannot change it. Where two texts are read apart, the first
half of the texts are all first ones, the second half their second ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attentune.nn.attention_block import BlockShape, CrossAttentionBlock, TransformerBlock
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


class SelfAttentionHead(nn.Module):
    """Full blocks of self-attention, then [CLS].

    Args:
        shape: of the blocks.
        layers: how many, at least one.

    Source: task-specific attention (Jia 2024), on single sentences.
    """

    def __init__(self, shape: BlockShape, *, layers: int) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"self-attention needs a block, got {layers}")
        self.blocks = nn.ModuleList(TransformerBlock(shape, with_dense=False) for _ in range(layers))

    def forward(self, hidden_NTD: Tensor, mask_NT: Tensor, ordinary_NT: Tensor) -> Tensor:
        hidden_NTD = _cleared(hidden_NTD, mask_NT, self.blocks)
        for block in self.blocks[:-1]:
            hidden_NTD = block(hidden_NTD, hidden_NTD, mask_NT)
        # Of the last one nothing but [CLS] is wanted, so nothing else has to ask.
        return self.blocks[-1](hidden_NTD[:, :1], hidden_NTD, mask_NT)[:, 0]


class CrossAttentionHead(nn.Module):
    """Blocks in which each text's tokens ask those of the other text of its pair, by the same weights; then [CLS].

    Args:
        shape: of the blocks.
        layers: how many full ones.
        bare: one bare block after them. There must be a block, full or bare.

    Source: task-specific attention (Jia 2024), on pairs.
    """

    def __init__(self, shape: BlockShape, *, layers: int, bare: bool) -> None:
        super().__init__()
        if layers < 1 and not bare:
            raise ValueError("cross-attention needs a block, full or bare")
        blocks: list[nn.Module] = [TransformerBlock(shape, with_dense=True) for _ in range(layers)]
        self.blocks = nn.ModuleList([*blocks, CrossAttentionBlock(shape)] if bare else blocks)

    def forward(self, hidden_NTD: Tensor, mask_NT: Tensor, ordinary_NT: Tensor) -> Tensor:
        """(N, D), of N / 2 pairs: first all first texts, then the second ones."""
        if len(hidden_NTD) % 2:
            raise ValueError(f"cross-attention got {len(hidden_NTD)} texts, expected as many second ones as first ones")
        hidden_NTD = _cleared(hidden_NTD, mask_NT, self.blocks)
        other_NT = _partners(mask_NT)
        for block in self.blocks[:-1]:
            hidden_NTD = block(hidden_NTD, _partners(hidden_NTD), other_NT)
        return self.blocks[-1](hidden_NTD[:, :1], _partners(hidden_NTD), other_NT)[:, 0]


def _partners(values_N: Tensor) -> Tensor:
    """Of each text what its partner has: both halves in the place of each other (`roll` has no counterpart in ONNX)."""
    half = len(values_N) // 2
    return torch.cat([values_N[half:], values_N[:half]])


def _cleared(hidden_NTD: Tensor, mask_NT: Tensor, blocks: nn.Module) -> Tensor:
    """Zeros at padding, whose share of attention is zero times what stands there; in the precision of the blocks."""
    dtype = next(blocks.parameters()).dtype
    return hidden_NTD.masked_fill(~mask_NT.unsqueeze(-1), 0.0).to(dtype)


@dataclass(frozen=True)
class HeadOptions:
    """What a head can be made of; each kind takes what it needs.

    Attributes:
        hidden_size: D.
        share_of_cls: of cls-mean.
        with_pooler: of cls.
        layers: how many full blocks.
        bare: one bare block after them, of cross-attention.
        shape: of the blocks.
    """

    hidden_size: int
    share_of_cls: float = 0.5
    with_pooler: bool = False
    layers: int = 1
    bare: bool = False
    shape: BlockShape | None = None

    @property
    def block_shape(self) -> BlockShape:
        """The shape of the blocks, which heads with blocks must be given."""
        if self.shape is None:
            raise ValueError("a head of attention blocks needs their shape")
        return self.shape


# One entry a kind of head.
HEADS: dict[str, Callable[[HeadOptions], nn.Module]] = {
    "cls": lambda options: ClsHead(hidden_size=options.hidden_size, with_pooler=options.with_pooler),
    "mean": lambda options: MeanHead(),
    "cls-mean": lambda options: ClsMeanHead(share_of_cls=options.share_of_cls),
    "self-attention": lambda options: SelfAttentionHead(options.block_shape, layers=options.layers),
    "cross-attention": lambda options: CrossAttentionHead(
        options.block_shape, layers=options.layers, bare=options.bare
    ),
}
# Those that need two texts, read apart.
PAIR_HEADS = ("cross-attention",)


def build_head(
    kind: str,
    *,
    hidden_size: int,
    share_of_cls: float = 0.5,
    with_pooler: bool = False,
    layers: int = 1,
    bare: bool = False,
    shape: BlockShape | None = None,
) -> nn.Module:
    """A head by the name of its kind, a key of `HEADS`; see `HeadOptions` for the rest."""
    return HEADS[kind](HeadOptions(hidden_size, share_of_cls, with_pooler, layers, bare, shape))
