"""Checks of the compiled code against PyTorch's operations, before its first use: is it right, and is it faster?

A compiler may have a bug, and a library may have been compiled for another processor than the one it runs on. So the
compiled layer, norms, the sum of squares and AdamW's step are compared with PyTorch's operations on small inputs. If
they differ, a warning is shown and PyTorch's operations are used. On the processors that were measured the compiled
layer always was faster; on others it must not make anybody's training slower, so it is measured once for each size.
"""

import ctypes
import functools
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear, scaled_dot_product_attention

from attentune.nn.compiled import native
from attentune.nn.compiled.kernels import AdamWNumbers, adamw, normalize, sum_of_squares
from attentune.nn.compiled.layers import (
    Angles,
    BFloat16Weights,
    LayerSettings,
    LayerWeights,
    PreNormWeights,
    fused_layer,
)

# The compiled layer is used unless it takes this much longer, so that a busy machine does not decide.
LARGEST_RATIO = 1.1
# Texts and tokens of the batch.
_BATCH, _LENGTH = 16, 24
_REPEATS = 5


def is_fast(hidden: int, inner: int, heads: int) -> bool:
    """Return whether the compiled layer of this size takes at most `LARGEST_RATIO` of the time that PyTorch's takes.

    The ratio is kept in `native.cache_folder()` for this processor, version of PyTorch and number of threads; without a
    folder that can be written to it is measured in each process. If $ATTENTUNE_NATIVE is 1 nothing is measured.
    Call it only if the compiled code is available and right (`unavailable_reason`).
    """
    if os.environ.get("ATTENTUNE_NATIVE") == "1":
        return True
    return _ratio(hidden, inner, heads, torch.get_num_threads()) <= LARGEST_RATIO


@functools.cache
def _ratio(hidden: int, inner: int, heads: int, threads: int) -> float:
    """Return the kept ratio of times; measure and keep it if there is none."""
    file = native.cache_folder() / f"speed-{native.library_key()}.json"
    name = f"{hidden} x {inner}, {heads} heads, {threads} threads, PyTorch {torch.__version__}"
    kept = _kept(file)
    if name not in kept:
        kept = {**kept, name: round(measured_ratio(hidden, inner, heads), 3)}
        text = json.dumps(kept, indent=1) + "\n"
        native.keep_file(file, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return kept[name]


def measured_ratio(hidden: int, inner: int, heads: int) -> float:
    """Measure the time of the compiled layer, forward and backward, divided by that of PyTorch's operations in bf16."""
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
        generator = torch.Generator().manual_seed(0)
        weights = random_weights(hidden, inner, generator)
        hidden_BTD = torch.randn(_BATCH, _LENGTH, hidden, generator=generator).requires_grad_()
        mask = torch.zeros(_BATCH, 1, 1, _LENGTH)
        settings = LayerSettings(heads, 1e-12)
        half = BFloat16Weights(weights)

        def step(layer: Callable[[], Tensor]) -> float:
            began = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16):
                out_BTD = layer()
            torch.autograd.grad(out_BTD.sum(), (hidden_BTD, *weights))
            return time.perf_counter() - began

        layers = (
            lambda: fused_layer(hidden_BTD, mask, weights, half, settings),
            lambda: plain_layer(hidden_BTD, mask, weights, settings),
        )
        # Turn by turn, so that other programs slow both; the first turn is not counted.
        times = [[step(layer) for layer in layers] for _ in range(1 + _REPEATS)][1:]
    ours, theirs = (min(each) for each in zip(*times, strict=True))
    return ours / theirs


