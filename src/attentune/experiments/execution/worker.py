"""One process of a comparison or a search: it takes a run, does it, records it, and on an accelerator takes the next.

    python -m attentune.experiments.execution.worker

It reads one line of JSON from standard input, `WorkerTask`, and then waits for its end: when whoever started it closes
the pipe, or is killed, the worker saves the run it is at and ends.
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
STOPPED, MISTAKE, BUG = 130, 2, 1


@dataclass(frozen=True)
class WorkerTask:
    """What a worker process has to do.

    Attributes:
        storage_config: the fields of `queue_storage.StorageConfig`.
        runs: the fields of each `Run` that it may execute.
        configs: the settings by method and task; see `RunGrid`.
        keep_runs: whether to keep run folders after their runs are recorded.
        one_run: whether to exit after one run, so that the next one has a fresh process.
        trainer: "module:name" of what makes the `Trainer`, called with the storage and `trainer_options`; None trains
            as `attentune train` does.
        trainer_options: keyword arguments for it.
    """

    storage_config: dict[str, Any]
    runs: list[dict[str, Any]]
    configs: dict[str, dict[str, dict[str, Any]]]
    keep_runs: bool = False
    one_run: bool = False
    trainer: str | None = None
    trainer_options: dict[str, Any] = field(default_factory=dict)

    def to_line(self) -> bytes:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> WorkerTask:
        return cls(**json.loads(line))


def main() -> int:
    """Work until nothing waits, or it is told to end; the exit status. Its last line says what went wrong."""
    try:
        line = _read_line()
        if not line.endswith(b"\n"):
            return STOPPED
        # A stop is only ever asked for, never thrown in: an exception out of nowhere could leave the queue's lock held.
        with stop_on_signal() as stop:
            threading.Thread(target=_stop_with_parent, args=(stop,), daemon=True).start()
            _work(WorkerTask.from_line(line), stop)
    except AttentuneError as error:
        print(f"{error}", file=sys.stderr)
        return MISTAKE
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return STOPPED
    except Exception:
        traceback.print_exc()
        return BUG
    return 0


def _read_line() -> bytes:
    """The first line of standard input, read past Python's buffers: a thread will wait there when the process ends."""
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
    while not stop.requested and queue.do_next(by_name, worker.do):
        if task.one_run and worker.has_worked:
            break
    if stop.requested:
        raise KeyboardInterrupt


def _train(run: Run, config: Config) -> RunResult:
    """Train as `attentune train` does."""
    from attentune.training.train import train

    return train(config)


class RunWorker:
    """Does one run after the other and records them.

    Args:
        queue: hands them out.
        grid: their settings.
        keep_runs: whether their folders stay.
        trainer: trains a run with its settings.
    """

    def __init__(self, queue: Any, grid: RunGrid, *, keep_runs: bool, trainer: Trainer) -> None:
        self._ledger, self._matrix, self._keep_runs = queue.record_store, grid, keep_runs
        self._trainer = trainer
        self.has_worked = False

    def do(self, run: Run) -> str:
        """Do a run and record it: "done", "pruned", "failed", or "twice" if it was recorded meanwhile.

        Raises:
            StorageError: the disk refused; the run can be resumed.
            KeyboardInterrupt: a stop was asked for; the run is saved and can be resumed.
        """
        from attentune.experiments.comparison.record_store import failed_record, record_of
        from attentune.training.train import train  # noqa: F401  (seconds that are not the run's)

        self.has_worked = True
        folder = self._ledger.run_folder(run)
        config = self._matrix.config(run, folder)
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
        is_first = self._ledger.write(record, folder)
        self._ledger.tidy(run, keep=self._keep_runs)
        return record.status if is_first else "twice"

    def _train(self, run: Run, folder: Path) -> RunResult:
        from attentune.training.memory import forget_peak_memory

        forget_peak_memory()
        resume = (folder / "config.yaml").is_file()
        if not resume:
            shutil.rmtree(folder, ignore_errors=True)
        try:
            return self._trainer(run, self._matrix.config(run, folder, resume=resume))
        except CheckpointError as error:
            if not resume:
                raise
            print(f"{error}\nBegun anew.", file=sys.stderr)
            shutil.rmtree(folder, ignore_errors=True)
            return self._trainer(run, self._matrix.config(run, folder))


if __name__ == "__main__":
    sys.exit(main())
