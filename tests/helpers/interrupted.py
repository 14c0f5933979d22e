"""Runs that are killed at a step, a file operation or any time, what a run computed, and disks that are full.

A process that is to be killed is forked from the test process, so it has no libraries to load. Its file operations are
observed through Python's audit events; each event is a moment at which the process can be killed.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Any

import pytest

import attentune.training.run as run_module
from attentune.config import load_config
from attentune.results import RunResult
from attentune.training.callbacks import ProgressDisplay
from attentune.training.checkpoint import checkpoint_folders, verify_checkpoint
from attentune.training.run import train
from attentune.training.run_folder import Interrupted
from helpers.samples import settings, write_reviews

# Fields that may differ between equal runs: times and memory.
TIMES = {"seconds", "tokens_per_second", "evaluation_seconds", "label_seconds", "peak_memory_bytes"}
LABELS_FILE = "labels.safetensors"


def run(folder: Path, encoder: Path, **changes: object) -> RunResult:
    """Train a tiny model on the files in `folder`; see `samples.settings`."""
    return train(load_config(overrides=settings(folder, encoder, **changes)), display=ProgressDisplay(quiet=True))


def without_times(value: Any, names: Set[str] = TIMES) -> Any:
    """Return a value without the keys of times (or others), at any depth."""
    if isinstance(value, list):
        return [without_times(part, names) for part in value]
    if not isinstance(value, dict):
        return value
    return {key: without_times(part, names) for key, part in value.items() if key not in names}


def log_of(run_folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_folder / "log.jsonl").read_text().splitlines()]


def losses_of(run_folder: Path) -> list[float]:
    return [line["loss"] for line in log_of(run_folder) if "loss" in line]


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


def killed(action: Callable[[], object]) -> int:
    """Run an action in a child process; return the signal that killed the process, 0 if it exited normally."""
    status = ending(forked(action))
    assert status <= 0, "the child failed instead of being killed"
    return -status


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_after_step(step: int, action: Callable[[], object]) -> None:
    """Run an action in a child process that is killed after this step, before the step is logged, scored or saved."""
    assert ending(forked(action, at_steps({step: [signal.SIGKILL]}))) == -signal.SIGKILL


# Runs with everything that has to survive, and the moments at which they are killed

# Two batches per step and three steps per epoch. Training stops early, at step 12, and restores the weights of step 6.
# Dropout is the encoder's default. All epochs but the first have token labels, which the model generates.
METHOD: dict[str, Any] = {
    "preset": "ssa-hybrid",
    "training__precision": "fp32",
    "training__per_device_train_batch_size": 4,
    "training__gradient_accumulation_steps": 2,
    "training__num_train_epochs": 6,
    "training__early_stopping_patience": 2,
    "training__save_steps": 2,
    "training__save_total_limit": 2,
    "training__learning_rate": 1e-2,
    "training__seed": 32,
}
STEPS = 12
POLITE = (signal.SIGTERM, signal.SIGINT)
# Exit statuses of a forked run.
FINISHED, STOPPED, ENDED_AT_ONCE, FAILED = 0, 130, 131, 1
_FILE_EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "shutil.rmtree"}
_WAIT_S = 600

Moment = Callable[[int], None]


def make_rows(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_reviews(folder / "train.csv", 24, seed=1)
    write_reviews(folder / "validation.csv", 12, seed=2)


def train_in(folder: Path, encoder: Path, *, resume: bool = False, **changes: Any) -> None:
    """Train with the settings of `METHOD` in `folder/run`."""
    if not (folder / "train.csv").exists():
        make_rows(folder)
    run(folder, encoder, **{**METHOD, **changes}, training__resume=resume)


def forked(action: Callable[[], object], prepare: Callable[[], object] | None = None) -> int:
    """Fork a process that calls `prepare` and `action`, and exits with one of the statuses above; return its id."""
    child = os.fork()
    if child:
        return child
    status = FAILED
    try:
        for number in POLITE:  # the tests may have been started with other handlers
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        if prepare is not None:
            prepare()
        action()
        status = FINISHED
    except Interrupted:
        status = STOPPED
    except KeyboardInterrupt:
        status = ENDED_AT_ONCE
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def ending(child: int) -> int:
    """Wait for a forked process; return its exit status, or minus the signal that killed it."""
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError(f"a forked run was not done after {_WAIT_S} s")


def at_steps(signals: dict[int, Sequence[int]]) -> Callable[[], None]:
    """Return a function that makes a process send itself these signals after these steps, before they are logged."""

    def prepare() -> None:
        training_step = run_module.training_step

        def step_then_signal(task: Any, plan: Any, group: Any) -> Any:
            logs = training_step(task, plan, group)
            for number in signals.get(task.state.step, ()):
                os.kill(os.getpid(), number)
            return logs

        run_module.training_step = step_then_signal

    return prepare


def at_file_events(folder: Path, act: Moment) -> Callable[[], None]:
    """Return a function that makes a process call `act` before each file operation in `folder`, with its number."""
    place, count = str(folder), [0]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        is_named = event in _FILE_EVENTS and str(arguments[0]).startswith(place)
        if is_named or (event == "os.remove" and arguments[1] != -1):  # rmtree names files relative to a descriptor
            count[0] += 1
            act(count[0])

    return lambda: sys.addaudithook(hook)


def signals_at(moments: dict[int, int]) -> Moment:
    """Return a function that sends this process a signal at each of these moments."""

    def act(moment: int) -> None:
        if moment in moments:
            os.kill(os.getpid(), moments[moment])

    return act


def file_events(action: Callable[[], object], folder: Path, tally: Path) -> int:
    """Return the number of file operations of an uninterrupted run."""
    status = ending(forked(action, at_file_events(folder, lambda moment: tally.write_text(str(moment)) and None)))
    assert status == FINISHED
    return int(tally.read_text())


def check_whole(run_folder: Path) -> None:
    """Check that all checkpoints of a run are complete, and that existing result files are valid JSON."""
    if not run_folder.exists():
        return
    for folder in checkpoint_folders(run_folder):
        assert verify_checkpoint(folder) is None, folder
    for name in ("metrics.json", "run.json"):
        if (run_folder / name).exists():
            json.loads((run_folder / name).read_text())


def check_resumes(folder: Path, encoder: Path, expected: dict[str, object], *, polite: bool, **changes: Any) -> None:
    """Check that the run in `folder` resumes to the expected outcome.

    With `polite` the checkpoints may differ, because a requested stop saves an additional one.
    """
    check_whole(folder / "run")
    train_in(folder, encoder, resume=(folder / "run" / "config.yaml").exists(), **changes)
    got = outcome(folder / "run")
    assert_same({**got, "checkpoints": expected["checkpoints"]} if polite else got, expected)
    assert not [path.name for path in (folder / "run").iterdir() if path.name.startswith(".writing")]


# Disks


class Disk:
    """A tmpfs file system mounted at a folder; `size` is in KiB."""

    def __init__(self, folder: Path, size: int) -> None:
        if shutil.which("mount") is None or os.geteuid() != 0:
            pytest.skip("mounting a file system needs root and the command mount")
        self.folder = folder
        folder.mkdir()
        refusal = self._mount(f"size={size}k", "-t", "tmpfs", "none")
        if refusal:
            pytest.skip(f"mounting a file system is not permitted here: {refusal}")

    def _mount(self, options: str, *words: str) -> str:
        command = ["mount", "-o", options, *words, str(self.folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        return (done.stderr.strip() or "no reason given") if done.returncode else ""

    def resize(self, size: int) -> None:
        assert not self._mount(f"remount,rw,size={size}k"), f"{size} KiB are too few for what is there"

    def lock(self) -> None:
        assert not self._mount("remount,ro")

    def fill(self) -> None:
        with (self.folder / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    def remove(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=False)
