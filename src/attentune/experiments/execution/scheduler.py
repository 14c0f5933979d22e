"""Schedules the runs of a comparison or search: queues them, starts and stops workers, and shows progress."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from attentune.errors import CheckpointError, StorageError
from attentune.experiments.comparison.grid import Run, RunGrid
from attentune.experiments.comparison.progress import ComparisonProgress, seconds_left
from attentune.experiments.comparison.record_store import RecordStore, RunRecord, failed_record
from attentune.experiments.execution.queue import QueueStatus, RunQueue
from attentune.experiments.execution.worker import WorkerTask
from attentune.experiments.execution.worker_pool import WorkerExit, WorkerPool
from attentune.training.signals import StopRequest

# Seconds between checks for exited workers, and between updates of the queue.
_POLL_S, _REFRESH_S = 0.2, 2.0
# After this many killed workers their run is recorded as failed; if they had no run, the comparison ends.
_MAX_KILLS = 3


class ComparisonStopped(Exception):
    """A stop was requested; everything is saved, and the same call resumes.

    Attributes:
        done: runs that are recorded.
        total: runs of the comparison.
    """

    def __init__(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        super().__init__(f"stopped with {done} of {total} runs recorded.")


class WorkerKilled(Exception):
    """A run's worker was killed repeatedly; the record has this name as the kind of error."""


def default_jobs(configs: Iterable[dict[str, Any]]) -> tuple[int, bool]:
    """Return the default number of workers (one per core on a CPU, else one), and whether each has one thread."""
    import torch

    if torch.accelerator.is_available() and not all(config["training.use_cpu"] for config in configs):
        return 1, False
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return cores or 1, True


class Plan(Protocol):
    """The runs to schedule. A comparison knows all of them in advance; a search adds runs over time."""

    @property
    def grid(self) -> RunGrid:
        """The runs so far."""

    @property
    def later(self) -> Sequence[Run]:
        """Runs that may be added later; their methods may not be known yet."""

    @property
    def is_complete(self) -> bool:
        """Whether no more runs will be added."""

    def advance(self, free: int, running: Collection[Run]) -> None:
        """Process new records, and add runs for free workers.

        Args:
            free: number of workers that may be started.
            running: runs in progress, here or on other machines.
        """

    def task(self) -> WorkerTask:
        """Return the task of a worker that starts now."""


@dataclass(frozen=True)
class FixedPlan:
    """All runs of a grid, and no others."""

    grid: RunGrid
    worker: WorkerTask
    later: Sequence[Run] = ()
    is_complete: bool = True

    def advance(self, free: int, running: Collection[Run]) -> None:
        """Do nothing: all runs are known."""

    def task(self) -> WorkerTask:
        return self.worker


