"""Tasks for executors."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

HELD: list[Any] = []


def echo(value: Any, *, stop: Any) -> Any:
    return value


def hold(value: Any) -> None:
    """An initializer."""
    HELD.append(value)


def facts(*, stop: Any) -> dict[str, Any]:
    """Return what the process of a task is like."""
    import torch

    return {
        "pid": os.getpid(),
        "threads": torch.get_num_threads(),
        "device": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "held": list(HELD),
        "stopped": stop.requested,
    }


def blocked_signals(*, stop: Any) -> set[int]:
    """Return the signals that the process of a task blocks."""
    return set(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ())))


def fail(*, stop: Any) -> None:
    print("about to fail", flush=True)
    raise ValueError("this task fails")


def die(*, stop: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_first(file: str, *, stop: Any) -> str:
    """Be killed, except for the last of three times."""
    path = Path(file)
    path.write_text(path.read_text() + "x" if path.exists() else "x")
    if len(path.read_text()) < 3:
        die(stop=stop)
    return "done"


def until_stopped(file: str, *, stop: Any) -> str:
    """Write the process id, and wait for a stop request."""
    Path(file).write_text(str(os.getpid()))
    while not stop.requested:
        time.sleep(0.01)
    Path(file).write_text("saved")
    return "saved"


def note_and_sleep(file: str, seconds: float, *, stop: Any) -> None:
    """Write the process id, and look at no stop request for some time."""
    Path(file).write_text(str(os.getpid()))
    time.sleep(seconds)


def add_line(folder: str, name: str, seconds: float, *, stop: Any) -> str:
    """Sleep, and leave a file."""
    time.sleep(seconds)
    with (Path(folder) / name).open("a") as file:
        file.write("done\n")
    return name
