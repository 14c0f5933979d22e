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
    """A stop was requested and training has saved. `folder` is the run folder to resume from."""

    def __init__(self, folder: str, step: int) -> None:
        self.folder, self.step = folder, step
        super().__init__(f"stopped and saved at step {step}; resume with: {command_to_resume(folder)}")


def command_to_resume(folder: str | Path) -> str:
    """Return the shell command that resumes the run in a folder."""
    return shlex.join(["attentune", "train", "--resume", "--output_dir", str(folder)])


class Pruned(Exception):
    """A run of a search was pruned: its scores were worse than those of others. The text has its score."""


class StopRequest:
    """A signal handler that records a stop request."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


class Stopped(KeyboardInterrupt):
    """The first stop request, where `raise_on_signal` has it end a block at once."""


@contextlib.contextmanager
def raise_on_signal(request: StopRequest) -> Iterator[None]:
    """Raise `Stopped` in the block at the first signal, for work that can be given up (main thread only)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        request(number, frame)
        raise Stopped

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Catch SIGINT and SIGTERM while the block runs, in the main thread only.

    A nested block shares the outer one's request, so that an earlier stop request applies to it too.
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
