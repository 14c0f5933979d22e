"""The C functions on random shapes, masks and odd values, against their formulas in float64."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attentune.nn.compiled import kernels
from attentune.nn.compiled.kernels import DropoutMask
from helpers.native import near, needs_native, plain_attention

pytestmark = needs_native

HALF = torch.bfloat16
NO_DROPOUT = DropoutMask.of(0.0, 0)
LOST = 1e-37  # subnormal numbers may be read as 0
LOWEST = torch.finfo(torch.float32).min
seeds = st.integers(0, 2**31)
# Sizes of values: subnormal numbers, usual ones, and such that scores differ by hundreds.
scales = st.sampled_from([1e-38, 1e-3, 1.0, 30.0])


@dataclass(frozen=True)
class Shape:
    """Sizes of a batch, with at most 2 x 67 tokens and heads of 16 to 64."""

    batch: int
    length: int
    heads: int
    width: int


shapes = st.builds(Shape, st.integers(1, 3), st.integers(1, 67), st.integers(1, 3), st.sampled_from([16, 32, 48, 64]))


def random(*shape: int, generator: torch.Generator, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=generator)


def random_mask(shape: Shape, kind: str, generator: torch.Generator) -> Tensor | None:
    """Return a mask of each kind that encoders use; every query keeps at least its text's first token."""
    if kind == "none":
        return None
    rows, queries = (shape.batch, 1) if kind == "texts" else (shape.batch, shape.length)
    hidden = torch.rand(rows, 1, queries, shape.length, generator=generator) < 0.5
    hidden[..., 0] = False
    lowest = -math.inf if kind == "infinite" else LOWEST
    return torch.zeros(hidden.shape).masked_fill_(hidden, lowest)


@pytest.mark.parametrize("kind", ["none", "texts", "queries", "infinite"])
@given(shape=shapes, scale=scales, biased=st.booleans(), seed=seeds)
def test_attention_and_its_gradients(kind: str, shape: Shape, scale: float, biased: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows, hidden = shape.batch * shape.length, shape.heads * shape.width
    projected = random(rows, 3 * hidden, generator=generator, scale=scale).to(HALF)
    # Matrix tiles (AMX) round projections with their biases to bf16, which changes a softmax over such large scores.
    biases = random(3 * hidden, generator=generator, scale=scale if scale <= 1 else 0.0)
    mask = random_mask(shape, kind, generator)
    d_context = random(rows, hidden, generator=generator).to(HALF)
    bias = random(shape.heads, 2 * shape.length - 1, generator=generator) if biased else None
    exact = [one.double().requires_grad_() for one in (projected, biases, bias) if one is not None]
    wanted = plain_attention(*exact[:2], mask, shape.batch, shape.heads, 1.0, *exact[2:])
    context, log_sums = kernels.attention(
        projected, biases, mask, shape.batch, shape.heads, NO_DROPOUT, positions=bias, keep=True
    )
    near(context, wanted, 0.01, LOST)
    if scale > 1:
        return  # a softmax over scores that differ by hundreds has gradients below the rounding of its inputs
    assert log_sums is not None
    d_projected, d_biases, d_bias = kernels.attention_back(
        projected, biases, mask, log_sums, d_context, NO_DROPOUT, positions=bias
    )
    back = torch.autograd.grad(wanted, exact, d_context.double())
    if d_bias is not None:
        # Matrix tiles read subnormal values as 0, in each product of a score's gradient.
        products = shape.batch * shape.width * float(d_context.abs().max())
        near(d_bias, back[2], 0.02, max(LOST, products * torch.finfo(torch.float32).tiny))
    near(d_projected, back[0], 0.02, LOST)
    near(d_biases, back[1], 0.02, LOST)


@pytest.mark.parametrize("form", ["none", "tanh"])
@given(rows=st.integers(1, 40), columns=st.integers(1, 12), scale=scales, seed=seeds)
def test_gelu_and_its_gradients(form: str, rows: int, columns: int, scale: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    width = kernels.VECTOR * columns
    x, d_out = (random(rows, width, generator=generator, scale=one).to(HALF) for one in (scale, 1.0))
    bias = random(width, generator=generator, scale=scale)
    exact = x.double().requires_grad_(), bias.double().requires_grad_()
    wanted = torch.nn.functional.gelu(exact[0] + exact[1], approximate=form)
    back = torch.autograd.grad(wanted, exact, d_out.double())
    near(kernels.gelu(x, bias, is_tanh=form == "tanh"), wanted, 0.01, LOST)
    d_x = d_out.clone()
    out, d_bias = kernels.gelu_back(x, bias, d_x, is_tanh=form == "tanh")
    near(out, wanted, 0.01, LOST)
    near(d_x, back[0], 0.01, LOST)
    near(d_bias, back[1], 0.001, LOST)


@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan])
@given(shape=shapes, seed=seeds)
def test_infinities_and_nan_in_one_text_are_seen_there_and_stay_there(odd: float, shape: Shape, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    hidden = shape.heads * shape.width
    projected = random(shape.batch * shape.length, 3 * hidden, generator=generator).to(HALF)
    biases = torch.zeros(3 * hidden)
    clean, _ = kernels.attention(projected, biases, None, shape.batch, shape.heads, NO_DROPOUT, keep=False)
    projected[0, 2 * hidden] = odd  # a value of the first text's first token
    context, _ = kernels.attention(projected, biases, None, shape.batch, shape.heads, NO_DROPOUT, keep=False)
    assert not context[: shape.length, 0].isfinite().any()
    assert torch.equal(context[shape.length :], clean[shape.length :])
    for x in (kernels.gelu(projected, biases), kernels.norm(*norm_inputs(projected), 1e-5, NO_DROPOUT, keep=False).out):
        assert not (x[0].isfinite().all() and odd != -math.inf)
        assert x[1:].isfinite().all()


def norm_inputs(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    width = x.shape[1]
    return x, torch.zeros(width), torch.zeros(x.shape), torch.ones(width), torch.zeros(width)
