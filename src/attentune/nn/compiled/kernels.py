"""Python bindings of the C functions in `c/`, and the optimizer of one of them.

All tensors are contiguous and on the CPU.
"""

from __future__ import annotations

import ctypes
import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attentune.nn.compiled.native import load_library

_POINTER, _NUMBER, _THREADS, _FLAG, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_int, ctypes.c_float
_DROPOUT = [ctypes.c_uint64, ctypes.c_uint32, _REAL]
_ATTENTION = [*[_NUMBER] * 4, _THREADS, *_DROPOUT, _REAL, *[_POINTER] * 3, *[_NUMBER] * 2]
_ARGUMENTS = {
    "attention": [*_ATTENTION, _POINTER, _NUMBER, *[_POINTER] * 2],
    "attention_back": [*_ATTENTION, _POINTER, _NUMBER, *[_POINTER] * 5],
    "disentangled": [*_ATTENTION, *[_POINTER] * 3],
    "disentangled_back": [*_ATTENTION, *[_POINTER] * 6],
    "norm": [*[_NUMBER] * 2, _THREADS, *_DROPOUT, _REAL, *[_POINTER] * 10],
    "norm_back": [*[_NUMBER] * 2, _THREADS, *_DROPOUT, *[_POINTER] * 9],
    "normalize": [*[_NUMBER] * 3, _THREADS, _REAL, *[_POINTER] * 2],
    "geglu": [*[_NUMBER] * 2, _THREADS, _FLAG, *[_POINTER] * 4],
    "rotary": [*[_NUMBER] * 4, _THREADS, *[_POINTER] * 3, _REAL],
    "gelu": [*[_NUMBER] * 2, _THREADS, _FLAG, *[_POINTER] * 3],
    "gelu_back": [*[_NUMBER] * 2, _THREADS, _FLAG, *[_POINTER] * 5],
    "squares": [_NUMBER, _THREADS, *[_POINTER] * 4],
    "adamw": [_NUMBER, _THREADS, *[_POINTER] * 7, *[_REAL] * 9],
}
# These need memory, and return 1 if it is short; the others return nothing, not even 0.
_ALLOCATING = {
    "attention",
    "attention_back",
    "disentangled",
    "disentangled_back",
    "norm_back",
    "gelu_back",
    "squares",
}
_ALL_BITS = 1 << 32
# float32 elements in a vector; feature sizes must be multiples of it.
VECTOR = 16


class DropoutMask(NamedTuple):
    """A counter-based dropout mask: a function of the seed and an element's position."""

    seed: int  # below 2^64
    threshold: int  # an element is dropped with probability threshold / 2^32
    scale_kept: float  # factor of the kept elements, 1 / (1 - p)

    @staticmethod
    def of(probability: float, seed: int) -> DropoutMask:
        threshold = round(probability * _ALL_BITS)
        return DropoutMask(seed, threshold, _ALL_BITS / (_ALL_BITS - threshold))


NO_DROPOUT = DropoutMask.of(0.0, 0)


@functools.cache
def _function(name: str) -> Callable[..., int | None]:
    function = getattr(load_library(), f"attentune_{name}")
    function.argtypes = _ARGUMENTS[name]
    function.restype = ctypes.c_int if name in _ALLOCATING else None
    return function


def _call(name: str, *arguments: Any) -> None:
    if _function(name)(*(each.data_ptr() if isinstance(each, Tensor) else each for each in arguments)):
        raise MemoryError(f"out of memory for the buffers of {name}")


