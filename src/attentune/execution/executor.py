"""Where tasks are executed: the interface of all executors, and the choice of one.

A task is a function of a module and its arguments, all of which can be pickled. It is called with the keyword argument
`stop`, a `StopRequest`: once `stop.requested` is set, it saves what it has and returns soon.
"""

import contextlib
import importlib.util
import math
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from attentune.config.parse import did_you_mean
from attentune.errors import ConfigError
from attentune.plugins import require_extra


def available_memory_bytes() -> int | None:
    """Return the memory that new processes may use, as far as the system says; None if it does not.

    On Linux what the kernel counts as available, limited by the process's control group; elsewhere psutil's figure, or
    half of the physical memory.
    """
    known = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        known.append(int(line.split()[1]) * 1024)
    with contextlib.suppress(OSError, ValueError):  # "max" is no number: no limit
        group = Path("/sys/fs/cgroup")
        known.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    if known:
        return max(0, min(known))
    if importlib.util.find_spec("psutil") is not None:
        return int(importlib.import_module("psutil").virtual_memory().available)
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return None


def resident_bytes(pid: int) -> int:
    """Return the memory that a process has in use now; 0 if the system does not say or the process is gone."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


# With the module that each needs.
EXECUTORS = {"local": "", "ray": "ray", "slurm": "submitit"}
# A task is not repeated after this many workers were killed during it.
MAX_KILLS = 3


class WorkerKilled(Exception):
    """The process that executed a task was killed, or its machine left; the task may be submitted again."""


class Executor(Protocol):
    """Executes tasks, close to `concurrent.futures.Executor`.

    A task's future raises `WorkerKilled` if its process ends before it returns, and what the task raises otherwise.
    """

    @property
    def size(self) -> int:
        """The number of tasks that are executed at a time."""

    def room(self, expected_bytes: int) -> int:
        """Return how many tasks that each need this much memory may be submitted now."""

    def submit(self, function: Callable[..., Any], calls: Sequence[Sequence[Any]]) -> list[Future[Any]]:
        """Execute a function once for each list of arguments, with `stop` added."""

    def request_stop(self) -> None:
        """Request all tasks to save and return; those that have not started are cancelled."""

    def shutdown(self, *, wait_s: float | None = None) -> None:
        """End all processes."""


@dataclass(frozen=True)
class ExecutorOptions:
    executor: str = "local"  # one of `EXECUTORS`
    jobs: int | None = None  # the number of tasks at a time; None: a task per core, per GPU, or as the cluster has room
    ray_address: str | None = None  # the address of a Ray cluster; None starts one on this machine
    cpus_per_run: int = 1  # CPUs (and threads) of a task with Ray and SLURM
    gpus_per_run: float = 0.0  # GPUs of a task with Ray and SLURM; with Ray, a fraction shares a GPU
    slurm: tuple[tuple[str, Any], ...] = ()  # further parameters of submitit, such as ("slurm_partition", "gpu")

    def check(self) -> None:
        problems = []
        if self.executor not in EXECUTORS:
            near = did_you_mean(self.executor, EXECUTORS)
            problems.append(f"--executor: got {self.executor!r}, expected one of {', '.join(EXECUTORS)}.{near}")
        if self.jobs is not None and self.jobs < 1:
            problems.append(f"--jobs: got {self.jobs}, expected a whole number of at least 1.")
        if self.cpus_per_run < 1:
            problems.append(f"--cpus_per_run: got {self.cpus_per_run}, expected a whole number of at least 1.")
        if self.gpus_per_run < 0:
            problems.append(f"--gpus_per_run: got {self.gpus_per_run}, expected a number of at least 0.")
        if self.executor == "local" and (self.cpus_per_run != 1 or self.gpus_per_run):
            problems.append(
                "--cpus_per_run and --gpus_per_run: go with --executor ray or slurm. On one machine each run has one"
                " core or one GPU; --jobs sets how many run at a time."
            )
        if self.ray_address is not None and self.executor != "ray":
            problems.append("--ray_address: goes with --executor ray.")
        if self.slurm and self.executor != "slurm":
            problems.append("--slurm: goes with --executor slurm.")
        if problems:
            raise ConfigError(problems)
        if module := EXECUTORS[self.executor]:
            require_extra(self.executor, module, what=f"--executor {self.executor}")


@dataclass(frozen=True)
class Slots:
    count: int  # the number of tasks at a time
    threads: int | None  # the threads of each; None for PyTorch's choice
    devices: tuple[str, ...] = ()  # the accelerator of each slot, as for CUDA_VISIBLE_DEVICES; empty on a CPU


def default_slots(configs: Iterable[dict[str, Any]], jobs: int | None = None) -> Slots:
    """Return the slots for runs with these settings: one per core with one thread each, or one per GPU."""
    import torch

    if torch.accelerator.is_available() and not all(config.get("training.use_cpu") for config in configs):
        given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        names = [name for name in given.split(",") if name] or [str(i) for i in range(torch.accelerator.device_count())]
        count = jobs or max(1, len(names))
        is_cuda = torch.cuda.is_available()
        return Slots(count, None, tuple(names[slot % len(names)] for slot in range(count)) if is_cuda else ())
    return Slots(jobs or usable_cores(), 1)


def usable_cores() -> int:
    """Return the number of cores that this process may use: those of its affinity, limited by a container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = cpu_quota()
    return min(cores or 1, quota) if quota is not None else cores or 1


def cpu_quota(groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return how many cores' time a container may use, rounded up; None without a limit, or if none is known."""
    with contextlib.suppress(OSError, ValueError):  # version 2: "max", which is no number, is no limit
        quota, period = (groups / "cpu.max").read_text().split()
        return max(1, math.ceil(int(quota) / int(period)))
    with contextlib.suppress(OSError, ValueError):  # version 1: -1 is no limit
        first = groups / "cpu"
        quota_us, period_us = (int((first / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return math.ceil(quota_us / period_us) if quota_us > 0 else None
    return None


def limit_threads() -> None:
    """Give PyTorch, which is not yet loaded, no more threads than a container's quota has cores: it sees all cores."""
    quota = cpu_quota()
    if quota is not None and "OMP_NUM_THREADS" not in os.environ:
        os.environ |= thread_settings(min(quota, usable_cores()))


def thread_settings(threads: int) -> dict[str, str]:
    """Return the environment variables by which libraries learn their number of threads when they are loaded."""
    return {f"{name}_NUM_THREADS": str(threads) for name in ("OMP", "MKL", "OPENBLAS")}


def prepare_process(threads: int | None) -> None:
    """Limit the threads of PyTorch, NumPy, compiled code and tokenizers in a worker process, loaded or not."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if threads is None:
        return
    os.environ |= thread_settings(threads)
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(threads)
    threadpool_limits(threads)
