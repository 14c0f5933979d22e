"""Worker processes of `attentune auto`, which hold the rows and execute tasks of members."""

from __future__ import annotations

import contextlib
import os
import signal
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path

from attentune.automl.members import FoldTask, ProbeTask, TaskResult, WorkerSetup, hold, run_task
from attentune.execution.executor import Slots, WorkerKilled
from attentune.execution.local import SAVE_S, LocalExecutor

Task = FoldTask | ProbeTask


class WorkerPool:
    """Worker processes that stay from task to task."""

    def __init__(self, setup: WorkerSetup, slots: Slots, logs: Path) -> None:
        self.size = slots.count
        self._executor = LocalExecutor(slots, logs, reuse=True, initializer=hold, initargs=(setup,))
        self._tasks: dict[Future[TaskResult], Task] = {}

    @property
    def running(self) -> list[Task]:
        """The tasks in progress."""
        return list(self._tasks.values())

    @property
    def free(self) -> int:
        """The number of workers without a task."""
        return max(0, self.size - len(self._tasks))

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return self._executor.pids

    def submit(self, task: Task) -> None:
        """Give a task to a free worker, which is started if necessary."""
        (future,) = self._executor.submit(run_task, [(task,)])
        self._tasks[future] = task

    def wait(self, timeout_s: float) -> list[tuple[Task, TaskResult | None]]:
        """Wait until a task ends, for at most this time; return those that ended: None if its worker was killed."""
        ended: list[tuple[Task, TaskResult | None]] = []
        for future in wait(self._tasks, timeout=timeout_s, return_when=FIRST_COMPLETED).done if self._tasks else ():
            task = self._tasks.pop(future)
            if future.cancelled():
                ended.append((task, TaskResult("stopped")))
                continue
            try:
                ended.append((task, future.result()))
            except WorkerKilled:
                ended.append((task, None))
        return ended

    def request_stop(self) -> None:
        """Have the tasks save and stop, without waiting for them."""
        self._executor.request_stop()

    def close(self, *, wait_s: float = SAVE_S) -> list[tuple[Task, TaskResult | None]]:
        """Stop the workers, killing those that do not end in time; return the tasks that ended meanwhile."""
        self._executor.request_stop()
        wait(self._tasks, timeout=wait_s)
        for pid in self.pids:
            with contextlib.suppress(OSError):  # one that ends by itself takes seconds on a busy machine
                os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
        self._executor.shutdown(wait_s=wait_s)
        ended = self.wait(0.0)
        self._tasks.clear()
        return ended
