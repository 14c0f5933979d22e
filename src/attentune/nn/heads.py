"""From the token vectors of a text to one vector: attention blocks, the head slot, and the token gate slot.

Each head is called with the token vectors, the mask of real tokens (not padding) and the mask of ordinary tokens
(real, and not [CLS] or [SEP]), and returns one vector per text, which padding cannot change. In a bi-encoder the first
half of the batch holds the first texts of all pairs, the second half their second texts.

Sources: task-specific attention (Jia 2024), methods "self-attention" and "cross-attention", and its program, for the
blocks (a full block is BERT's layer, with one more dense layer for cross-attention); Self-Supervised Attention (Kou et
al. 2020, sections 3.2 and 3.3) for the token gate, whose threshold is the released program's.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentune.plugins import is_plugin, load_plugin, part_of

# As in BERT.
_NORM_EPSILON = 1e-12


@dataclass(frozen=True)
class HeadOptions:
    """Options of all heads; each kind uses those that apply to it."""

    hidden_size: int  # D
    share_of_cls: float = 0.5  # beta of cls-mean
    with_pooler: bool = False  # whether cls has a pooler
    layers: int = 1  # number of transformer blocks of self- and cross-attention
    bare: bool = False  # whether cross-attention ends with a bare block
    attention_heads: int = 1  # of the blocks, a divisor of D
    inner_size: int = 0  # features inside the blocks' feed-forward network
    activation: Callable[[Tensor], Tensor] = F.gelu  # of that network
    dropout: float = 0.0  # of attention weights, and before each add & norm
    near_one: bool = False  # initialise the blocks' query, key and value weights from U(0.9, 1)


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


def masked_softmax(scores_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Compute the softmax over the tokens in the mask: (B, T) float32, zero outside; all zeros in rows without any."""
    scores_BT = scores_BT.float().masked_fill(~mask_BT, float("-inf"))
    empty_B1 = ~mask_BT.any(dim=1, keepdim=True)
    return torch.softmax(scores_BT.masked_fill(empty_B1, 0.0), dim=1).masked_fill(~mask_BT, 0.0)


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
    """Multi-head attention with query, key, value and output projections; by itself a bare block of cross-attention.

    The key projection has no bias: it would add the same to all scores of a query, which the softmax cancels.
    """

    def __init__(self, options: HeadOptions) -> None:
        super().__init__()
        size, self.heads, self.dropout = options.hidden_size, options.attention_heads, options.dropout
        linear = UniformInitLinear if options.near_one else nn.Linear
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


class TransformerBlock(nn.Module):
    """Attention, add & norm, feed-forward, add & norm: BERT's layer."""

    def __init__(self, options: HeadOptions, *, with_dense: bool) -> None:
        super().__init__()
        size = options.hidden_size
        self.attention = Attention(options)
        self.dense = nn.Linear(size, size) if with_dense else None
        self.attention_norm = nn.LayerNorm(size, eps=_NORM_EPSILON)
        self.inner = nn.Linear(size, options.inner_size)
        self.activation = options.activation
        self.outer = nn.Linear(options.inner_size, size)
        self.output_norm = nn.LayerNorm(size, eps=_NORM_EPSILON)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, query_NQD: Tensor, own_NTD: Tensor, mask_NT: Tensor) -> Tensor:
        """Update the first Q tokens of a text, (N, Q, D); queries are these, or another text's in their places."""
        mixed_NQD = self.attention(query_NQD, own_NTD, mask_NT)
        if self.dense is not None:
            mixed_NQD = self.dense(mixed_NQD)
        hidden_NQD = self.attention_norm(own_NTD[:, : query_NQD.shape[1]] + self.dropout(mixed_NQD))
        changed_NQD = self.outer(self.activation(self.inner(hidden_NQD)))
        return self.output_norm(hidden_NQD + self.dropout(changed_NQD))


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

    def __init__(self, options: HeadOptions) -> None:
        super().__init__()
        self.pooler = Pooler(hidden_size=options.hidden_size) if options.with_pooler else None

    def forward(self, hidden_BTD: Tensor, mask_BT: Tensor, ordinary_BT: Tensor) -> Tensor:
        first_BD = hidden_BTD[:, 0]
        return first_BD if self.pooler is None else self.pooler(first_BD)


class MeanHead(nn.Module):
    """Takes the mean over all real tokens, special tokens included."""

    def __init__(self, options: HeadOptions) -> None:
        super().__init__()

    def forward(self, hidden_BTD: Tensor, mask_BT: Tensor, ordinary_BT: Tensor) -> Tensor:
        return masked_mean(hidden_BTD, mask_BT)


class ClsMeanHead(nn.Module):
    """Takes beta [CLS] + (1 - beta) mean over non-special tokens (all real tokens where a text has none).

    Source: the control of SSA-H (Kou et al. 2020, section 3.3): the same with uniform weights.
    """

    def __init__(self, options: HeadOptions) -> None:
        super().__init__()
        self.share_of_cls = options.share_of_cls

    def forward(self, hidden_BTD: Tensor, mask_BT: Tensor, ordinary_BT: Tensor) -> Tensor:
        mean_BD = masked_mean(hidden_BTD, fall_back(ordinary_BT, mask_BT))
        return self.share_of_cls * hidden_BTD[:, 0].float() + (1.0 - self.share_of_cls) * mean_BD


class SelfAttentionHead(nn.Module):
    """Applies transformer blocks of self-attention and takes [CLS].

    Source: task-specific attention (Jia 2024), on single sentences.
    """

    def __init__(self, options: HeadOptions) -> None:
        super().__init__()
        if options.layers < 1:
            raise ValueError(f"layers: got {options.layers}, expected at least 1 for self-attention")
        self.blocks = nn.ModuleList(TransformerBlock(options, with_dense=False) for _ in range(options.layers))

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

    def __init__(self, options: HeadOptions) -> None:
        super().__init__()
        if options.layers < 1 and not options.bare:
            raise ValueError("layers: got 0 without bare, expected at least one block for cross-attention")
        full = [TransformerBlock(options, with_dense=True) for _ in range(options.layers)]
        self.blocks = nn.ModuleList([*full, *(Attention(options) for _ in range(options.bare))])

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


# One entry per kind of head.
HEADS: dict[str, Callable[[HeadOptions], nn.Module]] = {
    "cls": ClsHead,
    "mean": MeanHead,
    "cls-mean": ClsMeanHead,
    "self-attention": SelfAttentionHead,
    "cross-attention": CrossAttentionHead,
}
# Heads that need a bi-encoder.
PAIR_HEADS = ("cross-attention",)


def needs_pairs(kind: str) -> bool:
    """Return whether a head needs a bi-encoder; heads of other packages say so by the attribute `needs_pairs`."""
    return kind in PAIR_HEADS or (
        is_plugin(kind) and getattr(load_plugin("attentune.heads", kind), "needs_pairs", False)
    )


def build_head(kind: str, options: HeadOptions) -> nn.Module:
    """Build a head by its kind, a key of `HEADS` or a part of another package."""
    return part_of(HEADS, "attentune.heads", kind)(options)


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

    def __init__(
        self,
        *,
        hidden_size: int,
        activation: Callable[[Tensor], Tensor],
        positions: int | None,
        share_of_head: float,
        threshold: float,
    ) -> None:
        super().__init__()
        self.token_head = TokenHead(hidden_size=hidden_size, activation=activation, positions=positions)
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
