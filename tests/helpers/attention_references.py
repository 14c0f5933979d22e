"""Reference implementation of attention blocks: loops over texts, heads, tokens and features, in Python floats."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

Vector = list[float]
Text = list[Vector]


def texts_of(tensor: torch.Tensor) -> list[Text]:
    """Convert a tensor (N, T, D) to lists."""
    return tensor.detach().double().tolist()


def linear_of(linear: nn.Linear, vector: Vector) -> Vector:
    bias = [0.0] * linear.out_features if linear.bias is None else linear.bias.detach().double().tolist()
    weight = linear.weight.detach().double().tolist()
    return [b + math.fsum(w * x for w, x in zip(row, vector, strict=True)) for row, b in zip(weight, bias, strict=True)]


def norm_of(norm: nn.LayerNorm, vector: Vector) -> Vector:
    mean = math.fsum(vector) / len(vector)
    variance = math.fsum((x - mean) ** 2 for x in vector) / len(vector)
    scale, shift = norm.weight.detach().double().tolist(), norm.bias.detach().double().tolist()
    return [(x - mean) / math.sqrt(variance + norm.eps) * a + b for x, a, b in zip(vector, scale, shift, strict=True)]


def attention_of(attention: Any, query_token: Vector, key_tokens: Text) -> Vector:
    """Return the attention output for one query token, given the non-padding key/value tokens."""
    query = linear_of(attention.query, query_token)
    keys = [linear_of(attention.key, token) for token in key_tokens]
    values = [linear_of(attention.value, token) for token in key_tokens]
    size = len(query) // attention.heads
    mixed: Vector = []
    for head in range(attention.heads):
        part = slice(head * size, (head + 1) * size)
        scores = [
            math.fsum(q * k for q, k in zip(query[part], key[part], strict=True)) / math.sqrt(size) for key in keys
        ]
        powers = [math.exp(score - max(scores)) for score in scores]
        for feature in range(size):
            weighted_sum = math.fsum(p * value[part][feature] for p, value in zip(powers, values, strict=True))
            mixed.append(weighted_sum / math.fsum(powers))
    return linear_of(attention.output, mixed)


def transformer_block_of(block: Any, queries: Text, own: Text) -> Text:
    """Return LN(h + dense(A(q, h, h))), then feed-forward and LN, for the text h = `own`; query i makes token i."""
    changed = []
    for query, token in zip(queries, own, strict=False):
        mixed = attention_of(block.attention, query, own)
        if block.dense is not None:
            mixed = linear_of(block.dense, mixed)
        hidden = norm_of(block.attention_norm, [a + b for a, b in zip(token, mixed, strict=True)])
        inner = block.activation(torch.tensor(linear_of(block.inner, hidden), dtype=torch.float64)).tolist()
        outer = linear_of(block.outer, inner)
        changed.append(norm_of(block.output_norm, [a + b for a, b in zip(hidden, outer, strict=True)]))
    return changed


def cross_attention_block_of(block: Any, queries: Text, own: Text) -> Text:
    return [attention_of(block.attention, token, own) for token in queries]
