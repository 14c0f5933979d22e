"""Kills runs, and collects everything that a run computed for comparison."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import attentune.training.run as run_module
from attentune.config import load_config
from attentune.training.callbacks import ProgressDisplay
from attentune.training.checkpoint import checkpoint_folders
from attentune.training.run import train
from helpers.samples import settings

# Fields that may differ between equal runs: times and memory.
TIMES = {"seconds", "tokens_per_second", "evaluation_seconds", "label_seconds", "peak_memory_bytes"}
LABELS_FILE = "labels.safetensors"


def run(folder: Path, encoder: Path, **changes: object) -> None:
    """Train a tiny model on the files in `folder`; see `samples.settings`."""
    train(load_config(overrides=settings(folder, encoder, **changes)), display=ProgressDisplay(quiet=True))


def without_times(value: Any) -> Any:
    """Return a value without the keys in `TIMES`, at any depth."""
    if not isinstance(value, dict):
        return value
    return {key: without_times(part) for key, part in value.items() if key not in TIMES}


def log_of(run_folder: Path) -> list[dict[str, Any]]:
    """Return the entries of a run's log."""
    return [json.loads(line) for line in (run_folder / "log.jsonl").read_text().splitlines()]


def outcome(run_folder: Path) -> dict[str, object]:
    """Return everything that a run computed: final weights, optimizer, labels, and log and result without times."""
    last = checkpoint_folders(run_folder)[-1]
    result = json.loads((run_folder / "run.json").read_text())
    return {
        "weights": (run_folder / "model.safetensors").read_bytes(),
        "last weights": (last / "model.safetensors").read_bytes(),
        "optimizer": (last / "optimizer.safetensors").read_bytes(),
        "labels": [path.read_bytes() for path in (run_folder / LABELS_FILE, last / LABELS_FILE) if path.exists()],
        "log": [without_times(line) for line in log_of(run_folder)],
        "best": result["best"],
        "scores": result["scores"],
        "train": without_times(result["train"]),
        "predictions": (run_folder / "predictions_validation.csv").read_text(),
        "checkpoints": [folder.name for folder in checkpoint_folders(run_folder)],
    }


def assert_same(got: dict[str, object], expected: dict[str, object]) -> None:
    for name, value in expected.items():
        assert got[name] == value, f"{name} differs"


def killed(action: Callable[[], None]) -> int:
    """Run an action in a child process; return the signal that killed the process, 0 if it exited normally."""
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert not (os.WIFEXITED(status) and os.WEXITSTATUS(status)), "the child failed instead of being killed"
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_after_step(monkeypatch: pytest.MonkeyPatch, step: int, action: Callable[[], None]) -> None:
    """Run an action in a child process that is killed after this step, before the step is logged, scored or saved."""
    training_step = run_module.training_step

    def step_then_die(task, plan, group):
        logs = training_step(task, plan, group)
        if task.state.step == step:
            die()
        return logs

    with monkeypatch.context() as patched:
        patched.setattr(run_module, "training_step", step_then_die)
        assert killed(action) == signal.SIGKILL
