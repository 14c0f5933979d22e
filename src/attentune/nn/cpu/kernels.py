"""The functions of the C files in `c/` as functions of tensors. Tensors are contiguous and on the CPU."""

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
    "gelu": [*[_NUMBER] * 2, _THREADS, *[_POINTER] * 3],
    "gelu_back": [*[_NUMBER] * 2, _THREADS, *[_POINTER] * 5],
    "squares": [_NUMBER, _THREADS, *[_POINTER] * 3],
}
_ALL_BITS = 1 << 32
# Numbers in a vector: sizes must be whole ones.
VECTOR = 16


class DropoutMask(NamedTuple):
    """Which numbers dropout masks: a function of the seed and a number's place.

    Attributes:
        seed: below 2^64.
        level: a number is dropped with the chance level / 2^32.
        up: what the others are multiplied with.
    """

    seed: int
    level: int
    up: float

    @staticmethod
    def of(chance: float, seed: int) -> DropoutMask:
        """With this chance, from 0 to below 1."""
        level = round(chance * _ALL_BITS)
        return DropoutMask(seed, level, _ALL_BITS / (_ALL_BITS - level))


@functools.cache
def _function(name: str) -> Callable[..., int | None]:
    function = getattr(load_library(), f"attentune_{name}")
    function.argtypes = _ARGUMENTS[name]
    function.restype = (
        ctypes.c_int if name in ("attention", "attention_back", "norm_back", "gelu_back", "squares") else None
    )
    found: Callable[..., int | None] = function
    return found


def _call(name: str, *given: Any) -> None:
    if _function(name)(*(one.data_ptr() if isinstance(one, Tensor) else one for one in given)):
        raise MemoryError(f"no memory for the tables of {name}")


def use_amx(wanted: bool) -> bool:
    """Whether attention may multiply by the processor's matrix tiles from now on, in this process; it may where it can.

    Returns:
        Whether it will: False on a processor without them.
    """
    return bool(load_library().attentune_amx(int(wanted)))


