"""The head slot: pools a text's token vectors into one vector.

Each head is called with the token vectors, the mask of real tokens (not padding) and the mask of non-special tokens
(real, and not [CLS] or [SEP]), and returns one vector per text, which padding cannot change. In a bi-encoder the first
half of the batch holds the first texts of all pairs, the second half their second texts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attentune.nn.attention_block import BlockShape, CrossAttentionBlock, TransformerBlock
from attentune.nn.masked import fall_back, masked_mean
from attentune.plugins import is_plugin, load_plugin, part_of


class Pooler(nn.Module):
    """A linear layer and tanh on one vector: BERT's pooler."""

    def __init__(self, *, hidden_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, vector_BD: Tensor) -> Tensor:
        return torch.tanh(self.dense(vector_BD))


class ClsHead(nn.Module):
    """Takes the vector of the first token ([CLS]), optionally through a pooler.

    Source: Devlin et al. 2019, section 3.
    """

    def __init__(self, *, hidden_size: int, with_pooler: bool) -> None:
        super().__init__()
        self.pooler = Pooler(hidden_size=hidden_size) if with_pooler else None

    def forward(self, hidden_BTD: Tensor, mask_BT: Tensor, ordinary_BT: Tensor) -> Tensor:
        first_BD = hidden_BTD[:, 0]
        return first_BD if self.pooler is None else self.pooler(first_BD)


class MeanHead(nn.Module):
    """Takes the mean over all real tokens, special tokens included."""

    def forward(self, hidden_BTD: Tensor, mask_BT: Tensor, ordinary_BT: Tensor) -> Tensor:
        return masked_mean(hidden_BTD, mask_BT)


class ClsMeanHead(nn.Module):
    """Takes beta [CLS] + (1 - beta) mean over non-special tokens (all real tokens where a text has none).

    Source: the control of SSA-H (Kou et al. 2020, section 3.3): the same with uniform weights.
    """

    def __init__(self, *, share_of_cls: float) -> None:
        super().__init__()
        self.share_of_cls = share_of_cls

    def forward(self, hidden_BTD: Tensor, mask_BT: Tensor, ordinary_BT: Tensor) -> Tensor:
        mean_BD = masked_mean(hidden_BTD, fall_back(ordinary_BT, mask_BT))
        return self.share_of_cls * hidden_BTD[:, 0].float() + (1.0 - self.share_of_cls) * mean_BD


class SelfAttentionHead(nn.Module):
    """Applies transformer blocks of self-attention and takes [CLS].

    Source: task-specific attention (Jia 2024), on single sentences.
    """

    def __init__(self, shape: BlockShape, *, layers: int) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"layers: got {layers}, expected at least 1 for self-attention")
        self.blocks = nn.ModuleList(TransformerBlock(shape, with_dense=False) for _ in range(layers))

    def forward(self, hidden_NTD: Tensor, mask_NT: Tensor, ordinary_NT: Tensor) -> Tensor:
        hidden_NTD = _cleared(hidden_NTD, mask_NT, self.blocks)
        for block in self.blocks[:-1]:
            hidden_NTD = block(hidden_NTD, hidden_NTD, mask_NT)
        # Only [CLS] is needed of the last block, so it is the only query.
        return self.blocks[-1](hidden_NTD[:, :1], hidden_NTD, mask_NT)[:, 0]


class CrossAttentionHead(nn.Module):
    """Lets the tokens of the other text of a pair attend to a text's own, with shared weights, and takes [CLS].

    Queries come from the other text, at the same positions; keys, values and residual connection from the text itself.
    So [CLS] becomes a weighted mean of the text's own tokens, the weights chosen by the other text. Where the other
    text is shorter, its tokens count as zeros.

    Source: task-specific attention (Jia 2024), on pairs, as its program computes it.
    """

    def __init__(self, shape: BlockShape, *, layers: int, bare: bool) -> None:
        super().__init__()
        if layers < 1 and not bare:
            raise ValueError("layers: got 0 without bare, expected at least one block for cross-attention")
        blocks: list[nn.Module] = [TransformerBlock(shape, with_dense=True) for _ in range(layers)]
        last = [CrossAttentionBlock(shape)] if bare else []
        self.blocks = nn.ModuleList([*blocks, *last])

    def forward(self, hidden_NTD: Tensor, mask_NT: Tensor, ordinary_NT: Tensor) -> Tensor:
        """Pool N / 2 pairs, all first texts before all second texts, to (N, D)."""
        if len(hidden_NTD) % 2:
            raise ValueError(f"got {len(hidden_NTD)} texts, expected an even number: first texts, then second texts")
        for block in self.blocks[:-1]:
            hidden_NTD = _cleared(hidden_NTD, mask_NT, self.blocks)
            hidden_NTD = block(_partners(hidden_NTD), hidden_NTD, mask_NT)
        hidden_NTD = _cleared(hidden_NTD, mask_NT, self.blocks)
        return self.blocks[-1](_partners(hidden_NTD[:, :1]), hidden_NTD, mask_NT)[:, 0]


def _partners(values_N: Tensor) -> Tensor:
    """Swap the two halves, so that each text gets its partner's values. (`torch.roll` cannot be exported to ONNX.)"""
    half = len(values_N) // 2
    return torch.cat([values_N[half:], values_N[:half]])


def _cleared(hidden_NTD: Tensor, mask_NT: Tensor, blocks: nn.Module) -> Tensor:
    """Set padding to zero, since 0 x NaN would be NaN in attention, and convert to the dtype of the blocks."""
    dtype = next(blocks.parameters()).dtype
    return hidden_NTD.masked_fill(~mask_NT.unsqueeze(-1), 0.0).to(dtype)


@dataclass(frozen=True)
class HeadOptions:
    """Options of all heads; each kind uses those that apply to it."""

    hidden_size: int  # D
    share_of_cls: float = 0.5  # beta of cls-mean
    with_pooler: bool = False  # whether cls has a pooler
    layers: int = 1  # number of transformer blocks of self- and cross-attention
    bare: bool = False  # whether cross-attention ends with a bare block
    shape: BlockShape | None = None  # sizes of the blocks

    @property
    def block_shape(self) -> BlockShape:
        """The sizes of the blocks; an error if none are given."""
        if self.shape is None:
            raise ValueError("shape: got None, expected a BlockShape for a head with attention blocks")
        return self.shape


# One entry per kind of head.
HEADS: dict[str, Callable[[HeadOptions], nn.Module]] = {
    "cls": lambda options: ClsHead(hidden_size=options.hidden_size, with_pooler=options.with_pooler),
    "mean": lambda options: MeanHead(),
    "cls-mean": lambda options: ClsMeanHead(share_of_cls=options.share_of_cls),
    "self-attention": lambda options: SelfAttentionHead(options.block_shape, layers=options.layers),
    "cross-attention": lambda options: CrossAttentionHead(
        options.block_shape, layers=options.layers, bare=options.bare
    ),
}
# Heads that need a bi-encoder.
PAIR_HEADS = ("cross-attention",)


def needs_pairs(kind: str) -> bool:
    """Return whether a head needs a bi-encoder; heads of other packages say so by the attribute `needs_pairs`."""
    return kind in PAIR_HEADS or (
        is_plugin(kind) and getattr(load_plugin("attentune.heads", kind), "needs_pairs", False)
    )


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
    """Build a head by its kind, a key of `HEADS` or a part of another package.

    See `HeadOptions` for the other arguments.
    """
    factory = part_of(HEADS, "attentune.heads", kind)
    return factory(HeadOptions(hidden_size, share_of_cls, with_pooler, layers, bare, shape))
