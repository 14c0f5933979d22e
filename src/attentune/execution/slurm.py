"""Executes tasks as jobs of SLURM, through submitit. Needs the extra `slurm`.

A job that is pre-empted, or reaches its time limit, saves and returns; whoever submitted its task submits it again. A
job that SLURM itself starts again goes on from its last checkpoint.
"""

import contextlib
import importlib
import signal
import subprocess
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attentune.errors import ConfigError
from attentune.execution.executor import ExecutorOptions, WorkerKilled, prepare_process
from attentune.training.run_folder import stop_on_signal

# Jobs at a time if --jobs is not given.
_JOBS = 100
# Seconds between looks at the jobs' results, and at SLURM's queue, which sees killed jobs.
_POLL_S, _QUEUE_S = 1.0, 5.0
# A job that is twice not in the queue and has no result was killed; once may be the shared disk's delay.
_MISSING = 2
# The time limit of a job if none is given, in minutes.
_TIMEOUT_MIN = 24 * 60
# Parameters that submitit has for all kinds of clusters; the others are SLURM's own.
_SHARED = {"name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "stderr_to_stdout"}


@dataclass
class SlurmExecutor:
    """Executes each task as a job of SLURM; tasks that are submitted together are one job array."""

    options: ExecutorOptions
    logs: Path
    _jobs: dict[Future[Any], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        submitit: Any = importlib.import_module("submitit")
        given = dict(self.options.slurm)
        cluster = str(given.pop("cluster", "slurm"))
        try:
            self._submitit = submitit.AutoExecutor(self.logs.absolute() / "slurm", cluster=cluster)
            self._submitit.update_parameters(
                timeout_min=given.pop("timeout_min", _TIMEOUT_MIN),
                cpus_per_task=self.options.cpus_per_run,
                **({"gpus_per_node": int(self.options.gpus_per_run)} if self.options.gpus_per_run else {}),
                **({"slurm_array_parallelism": self.size} if cluster == "slurm" else {}),
                **{name if name in _SHARED else f"slurm_{name}": value for name, value in given.items()},
            )
        except Exception as error:  # submitit has many
            raise ConfigError(
                f"--executor slurm: {error} Start the command on a machine that has sbatch, and give the cluster's"
                " settings with --slurm NAME=VALUE; --slurm cluster=local tries it without SLURM."
            ) from error
        self._has_queue = cluster == "slurm"
        self._is_closed = False
        threading.Thread(target=self._watch, daemon=True).start()

    @property
    def size(self) -> int:
        return self.options.jobs or _JOBS

    def room(self, expected_bytes: int) -> int:
        return max(0, self.size - len(self._jobs))

    def submit(self, function: Callable[..., Any], calls: Sequence[Sequence[Any]]) -> list[Future[Any]]:
        if not calls:
            return []
        arguments = [(function, tuple(call), self.options.cpus_per_run) for call in calls]
        try:
            with self._submitit.batch():
                jobs = [self._submitit.submit(_call, *one) for one in arguments]
        except Exception as error:
            raise ConfigError(f"--executor slurm: sbatch refused the jobs: {error}") from error
        futures: list[Future[Any]] = [Future() for _ in jobs]
        for future, job in zip(futures, jobs, strict=True):
            future.set_running_or_notify_cancel()
            self._jobs[future] = job
        return futures

    def _watch(self) -> None:
        """Pass on how jobs ended. Asks for results and the queue itself: submitit needs SLURM's accounting for that."""
        missing: Counter[str] = Counter()
        next_queue_s = 0.0
        while not self._is_closed:
            time.sleep(_POLL_S)
            queued = None
            if self._has_queue and self._jobs and time.monotonic() >= next_queue_s:
                queued, next_queue_s = _queued(), time.monotonic() + _QUEUE_S
            for future, job in list(self._jobs.items()):
                with contextlib.suppress(OSError):  # a shared disk may be slow to answer
                    missing[job.job_id] += queued is not None and job.job_id not in queued
                    has_result = job.paths.result_pickle.exists() or (not self._has_queue and job.done())
                    if not has_result and missing[job.job_id] < _MISSING:
                        continue
                    value, error = None, WorkerKilled(f"killed (job {job.job_id})")
                    if has_result and job.exception() is None:
                        value, error = job.result()
                    del self._jobs[future]
                    future.set_result(value) if error is None else future.set_exception(error)

    def request_stop(self) -> None:
        for job in list(self._jobs.values()):
            with contextlib.suppress(Exception):  # it has ended
                job.cancel(check=False)

    def shutdown(self, *, wait_s: float | None = None) -> None:
        if self._jobs:
            self.request_stop()
            wait(list(self._jobs), timeout=wait_s)
        self._is_closed = True


def _queued() -> set[str] | None:
    """Return the ids of this user's jobs that wait or run; None if SLURM does not answer."""
    asked = ["squeue", "--noheader", "--array", "--me", "--format=%i"]
    try:
        return set(subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout.split())
    except (OSError, subprocess.SubprocessError):
        return None


def _call(function: Callable[..., Any], call: tuple[Any, ...], threads: int) -> tuple[Any, Exception | None]:
    """Execute a task in a job, whose end SLURM announces by a signal: SIGTERM, or SIGUSR2 as submitit asks for."""
    import torch

    prepare_process(None if torch.cuda.is_available() else threads)
    # submitit has a handler of its own for SIGTERM, which would keep this one from being set.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    with stop_on_signal() as stop:
        signal.signal(signal.SIGUSR2, stop)
        try:
            return function(*call, stop=stop), None
        except Exception as error:
            traceback.print_exc()
            return None, error
