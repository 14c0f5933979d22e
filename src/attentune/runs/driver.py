"""The driver of a command's runs: submits them to an executor, writes their records, and shows progress.

It is one process for each folder, may be killed at any time, and goes on where it was: a run with a record is done, a
run with a record in its own folder (`RecordStore.draft`) is taken over, one with a checkpoint is resumed.
"""

import abc
import contextlib
import math
import os
import platform
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attentune.config import Config
from attentune.errors import AttentuneError, CheckpointError, StorageError
from attentune.execution.executor import MAX_KILLS, Executor, WorkerKilled
from attentune.io.files import FileLock
from attentune.results import RunResult
from attentune.runs.grid import LOCKS, MANIFEST_FILE, Run, RunGrid, run_config
from attentune.runs.progress import ComparisonProgress
from attentune.runs.records import RecordStore, RunRecord, failed_record, record_of
from attentune.training.run_folder import Interrupted, Pruned, StopRequest

# Trains a run with its settings.
Trainer = Callable[[Run, Config], RunResult]


@dataclass(frozen=True)
class RunTask:
    folder: str  # the comparison's folder
    manifest: str  # the name of its manifest, which a worker on another machine must see too
    run: Run
    settings: dict[str, Any]  # all settings of its method and task, by dotted name
    trainer: Trainer | None = None  # trains the run; None trains as `attentune train` does

    def config(self, *, resume: bool = False) -> Config:
        folder = RecordStore(Path(self.folder)).run_folder(self.run)
        return run_config(self.run, self.settings, folder, resume=resume)


def execute_run(task: RunTask, *, stop: StopRequest) -> RunRecord | None:
    """Execute a run in its folder, from its last checkpoint if it has been begun, and leave its record there."""
    record_store = RecordStore(Path(task.folder))
    if not (record_store.folder / task.manifest).is_file():
        raise CheckpointError(
            f"{record_store.folder}: has no {task.manifest} as seen from {platform.node()}, where a run was to be"
            " executed. Name an --output_dir on a disk that all machines share, by its whole path."
        )
    with record_store.holding(task.run) as is_mine:
        if not is_mine:
            return None
        if record_store.has(task.run):  # by a command that went on after the one that submitted this
            return record_store.load(task.run)
        if (known := record_store.draft(task.run)) is not None:
            return known
        record = None if stop.requested else _record(task, record_store, stop)
        if record is not None:
            record_store.write_draft(record)
        return record


def _record(task: RunTask, record_store: RecordStore, stop: StopRequest) -> RunRecord | None:
    """Train, and return the record; None if the run was interrupted."""
    from attentune.training.run import train  # noqa: F401  (so that the run's time excludes the import)

    run, folder, config = task.run, record_store.run_folder(task.run), task.config()
    # One write, not a line and then its end: workers may share a log.
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} process {os.getpid()}: {run.name}\n")
    began = time.perf_counter()
    try:
        result = _train(task, folder)
        metric = config.training.metric_for_best_model
        return record_of(run, metric, result, folder, wall_seconds=time.perf_counter() - began)
    except (Interrupted, KeyboardInterrupt):
        return None
    except StorageError:
        raise  # the next run would fail too
    except Exception as error:
        status = "pruned" if isinstance(error, Pruned) else "failed"
        print(f"{error}", file=sys.stderr) if status == "pruned" else traceback.print_exc()
        seconds = time.perf_counter() - began
        return failed_record(run, config, error, folder, wall_seconds=seconds, status=status)


