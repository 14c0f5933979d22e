"""Kills runs at given training steps, at given file operations, and at arbitrary times.

A process that is to be killed is forked from the test process, so it has no libraries to load. Its file operations are
observed through Python's audit events; each event is a moment at which the process can be killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attentune.training.run as run_module
from attentune.training.checkpoint import checkpoint_folders, verify_checkpoint
from attentune.training.signals import Interrupted
from helpers.interrupted import assert_same, outcome, run
from helpers.samples import write_reviews

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
    """Write the training and validation files of these runs."""
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
