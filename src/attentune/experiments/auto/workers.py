"""Worker processes of `attentune auto`, each with an executor of its own, so that a killed worker breaks no other."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import threading
import time
import types
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field

from attentune.experiments.auto.members import (
    SAVE_S,
    FoldTask,
    ProbeTask,
    TaskResult,
    WorkerSetup,
    run_task,
    start_worker,
)

# A task is given up after this many workers that were killed.
MAX_KILLS = 3


@dataclass
class _Slot:
    """One worker process and the task that it does."""

    executor: ProcessPoolExecutor | None = None
    task: FoldTask | ProbeTask | None = None
    future: Future | None = None


@dataclass
class WorkerPool:
    """Worker processes, each with an executor of its own.

    Args:
        setup: what each worker holds.
        size: the number of workers.
    """

    setup: WorkerSetup
    size: int
    _slots: list[_Slot] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._stop_event = self._context.Event()
        self._slots = [_Slot() for _ in range(self.size)]

    @property
    def running(self) -> list[FoldTask | ProbeTask]:
        """The tasks in progress."""
        return [slot.task for slot in self._slots if slot.task is not None]

    @property
    def free(self) -> int:
        """The number of workers without a task."""
        return sum(slot.task is None for slot in self._slots[: self.size])

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [pid for slot in self._slots if slot.executor is not None for pid in (slot.executor._processes or {})]

    def submit(self, task: FoldTask | ProbeTask) -> None:
        """Give a task to a free worker, which is started if necessary."""
        slot = next(slot for slot in self._slots[: self.size] if slot.task is None)
        if slot.executor is None:
            slot.executor = ProcessPoolExecutor(
                1, mp_context=self._context, initializer=start_worker, initargs=(self.setup, self._stop_event)
            )
        with _quiet_start():
            slot.future = slot.executor.submit(run_task, task)
        slot.task = task

    def wait(self, timeout_s: float) -> list[tuple[FoldTask | ProbeTask, TaskResult | None]]:
        """Wait until a task ends, for at most this time; return those that ended: None if its worker was killed."""
        futures = [slot.future for slot in self._slots if slot.future is not None]
        if not futures:
            return []
        wait(futures, timeout=timeout_s, return_when=FIRST_COMPLETED)
        ended: list[tuple[FoldTask | ProbeTask, TaskResult | None]] = []
        for slot in self._slots:
            if slot.future is None or slot.task is None or not slot.future.done():
                continue
            try:
                ended.append((slot.task, slot.future.result()))
            except BrokenProcessPool:
                ended.append((slot.task, None))
                if slot.executor is not None:
                    slot.executor.shutdown(wait=False)
                slot.executor = None
            slot.task, slot.future = None, None
        return ended

    def request_stop(self) -> None:
        """Have all workers save what they do and end it."""
        self._stop_event.set()

    def close(self, *, wait_s: float = SAVE_S) -> list[tuple[FoldTask | ProbeTask, TaskResult | None]]:
        """Stop the workers, killing those that do not end in time; return the tasks that ended meanwhile."""
        self.request_stop()
        ended = []
        until = time.monotonic() + wait_s
        while self.running and time.monotonic() < until:
            ended += self.wait(max(0.0, until - time.monotonic()))
        for slot in self._slots:
            if slot.executor is None:
                continue
            processes = list((slot.executor._processes or {}).values())
            slot.executor.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                if slot.task is not None:
                    process.kill()
            slot.executor, slot.task, slot.future = None, None, None
        return ended


@contextlib.contextmanager
def _quiet_start() -> Iterator[None]:
    """Start a process that neither imports the program's main module nor is ended by Ctrl-C while it starts.

    Spawned processes import the main module, which would run a script without `if __name__ == "__main__"` again.
    Workers need nothing of it.
    """
    is_main_thread = threading.current_thread() is threading.main_thread()
    main = sys.modules["__main__"]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if is_main_thread else None
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if is_main_thread:
            signal.signal(signal.SIGINT, before)
