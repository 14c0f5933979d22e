"""Plain attention is the formula, and long attention is plain attention: values, gradients, masks, dropout."""

import math

import pytest
import torch

from attentune.nn.compiled import attention as module
from attentune.nn.compiled.attention import long_attention, plain_attention


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


def five_tokens() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(2, 3, 5, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    bias = torch.zeros(2, 1, 5, 5, dtype=torch.float64)
    bias[1, :, :, 3:] = torch.finfo(torch.float64).min
    return query, key, value, bias


def test_it_is_the_formula():
    query, key, value, bias = five_tokens()
    out, probabilities = plain_attention(query, key, value, bias, scaling=0.5, dropout=0.0)
    torch.testing.assert_close(out, by_loops(query, key, value, bias, 0.5), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(probabilities.sum(dim=-1), torch.ones(2, 3, 5, dtype=torch.float64))
    assert float(probabilities[1, :, :, 3:].max()) == 0


# Attention piece by piece is plain attention: values, gradients, masks and, where nothing else is left, dropout


Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture(autouse=True, params=[1, 1 << 19], ids=["a head a piece", "a row a piece"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK", request.param)


def parts(dtype: torch.dtype = torch.float64) -> Parts:
    """Heads beside each other in memory, as a linear layer leaves them."""
    generator = torch.Generator().manual_seed(1)
    made = (torch.randn(2, 7, 3, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    query, key, value = (part.to(dtype).transpose(1, 2).requires_grad_() for part in made)
    return query, key, value


def masks() -> dict[str, torch.Tensor | None]:
    allowed = torch.ones(2, 1, 7, 7, dtype=torch.bool)
    allowed[1, :, :, 5:] = False
    windows = (torch.arange(7)[:, None] - torch.arange(7)).abs() <= 2
    added = torch.zeros(2, 1, 7, 7, dtype=torch.float64).masked_fill(~allowed, torch.finfo(torch.float64).min)
    by_head = torch.randn(2, 3, 7, 7, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return {
        "none": None,
        "padding": allowed,
        "one for all rows": windows[None, None],
        "padding in windows": allowed & windows,
        "added": added,
        "added by head": by_head,
    }


def as_added(mask: torch.Tensor | None) -> torch.Tensor | None:
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, torch.finfo(torch.float64).min)


@pytest.mark.parametrize("kind", list(masks()))
def test_it_is_plain_attention_with_its_gradients(kind: str) -> None:
    mask = masks()[kind]
    given = parts()
    theirs, _ = plain_attention(*given, as_added(mask), scaling=0.5, dropout=0.0)
    weights = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    wanted = torch.autograd.grad((theirs * weights).sum(), given)
    ours = long_attention(*given, mask, scaling=0.5, dropout=0.0)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    assert ours.is_contiguous()
    for mine, their in zip(torch.autograd.grad((ours * weights).sum(), given), wanted, strict=True):
        torch.testing.assert_close(mine, their, rtol=1e-10, atol=1e-13)


@pytest.mark.integration
def test_gradients_are_those_of_what_was_dropped() -> None:
    """By differences: the same draw is dropped as often as it is asked for."""
    mask = masks()["padding"]

    def dropped(*given: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(4)
        return long_attention(*given, mask, scaling=0.5, dropout=0.4)

    given = parts()
    assert not torch.equal(dropped(*given), long_attention(*given, mask, scaling=0.5, dropout=0.0))
    assert torch.autograd.gradcheck(dropped, given)


def test_what_is_dropped_hangs_on_the_generator_alone() -> None:
    given = parts()
    found = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        first = long_attention(*given, None, scaling=0.5, dropout=0.3)
        found.append((first, long_attention(*given, None, scaling=0.5, dropout=0.3)))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert not torch.equal(found[0][0], found[0][1])
    assert not torch.equal(found[0][0], found[2][0])


def test_without_dropout_no_random_number_is_drawn() -> None:
    state = torch.get_rng_state()
    long_attention(*parts(), None, scaling=0.5, dropout=0.0)
    assert torch.equal(torch.get_rng_state(), state)
    long_attention(*parts(), None, scaling=0.5, dropout=0.5)
    assert not torch.equal(torch.get_rng_state(), state)


def test_autocast_around_it_changes_nothing() -> None:
    given = parts(torch.float32)
    plain = long_attention(*given, None, scaling=0.5, dropout=0.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = long_attention(*given, None, scaling=0.5, dropout=0.0)
    assert torch.equal(inside, plain)
