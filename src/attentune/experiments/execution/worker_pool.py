"""The worker processes of a comparison or a search: started, looked after, stopped. None outlives the process that
started it."""

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
        pid: its process.
        status: its exit status; below 0 the signal that killed it.
        log: its log file.
    """

    pid: int
    status: int
    log: Path

    @property
    def was_killed(self) -> bool:
        """Whether it ended without having its say."""
        return self.status < 0

    @property
    def is_mistake(self) -> bool:
        """Whether it ended on something that will not be better the next time."""
        return self.status > 0 and self.status != STOPPED

    def last_lines(self, count: int = _SHOWN_LINES) -> str:
        """What it said last."""
        try:
            return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-count:])
        except OSError as error:
            return str(error)


class WorkerPool:
    """Up to `size` workers at a time.

    Args:
        size: how many.
        logs: the folder of their logs, worker-1.log and so on.
        one_thread: whether each computes with one thread.
    """

    def __init__(self, size: int, logs: Path, *, one_thread: bool) -> None:
        self._logs, self._one_thread = logs, one_thread
        self._seats: list[subprocess.Popen[bytes] | None] = [None] * size

    @property
    def pids(self) -> list[int]:
        """Their processes."""
        return [worker.pid for worker in self._seats if worker is not None]

    @property
    def free(self) -> int:
        """How many more there may be."""
        return self._seats.count(None)

    def start(self, wanted: int, task: WorkerTask) -> None:
        """Start workers for so many waiting runs, as far as there are seats, and tell each its task.

        Raises:
            StorageError: a log cannot be written.
        """
        for seat, worker in enumerate(self._seats):
            if worker is None and wanted > 0:
                self._seats[seat] = self._started(self._log(seat), task)
                wanted -= 1

    def _log(self, seat: int) -> Path:
        return self._logs / f"worker-{os.getpid()}-{seat + 1}.log"

    def _started(self, log: Path, task: WorkerTask) -> subprocess.Popen[bytes]:
        with storage_errors(log):
            log.parent.mkdir(parents=True, exist_ok=True)
            output = log.open("ab")
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
        if self._one_thread:
            environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        with output:
            # A session of its own: Ctrl-C at the terminal reaches the workers through us only, once.
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
        with contextlib.suppress(BrokenPipeError):  # it has died already, which `ended` will tell
            worker.stdin.write(task.to_line())
            worker.stdin.flush()
        return worker

    def ended(self) -> list[WorkerExit]:
        """The workers that have ended since the last call."""
        endings = []
        for seat, worker in enumerate(self._seats):
            if worker is not None and worker.poll() is not None:
                endings.append(self._ending(seat, worker))
        return endings

    def _ending(self, seat: int, worker: subprocess.Popen[bytes]) -> WorkerExit:
        self._seats[seat] = None
        self._hang_up(worker)
        return WorkerExit(worker.pid, worker.wait(), self._log(seat))

    def finish(self) -> None:
        """Let those end who have nothing left to do."""
        for worker in self._seats:
            if worker is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    worker.wait(_FINISH_S)

    def stop(self) -> None:
        """Ask all to save and end, and wait until they have."""
        for worker in self._seats:
            if worker is not None:
                self._hang_up(worker)
        for seat, worker in enumerate(self._seats):
            if worker is not None:
                worker.wait()
                self._ending(seat, worker)

    def kill(self) -> None:
        """End all at once; what they were at is taken up from its last checkpoint."""
        for worker in self._seats:
            if worker is not None:
                worker.kill()
        self.stop()

    @staticmethod
    def _hang_up(worker: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(OSError):
            if worker.stdin is not None:
                worker.stdin.close()