def attention(
    projected_N3D: Tensor,
    biases_3D: Tensor,
    mask: Tensor | None,
    batch: int,
    heads: int,
    drop: DropoutMask,
    *,
    keep: bool,
) -> tuple[Tensor, Tensor | None]:
    """softmax(query key' / sqrt(width) + mask) value for each head, with dropout on the probabilities.

    Longer texts' products are by matrix tiles where the processor has them (`use_amx`), with bf16 factors; others by
    vectors in float32.

    Args:
        projected_N3D: bf16: query, key and value of each token without their biases; N is batch x length.
        biases_3D: float32.
        mask: what is added to the scores, (batch or 1, 1, length or 1, length) float32, or None.
        batch: how many texts.
        heads: their width, D / heads, must be whole vectors.
        drop: what is dropped.
        keep: whether a backward pass will follow.

    Returns:
        What each token gets, (N, D) bf16; for the backward pass the logarithms of the sums of the softmax, (batch,
        heads, length).
    """
    rows, wide = projected_N3D.shape
    length, hidden = rows // batch, wide // 3
    found_ND = projected_N3D.new_empty(rows, hidden)
    log_sums = biases_3D.new_empty(batch, heads, length) if keep else None
    sizes = (batch, length, heads, hidden // heads, torch.get_num_threads())
    _call(
        "attention", *sizes, *drop, _scaling(hidden, heads), projected_N3D, biases_3D, *_mask(mask), found_ND, log_sums
    )
    return found_ND, log_sums


def attention_back(
    projected_N3D: Tensor,
    biases_3D: Tensor,
    mask: Tensor | None,
    log_sums: Tensor,
    d_found_ND: Tensor,
    drop: DropoutMask,
) -> tuple[Tensor, Tensor]:
    """The gradients of `attention`'s first two arguments, from that of what it found."""
    batch, heads, length = log_sums.shape
    hidden = d_found_ND.shape[1]
    d_projected, d_biases = torch.empty_like(projected_N3D), torch.empty_like(biases_3D)
    sizes = (batch, length, heads, hidden // heads, torch.get_num_threads())
    before = (projected_N3D, biases_3D, *_mask(mask), log_sums)
    _call("attention_back", *sizes, *drop, _scaling(hidden, heads), *before, d_found_ND, d_projected, d_biases)
    return d_projected, d_biases


class Normed(NamedTuple):
    """What `norm` gives.

    Attributes:
        out: (N, D) float32.
        narrow: the same in bf16.
        normed: for the backward pass: before scale and shift, float32.
        inverse: likewise: (N,) the inverse standard deviations.
    """

    out: Tensor
    narrow: Tensor
    normed: Tensor | None
    inverse: Tensor | None


def norm(
    x_ND: Tensor,
    bias_D: Tensor,
    residual_ND: Tensor,
    scale_D: Tensor,
    shift_D: Tensor,
    epsilon: float,
    drop: DropoutMask,
    *,
    keep: bool,
) -> Normed:
    """scale x normalised(residual + dropout(x + bias)) + shift, row by row.

    x is bf16, all others are float32; `keep` says whether a backward pass will follow.
    """
    normed, inverse = (torch.empty_like(residual_ND), residual_ND.new_empty(len(x_ND))) if keep else (None, None)
    out = Normed(torch.empty_like(residual_ND), torch.empty_like(x_ND), normed, inverse)
    given = (x_ND, bias_D, residual_ND, scale_D, shift_D)
    _call("norm", *x_ND.shape, torch.get_num_threads(), *drop, epsilon, *given, *out)
    return out


def norm_back(
    d_out_ND: Tensor, more_ND: Tensor | None, normed_ND: Tensor, inverse_N: Tensor, scale_D: Tensor, drop: DropoutMask
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `norm`'s arguments.

    Args:
        d_out_ND: of its output, float32.
        more_ND: bf16, added to that; or None.
        normed_ND: from `norm`.
        inverse_N: from `norm`.
        scale_D: as given to `norm`.
        drop: as given to `norm`.

    Returns:
        Of the residual, float32; of x, bf16; of scale, shift and bias, (3, D).
    """
    d_residual, d_x = torch.empty_like(d_out_ND), torch.empty_like(d_out_ND, dtype=torch.bfloat16)
    sums_3D = scale_D.new_empty(3, len(scale_D))
    given = (d_out_ND, more_ND, normed_ND, inverse_N, scale_D)
    _call("norm_back", *d_out_ND.shape, torch.get_num_threads(), *drop, *given, d_residual, d_x, sums_3D)
    return d_residual, d_x, sums_3D


def gelu(x_NI: Tensor, bias_I: Tensor) -> Tensor:
    """GELU of x + bias, by the normal distribution itself; x and what it gives are bf16, the bias float32."""
    out_NI = torch.empty_like(x_NI)
    _call("gelu", *x_NI.shape, torch.get_num_threads(), x_NI, bias_I, out_NI)
    return out_NI


def gelu_back(x_NI: Tensor, bias_I: Tensor, d_out_NI: Tensor) -> tuple[Tensor, Tensor]:
    """`d_out_NI` becomes the gradient of x, in place; `gelu`'s output again, and the gradient of the bias."""
    out_NI, d_bias_I = torch.empty_like(x_NI), torch.empty_like(bias_I)
    _call("gelu_back", *x_NI.shape, torch.get_num_threads(), x_NI, bias_I, d_out_NI, out_NI, d_bias_I)
    return out_NI, d_bias_I


def sum_of_squares(tables: Sequence[Tensor]) -> float:
    """Of all numbers in these float32 tables."""
    pointers = (_POINTER * len(tables))(*(table.data_ptr() for table in tables))
    counts = (_NUMBER * len(tables))(*(table.numel() for table in tables))
    found = ctypes.c_double()
    _call("squares", len(tables), torch.get_num_threads(), pointers, counts, ctypes.byref(found))
    return found.value


def _scaling(hidden: int, heads: int) -> float:
    return float((hidden // heads) ** -0.5)


def _mask(mask: Tensor | None) -> tuple[Tensor | None, int, int]:
    """The mask with its strides from text to text and from query to query."""
    if mask is None:
        return None, 0, 0
    return mask, mask.stride(0) if mask.shape[0] > 1 else 0, mask.stride(2) if mask.shape[2] > 1 else 0
