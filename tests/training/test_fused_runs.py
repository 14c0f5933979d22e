"""Runs whose layers train by the C code: what they say of it, that they repeat and resume, and learn alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attentune.config import load_config
from attentune.errors import CheckpointError
from attentune.inference.predictor import evaluate
from attentune.models.cpu_layers import use_bf16_gradients, use_fused_layers
from attentune.training.run import train
from helpers.interrupted import assert_same, die_after_step, outcome, run
from helpers.native import needs_native
from helpers.samples import settings
from helpers.tiny_models import build

Tiny = Callable[..., Path]
BF16 = {"training__precision": "bf16"}
STEPS = BF16 | {"training__save_steps": 2, "training__num_train_epochs": 2}


def encoder(tiny: Tiny) -> Path:
    """Its heads are 16 wide, as the C code wants them."""
    return tiny("bert", hidden=64)


def trained(folder: Path, tiny: Tiny, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = train(load_config(overrides=settings(folder, encoder(tiny), **changes))).train
    return found


def losses(folder: Path) -> list[float]:
    lines = (folder / "run" / "log.jsonl").read_text().splitlines()
    return [line["loss"] for line in map(json.loads, lines) if "loss" in line]


@pytest.mark.integration
@needs_native
@pytest.mark.parametrize(
    ("changes", "layers"),
    [(BF16, 3), (BF16 | {"training__fused_layers": False}, 0), ({"training__precision": "fp32"}, 0)],
    ids=["bf16", "turned off", "fp32"],
)
def test_what_a_run_says_of_it(tiny: Tiny, tmp_path: Path, changes: dict[str, Any], layers: int) -> None:
    assert trained(tmp_path, tiny, **changes)["fused_layers"] == layers
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["train"]["fused_layers"] == layers


@pytest.mark.integration
@needs_native
@pytest.mark.parametrize("steps", [1, 2], ids=["one batch a step", "two batches a step"])
def test_gradients_in_bf16_give_the_weights_of_gradients_in_float32(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    changes = STEPS | {"training__gradient_accumulation_steps": steps}
    kept: dict[str, int] = {}

    def note(model: Any) -> None:
        use_bf16_gradients(model)
        kept["weights"] = sum(one.grad_dtype == torch.bfloat16 for one in model.parameters())

    for name, used in (("bf16", note), ("float32", lambda model: None)):
        (tmp_path / name).mkdir()
        monkeypatch.setattr("attentune.training.optimizer.use_bf16_gradients", used)
        run(tmp_path / name, encoder(tiny), **changes)
    # With two batches in a step gradients are added, and bf16 would round their sums.
    assert kept == ({"weights": 18} if steps == 1 else {})
    assert_same(outcome(tmp_path / "bf16" / "run"), outcome(tmp_path / "float32" / "run"))


@needs_native
@pytest.mark.parametrize(("family", "matrices"), [("bert", 18), ("distilbert", 18), ("mpnet", 18), ("albert", 0)])
def test_gradients_are_bf16_where_a_layer_is_used_once(tiny: Tiny, family: str, matrices: int) -> None:
    model, _ = build(tiny(family, hidden=64))
    use_bf16_gradients(model)
    assert not any(one.grad_dtype == torch.bfloat16 for one in model.parameters()), "no layer is fused yet"
    assert use_fused_layers(model) > 0
    use_bf16_gradients(model)
    assert sum(one.grad_dtype == torch.bfloat16 for one in model.parameters()) == matrices


@pytest.mark.integration
@needs_native
def test_killed_and_resumed(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "broken").mkdir()
    run(tmp_path / "whole", encoder(tiny), **STEPS)
    die_after_step(monkeypatch, 5, lambda: run(tmp_path / "broken", encoder(tiny), **STEPS))
    run(tmp_path / "broken", encoder(tiny), **STEPS, training__resume=True)
    assert_same(outcome(tmp_path / "broken" / "run"), outcome(tmp_path / "whole" / "run"))


@needs_native
def test_a_run_cannot_go_on_by_the_other_program(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = encoder(tiny)  # built here, as what a process that dies has built is not known to this one
    die_after_step(monkeypatch, 5, lambda: run(tmp_path, base, **STEPS))
    monkeypatch.setattr(
        "attentune.models.cpu_layers.unavailable_reason", lambda: "no C compiler found (cc, gcc, clang)"
    )
    with pytest.raises(CheckpointError, match=r"--fused_layers, which needs a C compiler\) \(was 3, now 0\)"):
        run(tmp_path, base, **STEPS, training__resume=True)


@pytest.mark.integration
@needs_native
@pytest.mark.parametrize("family", ["bert", "distilbert", "albert", "mpnet", "deberta-v2", "modernbert"])
def test_the_saved_model_repeats_the_scores(tiny: Tiny, tmp_path: Path, family: str) -> None:
    base = tiny(family, hidden=128 if family == "modernbert" else 64)  # heads of 32 and of 16
    result = train(load_config(overrides=settings(tmp_path, base, **BF16)))
    assert result.train["fused_layers"] == (1 if family == "albert" else 3)
    assert evaluate(tmp_path / "run")["validation"] == result.scores["validation"]


@needs_native
@pytest.mark.parametrize("preset", ["bert", "ssa-hybrid", "se-bert", "task-attention"])
def test_without_dropout_the_losses_are_those_of_pytorchs_operations(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str
) -> None:
    monkeypatch.setattr("attentune.nn.compiled.attention.fast_dropout", lambda values, levels: values)
    found = {}
    for name, fused in (("ours", True), ("theirs", False)):
        (tmp_path / name).mkdir()
        changes = BF16 | {"training__fused_layers": fused, "model__dropout": 0.0}
        train(load_config(preset=preset, overrides=settings(tmp_path / name, encoder(tiny), **changes)))
        found[name] = losses(tmp_path / name)
    assert found["ours"] == pytest.approx(found["theirs"], abs=0.03)  # in bf16; processors add up in other orders
    assert found["ours"] != found["theirs"]
    assert max(found["ours"]) - min(found["ours"]) > 0.01, "something changes, so that this says something"
