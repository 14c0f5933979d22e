"""Runs that end before their end. Stopping politely: the first Ctrl-C or SIGTERM asks the loop to save and end, the
second ends at once."""

from __future__ import annotations

import contextlib
import shlex
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """Training was asked to stop and has saved. `folder` is the run folder to resume from."""

    def __init__(self, folder: str, step: int) -> None:
        self.folder, self.step = folder, step
        super().__init__(f"stopped and saved at step {step}; go on with: {command_to_resume(folder)}")


def command_to_resume(folder: str | Path) -> str:
    """The command that goes on with the run in a folder, for a shell."""
    return shlex.join(["attentune", "train", "--resume", "--output_dir", str(folder)])


class Pruned(Exception):
    """A run of a search was given up: it did worse than others had done by then. The text says where it stood."""


class StopRequest:
    """Whether a stop was asked for.

    Attributes:
        requested: set by the first signal; whoever has another reason to stop may set it too.
    """

    def __init__(self) -> None:
        self.requested = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


@contextlib.contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Catch SIGINT and SIGTERM while the block runs (in the main thread only; elsewhere nothing is caught).

    Within another such block it is that one's request: a stop asked for before this block stops it too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield StopRequest()
        return
    outer = signal.getsignal(signal.SIGTERM)
    if isinstance(outer, StopRequest):
        yield outer
        return
    request = StopRequest()
    before = {number: signal.signal(number, request) for number in _SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
