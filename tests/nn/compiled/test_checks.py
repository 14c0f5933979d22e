"""The compiled code is compared with PyTorch and measured before its first use; if wrong or slow it is not used."""

import ctypes
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from attentune.config import TrainingConfig
from attentune.models.cpu_layers import fused_layers, use_fused_layers
from attentune.nn.compiled import checks, kernels, layers, native
from attentune.training.optimizer import _total_norm, build_optimizer
from helpers.native import needs_native
from helpers.tiny_models import build

Tiny = Callable[..., Path]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the test's own for what is measured, and nothing known of before."""
    folder = tmp_path / "attentune"
    monkeypatch.setattr(checks.native, "cache_folder", lambda: folder)
    monkeypatch.delenv("ATTENTUNE_NATIVE", raising=False)
    for known in (checks._fault, checks._ratio):
        known.cache_clear()
    yield folder
    for known in (checks._fault, checks._ratio):
        known.cache_clear()


@needs_native
def test_the_library_agrees_with_pytorch_and_the_random_state_stays() -> None:
    before = torch.get_rng_state()
    threads = torch.get_num_threads()
    assert 0 < checks.largest_error() < checks.LARGEST_ERROR
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    assert checks.unavailable_reason() is None


def no_memory(*given: object, **options: object) -> None:
    raise MemoryError("out of memory for the buffers of gelu")


FAULTS = {
    "differs from PyTorch by 0.": (layers, "gelu", lambda *given, **form: 1.2 * kernels.gelu(*given, **form)),
    "by inf": (layers, "gelu", lambda *given, **form: float("nan") * kernels.gelu(*given, **form)),
    "MemoryError: out of": (layers, "gelu", no_memory),
    "differs from PyTorch by 1": (checks, "sum_of_squares", lambda tensors: 2.0 * kernels.sum_of_squares(tensors)),
    "differs from PyTorch": (
        checks, "adamw", lambda *given: kernels.adamw(*given[:-1], given[-1]._replace(share_2=0.0)),
    ),
}  # fmt: skip


@needs_native
@pytest.mark.parametrize("told", FAULTS)
def test_a_library_that_computes_something_else_is_not_used(tiny, monkeypatch, told: str) -> None:
    """Neither its layers nor its sums of squares nor its optimiser."""
    monkeypatch.setattr(*FAULTS[told])
    with pytest.warns(RuntimeWarning, match="PyTorch's operations are used instead.*Set CC to another compiler"):
        reason = checks.unavailable_reason()
    assert reason is not None
    assert told in reason
    model, _ = build(tiny("bert", hidden=64))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the warning comes once
        assert use_fused_layers(model) == fused_layers(model) == 0
    assert _total_norm([torch.full((4,), 3.0)]) == 6.0
    assert type(build_optimizer(TrainingConfig(learning_rate=1.0), torch.nn.Linear(2, 2))) is torch.optim.AdamW


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


# The compiled layer is measured against PyTorch's once, the result is kept, and a slower one is not used


SIZE = (64, 128, 4)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The ratios that measurements give, taken one by one."""
    ratios: list[float] = []
    monkeypatch.setattr(checks, "measured_ratio", lambda *_: ratios.pop(0))
    return ratios


def kept(folder: Path) -> dict[str, float]:
    (file,) = folder.glob("speed-*.json")
    return dict(json.loads(file.read_text()))


@needs_native
def test_a_real_measurement_is_a_ratio_and_leaves_the_random_state() -> None:
    before = torch.get_rng_state()
    assert 0.001 < checks.measured_ratio(*SIZE) < 100
    assert torch.equal(torch.get_rng_state(), before)


@needs_native
@pytest.mark.parametrize(("ratio", "fast"), [(0.5, True), (1.09, True), (1.2, False)])
def test_it_is_measured_once_and_kept(cache: Path, measured: list[float], ratio: float, fast: bool) -> None:
    measured.append(ratio)
    assert checks.is_fast(*SIZE) == checks.is_fast(*SIZE) == fast
    checks._ratio.cache_clear()
    assert checks.is_fast(*SIZE) == fast, "another process reads what is kept"
    ((name, value),) = kept(cache).items()
    assert name == f"64 x 128, 4 heads, {torch.get_num_threads()} threads, PyTorch {torch.__version__}"
    assert value == ratio


@needs_native
@pytest.mark.parametrize("content", ["", "{", "[1]", '{"64": "fast"}'])
def test_a_damaged_file_is_measured_again(cache: Path, measured: list[float], content: str) -> None:
    measured += [0.5, 0.6]
    assert checks.is_fast(*SIZE)
    (file,) = cache.glob("speed-*.json")
    file.write_text(content)
    checks._ratio.cache_clear()
    assert checks.is_fast(*SIZE)
    assert list(kept(cache).values()) == [0.6]


@needs_native
def test_without_a_folder_to_write_to_it_is_measured_in_each_process(cache: Path, measured: list[float]) -> None:
    cache.write_text("a file where the folder should be")
    measured += [0.5, 2.0]
    assert checks.is_fast(*SIZE)
    assert checks.is_fast(*SIZE)
    checks._ratio.cache_clear()
    assert not checks.is_fast(*SIZE)


@needs_native
def test_a_slower_layer_is_not_used(tiny: Tiny, measured: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    measured.append(1.5)
    model, _ = build(tiny("bert", hidden=64))
    assert use_fused_layers(model) == 0
    monkeypatch.setenv("ATTENTUNE_NATIVE", "1")
    assert use_fused_layers(model) > 0, "nothing is measured then"
