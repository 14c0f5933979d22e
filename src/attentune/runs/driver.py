"""The driver of a command's runs: submits them to an executor, writes their records, and shows progress.

It is one process for each folder, may be killed at any time, and goes on where it was: a run with a record is done, a
run with a record in its own folder (`RecordStore.draft`) is taken over, one with a checkpoint is resumed.
"""

from __future__ import annotations

import abc
import contextlib
import math
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path

from attentune.errors import AttentuneError, CheckpointError
from attentune.execution.executor import MAX_KILLS, Executor, ExecutorOptions, WorkerKilled
from attentune.io.files import FileLock
from attentune.runs.grid import Run, RunGrid
from attentune.runs.manifest import LOCKS, MANIFEST_FILE
from attentune.runs.progress import ComparisonProgress, Group, RunTimes, group_of
from attentune.runs.records import RecordStore, RunRecord, failed_record
from attentune.runs.worker import RunTask, execute_run
from attentune.training.run_folder import StopRequest

# Seconds between looks at stop requests, and at runs that another process still saves.
_POLL_S, _REFRESH_S = 0.2, 2.0


class ComparisonStopped(Exception):
    """A stop was requested; everything is saved, and the same call resumes."""

    def __init__(self, done: int, total: int, *, at_once: bool = False) -> None:
        self.done, self.total = done, total
        self.at_once = at_once  # by a second request, which does not wait until running runs are saved
        super().__init__(f"stopped with {done} of {total} runs recorded.")


class Plan(abc.ABC):
    """The runs of a command. A comparison knows all of them in advance; a search adds runs over time."""

    @property
    @abc.abstractmethod
    def later(self) -> Sequence[Run]:
        """Runs that may be added later; their methods may not be known yet."""

    @property
    @abc.abstractmethod
    def is_complete(self) -> bool:
        """Whether no more runs will be added."""

    @abc.abstractmethod
    def advance(self, free: int, running: Collection[Run]) -> Sequence[Run]:
        """Process new records; return the runs that were added since the last call."""

    @abc.abstractmethod
    def task(self, run: Run) -> RunTask:
        """Return what a worker needs to execute a run."""

    @property
    def is_over(self) -> bool:
        """Whether the time is up: running runs save, and no others start."""
        return False

    @property
    def save_s(self) -> float:
        """The seconds that running runs have to save before they are killed, when the time is up or at a stop."""
        return math.inf

    @property
    def expected_bytes(self) -> int:
        """The memory that a run is expected to need while none is done."""
        return 1_000_000_000


@dataclass
class FixedPlan(Plan):
    """All runs of a grid, and no others."""

    folder: Path
    grid: RunGrid
    later: Sequence[Run] = ()
    is_complete: bool = False

    def advance(self, free: int, running: Collection[Run]) -> Sequence[Run]:
        runs, self.is_complete = () if self.is_complete else self.grid.runs, True
        return runs

    def task(self, run: Run) -> RunTask:
        folder = str(self.folder.absolute())
        return RunTask(folder, MANIFEST_FILE, run, self.grid.configs[run.method][run.task])


@contextlib.contextmanager
def only_driver(folder: Path) -> Iterator[None]:
    """Be the only command that works in a folder while the block runs."""
    file = Path(LOCKS) / "driver"
    lock = FileLock(folder / file)
    if not lock.take(wait=False):
        raise CheckpointError(
            f"{folder}: another command is working in this folder ({file} is locked). Wait for it, or stop it with"
            " Ctrl-C and go on with this one; what is finished is kept."
        )
    try:
        yield
    finally:
        lock.free()