def _train(task: RunTask, folder: Path) -> RunResult:
    from attentune.nn.compiled.memory import forget_peak_memory

    forget_peak_memory()
    trainer = task.trainer or _train_alone
    resume = (folder / "config.yaml").is_file()
    if resume:
        try:
            return trainer(task.run, task.config(resume=True))
        except CheckpointError as error:
            print(f"{error}\nStarting again.", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    return trainer(task.run, task.config())


def _train_alone(run: Run, config: Config) -> RunResult:
    """Train as `attentune train` does, but fit baselines on the run's rows only if the settings name some."""
    from attentune.training.run import train

    return train(config, with_baselines=config.training.baselines not in ("auto", "none"))


# Seconds between looks at stop requests, and at runs that another process still saves.
_POLL_S, _REFRESH_S = 0.2, 2.0


class ComparisonStopped(Exception):
    """A stop was requested; everything is saved, and the same call resumes."""

    def __init__(self, done: int, total: int, *, at_once: bool = False) -> None:
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
        """Return the arguments with which a worker executes a run."""

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
    plan: Plan
    record_store: RecordStore
    executor: Executor
    display: ComparisonProgress
    keep_runs: bool = False
    keep_best: bool = False
    _began_s: float = 0.0
    _known: int = 0  # runs that were recorded before
    _done: int = 0
    _failed: int = 0
    _waiting: list[Run] = field(default_factory=list)
    _begun: set[tuple[str, str, str]] = field(default_factory=set)  # task, size and method
    _running: dict[Future[RunRecord | None], Run] = field(default_factory=dict)
    # Runs that a worker of a killed command still saves.
    _elsewhere: set[Run] = field(default_factory=set)
    _kills: Counter[Run] = field(default_factory=Counter)
    _peak_bytes: int = 0

    def run(self, stop: StopRequest) -> None:
        self._peak_bytes = self.plan.expected_bytes
        self._add(self.plan.advance(self.executor.size, ()))
        self._began_s, self._known = time.monotonic(), self._done
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
            if not self._running and not self._elsewhere and not self._waiting and self.plan.is_complete:
                return
            if not self._running:
                time.sleep(_POLL_S)

    def _wait(self) -> Collection[Future[RunRecord | None]]:
        return wait(self._running, timeout=_POLL_S, return_when=FIRST_COMPLETED).done

    # Runs that wait.

    def _add(self, runs: Sequence[Run]) -> None:
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
        if self.record_store.run_folder(run).exists():
            with self.record_store.holding(run) as is_mine:
                if is_mine:
                    self.record_store.tidy(run, keep=self.keep_runs, keep_best=self.keep_best)

    def _look_elsewhere(self) -> None:
        for run in [run for run in self._elsewhere if not self.record_store.lock(run).is_held()]:
            self._elsewhere.remove(run)
            self._take_over(run)

    def _take_over(self, run: Run) -> None:
        """Record a run whose worker outlived its command, or let it wait."""
        draft = self.record_store.draft(run)
        if draft is None:
            self._waiting.append(run)
        else:
            self._record(draft)

    def _next(self) -> Run:
        """Remove the next of the waiting runs and return it: one of each task, size and method comes first."""
        run = next((run for run in self._waiting if _kind_of(run) not in self._begun), self._waiting[0])
        self._begun.add(_kind_of(run))
        self._waiting.remove(run)
        return run

    def _submit(self) -> None:
        room = self.executor.room(self._peak_bytes) if self._waiting else 0
        runs = [self._next() for _ in range(min(room, len(self._waiting)))]
        if not runs:
            return
        futures = self.executor.submit(execute_run, [(self.plan.task(run),) for run in runs])
        self._running |= dict(zip(futures, runs, strict=True))

    # Runs that ended.

    def _ended(self, run: Run, future: Future[RunRecord | None]) -> None:
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
        with self.record_store.holding(record.run) as is_mine:
            if not is_mine:
                self._elsewhere.add(record.run)
                return
            self.record_store.write(record, self.record_store.run_folder(record.run))
            self.record_store.tidy(record.run, keep=self.keep_runs, keep_best=self.keep_best)
        self._note(record)
        self.display.ended(record, self._done, self._total(), self._seconds_left())

    def _note(self, record: RunRecord) -> None:
        self._done += 1
        self._failed += record.status == "failed"
        self._begun.add(_kind_of(record.run))
        self._peak_bytes = max(self._peak_bytes, int(record.train.get("peak_memory_bytes") or 0))

    # Progress and the end.

    def _total(self) -> int:
        working = len(self._running) + len(self._elsewhere)
        return self._done + working + len(self._waiting) + len(self.plan.later)

    def _show(self) -> None:
        running = [*self._running.values(), *self._elsewhere]
        left = self._seconds_left()
        self.display.update(self._done, self._total(), failed=self._failed, running=running, left=left)

    def _seconds_left(self) -> float | None:
        ended = self._done - self._known
        return (time.monotonic() - self._began_s) / ended * (self._total() - self._done) if ended else None

    def _save_running(self) -> None:
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


def _kind_of(run: Run) -> tuple[str, str, str]:
    return run.task, run.size, run.method