class Scheduler:
    """Schedules the runs of one command.

    Args:
        plan: the runs.
        queue: gives them to workers.
        display: shows progress.
    """

    def __init__(self, plan: Plan, queue: RunQueue, display: ComparisonProgress) -> None:
        self._plan, self._queue, self._display = plan, queue, display
        self._record_store: RecordStore = queue.record_store
        self._records: dict[Run, RunRecord] = {}
        self._since: dict[Run, float] = {}
        self._kills: dict[Run | None, int] = {}

    def run(self, worker_pool: WorkerPool, stop: StopRequest, *, retry_failed: bool = False) -> None:
        """Run until every run is recorded.

        Raises:
            ComparisonStopped: a stop was requested; the workers have saved and exited.
            StorageError: the disk or the database refused; finished runs are recorded.
        """
        self._plan.advance(worker_pool.free, ())
        queue_status = self._queue.refill(self._plan.grid.runs, retry_failed=retry_failed)
        self._records = {run: self._record_store.load(run) for run in queue_status.recorded}
        self._display.start(self._total())
        try:
            self._loop(worker_pool, stop)
            worker_pool.finish()
        except KeyboardInterrupt:
            worker_pool.kill()
            raise self._stopped() from None
        finally:
            worker_pool.stop()
            self._display.stop()

    def _loop(self, worker_pool: WorkerPool, stop: StopRequest) -> None:
        next_refresh_s, running = 0.0, []  # type: float, list[Run]
        while True:
            if stop.requested:
                self._display.info("stopping: running runs are saved first; Ctrl-C again ends at once")
                worker_pool.stop()
                raise self._stopped()
            exits = worker_pool.ended()
            for worker_exit in exits:
                self._handle_exit(worker_exit)
            if exits or time.monotonic() >= next_refresh_s:
                self._plan.advance(worker_pool.free, running)
                queue_status = self._queue.refill(self._plan.grid.runs)
                running = queue_status.running
                self._update_display(queue_status)
                if queue_status.is_finished and self._plan.is_complete:
                    return
                worker_pool.start(
                    len(queue_status.waiting) - self._starting(worker_pool, queue_status), self._plan.task()
                )
                next_refresh_s = time.monotonic() + _REFRESH_S
            time.sleep(_POLL_S)

    def _stopped(self) -> ComparisonStopped:
        done = sum(self._record_store.has(run) for run in self._plan.grid.runs)
        return ComparisonStopped(done, self._total())

    def _total(self) -> int:
        return len(self._plan.grid.runs) + len(self._plan.later)

    def _starting(self, worker_pool: WorkerPool, queue_status: QueueStatus) -> int:
        """Return the number of this command's workers that have not taken a run yet."""
        busy = {self._record_store.lock(run).holder() for run in queue_status.running}
        return sum(pid not in busy for pid in worker_pool.pids)

    def _update_display(self, queue_status: QueueStatus) -> None:
        now = time.monotonic()
        self._since = {run: self._since.get(run, now) for run in queue_status.running}
        running = {run: now - since for run, since in self._since.items()}
        new = [run for run in queue_status.recorded if run not in self._records]
        for number, run in enumerate(new, start=len(self._records) + len(queue_status.elsewhere) + 1):
            self._records[run] = self._record_store.load(run)
            left = self._seconds_left(queue_status, running)
            self._display.ended(self._records[run], number, self._total(), left)
        failed = sum(self._records[run].status == "failed" for run in queue_status.recorded)
        done = len(queue_status.recorded) + len(queue_status.elsewhere)
        left = self._seconds_left(queue_status, running)
        self._display.update(done, self._total(), failed=failed, running=queue_status.running, left=left)

    def _seconds_left(self, queue_status: QueueStatus, running: dict[Run, float]) -> float | None:
        done = [record for record in self._records.values() if record.is_done]
        return seconds_left(done, [*queue_status.waiting, *self._plan.later], running, len(running))

    def _handle_exit(self, worker_exit: WorkerExit) -> None:
        """Handle the exit of a worker. The next update of the queue adds its run again, unless it keeps failing."""
        if worker_exit.is_fatal:
            if worker_exit.status == 1:
                raise RuntimeError(f"a worker failed; its log {worker_exit.log} ends with:\n{worker_exit.last_lines()}")
            raise StorageError(worker_exit.last_lines(1))
        if not worker_exit.was_killed:
            return
        open_runs = (run for run in self._plan.grid.runs if not self._record_store.has(run))
        run = next((run for run in open_runs if self._record_store.lock(run).holder() == worker_exit.pid), None)
        self._kills[run] = self._kills.get(run, 0) + 1
        signal = -worker_exit.status
        if run is None:
            if self._kills[run] >= _MAX_KILLS:
                raise CheckpointError(
                    f"workers are killed by signal {signal} before they take a run; if memory ran out, give fewer"
                    f" --jobs. Their log: {worker_exit.log}."
                )
            return
        self._display.warning(f"{run.name}: its worker was killed by signal {signal}")
        if self._kills[run] >= _MAX_KILLS:
            self._record_killed(run, signal)

    def _record_killed(self, run: Run, signal: int) -> None:
        error = WorkerKilled(
            f"its worker was killed {_MAX_KILLS} times, the last time by signal {signal}; if memory ran out, give fewer"
            " --jobs or a smaller --per_device_train_batch_size, then --retry-failed"
        )
        lock = self._record_store.lock(run)
        if not lock.take(wait=False):
            return  # another command executes it
        folder = self._record_store.run_folder(run)
        record = failed_record(run, self._plan.grid.config(run, folder), error, folder, wall_seconds=0.0)
        self._record_store.write(record, folder)
        self._record_store.tidy(run)
        lock.free()
