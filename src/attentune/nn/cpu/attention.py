"""Attention as plain matrix products, for short texts on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attentune.nn.cpu.dropout import draw_kept, fast_dropout, levels, upscale


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


# Probabilities in a piece; the few tables of so many stay in the caches of two cores.
_PIECE = 1 << 20
_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def long_attention(
    query_BHTE: Tensor,
    key_BHSE: Tensor,
    value_BHSE: Tensor,
    mask_B1TS: Tensor | None,
    *,
    scaling: float,
    dropout: float,
) -> Tensor:
    """softmax(scaling x query key' + bias) value, with dropout on the probabilities, as `plain_attention` has it.

    Scores and probabilities have the inputs' precision. What is dropped is a function of PyTorch's default generator,
    of which one number is drawn.

    Args:
        query_BHTE: H heads of width E, on the CPU; all three of one precision.
        key_BHSE: likewise.
        value_BHSE: likewise.
        mask_B1TS: boolean, True where a token may be looked at, or numbers that are added to the scores; B or 1 rows,
            H or 1 heads. None: all may be.
        scaling: what the scores are multiplied with.
        dropout: the chance with which a probability is dropped, below 1.

    Returns:
        What each token gets, (B, T, H, E).
    """
    seed = int(torch.empty((), dtype=torch.int64).random_(0, 1 << 62)) if dropout else 0
    bias = None if mask_B1TS is None else added_mask(mask_B1TS, query_BHTE.dtype).expand(len(query_BHTE), -1, -1, -1)
    found: Tensor = _LongAttention.apply(query_BHTE * scaling, key_BHSE, value_BHSE, bias, levels(dropout), seed)
    return found


class _LongAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropped: int, seed: int
    ) -> Any:
        ctx.save_for_backward(query, key, value, *(() if bias is None else (bias,)))
        ctx.dropped, ctx.seed = dropped, seed
        rows, heads, length, _ = query.shape
        out_BTHE = query.new_empty(rows, length, heads, value.shape[3])
        with torch.autocast("cpu", enabled=False):
            for number, piece in enumerate(_pieces(query, key)):
                probabilities_NTS = _probabilities(query, key, bias, piece)
                if dropped:
                    _keep(_kept(probabilities_NTS, dropped, seed + number), probabilities_NTS)
                row, some = piece
                out_BTHE[row, :, some] = torch.matmul(probabilities_NTS, value[piece]).transpose(0, 1)
        return out_BTHE.mul_(upscale(dropped))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        query, key, value, *rest = ctx.saved_tensors
        bias = rest[0] if rest else None
        d_out_BHTE = (gradients[0] * upscale(ctx.dropped)).transpose(1, 2)
        d_query, d_key, d_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        with torch.autocast("cpu", enabled=False):
            for number, piece in enumerate(_pieces(query, key)):
                probabilities_NTS = _probabilities(query, key, bias, piece)
                used_NTS, d_own_NTE = probabilities_NTS, d_out_BHTE[piece]
                d_probabilities_NTS = torch.matmul(d_own_NTE, value[piece].transpose(1, 2))
                if ctx.dropped:
                    used_NTS = probabilities_NTS.clone()
                    _keep(_kept(used_NTS, ctx.dropped, ctx.seed + number), used_NTS, d_probabilities_NTS)
                d_value[piece] = torch.matmul(used_NTS.transpose(1, 2), d_own_NTE)
                d_scores_NTS = d_probabilities_NTS.mul_(probabilities_NTS)
                d_scores_NTS.addcmul_(probabilities_NTS, d_scores_NTS.sum(dim=-1, keepdim=True), value=-1)
                d_query[piece] = torch.matmul(d_scores_NTS, key[piece])
                d_key[piece] = torch.matmul(d_scores_NTS.transpose(1, 2), query[piece])
        return d_query, d_key, d_value, None, None, None


def added_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to the scores: the mask itself, or of a boolean one the lowest number where none may look."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)


def _pieces(query_BHTE: Tensor, key_BHSE: Tensor) -> Iterator[tuple[int, slice]]:
    """A row, and as many of its heads as fit into a piece."""
    rows, heads, length, _ = query_BHTE.shape
    step = max(1, _PIECE // max(1, length * key_BHSE.shape[2]))
    for row in range(rows):
        for head in range(0, heads, step):
            yield row, slice(head, head + step)


def _probabilities(query: Tensor, key: Tensor, bias: Tensor | None, piece: tuple[int, slice]) -> Tensor:
    """(N, T, S) of the N heads of a piece."""
    scores_NTS = torch.matmul(query[piece], key[piece].transpose(1, 2))
    if bias is not None:
        scores_NTS.add_(bias[piece] if bias.shape[1] > 1 else bias[piece[0]])
    return torch.softmax(scores_NTS, dim=-1)


def _kept(like: Tensor, dropped: int, seed: int) -> Tensor:
    """As many integers as wide as these numbers: all bits 0 where one is dropped, else all 1."""
    kept = draw_kept(like.shape, dropped, torch.Generator().manual_seed(seed))
    return kept.neg_().to(_WORDS[like.element_size()])


def _keep(kept: Tensor, *tables: Tensor) -> None:
    """Zeroes what is dropped, in place. By bits: a product, or a boolean mask, costs four times as much."""
    for table in tables:
        table.view(kept.dtype).bitwise_and_(kept)
