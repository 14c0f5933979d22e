"""Executes one run of a comparison or search, in a worker process on this machine or another one."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attentune.config import Config
from attentune.errors import CheckpointError, StorageError
from attentune.results import RunResult
from attentune.runs.grid import Run, RunGrid
from attentune.runs.records import RecordStore, RunRecord, failed_record, record_of
from attentune.training.run_folder import Interrupted, Pruned, StopRequest

# Trains a run with its settings.
Trainer = Callable[[Run, Config], RunResult]


@dataclass(frozen=True)
class RunTask:
    """A run to execute."""

    folder: str  # the comparison's folder
    manifest: str  # the name of its manifest, which a worker on another machine must see too
    run: Run
    settings: dict[str, Any]  # all settings of its method and task, by dotted name
    trainer: Trainer | None = None  # trains the run; None trains as `attentune train` does
    processes: int = 1  # the number of processes that train it together
    threads: int = 1  # the threads of each of several processes

    def config(self, *, resume: bool = False) -> Config:
        """Return the configuration of the run."""
        grid = RunGrid((self.run,), {self.run.method: {self.run.task: self.settings}}, {})
        return grid.config(self.run, RecordStore(Path(self.folder)).run_folder(self.run), resume=resume)


def execute_run(task: RunTask, *, stop: StopRequest) -> RunRecord | None:
    """Execute a run in its folder, from its last checkpoint if it has been begun, and leave its record there."""
    record_store = RecordStore(Path(task.folder))
    if not (record_store.folder / task.manifest).is_file():
        raise CheckpointError(
            f"{record_store.folder}: has no {task.manifest} as seen from {platform.node()}, where a run was to be"
            " executed. Name an --output_dir on a disk that all machines share, by its whole path."
        )
    with _locked(record_store, task.run) as is_mine:
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


@contextlib.contextmanager
def _locked(record_store: RecordStore, run: Run) -> Iterator[bool]:
    """Hold a run's lock; yield False if another process holds it, which still saves after its command was killed."""
    lock = record_store.lock(run)
    if not lock.take(wait=False):
        yield False
        return
    try:
        yield True
    finally:
        lock.free()


def _record(task: RunTask, record_store: RecordStore, stop: StopRequest) -> RunRecord | None:
    """Train, and return the record; None if the run was interrupted."""
    from attentune.training.run import train  # noqa: F401  (so that the run's time excludes the import)

    run, folder, config = task.run, record_store.run_folder(task.run), task.config()
    print(f"{time.strftime('%H:%M:%S')} process {os.getpid()}: {run.name}", file=sys.stderr, flush=True)
    began = time.perf_counter()
    try:
        result = _train(task, folder, stop)
        return record_of(run, config, result, folder, wall_seconds=time.perf_counter() - began)
    except (Interrupted, KeyboardInterrupt):
        return None
    except StorageError:
        raise  # the next run would fail too
    except Exception as error:
        status = "pruned" if isinstance(error, Pruned) else "failed"
        print(f"{error}", file=sys.stderr) if status == "pruned" else traceback.print_exc()
        seconds = time.perf_counter() - began
        return failed_record(run, config, error, folder, wall_seconds=seconds, status=status)


def _train(task: RunTask, folder: Path, stop: StopRequest) -> RunResult:
    from attentune.nn.compiled.memory import forget_peak_memory

    forget_peak_memory()
    trainer = task.trainer or _train_alone
    if task.processes > 1 and task.config().baseline is None:
        trainer = _in_processes(trainer, task, folder, stop)
    resume = (folder / "config.yaml").is_file()
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)
    try:
        return trainer(task.run, task.config(resume=resume))
    except CheckpointError as error:
        if not resume:
            raise
        print(f"{error}\nStarting again.", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        return trainer(task.run, task.config())


def _in_processes(trainer: Trainer, task: RunTask, folder: Path, stop: StopRequest) -> Trainer:
    """Return a trainer that has several processes train a run together."""
    from attentune.execution.launch import train_in_processes

    def train(run: Run, config: Config) -> RunResult:
        return train_in_processes(
            trainer, (run, config), folder=folder, processes=task.processes, threads=task.threads, stop=stop
        )

    return train


def _train_alone(run: Run, config: Config) -> RunResult:
    """Train as `attentune train` does, but fit baselines on the run's rows only if the settings name some."""
    from attentune.training.run import train

    return train(config, with_baselines=config.training.baselines not in ("auto", "none"))
