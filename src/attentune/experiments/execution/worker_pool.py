"""Starts, monitors and stops worker processes. No worker outlives the process that started it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from attentune.experiments.execution.worker import STOPPED, WorkerTask
from attentune.io.files import storage_errors

_COMMAND = (sys.executable, "-P", "-m", "attentune.experiments.execution.worker")
_SHOWN_LINES = 20
_FINISH_S = 20


@dataclass(frozen=True)
class WorkerExit:
    """How a worker ended.

    Attributes:
        pid: its process id.
        status: its exit status; if negative, minus the signal that killed it.
        log: its log file.
    """

    pid: int
    status: int
    log: Path

    @property
    def was_killed(self) -> bool:
        """Whether a signal killed it."""
        return self.status < 0

    @property
    def is_fatal(self) -> bool:
        """Whether it exited with an error that would recur."""
        return self.status > 0 and self.status != STOPPED

    def last_lines(self, count: int = _SHOWN_LINES) -> str:
        """Return the last lines of its log."""
        try:
            return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-count:])
        except OSError as error:
            return str(error)


class WorkerPool:
    """Pool of up to `size` worker processes.

    Args:
        size: the number of workers.
        logs: the folder of their logs.
        one_thread: whether each worker uses one thread.
    """

    def __init__(self, size: int, logs: Path, *, one_thread: bool) -> None:
        self._logs, self._one_thread = logs, one_thread
        self._slots: list[subprocess.Popen[bytes] | None] = [None] * size

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [worker.pid for worker in self._slots if worker is not None]

    @property
    def free(self) -> int:
        """The number of workers that may still be started."""
        return self._slots.count(None)

    def start(self, wanted: int, task: WorkerTask) -> None:
        """Start up to `wanted` workers, as far as slots are free, and send each its task.

        Raises:
            StorageError: a log cannot be written.
        """
        for slot, worker in enumerate(self._slots):
            if worker is None and wanted > 0:
                self._slots[slot] = self._started(self._log(slot), task)
                wanted -= 1

    def _log(self, slot: int) -> Path:
        return self._logs / f"worker-{os.getpid()}-{slot + 1}.log"

    def _started(self, log: Path, task: WorkerTask) -> subprocess.Popen[bytes]:
        with storage_errors(log):
            log.parent.mkdir(parents=True, exist_ok=True)
            output = log.open("ab")
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
        if self._one_thread:
            environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        with output:
            # Its own session: Ctrl-C at the terminal reaches workers only through this process, once.
            worker = subprocess.Popen(
                _COMMAND,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # the same on Windows
            )
        assert worker.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has already exited; `ended` reports it
            worker.stdin.write(task.to_line())
            worker.stdin.flush()
        return worker

    def ended(self) -> list[WorkerExit]:
        """Return the workers that have exited since the last call."""
        exits = []
        for slot, worker in enumerate(self._slots):
            if worker is not None and worker.poll() is not None:
                exits.append(self._ending(slot, worker))
        return exits

    def _ending(self, slot: int, worker: subprocess.Popen[bytes]) -> WorkerExit:
        self._slots[slot] = None
        self._close_stdin(worker)
        return WorkerExit(worker.pid, worker.wait(), self._log(slot))

    def finish(self) -> None:
        """Wait for the workers to exit; to be called when no runs are left."""
        for worker in self._slots:
            if worker is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    worker.wait(_FINISH_S)

    def stop(self) -> None:
        """Request all workers to save and exit, and wait for them."""
        for worker in self._slots:
            if worker is not None:
                self._close_stdin(worker)
        for slot, worker in enumerate(self._slots):
            if worker is not None:
                worker.wait()
                self._ending(slot, worker)

    def kill(self) -> None:
        """Kill all workers; their runs can be resumed from the last checkpoint."""
        for worker in self._slots:
            if worker is not None:
                worker.kill()
        self.stop()

    @staticmethod
    def _close_stdin(worker: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(OSError):
            if worker.stdin is not None:
                worker.stdin.close()