@dataclass
class Driver:
    """Executes the runs of one command."""

    plan: Plan
    record_store: RecordStore
    executor: Executor
    display: ComparisonProgress
    keep_runs: bool = False
    options: ExecutorOptions = ExecutorOptions()
    keep_best: bool = False
    _done: int = 0
    _failed: int = 0
    _waiting: dict[Group, deque[Run]] = field(default_factory=dict)
    _begun: set[Group] = field(default_factory=set)
    _running: dict[Future[RunRecord | None], Run] = field(default_factory=dict)
    # Runs that a worker of a killed command still saves.
    _elsewhere: set[Run] = field(default_factory=set)
    _since: dict[Run, float] = field(default_factory=dict)
    _kills: Counter[Run] = field(default_factory=Counter)
    _times: RunTimes = field(default_factory=RunTimes)
    _peak_bytes: int = 0

    def run(self, stop: StopRequest) -> None:
        """Run until every run is recorded."""
        self._peak_bytes = self.plan.expected_bytes
        self._add(self.plan.advance(self.executor.size, ()))
        self.display.start(self._total())
        try:
            self._loop(stop)
        except KeyboardInterrupt:
            self.executor.shutdown(wait_s=0.0)
            raise self._stopped(at_once=True) from None
        finally:
            self.executor.shutdown()
            self.display.stop()

    def _loop(self, stop: StopRequest) -> None:
        next_refresh_s = 0.0
        while True:
            if stop.requested:
                self.display.info("stopping: running runs are saved first; Ctrl-C again ends at once")
                self._save_running()
                raise self._stopped()
            if self.plan.is_over:
                self._save_running()
                return
            ended = self._wait() if self._running else []
            for future in ended:
                self._ended(self._running.pop(future), future)
            if ended or not self._running or time.monotonic() >= next_refresh_s:
                self._look_elsewhere()
                free = self.executor.size - len(self._running)
                self._add(self.plan.advance(free, {*self._running.values(), *self._elsewhere}))
                next_refresh_s = time.monotonic() + _REFRESH_S
            self._submit()
            self._show()
            if not self._running and not self._elsewhere and not self._count_waiting() and self.plan.is_complete:
                return
            if not self._running:
                time.sleep(_POLL_S)

    def _wait(self) -> Collection[Future[RunRecord | None]]:
        return wait(self._running, timeout=_POLL_S, return_when=FIRST_COMPLETED).done

    # Runs that wait.

    def _add(self, runs: Sequence[Run]) -> None:
        """Take up runs: as recorded, as executed elsewhere, or as waiting."""
        for run in runs:
            if self.record_store.has(run):
                self._tidy(run)
                self._note(self.record_store.load(run))
            elif self.record_store.lock(run).is_held():
                self._elsewhere.add(run)
            else:
                self._take_over(run)

    def _tidy(self, run: Run) -> None:
        """Remove the folder of a recorded run; a command that is killed right after it wrote a record leaves it."""
        lock = self.record_store.lock(run)
        if self.record_store.run_folder(run).exists() and lock.take(wait=False):
            try:
                self.record_store.tidy(run, keep=self.keep_runs, keep_best=self.keep_best)
            finally:
                lock.free()

    def _look_elsewhere(self) -> None:
        """Take over runs that no other process executes any more."""
        for run in [run for run in self._elsewhere if not self.record_store.lock(run).is_held()]:
            self._elsewhere.remove(run)
            self._take_over(run)

    def _take_over(self, run: Run) -> None:
        """Record a run whose worker outlived its command, or let it wait."""
        draft = self.record_store.draft(run)
        if draft is None:
            self._waiting.setdefault(group_of(run), deque()).append(run)
        else:
            self._record(draft)

    def _count_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def _next(self) -> Run | None:
        """Return the next run: one of each task, size and method first, and then those that take longest."""
        groups = [group for group, runs in self._waiting.items() if runs]
        if not groups:
            return None
        new = [group for group in groups if group not in self._begun]
        group = new[0] if new else max(groups, key=lambda group: self._times.expected(group) or 0.0)
        self._begun.add(group)
        return self._waiting[group].popleft()

    def _submit(self) -> None:
        """Submit as many runs as the executor has room for."""
        room = self.executor.room(self._peak_bytes) if self._count_waiting() else 0
        runs = [run for _ in range(room) if (run := self._next()) is not None]
        if not runs:
            return
        processes, threads = self.options.processes_per_run, self.options.threads_per_process
        tasks = [replace(self.plan.task(run), processes=processes, threads=threads) for run in runs]
        futures = self.executor.submit(execute_run, [(task,) for task in tasks])
        self._running |= dict(zip(futures, runs, strict=True))
        self._since |= dict.fromkeys(runs, time.monotonic())

    # Runs that ended.

    def _ended(self, run: Run, future: Future[RunRecord | None]) -> None:
        """Record a run, or let it wait again if it can be repeated."""
        del self._since[run]
        try:
            record = future.result()
        except WorkerKilled as error:
            self._worker_was_killed(run, error)
            return
        except CancelledError:
            record = None
        except AttentuneError:
            raise
        except Exception as error:
            raise RuntimeError(f"{run.name}: its worker failed; logs are in {self.record_store.folder}/logs") from error
        if record is not None:
            self._record(record)
        elif self.record_store.lock(run).is_held():
            self._elsewhere.add(run)
        else:
            self._take_over(run)

    def _worker_was_killed(self, run: Run, error: WorkerKilled) -> None:
        self._kills[run] += 1
        self.display.warning(f"{self.display.long(run)}: its worker was {error}")
        if self._kills[run] < MAX_KILLS:
            self._take_over(run)
            return
        reason = WorkerKilled(
            f"its worker was {error}, {MAX_KILLS} times in all; if memory ran out, give fewer --jobs or a smaller"
            " --per_device_train_batch_size, then --retry_failed"
        )
        folder = self.record_store.run_folder(run)
        self._record(failed_record(run, self.plan.task(run).config(), reason, folder, wall_seconds=0.0))

    def _record(self, record: RunRecord) -> None:
        """Write the record of a run and remove its folder."""
        lock = self.record_store.lock(record.run)
        if not lock.take(wait=False):
            self._elsewhere.add(record.run)
            return
        try:
            self.record_store.write(record, self.record_store.run_folder(record.run))
            self.record_store.tidy(record.run, keep=self.keep_runs, keep_best=self.keep_best)
        finally:
            lock.free()
        self._note(record)
        self.display.ended(record, self._done, self._total(), self._seconds_left())

    def _note(self, record: RunRecord) -> None:
        """Learn from a record."""
        self._done += 1
        self._failed += record.status == "failed"
        self._times.add(record)
        self._begun.add(group_of(record.run))
        self._peak_bytes = max(self._peak_bytes, int(record.train.get("peak_memory_bytes") or 0))

    # Progress and the end.

    def _total(self) -> int:
        working = len(self._running) + len(self._elsewhere)
        return self._done + working + self._count_waiting() + len(self.plan.later)

    def _show(self) -> None:
        running = [*self._running.values(), *self._elsewhere]
        left = self._seconds_left()
        self.display.update(self._done, self._total(), failed=self._failed, running=running, left=left)

    def _seconds_left(self) -> float | None:
        now = time.monotonic()
        waiting = Counter({group: len(runs) for group, runs in self._waiting.items()})
        waiting.update(map(group_of, self.plan.later))
        running = {run: now - since for run, since in self._since.items()}
        return self._times.left(waiting, running, self.executor.size)

    def _save_running(self) -> None:
        """Have all workers save, and end those that take too long."""
        self.executor.request_stop()
        until = time.monotonic() + self.plan.save_s
        while self._running and time.monotonic() < until:
            for future in self._wait():
                with contextlib.suppress(RuntimeError):
                    self._ended(self._running.pop(future), future)
        if self._running:
            self.executor.shutdown(wait_s=0.0)

    def _stopped(self, *, at_once: bool = False) -> ComparisonStopped:
        return ComparisonStopped(self._done, self._total(), at_once=at_once)