def _kept(file: Path) -> dict[str, float]:
    try:
        return {str(name): float(ratio) for name, ratio in json.loads(file.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def random_weights(hidden: int, inner: int, generator: torch.Generator) -> LayerWeights:
    """Return a layer's weights, of the size that weights have; matrices hold numbers that bf16 represents exactly."""

    def matrix(rows: int, columns: int) -> Tensor:
        values = torch.randn(rows, columns, generator=generator) / math.sqrt(columns)
        return values.bfloat16().float().requires_grad_()

    def vector(size: int, around: float = 0.0) -> Tensor:
        return (around + 0.1 * torch.randn(size, generator=generator)).requires_grad_()

    square, norm = (hidden, hidden), None
    sizes = (square, square, square, square, norm, (inner, hidden), (hidden, inner), norm)
    parts: list[Tensor] = []
    for size in sizes:
        parts += [vector(hidden, 1.0), vector(hidden)] if size is None else [matrix(*size), vector(size[0])]
    return LayerWeights(*parts)


def plain_layer(
    hidden_BTD: Tensor,
    mask: Tensor,
    w: LayerWeights,
    settings: LayerSettings,
    positions: Tensor | None = None,
) -> Tensor:
    """Compute the layer in float32 with PyTorch's operations, without dropout (Devlin et al. 2019, section 3)."""
    batch, length, width = hidden_BTD.shape

    def heads(weight: Tensor, bias: Tensor) -> Tensor:
        return linear(hidden_BTD, weight, bias).view(batch, length, settings.heads, -1).transpose(1, 2)

    query, key, value = heads(w.query, w.query_bias), heads(w.key, w.key_bias), heads(w.value, w.value_bias)
    terms = 3 if settings.is_disentangled else 1
    scale = (terms * width // settings.heads) ** -0.5
    if positions is not None:
        places = torch.arange(length)
        places_TT = places - places[:, None] + length - 1
        if settings.is_disentangled:
            keys, queries = positions.view(-1, 2, settings.heads, width // settings.heads)[places_TT].unbind(2)
            added = torch.einsum("bhte,tshe->bhts", query, keys) + torch.einsum("bhse,tshe->bhts", key, queries)
            mask = mask + scale * added
        else:
            mask = mask + positions[:, places_TT]
    context_BHTE = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    context_BTD = context_BHTE.transpose(1, 2).reshape(hidden_BTD.shape)
    attended = hidden_BTD + linear(context_BTD, w.attention_output, w.attention_output_bias)
    middle = layer_norm(attended, (width,), w.norm_1, w.norm_1_bias, settings.epsilon)
    raised = gelu(linear(middle, w.up, w.up_bias), approximate="tanh" if settings.is_gelu_tanh else "none")
    lowered = linear(raised, w.down, w.down_bias)
    return layer_norm(middle + lowered, (width,), w.norm_2, w.norm_2_bias, settings.epsilon)


def plain_pre_norm_layer(
    hidden_BTD: Tensor, mask: Tensor, w: PreNormWeights, settings: LayerSettings, angles: Angles
) -> Tensor:
    """Compute a ModernBERT layer in the inputs' precision by PyTorch's operations (Warner et al. 2024, section 2.1)."""
    batch, length, width = hidden_BTD.shape
    cosine_TE, sine_TE = angles

    def rotated(x_BHTE: Tensor) -> Tensor:
        first, second = x_BHTE.chunk(2, dim=-1)
        return x_BHTE * cosine_TE + torch.cat([-second, first], dim=-1) * sine_TE

    x_BTD = hidden_BTD if w.norm_1 is None else layer_norm(hidden_BTD, (width,), w.norm_1, None, settings.epsilon)
    projected = linear(x_BTD, w.projections).view(batch, length, 3, settings.heads, -1)
    query, key, value = projected.permute(2, 0, 3, 1, 4)
    context_BHTE = scaled_dot_product_attention(rotated(query), rotated(key), value, attn_mask=mask)
    context_BTD = context_BHTE.transpose(1, 2).reshape(hidden_BTD.shape)
    middle = hidden_BTD + linear(context_BTD, w.attention_output)
    raised = linear(layer_norm(middle, (width,), w.norm_2, None, settings.epsilon), w.up)
    activated, gate = raised.chunk(2, dim=-1)
    active = gelu(activated, approximate="tanh" if settings.is_gelu_tanh else "none") * gate
    return middle + linear(active, w.down)


# Relative errors (norm of the difference over the norm of the result) of bf16 are a few thousandths.
LARGEST_ERROR = 0.05
_HEADS, _HIDDEN, _INNER = 2, 64, 96
# Layers, with their numbers of texts and tokens: BERT's; with a position bias (there GELU is that by tanh, and AMX is
# used where it exists); with disentangled attention; ModernBERT's.
_LAYERS = {"plain": (3, 11), "bias": (2, 70), "disentangled": (2, 19), "pre-norm": (2, 19)}


def unavailable_reason() -> str | None:
    """Return why the compiled code must not be used; None if it works. The first call checks it."""
    return native.unavailable_reason() or _fault(native.load_library())


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
    """Return the largest relative error of the compiled code, on one thread, which is faster for small inputs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
            errors = [error for kind in _LAYERS for error in _layer_errors(kind)]
            errors += _other_errors()
    finally:
        torch.set_num_threads(threads)
    return max(math.inf if math.isnan(error) else error for error in errors)


def _layer_errors(kind: str) -> Iterator[float]:
    """Yield the relative errors of one of `_LAYERS`: of its output and of every gradient."""
    batch, length = _LAYERS[kind]
    generator = torch.Generator().manual_seed(batch + length)
    settings = LayerSettings(_HEADS, 1e-12, is_gelu_tanh=kind == "bias", is_disentangled=kind == "disentangled")
    first = random_weights(_HIDDEN, _INNER, generator)
    weights: LayerWeights | PreNormWeights = first
    hidden_BTD, direction_BTD = (torch.randn(batch, length, _HIDDEN, generator=generator) for _ in range(2))
    mask = torch.zeros(batch, 1, 1, length)
    mask[0, ..., length // 2 :] = torch.finfo(torch.float32).min
    positions: Any = None
    if kind == "pre-norm":
        up = torch.cat([first.up, random_weights(_HIDDEN, _INNER, generator).up]).detach().requires_grad_()
        projections = torch.cat([first.query, first.key, first.value]).detach().requires_grad_()
        weights = PreNormWeights(first.norm_1, projections, first.attention_output, first.norm_2, up, first.down)
        angles_TE = torch.randn(length, _HIDDEN // _HEADS // 2, generator=generator).repeat(1, 2)
        positions = (angles_TE.cos(), angles_TE.sin())
        mask = mask.expand(-1, -1, length, -1).contiguous()
        mask[1, :, 5:, :3] = torch.finfo(torch.float32).min  # as a local window
    elif kind != "plain":
        size = (_HEADS, 2 * length - 1) if kind == "bias" else (2 * length - 1, 2 * _HIDDEN)
        positions = torch.randn(size, generator=generator).bfloat16().float().requires_grad_()

    inputs = {"hidden": hidden_BTD.requires_grad_(), **weights._asdict()}
    # The gradient of the keys' bias is 0 except for rounding: adding a vector to all keys does not change the softmax.
    inputs.pop("key_bias", None)
    if isinstance(positions, Tensor):
        inputs["positions"] = positions
    compiled_BTD = fused_layer(hidden_BTD, mask, weights, BFloat16Weights(weights), settings, positions=positions)
    plain: Callable[..., Tensor] = plain_pre_norm_layer if kind == "pre-norm" else plain_layer
    plain_BTD = plain(hidden_BTD, mask, weights, settings, positions)
    yield _relative(compiled_BTD, plain_BTD)
    ours, wanted = (
        torch.autograd.grad(out, tuple(inputs.values()), direction_BTD) for out in (compiled_BTD, plain_BTD)
    )
    yield from map(_relative, ours, wanted)


def _other_errors() -> Iterator[float]:
    """Yield the relative errors of the normalisation, the sum of squares and a step of AdamW."""
    generator = torch.Generator().manual_seed(1)
    weights = [weight.detach() for weight in random_weights(_HIDDEN, _INNER, generator)]
    rows_ND = torch.randn(33, _HIDDEN, generator=generator)
    yield _relative(normalize([rows_ND], 1e-5).float(), layer_norm(rows_ND, (_HIDDEN,)))
    exact = math.fsum(float(weight.double().square().sum()) for weight in weights)
    yield abs(sum_of_squares(weights) - exact) / exact
    yield from _step_errors(weights[:2], generator)


def _step_errors(weights: list[Tensor], generator: torch.Generator) -> Iterator[float]:
    """Yield the relative errors of a step of AdamW: changes of the weights, moments, copies; one gradient is bf16.

    Written out, since PyTorch's optimisers import its compiler, which takes a second.
    """
    gradients = [torch.randn(one.shape, generator=generator).bfloat16() for one in weights]
    gradients[1] = gradients[1].float()
    changed = [one.clone() for one in weights]
    moments = [[torch.rand(one.shape, generator=generator) for one in weights] for _ in range(2)]
    means, squares = ([one.clone() for one in each] for each in moments)
    numbers = AdamWNumbers(0.1, 0.9, 0.2, 0.7, 0.3, 1e-3, 0.4, 0.6, 2.0)
    copies = [torch.empty_like(one, dtype=torch.bfloat16) for one in weights]
    adamw(changed, gradients, means, squares, copies, numbers)
    for number, weight in enumerate(weights):
        scaled = gradients[number].float() / numbers.scale
        mean = (1.0 - numbers.share_1) * moments[0][number] + numbers.share_1 * scaled
        square = numbers.beta_2 * moments[1][number] + numbers.share_2 * scaled.square()
        root = square.sqrt() / numbers.correction_2 + numbers.epsilon
        wanted = weight * numbers.decay - numbers.rate / numbers.correction_1 * mean / root
        yield _relative(changed[number] - weight, wanted - weight)
        yield _relative(means[number], mean)
        yield _relative(squares[number], square)
        yield _relative(copies[number].float(), changed[number].bfloat16().float())


def _relative(ours: Tensor, wanted: Tensor) -> float:
    return float((ours - wanted).detach().norm() / wanted.detach().norm())
