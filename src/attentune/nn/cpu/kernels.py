"""Python bindings of the C functions in `c/`. All tensors are contiguous and on the CPU."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attentune.nn.cpu.native import load_library

_POINTER, _NUMBER, _THREADS, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_DROPOUT = [ctypes.c_uint64, ctypes.c_uint32, _REAL]
_ARGUMENTS = {
    "attention": [*[_NUMBER] * 4, _THREADS, *_DROPOUT, _REAL, *[_POINTER] * 3, *[_NUMBER] * 2, *[_POINTER] * 2],
    "attention_back": [*[_NUMBER] * 4, _THREADS, *_DROPOUT, _REAL, *[_POINTER] * 3, *[_NUMBER] * 2, *[_POINTER] * 4],
    "norm": [*[_NUMBER] * 2, _THREADS, *_DROPOUT, _REAL, *[_POINTER] * 9],
    "norm_back": [*[_NUMBER] * 2, _THREADS, *_DROPOUT, *[_POINTER] * 8],
    "normalize": [*[_NUMBER] * 3, _THREADS, _REAL, *[_POINTER] * 2],
    "gelu": [*[_NUMBER] * 2, _THREADS, *[_POINTER] * 3],
    "gelu_back": [*[_NUMBER] * 2, _THREADS, *[_POINTER] * 5],
    "squares": [_NUMBER, _THREADS, *[_POINTER] * 3],
}
_ALL_BITS = 1 << 32
# float32 elements in a vector; feature sizes must be multiples of it.
VECTOR = 16


class DropoutMask(NamedTuple):
    """A counter-based dropout mask: a function of the seed and an element's position.

    Attributes:
        seed: below 2^64.
        threshold: an element is dropped with probability threshold / 2^32.
        scale_kept: factor of the kept elements, 1 / (1 - p).
    """

    seed: int
    threshold: int
    scale_kept: float

    @staticmethod
    def of(probability: float, seed: int) -> DropoutMask:
        """Make the mask for a dropout probability in [0, 1)."""
        threshold = round(probability * _ALL_BITS)
        return DropoutMask(seed, threshold, _ALL_BITS / (_ALL_BITS - threshold))


@functools.cache
def _function(name: str) -> Callable[..., int | None]:
    function = getattr(load_library(), f"attentune_{name}")
    function.argtypes = _ARGUMENTS[name]
    function.restype = (
        ctypes.c_int if name in ("attention", "attention_back", "norm_back", "gelu_back", "squares") else None
    )
    return function


def _call(name: str, *arguments: Any) -> None:
    if _function(name)(*(each.data_ptr() if isinstance(each, Tensor) else each for each in arguments)):
        raise MemoryError(f"out of memory for the buffers of {name}")


def use_amx(wanted: bool) -> bool:
    """Enable or disable Intel AMX for attention in this process; it is enabled by default where available.

    Returns:
        Whether AMX will be used; False on a processor without it.
    """
    return bool(load_library().attentune_amx(int(wanted)))


def attention(
    projected_N3D: Tensor,
    biases_3D: Tensor,
    mask: Tensor | None,
    batch: int,
    heads: int,
    dropout: DropoutMask,
    *,
    keep: bool,
) -> tuple[Tensor, Tensor | None]:
    """Compute softmax(query key' / sqrt(width) + mask) value for each head, with dropout on the probabilities.

    With Intel AMX (`use_amx`) the products of longer texts have bf16 factors; all others are computed in float32.

    Args:
        projected_N3D: packed query, key and value of each token without their biases, bf16; N is batch x length.
        biases_3D: their biases, float32.
        mask: added to the scores, (batch or 1, 1, length or 1, length) float32, or None.
        batch: number of texts.
        heads: number of heads; the head width, D / heads, must be a multiple of `VECTOR`.
        dropout: the dropout mask.
        keep: whether a backward pass will follow.

    Returns:
        The context, (N, D) bf16; and for the backward pass the log sums of the softmax, (batch, heads, length).
    """
    rows, wide = projected_N3D.shape
    length, hidden = rows // batch, wide // 3
    context_ND = projected_N3D.new_empty(rows, hidden)
    log_sums = biases_3D.new_empty(batch, heads, length) if keep else None
    sizes = (batch, length, heads, hidden // heads, torch.get_num_threads())
    _call(
        "attention",
        *sizes,
        *dropout,
        _scaling(hidden, heads),
        projected_N3D,
        biases_3D,
        *_mask(mask),
        context_ND,
        log_sums,
    )
    return context_ND, log_sums


def attention_back(
    projected_N3D: Tensor,
    biases_3D: Tensor,
    mask: Tensor | None,
    log_sums: Tensor,
    d_context_ND: Tensor,
    dropout: DropoutMask,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of `attention`'s first two arguments from that of the context."""
    batch, heads, length = log_sums.shape
    hidden = d_context_ND.shape[1]
    d_projected, d_biases = torch.empty_like(projected_N3D), torch.empty_like(biases_3D)
    sizes = (batch, length, heads, hidden // heads, torch.get_num_threads())
    before = (projected_N3D, biases_3D, *_mask(mask), log_sums)
    _call("attention_back", *sizes, *dropout, _scaling(hidden, heads), *before, d_context_ND, d_projected, d_biases)
    return d_projected, d_biases


class Normed(NamedTuple):
    """Output of `norm`.

    Attributes:
        out: (N, D) float32.
        out_bf16: the same in bf16.
        normed: for the backward pass: the output before scale and shift, (N, D) float32.
        inverse: for the backward pass: 1 / standard deviation of each row, (N,).
    """

    out: Tensor
    out_bf16: Tensor
    normed: Tensor | None
    inverse: Tensor | None


def norm(
    x_ND: Tensor,
    bias_D: Tensor,
    residual_ND: Tensor,
    scale_D: Tensor,
    shift_D: Tensor,
    epsilon: float,
    dropout: DropoutMask,
    *,
    keep: bool,
) -> Normed:
    """Compute layer_norm(residual + dropout(x + bias)), row by row.

    x is bf16, all other tensors are float32; `keep` says whether a backward pass will follow.
    """
    normed, inverse = (torch.empty_like(residual_ND), residual_ND.new_empty(len(x_ND))) if keep else (None, None)
    out = Normed(torch.empty_like(residual_ND), torch.empty_like(x_ND), normed, inverse)
    given = (x_ND, bias_D, residual_ND, scale_D, shift_D)
    _call("norm", *x_ND.shape, torch.get_num_threads(), *dropout, epsilon, *given, *out)
    return out


def normalize(parts: Sequence[Tensor], epsilon: float) -> Tensor:
    """Normalise each row of each part without scale and shift, and put the parts side by side.

    Args:
        parts: (N, D) float32 each.
        epsilon: added to the variance.

    Returns:
        (N, parts x D) bf16.
    """
    rows, columns = parts[0].shape
    out_NF = torch.empty(rows, len(parts) * columns, dtype=torch.bfloat16)
    for place, part_ND in enumerate(parts):
        start = ctypes.c_void_p(out_NF.data_ptr() + place * columns * out_NF.element_size())
        _call("normalize", rows, columns, out_NF.shape[1], torch.get_num_threads(), epsilon, part_ND, start)
    return out_NF


def norm_back(
    d_out_ND: Tensor,
    more_ND: Tensor | None,
    normed_ND: Tensor,
    inverse_N: Tensor,
    scale_D: Tensor,
    dropout: DropoutMask,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of `norm`'s arguments.

    Args:
        d_out_ND: gradient of its output, float32.
        more_ND: added to that gradient, bf16; or None.
        normed_ND: from `norm`.
        inverse_N: from `norm`.
        scale_D: as given to `norm`.
        dropout: as given to `norm`.

    Returns:
        The gradients of the residual, float32; of x, bf16; and of scale, shift and bias, (3, D).
    """
    d_residual, d_x = torch.empty_like(d_out_ND), torch.empty_like(d_out_ND, dtype=torch.bfloat16)
    sums_3D = scale_D.new_empty(3, len(scale_D))
    given = (d_out_ND, more_ND, normed_ND, inverse_N, scale_D)
    _call("norm_back", *d_out_ND.shape, torch.get_num_threads(), *dropout, *given, d_residual, d_x, sums_3D)
    return d_residual, d_x, sums_3D


def gelu(x_NI: Tensor, bias_I: Tensor) -> Tensor:
    """Compute the exact GELU of x + bias; x and the result are bf16, the bias float32."""
    out_NI = torch.empty_like(x_NI)
    _call("gelu", *x_NI.shape, torch.get_num_threads(), x_NI, bias_I, out_NI)
    return out_NI


def gelu_back(x_NI: Tensor, bias_I: Tensor, d_out_NI: Tensor) -> tuple[Tensor, Tensor]:
    """Overwrite `d_out_NI` with the gradient of x; return `gelu`'s output, recomputed, and the gradient of the bias."""
    out_NI, d_bias_I = torch.empty_like(x_NI), torch.empty_like(bias_I)
    _call("gelu_back", *x_NI.shape, torch.get_num_threads(), x_NI, bias_I, d_out_NI, out_NI, d_bias_I)
    return out_NI, d_bias_I


def sum_of_squares(tensors: Sequence[Tensor]) -> float:
    """Sum the squares of all elements of these float32 tensors."""
    pointers = (_POINTER * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
    counts = (_NUMBER * len(tensors))(*(tensor.numel() for tensor in tensors))
    total = ctypes.c_double()
    _call("squares", len(tensors), torch.get_num_threads(), pointers, counts, ctypes.byref(total))
    return total.value


def _scaling(hidden: int, heads: int) -> float:
    return float((hidden // heads) ** -0.5)


def _mask(mask: Tensor | None) -> tuple[Tensor | None, int, int]:
    """Return the mask and its strides over texts and over queries."""
    if mask is None:
        return None, 0, 0
    return mask, mask.stride(0) if mask.shape[0] > 1 else 0, mask.stride(2) if mask.shape[2] > 1 else 0
