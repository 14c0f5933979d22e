"""Runs with a frozen encoder, a rate of its own for it, or another loss: killed and resumed as never stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import attentune.training.card as card_module
from attentune.training.checkpoint import checkpoint_folders
from helpers.interrupted import assert_same, die, die_after_step, killed, log_of, outcome, run
from helpers.samples import settings, write_reviews

pytestmark = pytest.mark.integration

Tiny = Callable[..., Path]
Reference = Callable[[str], tuple[Path, dict[str, object]]]
# 6 batches of 8 an epoch, 3 steps of two each.
COMMON: dict[str, Any] = {
    "training__gradient_accumulation_steps": 2,
    "training__num_train_epochs": 3,
    "training__save_steps": 2,
    "training__eval_strategy": "steps",
    "training__eval_steps": 3,
    "training__load_best_model_at_end": True,
}
SCORES = {"data__task_type": "regression", "objective__loss": "pearson"}
METHODS: dict[str, dict[str, Any]] = {
    "own rate": {"training__encoder_learning_rate": 1e-4},
    "frozen and kept": {"training__freeze_encoder": True},
    "frozen in each step": {"training__freeze_encoder": True, "labels__generator": "masked-rows"},
    "frozen with a gate": {"training__freeze_encoder": True, "preset": "ssa-hybrid"},
    "pearson": SCORES,
    "corn": {
        "data__task_type": "ordinal",
        "objective__loss": "corn",
        "objective__ordinal_prediction": "expected-value",
    },
}


def files_for(folder: Path, method: str) -> None:
    """Reviews; for scores with 1 and 4.5 in the place of bad and good."""
    settings(folder, folder)
    if METHODS[method].get("data__task_type") == "regression":
        for number, name in enumerate(("train", "validation"), start=1):
            file = write_reviews(folder / f"{name}.csv", (48, 20)[number - 1], seed=number)
            file.write_text(file.read_text().replace(",good", ",4.5").replace(",bad", ",1"))


def options(method: str, folder: Path) -> dict[str, Any]:
    names = {"data__label_names": ("bad", "good")} if "corn" in method else {}
    return COMMON | METHODS[method] | names


@pytest.fixture(scope="module")
def reference(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """`reference("pearson")`: the folder of a run that nobody disturbed, and its outcome."""
    made: dict[str, tuple[Path, dict[str, object]]] = {}

    def get(method: str) -> tuple[Path, dict[str, object]]:
        if method not in made:
            folder = tmp_path_factory.mktemp("reference")
            files_for(folder, method)
            run(folder, tiny("bert"), **options(method, folder))
            made[method] = folder / "run", outcome(folder / "run")
        return made[method]

    return get


@pytest.mark.parametrize("step", [1, 4, 8])
@pytest.mark.parametrize("method", METHODS)
def test_killed_after_a_step(
    tiny: Tiny, tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch, method: str, step: int
) -> None:
    expected = reference(method)[1]
    files_for(tmp_path, method)
    die_after_step(monkeypatch, step, lambda: run(tmp_path, tiny("bert"), **options(method, tmp_path)))
    assert len(checkpoint_folders(tmp_path / "run")) == (0 if step == 1 else 2)
    run(tmp_path, tiny("bert"), **options(method, tmp_path), training__resume=True)
    assert_same(outcome(tmp_path / "run"), expected)


@pytest.mark.parametrize("method", ["pearson", "frozen and kept"])
def test_killed_while_finishing(
    tiny: Tiny, tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """After the scale has been fitted, before it is saved: it is fitted anew, not twice."""
    expected = reference(method)[1]
    files_for(tmp_path, method)
    with monkeypatch.context() as patched:
        patched.setattr(card_module, "predictions_csv", lambda *arguments: die())
        assert killed(lambda: run(tmp_path, tiny("bert"), **options(method, tmp_path)))
    run(tmp_path, tiny("bert"), **options(method, tmp_path), training__resume=True)
    assert_same(outcome(tmp_path / "run"), expected)


def test_the_log_tells_both_rates(reference: Reference) -> None:
    lines = [line for line in log_of(reference("own rate")[0]) if "loss" in line]
    assert len(lines) == 9
    for line in lines:
        assert line["encoder_learning_rate"] == pytest.approx(0.1 * line["learning_rate"], rel=1e-12)
    assert max(line["learning_rate"] for line in lines) == 1e-3
    for method in ("frozen and kept", "pearson"):
        assert not [line for line in log_of(reference(method)[0]) if "encoder_learning_rate" in line]


def test_the_runs_are_not_all_the_same(reference: Reference) -> None:
    """Without which the other tests here would prove less."""
    weights = [reference(method)[1]["weights"] for method in METHODS]
    assert len(set(weights)) == len(weights)
