"""Plain attention is the formula, long attention is plain attention, and the fast dropout drops what it should."""

import math

import pytest
import torch
from torch import nn

from attentune.nn.compiled import attention as module
from attentune.nn.compiled.attention import FastDropout, draw_factors, long_attention, plain_attention, use_fast_dropout


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


# The fast dropout drops what it should, scales what it keeps, and depends on the generator alone


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(1000, 384), (7, 11, 13), (33,)])
def test_the_share_dropped_and_the_scale(p, shape):
    torch.manual_seed(1)
    module, values = FastDropout(p=p), torch.full(shape, 2.0)
    count, kept = values.numel(), 0
    for _ in range(max(1, 40000 // count)):
        out = module(values)
        assert all(value == 0 or value == pytest.approx(2 / (1 - p), rel=1e-3) for value in out.unique().tolist())
        kept += int((out != 0).sum())
    draws = count * max(1, 40000 // count)
    assert abs(kept / draws - (1 - p)) < 5 * math.sqrt(p * (1 - p) / draws)


def test_each_of_the_four_features_that_share_a_draw_has_the_same_chance():
    torch.manual_seed(2)
    keep = draw_factors(torch.Size((40000, 4)), round(0.25 * 65536), torch.float32) > 0
    assert torch.allclose(keep.float().mean(dim=0), torch.full((4,), 0.75), atol=0.012)
    correlation = torch.corrcoef(keep.float().T) - torch.eye(4)
    assert correlation.abs().max() < 0.03


def test_gradients_pass_where_values_were_kept():
    torch.manual_seed(3)
    values = torch.randn(50, 20, requires_grad=True)
    out = FastDropout(p=0.3)(values)
    out.sum().backward()
    scale = 65536 / (65536 - round(0.3 * 65536))
    torch.testing.assert_close(values.grad, torch.where(out == 0, 0.0, scale))
    torch.testing.assert_close(out, values * values.grad)


def test_a_function_of_the_generator_on_any_number_of_threads():
    threads, results = torch.get_num_threads(), []
    for count in (1, 2):
        torch.set_num_threads(count)
        torch.manual_seed(4)
        results.append(FastDropout(p=0.1)(torch.ones(513, 384)))
    torch.set_num_threads(threads)
    assert torch.equal(*results)
    assert not torch.equal(results[0], FastDropout(p=0.1)(torch.ones(513, 384)))


@pytest.mark.parametrize("values", [torch.ones(4, dtype=torch.bfloat16), torch.ones(0, 3)])
def test_kinds_and_sizes_are_kept(values):
    out = FastDropout(p=0.5)(values)
    assert (out.dtype, out.shape) == (values.dtype, values.shape)


def test_a_dropout_of_everything_stays_pytorchs():
    model = nn.Sequential(nn.Dropout(1.0), nn.Dropout(0.999))
    assert use_fast_dropout(model) == 1
    assert [type(module) for module in model] == [nn.Dropout, FastDropout]
    assert torch.equal(model(torch.ones(3)), torch.zeros(3))


def test_it_takes_the_place_of_every_dropout_and_is_off_in_evaluation():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2), nn.Sequential(nn.Dropout(0.0), nn.AlphaDropout(0.1)))
    model.eval()
    assert use_fast_dropout(model) == 2
    assert not any(type(module) is nn.Dropout for module in model.modules())
    assert isinstance(model[2][1], nn.AlphaDropout)
    values = torch.randn(5, 4)
    assert torch.equal(model(values), model[0](values))
    model.train()
    assert not torch.equal(model(values), model[0](values))
