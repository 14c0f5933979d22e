"""Attention blocks on top of an encoder: query tokens, key/value tokens and the mask of the latter.

Source: task-specific attention (Jia 2024), methods "self-attention" and "cross-attention", and its program. A full
block is BERT's layer (Devlin et al. 2019), with one more dense layer for cross-attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentune.nn.masked import fall_back

# As in BERT.
_NORM_EPSILON = 1e-12


@dataclass(frozen=True)
class BlockShape:
    """The sizes and options shared by all blocks of a head."""

    hidden_size: int  # D
    attention_heads: int  # H, a divisor of D
    inner_size: int  # features inside the feed-forward network
    activation: Callable[[Tensor], Tensor]  # of the feed-forward network
    dropout: float = 0.0  # of attention weights, and before each add & norm
    near_one: bool = False  # initialise the query, key and value weights from U(0.9, 1)


class UniformInitLinear(nn.Linear):
    """A linear layer initialised from U(0.9, 1).

    Queries and keys are then nearly multiples of the sum of a token's features, and attention starts on the few tokens
    where that sum is extreme. The poster says "close to taking a mean"; that is the default start, with small weights.

    Source: task-specific attention (Jia 2024), "initializing attention layer weights with U(0.9, 1)".
    """

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight, 0.9, 1.0)
        # Keys have no bias.
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def attend(
    queries_NQD: Tensor, keys_NTD: Tensor, values_NTD: Tensor, mask_NT: Tensor, *, heads: int, dropout: float = 0.0
) -> Tensor:
    """Compute scaled dot-product attention with several heads, (N, Q, D), by PyTorch's fused function.

    `mask_NT` is True at the real tokens of keys and values, which are finite at padding too. In a text without any, all
    positions are attended to, which changes nothing if they are all alike.
    """

    def split(tensor: Tensor) -> Tensor:
        return tensor.unflatten(-1, (heads, -1)).transpose(1, 2)

    open_NT = fall_back(mask_NT, torch.ones_like(mask_NT))
    mixed_NHQd = F.scaled_dot_product_attention(
        split(queries_NQD), split(keys_NTD), split(values_NTD), attn_mask=open_NT[:, None, None], dropout_p=dropout
    )
    return mixed_NHQd.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Multi-head attention with query, key, value and output projections.

    The key projection has no bias: it would add the same to all scores of a query, which the softmax cancels.
    """

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        size, self.heads, self.dropout = shape.hidden_size, shape.attention_heads, shape.dropout
        linear = UniformInitLinear if shape.near_one else nn.Linear
        self.query = linear(size, size)
        self.key = linear(size, size, bias=False)
        self.value = linear(size, size)
        self.output = nn.Linear(size, size)

    def forward(self, query_NQD: Tensor, key_NTD: Tensor, mask_NT: Tensor) -> Tensor:
        """Attend from queries (N, Q, D) to keys (N, T, D), real where `mask_NT` is True; returns (N, Q, D)."""
        mixed_NQD = attend(
            self.query(query_NQD),
            self.key(key_NTD),
            self.value(key_NTD),
            mask_NT,
            heads=self.heads,
            dropout=self.dropout if self.training else 0.0,
        )
        return self.output(mixed_NQD)


class CrossAttentionBlock(nn.Module):
    """Cross-attention only, without residual connection or normalisation.

    Source: task-specific attention (Jia 2024), as its program computes it.
    """

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.attention = Attention(shape)

    def forward(self, query_NQD: Tensor, own_NTD: Tensor, mask_NT: Tensor) -> Tensor:
        """Attend from queries to a text's tokens; returns (N, Q, D), a weighted mean of their values."""
        return self.attention(query_NQD, own_NTD, mask_NT)


class TransformerBlock(nn.Module):
    """Attention, add & norm, feed-forward, add & norm: BERT's layer."""

    def __init__(self, shape: BlockShape, *, with_dense: bool) -> None:
        super().__init__()
        size = shape.hidden_size
        self.attention = Attention(shape)
        self.dense = nn.Linear(size, size) if with_dense else None
        self.attention_norm = nn.LayerNorm(size, eps=_NORM_EPSILON)
        self.inner = nn.Linear(size, shape.inner_size)
        self.activation = shape.activation
        self.outer = nn.Linear(shape.inner_size, size)
        self.output_norm = nn.LayerNorm(size, eps=_NORM_EPSILON)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, query_NQD: Tensor, own_NTD: Tensor, mask_NT: Tensor) -> Tensor:
        """Update the first Q tokens of a text, (N, Q, D); queries are these, or another text's in their places."""
        mixed_NQD = self.attention(query_NQD, own_NTD, mask_NT)
        if self.dense is not None:
            mixed_NQD = self.dense(mixed_NQD)
        hidden_NQD = self.attention_norm(own_NTD[:, : query_NQD.shape[1]] + self.dropout(mixed_NQD))
        changed_NQD = self.outer(self.activation(self.inner(hidden_NQD)))
        return self.output_norm(hidden_NQD + self.dropout(changed_NQD))


def attention_matrices(module: nn.Module) -> int:
    """Count the weights in the attention matrices of all blocks inside a module, as the poster's table 2 does.

    Four matrices per block of self-attention, five per block of cross-attention, of which a bare block does not use the
    fifth; no biases, normalisations or feed-forward networks.
    """
    count = 0
    for block in module.modules():
        if isinstance(block, (CrossAttentionBlock, TransformerBlock)):
            attention = block.attention
            dense = block.dense if isinstance(block, TransformerBlock) else None
            linears = (attention.query, attention.key, attention.value, attention.output, dense)
            count += sum(linear.weight.numel() for linear in linears if linear is not None)
    return count + unused_matrices(module)


def unused_matrices(module: nn.Module) -> int:
    """Count the weights that the poster counts and these bare blocks do not have.

    They are those of the dense layer that the poster's program creates for a bare block and never applies.
    """
    bare = (block for block in module.modules() if isinstance(block, CrossAttentionBlock))
    return sum(block.attention.output.weight.numel() for block in bare)
