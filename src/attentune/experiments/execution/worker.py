"""A worker process of a comparison or search: executes and records one run, or, on an accelerator, one after another.

    python -m attentune.experiments.execution.worker

It reads a `WorkerTask` as one line of JSON from standard input. When its parent closes the pipe or is killed, the
worker saves the run in progress and exits.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pkgutil
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attentune.config import Config
from attentune.errors import AttentuneError, CheckpointError, StorageError
from attentune.experiments.comparison.grid import Run, RunGrid
from attentune.results import RunResult
from attentune.training.signals import Interrupted, Pruned, StopRequest, stop_on_signal

# Trains a run with its settings.
Trainer = Callable[[Run, Config], RunResult]
_CHUNK_BYTES = 1 << 16
STOPPED, USER_ERROR, INTERNAL_ERROR = 130, 2, 1


@dataclass(frozen=True)
class WorkerTask:
    """The task of a worker process.

    Attributes:
        storage_config: the fields of `queue_storage.StorageConfig`.
        runs: the fields of each `Run` that it may execute.
        configs: the settings by method and task; see `RunGrid`.
        keep_runs: whether to keep run folders after their runs are recorded.
        one_run: whether to exit after one run, so that the next one has a fresh process.
        trainer: "module:name" of a factory of the `Trainer`, called with the storage and `trainer_options`; None trains
            as `attentune train` does.
        trainer_options: keyword arguments of the factory.
    """

    storage_config: dict[str, Any]
    runs: list[dict[str, Any]]
    configs: dict[str, dict[str, dict[str, Any]]]
    keep_runs: bool = False
    one_run: bool = False
    trainer: str | None = None
    trainer_options: dict[str, Any] = field(default_factory=dict)

    def to_line(self) -> bytes:
        """Serialize to one line of JSON."""
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> WorkerTask:
        return cls(**json.loads(line))


def main() -> int:
    """Execute runs until none waits or a stop is requested; return the exit status. An error is the last log line."""
    try:
        line = _read_line()
        if not line.endswith(b"\n"):
            return STOPPED
        # A stop sets a flag instead of raising: an exception at an arbitrary point could leave the queue's lock held.
        with stop_on_signal() as stop:
            threading.Thread(target=_stop_with_parent, args=(stop,), daemon=True).start()
            _work(WorkerTask.from_line(line), stop)
    except AttentuneError as error:
        print(f"{error}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return STOPPED
    except Exception:
        traceback.print_exc()
        return INTERNAL_ERROR
    return 0


def _read_line() -> bytes:
    """Read the first line of standard input, unbuffered, because a thread reads the rest until the process exits."""
    parts = []
    while chunk := os.read(0, _CHUNK_BYTES):
        parts.append(chunk)
        if chunk.endswith(b"\n"):
            break
    return b"".join(parts)


def _stop_with_parent(stop: StopRequest) -> None:
    while os.read(0, _CHUNK_BYTES):
        pass
    stop.requested = True


def _work(task: WorkerTask, stop: StopRequest) -> None:
    from attentune.experiments.execution.queue import RunQueue
    from attentune.experiments.execution.queue_storage import StorageConfig

    queue = RunQueue(StorageConfig(**task.storage_config))
    runs = [Run(**fields) for fields in task.runs]
    trainer: Trainer = _train
    if task.trainer is not None:
        trainer = pkgutil.resolve_name(task.trainer)(queue.storage_config, **task.trainer_options)
    worker = RunWorker(queue, RunGrid(tuple(runs), task.configs, {}), keep_runs=task.keep_runs, trainer=trainer)
    by_name = {run.name: run for run in runs}
    while not stop.requested and queue.run_next(by_name, worker.execute):
        if task.one_run and worker.has_worked:
            break
    if stop.requested:
        raise KeyboardInterrupt


def _train(run: Run, config: Config) -> RunResult:
    """Train as `attentune train` does."""
    from attentune.training.train import train

    return train(config, with_baselines=False)


class RunWorker:
    """Executes and records runs.

    Args:
        queue: gives runs to workers.
        grid: the runs' settings.
        keep_runs: whether to keep run folders.
        trainer: trains a run with its settings.
    """

    def __init__(self, queue: Any, grid: RunGrid, *, keep_runs: bool, trainer: Trainer) -> None:
        self._record_store, self._grid, self._keep_runs = queue.record_store, grid, keep_runs
        self._trainer = trainer
        self.has_worked = False

    def execute(self, run: Run) -> str:
        """Execute and record a run.

        Returns:
            "done", "pruned", "failed", or "duplicate" if another process recorded it in the meantime.

        Raises:
            StorageError: the disk refused; the run can be resumed.
            KeyboardInterrupt: a stop was requested; the run is saved and can be resumed.
        """
        from attentune.experiments.comparison.record_store import failed_record, record_of
        from attentune.training.train import train  # noqa: F401  (so that the run's time excludes the import)

        self.has_worked = True
        folder = self._record_store.run_folder(run)
        config = self._grid.config(run, folder)
        print(f"{run.name}", file=sys.stderr, flush=True)
        began = time.perf_counter()
        try:
            result = self._train(run, folder)
            record = record_of(run, config, result, folder, wall_seconds=time.perf_counter() - began)
        except Interrupted:
            raise KeyboardInterrupt from None
        except StorageError:
            raise  # the next run would fail too
        except Exception as error:
            status = "pruned" if isinstance(error, Pruned) else "failed"
            print(f"{error}", file=sys.stderr) if status == "pruned" else traceback.print_exc()
            seconds = time.perf_counter() - began
            record = failed_record(run, config, error, folder, wall_seconds=seconds, status=status)
        is_first = self._record_store.write(record, folder)
        self._record_store.tidy(run, keep=self._keep_runs)
        return record.status if is_first else "duplicate"

    def _train(self, run: Run, folder: Path) -> RunResult:
        from attentune.training.memory import forget_peak_memory

        forget_peak_memory()
        resume = (folder / "config.yaml").is_file()
        if not resume:
            shutil.rmtree(folder, ignore_errors=True)
        try:
            return self._trainer(run, self._grid.config(run, folder, resume=resume))
        except CheckpointError as error:
            if not resume:
                raise
            print(f"{error}\nStarting again.", file=sys.stderr)
            shutil.rmtree(folder, ignore_errors=True)
            return self._trainer(run, self._grid.config(run, folder))


if __name__ == "__main__":
    sys.exit(main())
