"""A run with token labels that was killed and resumed ends as one that was not, labels and all."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from attentune.config import load_config
from attentune.token_labels.planner import EpochPlanner, TrainingScorer
from attentune.training.callbacks import ProgressDisplay
from attentune.training.checkpoint import checkpoint_folders
from attentune.training.run import train
from attentune.training.signals import Interrupted
from helpers.interrupted import LABELS_FILE, assert_same, die_after_step, log_of, outcome, run

Tiny = Callable[..., Path]
Reference = Callable[[str], tuple[Path, dict[str, object]]]
# 6 steps an epoch, so step 8 stands within the second epoch, 12 at its end, 16 within the third.
METHOD: dict[str, Any] = {
    "preset": "ssa-co",
    "training__num_train_epochs": 3,
    "training__learning_rate": 3e-4,
    "training__eval_strategy": "no",
    "training__save_steps": 4,
    "training__save_total_limit": 9,
}
GENERATORS: dict[str, dict[str, Any]] = {
    "flip": {"labels__ratio": 1.0, "labels__reuse_predictions": True},
    "flip, all predicted again": {"labels__ratio": 1.0},
    "released": {
        "labels__aug_ratio_each": 0.4,
        "labels__aug_threshold": 0.3,
        "labels__reuse_predictions": True,
        "training__seed": 2,
    },
    "gradient": {},
}


def method(generator: str) -> dict[str, Any]:
    return METHOD | {"labels__generator": generator.partition(",")[0]} | GENERATORS[generator]


@pytest.fixture(scope="module")
def reference(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """`reference("flip")`: the folder of a run that nobody disturbed, and its outcome."""
    made: dict[str, tuple[Path, dict[str, object]]] = {}

    def get(generator: str) -> tuple[Path, dict[str, object]]:
        if generator not in made:
            folder = tmp_path_factory.mktemp(generator)
            run(folder, tiny("bert"), **method(generator))
            made[generator] = folder / "run", outcome(folder / "run")
        return made[generator]

    return get


def in_force(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / LABELS_FILE)


@pytest.mark.integration
@pytest.mark.parametrize("generator", GENERATORS)
def test_labels_were_made_and_say_something(reference: Reference, generator: str) -> None:
    """Without which the other tests here would prove nothing."""
    folder, _ = reference(generator)
    facts = [line["labels"] for line in log_of(folder) if "labels" in line]
    assert len(facts) == 3
    for epoch in (1, 2):
        assert 0 < facts[epoch]["correct"] < facts[epoch]["probed"]
        assert facts[epoch]["ones"] > 5
        assert facts[epoch]["zeros"] > 5
        assert 0 < facts[epoch]["token_loss"] < 5
    assert [path.name for path in checkpoint_folders(folder)] == [f"checkpoint-{step}" for step in (4, 8, 12, 16, 18)]
    made = {step: in_force(folder / f"checkpoint-{step}") for step in (8, 12, 16, 18)}
    for first, second, same in ((8, 12, True), (12, 16, False), (16, 18, True)):
        assert np.array_equal(made[first]["values"], made[second]["values"]) == same
    for name, values in in_force(folder).items():
        assert np.array_equal(values, made[18][name])
    counts = [int((made[step]["values"] >= 0).sum()) for step in (8, 16)]
    assert counts == [facts[epoch]["ones"] + facts[epoch]["zeros"] for epoch in (1, 2)]


# Step 5: the first epoch, without labels made by asking. 10 and 17: within an epoch whose labels came with the
# checkpoint. 12: at an epoch's end, before its line in the log and its checkpoint. 13: after that checkpoint.
@pytest.mark.integration
@pytest.mark.parametrize(
    ("generator", "step"),
    [("flip", step) for step in (5, 10, 12, 13, 17)]
    + [("released", step) for step in (5, 10, 13)]
    + [("gradient", step) for step in (5, 10, 12, 13)],
)
def test_killed_after_a_step(
    tiny: Tiny, tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch, generator: str, step: int
) -> None:
    die_after_step(monkeypatch, step, lambda: run(tmp_path, tiny("bert"), **method(generator)))
    newest = checkpoint_folders(tmp_path / "run")[-1].name
    assert newest == f"checkpoint-{(step - 1) // 4 * 4}"
    run(tmp_path, tiny("bert"), **method(generator), training__resume=True)
    assert_same(outcome(tmp_path / "run"), reference(generator)[1])


@pytest.mark.integration
@pytest.mark.parametrize("generator", ["flip", "released", "gradient"])
def test_resumed_without_the_checkpoints_labels_a_run_ends_differently(
    tiny: Tiny, tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch, generator: str
) -> None:
    """So the checkpoint must carry them: the model has moved on since they were made."""
    shutil.copytree(reference(generator)[0], tmp_path / "run")
    (tmp_path / "run" / "run.json").unlink()
    for step in (12, 16, 18):
        shutil.rmtree(tmp_path / "run" / f"checkpoint-{step}")
    monkeypatch.setattr(EpochPlanner, "restore", lambda self, tensors: None)
    resume = {"training.output_dir": str(tmp_path / "run"), "training.resume": True}
    train(load_config(overrides=resume), display=ProgressDisplay(quiet=True))
    got, expected = outcome(tmp_path / "run"), reference(generator)[1]
    assert got["checkpoints"] == expected["checkpoints"]
    assert got["weights"] != expected["weights"]
    assert got["log"] != expected["log"]


@pytest.mark.integration
@pytest.mark.parametrize("generator", ["flip", "released"])
def test_ctrl_c_while_labels_are_made_ends_the_asking_and_loses_nothing(
    tiny: Tiny, tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch, generator: str
) -> None:
    ticks: list[int] = []

    def interrupted_tick(self: TrainingScorer, rows: int) -> None:
        ticks.append(rows)
        if len(ticks) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        tick(self, rows)

    tick = TrainingScorer.tick
    with monkeypatch.context() as patched:
        patched.setattr(TrainingScorer, "tick", interrupted_tick)
        with pytest.raises(Interrupted):
            run(tmp_path, tiny("bert"), **method(generator))
    assert len(ticks) == 1
    assert checkpoint_folders(tmp_path / "run")[-1].name == "checkpoint-6"  # the end of the first epoch
    run(tmp_path, tiny("bert"), **method(generator), training__resume=True)
    without = {name: value for name, value in reference(generator)[1].items() if name != "checkpoints"}
    assert_same(outcome(tmp_path / "run"), without)
