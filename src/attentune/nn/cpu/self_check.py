"""Check of the compiled code against PyTorch, before the first use in a process.

A compiler may have a bug, and a library may have been compiled for another processor than the one it runs on. So the
compiled layer, norms, the sum of squares and AdamW's step are compared with PyTorch's operations on small inputs. If
they differ, a warning is shown and PyTorch's operations are used.
"""

from __future__ import annotations

import ctypes
import functools
import math
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from attentune.nn.cpu import native
from attentune.nn.cpu.fused_layer import BFloat16Weights, LayerSettings, LayerWeights, fused_layer
from attentune.nn.cpu.fused_pre_norm import (
    PreNormSettings,
    PreNormWeights,
    fused_pre_norm_layer,
)
from attentune.nn.cpu.kernels import AdamWNumbers, adamw, normalize, sum_of_squares
from attentune.nn.cpu.plain_layer import plain_layer, plain_pre_norm_layer, random_weights

# Relative errors (norm of the difference over the norm of the result) of bf16 are a few thousandths.
LARGEST_ERROR = 0.05
_HEADS, _HIDDEN, _INNER = 2, 64, 96
# Texts and tokens of the batches, and the attention: BERT's; with a position bias (there GELU is that by tanh, and AMX
# is used where there is AMX); or disentangled.
_BATCHES = ((3, 11, "plain"), (2, 70, "bias"), (2, 19, "disentangled"))


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
    """Return the largest relative error of the compiled code's results: values, gradients, sum of squares, a step.

    It is computed on one thread, which is faster for small inputs. PyTorch's random state is left unchanged.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
            errors = [error for batch in _BATCHES for error in _errors(*batch)]
            errors += _pre_norm_errors(batch=2, length=19)
    finally:
        torch.set_num_threads(threads)
    return max(math.inf if math.isnan(error) else error for error in errors)


def _errors(batch: int, length: int, kind: str) -> Iterator[float]:
    generator = torch.Generator().manual_seed(batch + length)
    weights = random_weights(_HIDDEN, _INNER, generator)
    hidden_BTD = torch.randn(batch, length, _HIDDEN, generator=generator).requires_grad_()
    mask = torch.zeros(batch, 1, 1, length)
    mask[0, ..., length // 2 :] = torch.finfo(torch.float32).min
    direction_BTD = torch.randn(batch, length, _HIDDEN, generator=generator)
    settings = LayerSettings(
        _HEADS, 0.0, (0.0, 0.0), 1e-12, is_gelu_tanh=kind == "bias", is_disentangled=kind == "disentangled"
    )
    sizes = {"bias": (_HEADS, 2 * length - 1), "disentangled": (2 * length - 1, 2 * _HIDDEN)}
    positions = None
    if kind in sizes:
        positions = torch.randn(sizes[kind], generator=generator).bfloat16().float().requires_grad_()

    compiled_BTD = fused_layer(hidden_BTD, mask, weights, BFloat16Weights(weights), settings, positions=positions)
    plain_BTD = plain_layer(hidden_BTD, mask, weights, settings, positions)
    inputs = (hidden_BTD, *weights, *(() if positions is None else (positions,)))
    yield _relative(compiled_BTD, plain_BTD)
    compiled, plain = (torch.autograd.grad(out, inputs, direction_BTD) for out in (compiled_BTD, plain_BTD))
    names = ("hidden", *LayerWeights._fields, "positions")[: len(inputs)]
    # The gradient of the keys' bias is 0 but for rounding: adding a vector to all keys does not change the softmax.
    yield from (
        _relative(one, other) for name, one, other in zip(names, compiled, plain, strict=True) if name != "key_bias"
    )
    rows_ND = hidden_BTD.detach().view(-1, _HIDDEN)
    yield _relative(normalize([rows_ND], 1e-5).float(), layer_norm(rows_ND, (_HIDDEN,)))
    exact = math.fsum(float(weight.detach().double().square().sum()) for weight in weights)
    yield abs(sum_of_squares([weight.detach() for weight in weights]) - exact) / exact
    yield from _step_errors([weight.detach() for weight in weights[:2]], generator)


def _pre_norm_errors(batch: int, length: int) -> Iterator[float]:
    """Yield the relative errors of a ModernBERT layer: values and gradients."""
    generator = torch.Generator().manual_seed(length)
    first, second = (random_weights(_HIDDEN, _INNER, generator) for _ in range(2))
    projections = torch.cat([first.query, first.key, first.value]).detach().requires_grad_()
    up = torch.cat([first.up, second.up]).detach().requires_grad_()
    weights = PreNormWeights(projections, first.attention_output, up, first.down, first.norm_1, first.norm_2)
    hidden_BTD, direction_BTD = (torch.randn(batch, length, _HIDDEN, generator=generator) for _ in range(2))
    mask = torch.zeros(batch, 1, length, length)
    mask[0, :, 5:, :3] = torch.finfo(torch.float32).min
    angles_TE = torch.randn(length, _HIDDEN // _HEADS // 2, generator=generator).repeat(1, 2)
    angles, settings = (angles_TE.cos(), angles_TE.sin()), PreNormSettings(_HEADS, 1e-5)

    inputs = (hidden_BTD.requires_grad_(), *(weight for weight in weights if weight is not None))
    half = BFloat16Weights(weights)
    compiled_BTD = fused_pre_norm_layer(hidden_BTD, mask, angles, weights, half, settings)
    plain_BTD = plain_pre_norm_layer(hidden_BTD, mask, angles, weights, settings)
    yield _relative(compiled_BTD, plain_BTD)
    compiled, plain = (torch.autograd.grad(out, inputs, direction_BTD) for out in (compiled_BTD, plain_BTD))
    yield from (_relative(one, other) for one, other in zip(compiled, plain, strict=True))


def _step_errors(weights: list[Tensor], generator: torch.Generator) -> Iterator[float]:
    """Yield the relative errors of a step of AdamW, of which one gradient is bf16: changes of the weights, moments.

    Written out, since PyTorch's optimisers import its compiler, which takes a second.
    """
    gradients = [torch.randn(one.shape, generator=generator).bfloat16() for one in weights]
    gradients[1] = gradients[1].float()
    changed = [one.clone() for one in weights]
    moments = [[torch.rand(one.shape, generator=generator) for one in weights] for _ in range(2)]
    means, squares = ([one.clone() for one in each] for each in moments)
    numbers = AdamWNumbers(0.1, 0.9, 0.2, 0.7, 0.3, 1e-3, 0.4, 0.6, 2.0)
    adamw(changed, gradients, means, squares, numbers)
    for number, weight in enumerate(weights):
        scaled = gradients[number].float() / numbers.scale
        mean = (1.0 - numbers.share_1) * moments[0][number] + numbers.share_1 * scaled
        square = numbers.beta_2 * moments[1][number] + numbers.share_2 * scaled.square()
        root = square.sqrt() / numbers.correction_2 + numbers.epsilon
        wanted = weight * numbers.decay - numbers.rate / numbers.correction_1 * mean / root
        yield _relative(changed[number] - weight, wanted - weight)
        yield _relative(means[number], mean)
        yield _relative(squares[number], square)


def _relative(ours: Tensor, wanted: Tensor) -> float:
    return float((ours - wanted).detach().norm() / wanted.detach().norm())
