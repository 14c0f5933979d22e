"""Plain attention is the formula, loops and all, and drops what dropout says."""

import math

import torch

from attentune.nn.compiled.attention import plain_attention


def by_loops(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor, scaling: float):
    rows, heads, length, width = query.shape
    out = torch.zeros(rows, length, heads, width, dtype=torch.float64)
    for b in range(rows):
        for h in range(heads):
            for t in range(length):
                scores = [
                    scaling * math.fsum((query[b, h, t] * key[b, h, s]).tolist()) + float(bias[b, 0, t, s])
                    for s in range(key.shape[2])
                ]
                highest = max(scores)
                weights = [math.exp(score - highest) for score in scores]
                for s, weight in enumerate(weights):
                    out[b, t, h] += weight / math.fsum(weights) * value[b, h, s]
    return out


def parts() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(2, 3, 5, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    bias = torch.zeros(2, 1, 5, 5, dtype=torch.float64)
    bias[1, :, :, 3:] = torch.finfo(torch.float64).min
    return query, key, value, bias


def test_it_is_the_formula():
    query, key, value, bias = parts()
    out, probabilities = plain_attention(query, key, value, bias, scaling=0.5, dropout=0.0)
    torch.testing.assert_close(out, by_loops(query, key, value, bias, 0.5), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(probabilities.sum(dim=-1), torch.ones(2, 3, 5, dtype=torch.float64))
    assert float(probabilities[1, :, :, 3:].max()) == 0
