"""Each function of the C files against its formula in float64, gradients by autograd; on one thread and on two."""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from attentune.nn.compiled import kernels, native
from attentune.nn.compiled.kernels import DropoutMask
from helpers.native import factors, far, has_amx, near, needs_native, plain_attention, use_amx
from helpers.tiers import covering

pytestmark = [needs_native, pytest.mark.usefixtures("threads")]

HALF = torch.bfloat16
NOTHING = DropoutMask.of(0.0, 0)


def test_bindings_know_which_functions_return_a_status() -> None:
    """Of a function that returns nothing, a number would be read that happens to be in a register."""
    text = "\n".join(file.read_text() for file in native.SOURCES.glob("*.c"))
    kinds = dict(reversed(found) for found in re.findall(r"^(int|void) attentune_(\w+)\(", text, flags=re.MULTILINE))
    for name in kernels._ARGUMENTS:
        assert (kernels._function(name).restype is None) == (kinds[name] == "void"), name


def made(*shape: int, seed: int, half: bool = False) -> Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return values.to(HALF) if half else values


def masks(batch: int, length: int) -> dict[str, Tensor | None]:
    padded = torch.zeros(batch, 1, 1, length)
    padded[0, :, :, length // 2 + 1 :] = torch.finfo(torch.float32).min
    return {
        "none": None,
        "by text": padded,
        "by text and query": padded + made(batch, 1, length, length, seed=9),
        "one for all texts": made(1, 1, length, length, seed=10),
        "as transformers expands it": padded.expand(batch, 1, length, length),
        "large numbers": padded + 200,
        "with a bias by position": padded,
        "with a bias by position, by query": padded + made(batch, 1, length, length, seed=9),
    }


class Case(NamedTuple):
    """What attention is given, and what it should give."""

    # Projections, biases, mask, how many texts and how many heads.
    given: tuple[Tensor, Tensor, Tensor | None, int, int]
    d_context: Tensor  # the gradient of what is found
    drop: DropoutMask  # what is dropped
    found: Tensor  # by the formula, in float64
    back: tuple[Tensor, ...]  # the gradients of projections, biases and position bias by autograd, in float64
    position_bias: Tensor | None  # the position bias, if there is one

    def attention(self, *, keep: bool) -> tuple[Tensor, Tensor | None]:
        return kernels.attention(*self.given, self.drop, positions=self.position_bias, keep=keep)


def case(length: int, width: int, kind: str, chance: float) -> Case:
    batch, heads = 3, 2
    drop, mask = DropoutMask.of(chance, 77), masks(batch, length)[kind]
    projected = made(batch * length, 3 * heads * width, seed=1, half=True)
    biases = made(3 * heads * width, seed=2)
    d_context = made(batch * length, heads * width, seed=3, half=True)
    dropped = factors(drop, batch * heads * length, length).view(batch, heads, length, length)
    position_bias = made(heads, 2 * length - 1, seed=11) if "position" in kind else None
    wide = [one.double().requires_grad_() for one in (projected, biases, position_bias) if one is not None]
    found = plain_attention(*wide[:2], mask, batch, heads, dropped, *wide[2:])
    back = torch.autograd.grad(found, wide, d_context.double())
    return Case((projected, biases, mask, batch, heads), d_context, drop, found, back, position_bias)


def back_of(one: Case, log_sums: Tensor | None) -> tuple[Tensor, ...]:
    projected, biases, mask, _, _ = one.given
    assert log_sums is not None
    given = (projected, biases, mask, log_sums, one.d_context, one.drop)
    back = kernels.attention_back(*given, positions=one.position_bias)
    return tuple(gradient for gradient in back if gradient is not None)


# Matrix tiles exist on processors with AMX only.
@pytest.fixture(
    params=[False, True] if has_amx() else [False], ids=lambda with_tiles: "tiles" if with_tiles else "vectors"
)
def tiles(request: pytest.FixtureRequest) -> Iterator[bool]:
    assert use_amx(request.param) == request.param
    yield request.param
    use_amx(True)


# 17 is one more than a vector, 33 than two tiles' rows; of 150 and 300 queries keys' gradients are added up in parts.
@covering("length, width, kind", [7, 9, 17, 33, 64, 150, 300], [16, 32, 64], list(masks(3, 8)))
def test_attention_and_its_gradients_by_both_programs(length: int, width: int, kind: str, tiles: bool) -> None:
    one = case(length, width, kind, 0.3 if length < 100 and width < 64 else 0.0)
    found, log_sums = one.attention(keep=True)
    back = back_of(one, log_sums)
    near(found, one.found, 0.008 if tiles else 0.005)
    # Tiles round their factors to bf16, as autocast does: query, key, value, probabilities and scores' gradients.
    assert far(found, one.found) < (0.003 if tiles else 0.002)
    assert far(back[0], one.back[0]) < (0.006 if tiles else 0.002)
    assert far(back[1], one.back[1]) < (0.003 if tiles else 5e-5)
    if len(back) > 2:
        assert far(back[2], one.back[2]) < (0.006 if tiles else 5e-5)
    assert torch.equal(back_of(one, log_sums)[0], back[0])
    alone, nothing = one.attention(keep=False)
    assert nothing is None
    assert torch.equal(alone, found)


def test_tiles_leave_those_of_pytorch_as_they_were(tiles: bool) -> None:
    """PyTorch's products and its own attention use the same registers, in the same threads."""
    left, right = made(96, 128, seed=1, half=True), made(128, 96, seed=2, half=True)
    parts = made(3, 2, 2, 64, 32, seed=3, half=True)
    projected, biases = made(2 * 64, 3 * 2 * 32, seed=4, half=True), made(3 * 2 * 32, seed=5)

    def all_three() -> list[Tensor]:
        ours = kernels.attention(projected, biases, None, 2, 2, NOTHING, keep=False)[0]
        return [left @ right, torch.nn.functional.scaled_dot_product_attention(*parts), ours]

    first = all_three()
    for _ in range(20):
        assert all(torch.equal(one, other) for one, other in zip(all_three(), first, strict=True))
    near(first[0], left.double() @ right.double(), 0.005)
    assert far(first[1], torch.nn.functional.scaled_dot_product_attention(*parts.double())) < 0.005


def test_a_text_alone_gets_what_it_gets_beside_a_longer_one(tiles: bool) -> None:
    short, long, heads, width = 20, 50, 2, 32
    biases = made(3 * heads * width, seed=2)
    both = made(2, long, 3 * heads * width, seed=1, half=True)
    mask = torch.zeros(2, 1, 1, long)
    mask[0, :, :, short:] = torch.finfo(torch.float32).min
    beside = kernels.attention(both.view(2 * long, -1), biases, mask, 2, heads, NOTHING, keep=False)[0]
    alone = kernels.attention(both[0, :short].contiguous(), biases, None, 1, heads, NOTHING, keep=False)[0]
    # Of other shapes, so equal up to the last bit of bf16.
    torch.testing.assert_close(beside[:short].float(), alone.float(), rtol=2**-7, atol=1e-5)


@covering("length, width, kind", [1, 7, 8, 17, 41, 66], [16, 64], ["none", "by text", "by text and query"])
def test_disentangled_attention_and_its_gradients(length: int, width: int, kind: str) -> None:
    batch, heads, mask = 3, 2, masks(3, length)[kind]
    drop = DropoutMask.of(0.2, 77)
    projected, biases = made(batch * length, 3 * heads * width, seed=1, half=True), made(3 * heads * width, seed=2)
    positions = made(2 * length - 1, 2 * heads * width, seed=4, half=True)
    d_context = made(batch * length, heads * width, seed=3, half=True)
    wide = [one.double().requires_grad_() for one in (projected, biases, positions)]
    dropped = factors(drop, batch * heads * length, length).view(batch, heads, length, length)
    query, key, value = (wide[0] + wide[1]).view(batch, length, 3, heads, width).permute(2, 0, 3, 1, 4)
    place = torch.arange(length)
    table = wide[2].view(-1, 2, heads, width)[place - place[:, None] + length - 1]  # (query, key, 2, head, width)
    scores = query @ key.transpose(2, 3)
    scores = scores + torch.einsum("bhie,ijhe->bhij", query, table[:, :, 0])
    scores = scores + torch.einsum("bhje,ijhe->bhij", key, table[:, :, 1])
    scores = scores / math.sqrt(3 * width) + (0 if mask is None else mask.double())
    found = ((scores.softmax(dim=-1) * dropped) @ value).transpose(1, 2).reshape(batch * length, -1)
    wanted_back = torch.autograd.grad(found, wide, d_context.double())

    ours, log_sums = kernels.attention(projected, biases, mask, batch, heads, drop, positions, keep=True)
    near(ours, found, 0.005)
    assert log_sums is not None
    back = kernels.attention_back(projected, biases, mask, log_sums, d_context, drop, positions)
    near(back[0], wanted_back[0], 0.005)
    near(back[1], wanted_back[1], 1e-4)
    near(back[2], wanted_back[2], 1e-4)
    alone, nothing = kernels.attention(projected, biases, mask, batch, heads, drop, positions, keep=False)
    assert nothing is None
    assert torch.equal(alone, ours)


@pytest.mark.parametrize("chance", [0.0, 0.4])
@pytest.mark.parametrize("rows", [1, 5, 33])
def test_norm_and_its_gradients(rows: int, chance: float) -> None:
    columns, epsilon, drop = 48, 1e-5, DropoutMask.of(chance, 5)
    x, d_out = made(rows, columns, seed=1, half=True), made(rows, columns, seed=2)
    bias, residual, scale, shift = (
        made(*shape, seed=3) for shape in ((columns,), (rows, columns), (columns,), (columns,))
    )
    more = made(rows, columns, seed=4, half=True)
    wide = tuple(one.double().requires_grad_() for one in (residual, x, scale, shift, bias))
    joined = wide[0] + (wide[1] + wide[4]) * factors(drop, rows, columns)
    wanted = torch.nn.functional.layer_norm(joined, (columns,), wide[2], wide[3], epsilon)
    wanted_back = torch.autograd.grad(wanted, wide, d_out.double() + more.double())
    ours = kernels.norm(x, bias, residual, scale, shift, epsilon, drop, keep=True)
    near(ours.out, wanted, 1e-6)
    assert torch.equal(ours.out_bf16, ours.out.to(HALF))
    d_residual, d_x, sums = kernels.norm_back(d_out, more, ours.normed, ours.inverse, scale, drop)
    near(d_residual, wanted_back[0], 1e-5)
    near(d_x, wanted_back[1], 0.005)
    near(sums, torch.stack(wanted_back[2:]), 1e-5)
    alone = kernels.norm(x, bias, residual, scale, shift, epsilon, drop, keep=False)
    assert alone.normed is alone.inverse is None
    assert torch.equal(alone.out, ours.out)
    d_alone, *_ = kernels.norm_back(d_out + more.float(), None, ours.normed, ours.inverse, scale, drop)
    torch.testing.assert_close(d_alone, d_residual)


@pytest.mark.parametrize("has_x", [True, False])
@pytest.mark.parametrize("has_more", [True, False])
def test_normalisation_before_a_block_and_its_gradients(has_x: bool, has_more: bool) -> None:
    rows, columns, epsilon = 9, 48, 1e-5
    x, residual, scale = made(rows, columns, seed=1, half=True), made(rows, columns, seed=2), made(columns, seed=3)
    d_out, d_total = made(rows, columns, seed=4, half=True), made(rows, columns, seed=5)
    wide = [one.double().requires_grad_() for one in (residual, scale, x)]
    total = wide[0] + wide[2] if has_x else wide[0]
    wanted = torch.nn.functional.layer_norm(total, (columns,), wide[1], None, epsilon)
    loss = (wanted * d_out.double()).sum() + ((total * d_total.double()).sum() if has_more else 0.0)
    wanted_back = torch.autograd.grad(loss, wide[: 3 if has_x else 2])
    ours = kernels.pre_norm(x if has_x else None, residual, scale, epsilon)
    near(ours.total, total, 1e-6)
    near(ours.out_bf16, wanted, 0.005)
    d_residual, d_x, d_scale = kernels.pre_norm_back(d_out, d_total if has_more else None, ours, scale)
    near(d_residual, wanted_back[0], 1e-5)
    near(d_scale, wanted_back[1], 1e-5)
    if has_x:
        near(d_x, wanted_back[2], 0.005)


@pytest.mark.parametrize("form", ["none", "tanh"])
@pytest.mark.parametrize("rows", [1, 33])
def test_gated_gelu_and_its_gradients(rows: int, form: str) -> None:
    x, d_out = 3 * made(rows, 2 * 48, seed=1), made(rows, 48, seed=2, half=True)
    x = x.to(HALF)
    wide = x.double().requires_grad_()
    first, gate = wide.chunk(2, dim=1)
    wanted = torch.nn.functional.gelu(first, approximate=form) * gate
    (wanted_back,) = torch.autograd.grad(wanted, wide, d_out.double())
    out, d_x = kernels.geglu_back(x, d_out, is_tanh=form == "tanh")
    for found in (out, kernels.geglu(x, is_tanh=form == "tanh")):
        torch.testing.assert_close(found.double(), wanted.detach(), rtol=0.004, atol=1e-6)
    torch.testing.assert_close(d_x.double(), wanted_back, rtol=0.004, atol=1e-6)


def test_rotation_turns_queries_and_keys_and_back() -> None:
    length, heads, width = 5, 2, 64
    angles = made(length, width // 2, seed=1).repeat(1, 2)
    x = made(3 * length, 3 * heads * width, seed=2, half=True)
    parts = x.double().view(3, length, 3, heads, width)
    first, second = parts.chunk(2, dim=-1)
    turned = parts * angles.cos()[:, None, None] + torch.cat([-second, first], -1) * angles.sin()[:, None, None]
    turned[:, :, 2] = parts[:, :, 2]  # values stay
    found = x.clone()
    kernels.rotate(found, angles.cos(), angles.sin(), heads)
    near(found, turned.view(x.shape), 0.003)
    assert torch.equal(found.view(parts.shape)[:, :, 2], x.view(parts.shape)[:, :, 2])
    kernels.rotate(found, angles.cos(), angles.sin(), heads, back=True)
    near(found, x.double(), 0.006)


@pytest.mark.parametrize("columns", [16, 384])
def test_normalised_rows_stand_side_by_side(columns: int) -> None:
    parts = [made(37, columns, seed=seed) * 10.0**seed + seed for seed in range(3)]
    wanted = torch.cat([torch.nn.functional.layer_norm(part.double(), (columns,), eps=1e-5) for part in parts], dim=1)
    near(kernels.normalize(parts, 1e-5), wanted, 1 / 256)
    parts[1][5, 3] = float("nan")
    is_nan = kernels.normalize(parts, 1e-5).isnan()
    assert is_nan[5, columns : 2 * columns].all()
    assert is_nan.sum() == columns


def mask_of(drop: DropoutMask, rows: int, columns: int) -> Tensor:
    """Which ones of so many dropout keeps: those of `norm` that a gradient reaches."""
    rising = torch.arange(columns) + 1.0  # so that no gradient is taken away with the mean
    nothing = torch.zeros(rows, columns)
    _, d_x, _ = kernels.norm_back(torch.ones(rows, columns), None, nothing, torch.ones(rows), rising, drop)
    return d_x != 0


@pytest.mark.integration
@pytest.mark.parametrize("chance", [0.1, 0.5, 0.9])
def test_what_dropout_drops(chance: float) -> None:
    rows, columns = 999, 384
    kept = mask_of(DropoutMask.of(chance, 3), rows, columns).double()
    count, spread = rows * columns, math.sqrt(chance * (1 - chance))
    assert abs(float(kept.mean()) - (1 - chance)) < 5 * spread / math.sqrt(count)
    assert float((kept.mean(dim=0) - (1 - chance)).abs().max()) < 5 * spread / math.sqrt(rows)
    assert float((kept.mean(dim=1) - (1 - chance)).abs().max()) < 5 * spread / math.sqrt(columns)
    centred = (kept - (1 - chance)) / spread
    # Neighbours in a row and in a column, and the same place under another seed, go their own ways.
    other = (mask_of(DropoutMask.of(chance, 4), rows, columns).double() - (1 - chance)) / spread
    for step in (1, 2, 3, 8, 16):
        assert abs(float((centred[:, step:] * centred[:, :-step]).mean())) < 5 / math.sqrt(count)
        assert abs(float((centred[step:] * centred[:-step]).mean())) < 5 / math.sqrt(count)
    assert abs(float((centred * other).mean())) < 5 / math.sqrt(count)


def test_dropout_is_a_function_of_the_seed_on_any_number_of_threads(threads: int) -> None:
    first = mask_of(DropoutMask.of(0.3, 8), 40, 64)
    torch.set_num_threads(3 - threads)
    assert torch.equal(mask_of(DropoutMask.of(0.3, 8), 40, 64), first)
    assert not torch.equal(mask_of(DropoutMask.of(0.3, 9), 40, 64), first)
    assert torch.equal(first, factors(DropoutMask.of(0.3, 8), 40, 64) != 0)
