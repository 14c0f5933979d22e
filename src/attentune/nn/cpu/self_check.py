"""Check of the compiled code against PyTorch, before the first use in a process.

A compiler may have a bug, and a library may have been compiled for another processor than the one it runs on. So the
compiled layer, norms and the sum of squares are compared with PyTorch's operations on small inputs. If they differ, a
warning says so and PyTorch's operations are used.
"""

from __future__ import annotations

import ctypes
import functools
import math
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear, scaled_dot_product_attention

from attentune.nn.cpu import native
from attentune.nn.cpu.fused_layer import BFloat16Weights, LayerSettings, LayerWeights, fused_layer
from attentune.nn.cpu.kernels import normalize, sum_of_squares

# Relative errors (norm of the difference over the norm of the result) of bf16 are a few thousandths.
LARGEST_ERROR = 0.05
_HEADS, _HIDDEN, _INNER = 2, 64, 96
# Texts and tokens of the two batches; attention of the second one uses AMX where there is AMX.
_SHAPES = ((3, 11), (2, 70))


def unavailable_reason() -> str | None:
    """Return why the compiled code must not be used; None if it works. The first call checks it."""
    library = native.attempt_load()
    return str(library) if isinstance(library, native.NativeError) else _fault(library)


@functools.cache
def _fault(library: ctypes.CDLL) -> str | None:
    """Return what is wrong with the library, after a warning; None if its results agree with PyTorch's."""
    try:
        error = largest_error()
    except Exception as raised:
        fault = f"the check of the compiled CPU code failed: {type(raised).__name__}: {raised}"
    else:
        if error <= LARGEST_ERROR:
            return None
        fault = (
            f"the compiled CPU code differs from PyTorch by {error:.2g} (relative), expected at most {LARGEST_ERROR}"
        )
    warnings.warn(
        f"{fault}. PyTorch's operations are used instead, which are slower. Set CC to another compiler, or"
        " ATTENTUNE_NATIVE=0 to hide this warning.",
        RuntimeWarning,
        stacklevel=3,
    )
    return fault


def largest_error() -> float:
    """Return the largest relative error of the compiled code's results: values, gradients, and a sum of squares.

    It is computed on one thread, which is faster for small inputs. PyTorch's random state is left unchanged.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
            errors = [error for shape in _SHAPES for error in _errors(*shape, seed=sum(shape))]
    finally:
        torch.set_num_threads(threads)
    return max(math.inf if math.isnan(error) else error for error in errors)


def _errors(batch: int, length: int, *, seed: int) -> Iterator[float]:
    generator = torch.Generator().manual_seed(seed)
    weights = _random_weights(generator)
    hidden_BTD = torch.randn(batch, length, _HIDDEN, generator=generator).requires_grad_()
    mask = torch.zeros(batch, 1, 1, length)
    mask[0, ..., length // 2 :] = torch.finfo(torch.float32).min
    direction_BTD = torch.randn(batch, length, _HIDDEN, generator=generator)
    settings = LayerSettings(heads=_HEADS, attention_dropout=0.0, hidden_dropout=0.0, epsilon=1e-12)

    compiled_BTD = fused_layer(hidden_BTD, mask, weights, BFloat16Weights(weights), settings)
    plain_BTD = _plain_layer(hidden_BTD, mask, weights, settings)
    inputs = (hidden_BTD, *weights)
    yield _relative(compiled_BTD, plain_BTD)
    compiled, plain = (torch.autograd.grad(out, inputs, direction_BTD) for out in (compiled_BTD, plain_BTD))
    names = ("hidden", *LayerWeights._fields)
    # The gradient of the keys' bias is 0 but for rounding: adding a vector to all keys does not change the softmax.
    yield from (
        _relative(one, other) for name, one, other in zip(names, compiled, plain, strict=True) if name != "key_bias"
    )
    rows_ND = hidden_BTD.detach().view(-1, _HIDDEN)
    yield _relative(normalize([rows_ND], 1e-5).float(), layer_norm(rows_ND, (_HIDDEN,)))
    exact = math.fsum(float(weight.detach().double().square().sum()) for weight in weights)
    yield abs(sum_of_squares([weight.detach() for weight in weights]) - exact) / exact


def _relative(ours: Tensor, wanted: Tensor) -> float:
    return float((ours - wanted).detach().norm() / wanted.detach().norm())


def _random_weights(generator: torch.Generator) -> LayerWeights:
    """Return weights of the size that layers have; matrices hold numbers that bf16 represents exactly."""

    def matrix(rows: int, columns: int) -> Tensor:
        values = torch.randn(rows, columns, generator=generator) / math.sqrt(columns)
        return values.bfloat16().float().requires_grad_()

    def vector(size: int, around: float = 0.0) -> Tensor:
        return (around + 0.1 * torch.randn(size, generator=generator)).requires_grad_()

    square, norm = (_HIDDEN, _HIDDEN), None
    sizes = (square, square, square, square, norm, (_INNER, _HIDDEN), (_HIDDEN, _INNER), norm)
    parts: list[Tensor] = []
    for size in sizes:
        parts += [vector(_HIDDEN, 1.0), vector(_HIDDEN)] if size is None else [matrix(*size), vector(size[0])]
    return LayerWeights(*parts)


def _plain_layer(hidden_BTD: Tensor, mask: Tensor, w: LayerWeights, settings: LayerSettings) -> Tensor:
    """Compute the layer in float32 with PyTorch's operations, without dropout (Devlin et al. 2019, section 3)."""
    batch, length, width = hidden_BTD.shape

    def heads(weight: Tensor, bias: Tensor) -> Tensor:
        return linear(hidden_BTD, weight, bias).view(batch, length, settings.heads, -1).transpose(1, 2)

    query, key, value = heads(w.query, w.query_bias), heads(w.key, w.key_bias), heads(w.value, w.value_bias)
    context_BHTE = scaled_dot_product_attention(query, key, value, attn_mask=mask)
    context_BTD = context_BHTE.transpose(1, 2).reshape(hidden_BTD.shape)
    attended = hidden_BTD + linear(context_BTD, w.attention_output, w.attention_output_bias)
    middle = layer_norm(attended, (width,), w.norm_1, w.norm_1_bias, settings.epsilon)
    lowered = linear(gelu(linear(middle, w.up, w.up_bias)), w.down, w.down_bias)
    return layer_norm(middle + lowered, (width,), w.norm_2, w.norm_2_bias, settings.epsilon)
