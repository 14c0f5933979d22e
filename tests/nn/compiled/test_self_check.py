"""The compiled code is compared with PyTorch before its first use, and not used if they differ."""

import ctypes
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from attentune.models.cpu_layers import fused_layers, use_fused_layers
from attentune.nn.compiled import checks, kernels, layers, native
from attentune.training.optimizer import _total_norm, build_optimizer
from helpers.native import needs_native
from helpers.tiny_models import build

Tiny = Callable[..., Path]


@pytest.fixture(autouse=True)
def unchecked() -> Iterator[None]:
    checks._fault.cache_clear()
    yield
    checks._fault.cache_clear()


@needs_native
def test_the_library_agrees_with_pytorch_and_the_random_state_stays() -> None:
    before = torch.get_rng_state()
    threads = torch.get_num_threads()
    assert 0 < checks.largest_error() < checks.LARGEST_ERROR
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    assert checks.unavailable_reason() is None


@needs_native
@pytest.mark.parametrize("error", ["wrong", "nan", "exception"])
def test_a_library_that_computes_something_else_is_not_used(
    error: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_gelu = kernels.gelu

    def wrong_gelu(x_NI: torch.Tensor, bias_I: torch.Tensor, **form: bool) -> torch.Tensor:
        if error == "exception":
            raise MemoryError("out of memory for the buffers of gelu")
        return true_gelu(x_NI, bias_I, **form) * (1.2 if error == "wrong" else float("nan"))

    monkeypatch.setattr(layers, "gelu", wrong_gelu)
    with pytest.warns(RuntimeWarning, match="PyTorch's operations are used instead.*Set CC to another compiler"):
        reason = checks.unavailable_reason()
    assert reason is not None
    assert {"wrong": "differs from PyTorch by 0.", "nan": "by inf", "exception": "MemoryError: out of"}[error] in reason
    model, _ = build(tiny("bert", hidden=64))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the warning comes once
        assert use_fused_layers(model) == 0
    assert fused_layers(model) == 0


@needs_native
def test_a_wrong_sum_of_squares_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "sum_of_squares", lambda tensors: 2.0 * kernels.sum_of_squares(tensors))
    with pytest.warns(RuntimeWarning, match="differs from PyTorch"):
        assert checks.unavailable_reason() is not None
    assert _total_norm([torch.full((4,), 3.0)]) == 6.0


@needs_native
def test_a_wrong_step_of_adamw_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(weights: list, gradients: list, means: list, squares: list, numbers: kernels.AdamWNumbers) -> None:
        kernels.adamw(weights, gradients, means, squares, numbers._replace(share_2=0.0))

    monkeypatch.setattr(checks, "adamw", wrong)
    with pytest.warns(RuntimeWarning, match="differs from PyTorch"):
        assert checks.unavailable_reason() is not None
    assert type(build_optimizer(torch.nn.Linear(2, 2), learning_rate=1.0)) is torch.optim.AdamW


def test_without_a_library_the_reason_is_that_of_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "attempt_load", lambda: native.NativeError("no C compiler found (cc)"))
    assert checks.unavailable_reason() == "no C compiler found (cc)"


def test_the_check_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    library = ctypes.CDLL(None)
    monkeypatch.setattr(native, "attempt_load", lambda: library)
    monkeypatch.setattr(checks, "largest_error", lambda: counted.append(1) or 0.001)
    assert checks.unavailable_reason() is checks.unavailable_reason() is None
    assert counted == [1]
