"""The compiled layer is measured against PyTorch's once, the result is kept, and a slower one is not used."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from attentune.models.cpu_layers import use_fused_layers
from attentune.nn.compiled import checks
from helpers.native import needs_native
from helpers.tiny_models import build

Tiny = Callable[..., Path]
pytestmark = needs_native
SIZE = (64, 128, 4)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the test's own for what is measured, and nothing known of before."""
    folder = tmp_path / "attentune"
    monkeypatch.setattr(checks.native, "cache_folder", lambda: folder)
    monkeypatch.delenv("ATTENTUNE_NATIVE", raising=False)
    checks._ratio.cache_clear()
    yield folder
    checks._ratio.cache_clear()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The ratios that measurements give, taken one by one."""
    ratios: list[float] = []
    monkeypatch.setattr(checks, "measured_ratio", lambda *_: ratios.pop(0))
    return ratios


def kept(folder: Path) -> dict[str, float]:
    (file,) = folder.glob("speed-*.json")
    return dict(json.loads(file.read_text()))


def test_a_real_measurement_is_a_ratio_and_leaves_the_random_state() -> None:
    before = torch.get_rng_state()
    assert 0.001 < checks.measured_ratio(*SIZE) < 100
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("ratio", "fast"), [(0.5, True), (1.09, True), (1.2, False)])
def test_it_is_measured_once_and_kept(cache: Path, measured: list[float], ratio: float, fast: bool) -> None:
    measured.append(ratio)
    assert checks.is_fast(*SIZE) == checks.is_fast(*SIZE) == fast
    checks._ratio.cache_clear()
    assert checks.is_fast(*SIZE) == fast, "another process reads what is kept"
    ((name, value),) = kept(cache).items()
    assert name == f"64 x 128, 4 heads, {torch.get_num_threads()} threads, PyTorch {torch.__version__}"
    assert value == ratio


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"64": "fast"}'])
def test_a_damaged_file_is_measured_again(cache: Path, measured: list[float], content: str) -> None:
    measured += [0.5, 0.6]
    assert checks.is_fast(*SIZE)
    (file,) = cache.glob("speed-*.json")
    file.write_text(content)
    checks._ratio.cache_clear()
    assert checks.is_fast(*SIZE)
    assert list(kept(cache).values()) == [0.6]


def test_without_a_folder_to_write_to_it_is_measured_in_each_process(cache: Path, measured: list[float]) -> None:
    cache.write_text("a file where the folder should be")
    measured += [0.5, 2.0]
    assert checks.is_fast(*SIZE)
    assert checks.is_fast(*SIZE)
    checks._ratio.cache_clear()
    assert not checks.is_fast(*SIZE)


def test_a_slower_layer_is_not_used(tiny: Tiny, measured: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    measured.append(1.5)
    model, _ = build(tiny("bert", hidden=64))
    assert use_fused_layers(model) == 0
    monkeypatch.setenv("ATTENTUNE_NATIVE", "1")
    assert use_fused_layers(model) > 0, "nothing is measured then"