def attention(
    projected_N3D: Tensor,
    biases_3D: Tensor,
    mask: Tensor | None,
    batch: int,
    heads: int,
    dropout: DropoutMask,
    positions: Tensor | None = None,
    *,
    keep: bool,
) -> tuple[Tensor, Tensor | None]:
    """Compute softmax(query key' / sqrt(width) + mask + bias) value for each head, with dropout on the probabilities.

    `positions` are the bias by relative position, (heads, 2 T - 1) float32, or packed vectors (2 T - 1, 2 D) bf16 of
    disentangled attention (He et al. 2021, DeBERTa, section 3.1): its scores are (query_i key_j + query_i position_key
    + key_j position_query) / sqrt(3 width) + mask, with the vectors of position j - i.

    With Intel AMX the products of longer texts have bf16 factors, except in disentangled attention; all
    others are computed in float32.
    """
    rows, wide = projected_N3D.shape
    length, hidden = rows // batch, wide // 3
    log_sums = projected_N3D.new_empty(batch, heads, length, dtype=torch.float32) if keep else None
    context_ND = projected_N3D.new_empty(rows, hidden)
    name, scaling, given = _by_positions(positions, hidden // heads)
    sizes = (batch, length, heads, hidden // heads, torch.get_num_threads())
    before = (projected_N3D, biases_3D, *_mask(mask), *given)
    _call(name, *sizes, *dropout, scaling, *before, context_ND, log_sums)
    return context_ND, log_sums


def attention_back(
    projected_N3D: Tensor,
    biases_3D: Tensor,
    mask: Tensor | None,
    log_sums: Tensor,
    d_context_ND: Tensor,
    dropout: DropoutMask,
    positions: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute the gradients of `attention`'s projections, biases and positions from that of the context."""
    batch, heads, length = log_sums.shape
    width = d_context_ND.shape[1] // heads
    d_projected, d_biases = torch.empty_like(projected_N3D), torch.empty_like(biases_3D)
    name, scaling, given = _by_positions(positions, width)
    d_given = None if given[0] is None else torch.empty_like(given[0], dtype=torch.float32)
    sizes = (batch, length, heads, width, torch.get_num_threads())
    before = (projected_N3D, biases_3D, *_mask(mask), *given, log_sums, d_context_ND)
    _call(f"{name}_back", *sizes, *dropout, scaling, *before, d_projected, d_biases, d_given)
    if d_given is not None and name == "attention":
        d_given = d_given[:, : 2 * length - 1]
    return d_projected, d_biases, d_given


def _by_positions(positions: Tensor | None, width: int) -> tuple[str, float, tuple[Any, ...]]:
    """Return the C function for these positions, the factor of the scores, and the positions as it takes them.

    A bias has room for whole vectors after each head's numbers, and comes with the numbers of a head with it.
    """
    if positions is not None and positions.dtype == torch.bfloat16:
        return "disentangled", float((3 * width) ** -0.5), (positions,)
    if positions is None:
        return "attention", float(width**-0.5), (None, 0)
    padded = torch.nn.functional.pad(positions.detach(), (0, VECTOR))
    return "attention", float(width**-0.5), (padded, padded.shape[1])


class Normed(NamedTuple):
    out: Tensor  # (N, D) float32
    out_bf16: Tensor  # the same in bf16
    normed: Tensor | None  # for the backward pass: the output before scale and shift, (N, D) float32
    inverse: Tensor | None  # for the backward pass: 1 / standard deviation of each row, (N,)


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
    """Compute layer_norm(residual + dropout(x + bias)), row by row; x is bf16. `keep`: a backward pass will follow."""
    normed, inverse = (torch.empty_like(residual_ND), residual_ND.new_empty(len(x_ND))) if keep else (None, None)
    out = Normed(torch.empty_like(residual_ND), torch.empty_like(x_ND), normed, inverse)
    given = (x_ND, bias_D, residual_ND, scale_D, shift_D)
    _call("norm", *x_ND.shape, torch.get_num_threads(), *dropout, epsilon, *given, *out, None)
    return out


def normalize(parts: Sequence[Tensor], epsilon: float) -> Tensor:
    """Normalise each row of each part without scale and shift, and put the parts side by side."""
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
    d_residual, d_x = torch.empty_like(d_out_ND), torch.empty_like(d_out_ND, dtype=torch.bfloat16)
    sums_3D = scale_D.new_empty(3, len(scale_D))
    given = (d_out_ND, more_ND, None, normed_ND, inverse_N, scale_D)
    _call("norm_back", *d_out_ND.shape, torch.get_num_threads(), *dropout, *given, d_residual, d_x, sums_3D)
    return d_residual, d_x, sums_3D


class PreNormed(NamedTuple):
    total: Tensor  # residual + x, (N, D) float32
    out_bf16: Tensor  # its normalisation, in bf16
    normed: Tensor  # for the backward pass: the normalisation before the scale, (N, D) float32
    inverse: Tensor  # for the backward pass: 1 / standard deviation of each row, (N,)


def pre_norm(x_ND: Tensor | None, residual_ND: Tensor, scale_D: Tensor, epsilon: float) -> PreNormed:
    """Compute total = residual + x (bf16, or None for 0) and layer_norm(total) without a shift, row by row."""
    zeros = torch.zeros_like(scale_D)
    total = residual_ND if x_ND is None else torch.empty_like(residual_ND)
    out = torch.empty_like(residual_ND, dtype=torch.bfloat16)
    made = PreNormed(total, out, torch.empty_like(residual_ND), residual_ND.new_empty(len(residual_ND)))
    given = (x_ND, zeros, residual_ND, scale_D, zeros)
    after = (None, *made[1:], None if x_ND is None else total)
    _call("norm", *residual_ND.shape, torch.get_num_threads(), *NO_DROPOUT, epsilon, *given, *after)
    return made


def pre_norm_back(
    d_out_ND: Tensor, d_total_ND: Tensor | None, made: PreNormed, scale_D: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of `pre_norm`'s residual, float32; the same for x, bf16; and of the scale."""
    d_residual, d_x = torch.empty_like(made.normed), torch.empty_like(d_out_ND)
    sums_3D = scale_D.new_empty(3, len(scale_D))
    given = (None, d_out_ND, d_total_ND, made.normed, made.inverse, scale_D, d_residual, d_x, sums_3D)
    _call("norm_back", *d_out_ND.shape, torch.get_num_threads(), *NO_DROPOUT, *given)
    return d_residual, d_x, sums_3D[0]


def geglu(x_N2I: Tensor, *, is_tanh: bool = False) -> Tensor:
    """Compute gelu(x) * gate of packed x and gate, all bf16."""
    out_NI = x_N2I.new_empty(len(x_N2I), x_N2I.shape[1] // 2)
    _call("geglu", *out_NI.shape, torch.get_num_threads(), is_tanh, x_N2I, None, None, out_NI)
    return out_NI


def geglu_back(x_N2I: Tensor, d_out_NI: Tensor, *, is_tanh: bool = False) -> tuple[Tensor, Tensor]:
    """Return `geglu`'s output, recomputed, and the gradient of x and gate."""
    out_NI, d_x_N2I = torch.empty_like(d_out_NI), torch.empty_like(x_N2I)
    _call("geglu", *out_NI.shape, torch.get_num_threads(), is_tanh, x_N2I, d_out_NI, d_x_N2I, out_NI)
    return out_NI, d_x_N2I


def rotate(projected_N3D: Tensor, cosine_TE: Tensor, sine_TE: Tensor, heads: int, *, back: bool = False) -> None:
    """Rotate packed queries and keys, bf16, in place by their positions' angles, float32; `back` rotates back."""
    length, width = cosine_TE.shape
    sizes = (len(projected_N3D), length, heads, width, torch.get_num_threads())
    _call("rotary", *sizes, projected_N3D, cosine_TE, sine_TE, -1.0 if back else 1.0)


def gelu(x_NI: Tensor, bias_I: Tensor, *, is_tanh: bool = False) -> Tensor:
    """Compute the GELU of x + bias, exact or approximated by tanh; x and the result are bf16, the bias float32."""
    out_NI = torch.empty_like(x_NI)
    _call("gelu", *x_NI.shape, torch.get_num_threads(), is_tanh, x_NI, bias_I, out_NI)
    return out_NI


def gelu_back(x_NI: Tensor, bias_I: Tensor, d_out_NI: Tensor, *, is_tanh: bool = False) -> tuple[Tensor, Tensor]:
    """Overwrite `d_out_NI` with the gradient of x; return `gelu`'s output, recomputed, and the gradient of the bias."""
    out_NI, d_bias_I = torch.empty_like(x_NI), torch.empty_like(bias_I)
    given = (x_NI, bias_I, d_out_NI)
    _call("gelu_back", *x_NI.shape, torch.get_num_threads(), is_tanh, *given, out_NI, d_bias_I)
    return out_NI, d_bias_I


def sum_of_squares(tensors: Sequence[Tensor]) -> float:
    """Sum the squares of all elements of these tensors, each float32 or bf16."""
    total = ctypes.c_double()
    _call("squares", *_sizes(tensors), _pointers(tensors), ctypes.byref(total))
    return total.value


class AdamWNumbers(NamedTuple):
    rate: float  # the learning rate
    decay: float  # the factor of the weights, 1 - rate x weight decay
    share_1: float  # the share of a gradient in the running mean of gradients, 1 - beta_1
    beta_2: float  # the decay of the running mean of squares
    share_2: float  # 1 - beta_2
    epsilon: float  # added to the root of that mean
    correction_1: float  # 1 - beta_1^step
    correction_2: float  # sqrt(1 - beta_2^step)
    scale: float  # gradients are divided by it


def adamw(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    means: Sequence[Tensor],
    squares: Sequence[Tensor],
    copies: Sequence[Tensor | None],
    numbers: AdamWNumbers,
) -> None:
    """Update weights, both moments and the bf16 copies (None for a weight without) in place."""
    tables = (_pointers(each) for each in (weights, gradients, means, squares, copies))
    _call("adamw", *_sizes(gradients), *tables, *numbers)


def _sizes(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """Return a list of tensors for the C code: how many, threads, their elements, and which are bf16."""
    counts = (_NUMBER * len(tensors))(*(tensor.numel() for tensor in tensors))
    is_bf16 = (ctypes.c_int8 * len(tensors))(*(tensor.dtype == torch.bfloat16 for tensor in tensors))
    return len(tensors), torch.get_num_threads(), counts, is_bf16


def _pointers(tensors: Sequence[Tensor | None]) -> Any:
    return (_POINTER * len(tensors))(*(None if tensor is None else tensor.data_ptr() for tensor in tensors))


def _mask(mask: Tensor | None) -> tuple[Tensor | None, int, int]:
    """Return the mask and its strides over texts and over queries."""
    if mask is None:
        return None, 0, 0
    return mask, mask.stride(0) if mask.shape[0] > 1 else 0, mask.stride(2) if mask.shape[2] > 1 else 0


# Copies in bf16 by weight, and what to call once all of them have been written.
Copies = tuple[dict[Tensor, Tensor], Callable[[], None]]


class CompiledAdamW(torch.optim.AdamW):
    """AdamW whose step is compiled C code, with the state and the results (to rounding) of PyTorch's fused AdamW.

    A gradient may be bf16, which PyTorch's step refuses. The step also writes copies of weights in bf16, which saves a
    pass over these: the attribute `copies` returns them in groups.
    """

    grad_scale: Tensor | None = None
    copies: Callable[[], Sequence[Copies]] = tuple

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None
        scale = 1.0 if self.grad_scale is None else float(self.grad_scale)
        copies = self.copies()
        copy_of = {weight: copy for group, _ in copies for weight, copy in group.items()}
        stepped: set[Tensor] = set()
        for group in self.param_groups:
            for step, parameters in self._by_step(group["params"]).items():
                self._update(group, parameters, step, scale, [copy_of.get(one) for one in parameters])
                stepped.update(parameters)
        for weights, when_written in copies:
            if stepped.issuperset(weights):
                when_written()

    def _by_step(self, parameters: Iterable[Tensor]) -> dict[int, list[Tensor]]:
        """Count a step for each parameter that has a gradient, and group these parameters by their number of steps."""
        having = [one for one in parameters if one.grad is not None]
        for one in having:
            state = self.state[one]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32)
                state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(one) for _ in range(2))
        if having:
            torch._foreach_add_([self.state[one]["step"] for one in having], 1)
        groups: dict[int, list[Tensor]] = defaultdict(list)
        for one in having:
            groups[int(self.state[one]["step"])].append(one)
        return groups

    def _update(
        self,
        group: dict[str, Any],
        parameters: list[Tensor],
        step: int,
        scale: float,
        copies: list[Tensor | None],
    ) -> None:
        beta_1, beta_2 = group["betas"]
        numbers = AdamWNumbers(
            rate=group["lr"],
            decay=1.0 - group["lr"] * group["weight_decay"],
            share_1=1.0 - beta_1,
            beta_2=beta_2,
            share_2=1.0 - beta_2,
            epsilon=group["eps"],
            correction_1=1.0 - beta_1**step,
            correction_2=(1.0 - beta_2**step) ** 0.5,
            scale=scale,
        )
        gradients = [one.grad.contiguous() for one in parameters if one.grad is not None]
        means, squares = ([self.state[one][name] for one in parameters] for name in ("exp_avg", "exp_avg_sq"))
        adamw(parameters, gradients, means, squares, copies, numbers)
        torch.autograd.graph.increment_version(parameters)
