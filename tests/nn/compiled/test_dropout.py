"""The fast dropout drops what it should, scales what it keeps, and depends on the generator alone."""

import math

import pytest
import torch
from torch import nn

from attentune.nn.compiled.attention import FastDropout, draw_factors, use_fast_dropout


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
