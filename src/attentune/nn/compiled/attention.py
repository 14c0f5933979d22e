"""CPU attention with PyTorch operations, at once for short texts and block by block for long ones; faster dropout.

PyTorch draws one random number per feature, which on a CPU takes a tenth of a fine-tuning step. Here each 64-bit random
number is used for four features, so probabilities are multiples of 1/65536. The mask depends only on the state of
PyTorch's generator, not on the number of threads.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

_LEVELS = 1 << 16


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, factors: Tensor) -> Tensor:
        ctx.save_for_backward(factors)
        return values * factors

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (factors,) = ctx.saved_tensors
        return gradients[0] * factors, None


def draw_kept(shape: torch.Size, dropped_levels: int, generator: torch.Generator | None = None) -> Tensor:
    """Draw an int16 mask on the CPU: 0 with probability dropped_levels / 65536, else 1."""
    count = shape.numel()
    bits = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None, generator=generator)
    return bits.view(torch.int16)[:count].view(shape).ge_(dropped_levels - _LEVELS // 2)


def draw_factors(shape: torch.Size, dropped_levels: int, dtype: torch.dtype) -> Tensor:
    """Draw dropout's factors, 0 or `upscale`, in the values' dtype: products would convert a boolean mask."""
    return draw_kept(shape, dropped_levels).to(dtype).mul_(upscale(dropped_levels))


def upscale(dropped_levels: int) -> float:
    """Return the factor for kept features that preserves the mean, 1 / (1 - p)."""
    return _LEVELS / (_LEVELS - dropped_levels)


def fast_dropout(values: Tensor, dropped_levels: int) -> Tensor:
    """Set each value to 0 with probability dropped_levels / 65536 and scale the others by `upscale`, on the CPU."""
    if dropped_levels == 0 or values.numel() == 0:
        return values
    return _Dropout.apply(values, draw_factors(values.shape, dropped_levels, values.dtype))


def levels(p: float) -> int:
    return round(p * _LEVELS)


class FastDropout(nn.Module):
    """`nn.Dropout` for the CPU: in training, zeroes features with probability p and scales the rest by 1 / (1 - p)."""

    def __init__(self, *, p: float) -> None:
        super().__init__()
        self.p = p
        self.dropped_levels = levels(p)

    def forward(self, values: Tensor) -> Tensor:
        return fast_dropout(values, self.dropped_levels) if self.training else values


def use_fast_dropout(model: nn.Module) -> int:
    """Replace every `nn.Dropout` in a model with `FastDropout`, for training on the CPU."""
    count = 0
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout and child.p < 1:
                replacement = FastDropout(p=child.p)
                replacement.train(child.training)
                setattr(parent, name, replacement)
                count += 1
    return count


def plain_attention(
    query_BHTE: Tensor,
    key_BHSE: Tensor,
    value_BHSE: Tensor,
    bias_B1TS: Tensor | None,
    *,
    scaling: float,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """Compute softmax(scaling x query key' + bias) value, with dropout on the probabilities."""
    scores_BHTS = torch.matmul(query_BHTE * scaling, key_BHSE.transpose(2, 3))
    if bias_B1TS is not None:
        scores_BHTS = scores_BHTS + bias_B1TS
    probabilities_BHTS = fast_dropout(torch.softmax(scores_BHTS, dim=-1), levels(dropout))
    return torch.matmul(probabilities_BHTS, value_BHSE).transpose(1, 2).contiguous(), probabilities_BHTS


# The number of probabilities in a block, so that the few tensors of this size stay in the caches of two cores.
_BLOCK = 1 << 20
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def long_attention(
    query_BHTE: Tensor,
    key_BHSE: Tensor,
    value_BHSE: Tensor,
    mask_B1TS: Tensor | None,
    *,
    scaling: float,
    dropout: float,
) -> Tensor:
    """Compute attention as `plain_attention` does, block by block, recomputing probabilities in the backward pass."""
    seed = int(torch.empty((), dtype=torch.int64).random_(0, 1 << 62)) if dropout else 0
    bias = None if mask_B1TS is None else added_mask(mask_B1TS, query_BHTE.dtype).expand(len(query_BHTE), -1, -1, -1)
    context_BTHE: Tensor = _LongAttention.apply(query_BHTE * scaling, key_BHSE, value_BHSE, bias, levels(dropout), seed)
    return context_BTHE


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
            for number, block in enumerate(attention_blocks(query, key)):
                probabilities_NTS = _probabilities(query, key, bias, block)
                if dropped:
                    _apply_mask(_keep_mask(probabilities_NTS, dropped, seed + number), probabilities_NTS)
                row, some = block
                out_BTHE[row, :, some] = torch.matmul(probabilities_NTS, value[block]).transpose(0, 1)
        return out_BTHE.mul_(upscale(dropped))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        query, key, value, *rest = ctx.saved_tensors
        bias = rest[0] if rest else None
        d_out_BHTE = (gradients[0] * upscale(ctx.dropped)).transpose(1, 2)
        d_query, d_key, d_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        with torch.autocast("cpu", enabled=False):
            for number, block in enumerate(attention_blocks(query, key)):
                probabilities_NTS = _probabilities(query, key, bias, block)
                used_NTS, d_block_NTE = probabilities_NTS, d_out_BHTE[block]
                d_probabilities_NTS = torch.matmul(d_block_NTE, value[block].transpose(1, 2))
                if ctx.dropped:
                    used_NTS = probabilities_NTS.clone()
                    _apply_mask(_keep_mask(used_NTS, ctx.dropped, ctx.seed + number), used_NTS, d_probabilities_NTS)
                d_value[block] = torch.matmul(used_NTS.transpose(1, 2), d_block_NTE)
                d_scores_NTS = d_probabilities_NTS.mul_(probabilities_NTS)
                d_scores_NTS.addcmul_(probabilities_NTS, d_scores_NTS.sum(dim=-1, keepdim=True), value=-1)
                d_query[block] = torch.matmul(d_scores_NTS, key[block])
                d_key[block] = torch.matmul(d_scores_NTS.transpose(1, 2), query[block])
        return d_query, d_key, d_value, None, None, None


def added_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a mask to numbers to add to the scores; False becomes the lowest finite number of the dtype."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)


def attention_blocks(query_BHTE: Tensor, key_BHSE: Tensor) -> Iterator[tuple[int, slice]]:
    """Yield the blocks: the index of a row, and a slice of as many of its heads as fit into a block."""
    rows, heads, length, _ = query_BHTE.shape
    step = max(1, _BLOCK // max(1, length * key_BHSE.shape[2]))
    for row in range(rows):
        for head in range(0, heads, step):
            yield row, slice(head, head + step)


def _probabilities(query: Tensor, key: Tensor, bias: Tensor | None, block: tuple[int, slice]) -> Tensor:
    """Compute the attention probabilities of the N heads of a block, (N, T, S)."""
    scores_NTS = torch.matmul(query[block], key[block].transpose(1, 2))
    if bias is not None:
        scores_NTS.add_(bias[block] if bias.shape[1] > 1 else bias[block[0]])
    return torch.softmax(scores_NTS, dim=-1)


def _keep_mask(like: Tensor, dropped: int, seed: int) -> Tensor:
    """Draw a dropout mask of integers with the element size of `like`: all bits 0 where dropped, else all bits 1."""
    keep_mask = draw_kept(like.shape, dropped, torch.Generator().manual_seed(seed))
    return keep_mask.neg_().to(_INTEGERS[like.element_size()])


def _apply_mask(keep_mask: Tensor, *tensors: Tensor) -> None:
    """Apply a mask from `_keep_mask` in place; bitwise, since a product or a boolean mask takes four times as long."""
    for tensor in tensors:
        tensor.view(keep_mask.dtype).bitwise_and_(keep_mask)
