"""Sees a comparison or a search through: queues its runs, keeps workers at them, shows how far it is, and stops them
all."""

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

# How often to see who has ended, and how often to see what is to do.
_GLANCE_S, _LOOK_S = 0.2, 2.0
# A run at which so many workers were killed is recorded as failed; as many that take no run end the comparison.
_DEATHS = 3


class ComparisonStopped(Exception):
    """A stop was asked for; everything is saved, and the same call goes on.

    Attributes:
        done: runs that are recorded.
        total: runs of the comparison.
    """

    def __init__(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        super().__init__(f"stopped with {done} of {total} runs recorded.")


class WorkerKilled(Exception):
    """A run during which its worker was killed again and again; in records, as the kind of their error."""


def default_jobs(configs: Iterable[dict[str, Any]]) -> tuple[int, bool]:
    """How many workers by default, and whether each computes with one thread: one a core on a CPU, else one."""
    import torch

    if torch.accelerator.is_available() and not all(config["training.use_cpu"] for config in configs):
        return 1, False
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return cores or 1, True


class Plan(Protocol):
    """Which runs there are. A comparison knows them from the beginning; a search finds out as it goes."""

    @property
    def grid(self) -> RunGrid:
        """The runs so far."""

    @property
    def later(self) -> Sequence[Run]:
        """Runs that are still to come; which methods they are of may not be known yet."""

    @property
    def is_complete(self) -> bool:
        """Whether no more runs will come."""

    def advance(self, free: int, running: Collection[Run]) -> None:
        """Take in what has been recorded, and add runs, so that so many more workers have something to do.

        Args:
            free: workers that may be started.
            running: runs that are being done, here or elsewhere.
        """

    def task(self) -> WorkerTask:
        """What a worker that starts now is told."""


@dataclass(frozen=True)
class FixedPlan:
    """All runs of a grid, and no others."""

    grid: RunGrid
    worker: WorkerTask
    later: Sequence[Run] = ()
    is_complete: bool = True

    def advance(self, free: int, running: Collection[Run]) -> None:
        """Nothing changes."""

    def task(self) -> WorkerTask:
        return self.worker


class Scheduler:
    """One command's part in a comparison or a search.

    Args:
        plan: its runs.
        queue: hands them out.
        display: shows progress.
    """

    def __init__(self, plan: Plan, queue: RunQueue, display: ComparisonProgress) -> None:
        self._plan, self._queue, self._display = plan, queue, display
        self._ledger: RecordStore = queue.record_store
        self._records: dict[Run, RunRecord] = {}
        self._since: dict[Run, float] = {}
        self._deaths: dict[Run | None, int] = {}

    def run(self, worker_pool: WorkerPool, stop: StopRequest, *, retry_failed: bool = False) -> None:
        """Go on until every run is recorded.

        Raises:
            ComparisonStopped: a stop was asked for; the workers have saved and ended.
            StorageError: the disk or the database refused; what is done is recorded.
        """
        self._plan.advance(worker_pool.free, ())
        queue_status = self._queue.refill(self._plan.grid.runs, retry_failed=retry_failed)
        self._records = {run: self._ledger.load(run) for run in queue_status.recorded}
        self._display.start(self._total())
        try:
            self._go_on(worker_pool, stop)
            worker_pool.finish()
        except KeyboardInterrupt:
            worker_pool.kill()
            raise self._stopped() from None
        finally:
            worker_pool.stop()
            self._display.stop()

    def _go_on(self, worker_pool: WorkerPool, stop: StopRequest) -> None:
        next_look_s, running = 0.0, []  # type: float, list[Run]
        while True:
            if stop.requested:
                self._display.info("stopping: the runs at work are saved first; Ctrl-C again ends at once")
                worker_pool.stop()
                raise self._stopped()
            endings = worker_pool.ended()
            for ending in endings:
                self._note(ending)
            if endings or time.monotonic() >= next_look_s:
                self._plan.advance(worker_pool.free, running)
                queue_status = self._queue.refill(self._plan.grid.runs)
                running = queue_status.running
                self._show(queue_status)
                if queue_status.is_finished and self._plan.is_complete:
                    return
                worker_pool.start(
                    len(queue_status.waiting) - self._starting(worker_pool, queue_status), self._plan.task()
                )
                next_look_s = time.monotonic() + _LOOK_S
            time.sleep(_GLANCE_S)

    def _stopped(self) -> ComparisonStopped:
        done = sum(self._ledger.has(run) for run in self._plan.grid.runs)
        return ComparisonStopped(done, self._total())

    def _total(self) -> int:
        return len(self._plan.grid.runs) + len(self._plan.later)

    def _starting(self, worker_pool: WorkerPool, queue_status: QueueStatus) -> int:
        """Workers of ours that have not taken a run yet."""
        busy = {self._ledger.lock(run).holder() for run in queue_status.running}
        return sum(pid not in busy for pid in worker_pool.pids)

    def _show(self, queue_status: QueueStatus) -> None:
        now = time.monotonic()
        self._since = {run: self._since.get(run, now) for run in queue_status.running}
        running = {run: now - since for run, since in self._since.items()}
        new = [run for run in queue_status.recorded if run not in self._records]
        for number, run in enumerate(new, start=len(self._records) + len(queue_status.elsewhere) + 1):
            self._records[run] = self._ledger.load(run)
            left = self._seconds_left(queue_status, running)
            self._display.ended(self._records[run], number, self._total(), left)
        failed = sum(self._records[run].status == "failed" for run in queue_status.recorded)
        done = len(queue_status.recorded) + len(queue_status.elsewhere)
        left = self._seconds_left(queue_status, running)
        self._display.update(done, self._total(), failed=failed, running=queue_status.running, left=left)

    def _seconds_left(self, queue_status: QueueStatus, running: dict[Run, float]) -> float | None:
        done = [record for record in self._records.values() if record.is_done]
        return seconds_left(done, [*queue_status.waiting, *self._plan.later], running, len(running))

    def _note(self, ending: WorkerExit) -> None:
        """Take in how a worker ended; its run is queued again by the next look, unless that has no sense."""
        if ending.is_mistake:
            if ending.status == 1:
                raise RuntimeError(f"a worker failed; its log {ending.log} ends with:\n{ending.last_lines()}")
            raise StorageError(ending.last_lines(1))
        if not ending.was_killed:
            return
        open_runs = (run for run in self._plan.grid.runs if not self._ledger.has(run))
        run = next((run for run in open_runs if self._ledger.lock(run).holder() == ending.pid), None)
        self._deaths[run] = self._deaths.get(run, 0) + 1
        signal = -ending.status
        if run is None:
            if self._deaths[run] >= _DEATHS:
                raise CheckpointError(
                    f"workers are killed by signal {signal} before they take a run; if memory ran out, give fewer"
                    f" --jobs. Their log: {ending.log}."
                )
            return
        self._display.warning(f"{run.name}: its worker was killed by signal {signal}")
        if self._deaths[run] >= _DEATHS:
            self._give_up(run, signal)

    def _give_up(self, run: Run, signal: int) -> None:
        error = WorkerKilled(
            f"its worker was killed {_DEATHS} times, the last time by signal {signal}; if memory ran out, give fewer"
            " --jobs or a smaller --per_device_train_batch_size, then --retry-failed"
        )
        lock = self._ledger.lock(run)
        if not lock.take(wait=False):
            return  # another command is at it
        folder = self._ledger.run_folder(run)
        record = failed_record(run, self._plan.grid.config(run, folder), error, folder, wall_seconds=0.0)
        self._ledger.write(record, folder)
        self._ledger.tidy(run)
        lock.free()
