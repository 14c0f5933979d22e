"""Executes tasks on a Ray cluster: one machine or many, with fractions of GPUs. Needs the extra `ray`."""

import contextlib
import importlib
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attentune.errors import ConfigError
from attentune.execution.executor import ExecutorOptions, WorkerKilled, prepare_process
from attentune.training.run_folder import stop_on_signal


@dataclass
class RayExecutor:
    """Executes tasks on a Ray cluster.

    A process sees the GPUs that Ray gives to it. The folders of the command must be on a disk that all machines share.
    Ray does not repeat tasks; whoever submits them does.
    """

    options: ExecutorOptions
    logs: Path
    _refs: dict[Future[Any], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ray: Any = importlib.import_module("ray")
        self._started_ray = not self._ray.is_initialized()
        if self._started_ray:
            self._connect()
        resources = self._ray.cluster_resources()
        needed = {"CPU": self.options.cpus_per_run, "GPU": self.options.gpus_per_run}
        lacking = [f"{count:g} {name}" for name, count in needed.items() if resources.get(name, 0) < count]
        if lacking:
            self.shutdown()
            raise ConfigError(
                f"--executor ray: each run needs {' and '.join(lacking)}, but the cluster has"
                f" {resources.get('CPU', 0):g} CPU and {resources.get('GPU', 0):g} GPU. Lower --cpus_per_run or"
                " --gpus_per_run, or add nodes."
            )
        # With max_calls=1 each task has a process of its own.
        self._execute = self._ray.remote(max_calls=1, max_retries=0)(_call)

    def _connect(self) -> None:
        address = self.options.ray_address or os.environ.get("RAY_ADDRESS")
        options = {} if address is not None else {"include_dashboard": False}
        try:
            self._ray.init(address=address, log_to_driver=False, logging_level="error", **options)
        except Exception as error:  # Ray has many
            reason = str(error).splitlines()[0][:200]
            raise ConfigError(
                f"--ray_address: the cluster {address!r} cannot be reached ({reason}). Expected HOST:PORT as `ray start"
                " --head` prints it, or nothing for this machine."
            ) from error

    @property
    def size(self) -> int:
        resources = self._ray.cluster_resources()
        counts = [resources.get("CPU", 0) / self.options.cpus_per_run]
        if self.options.gpus_per_run:
            counts.append(resources.get("GPU", 0) / self.options.gpus_per_run)
        return self.options.jobs or max(1, int(min(counts)))

    def room(self, expected_bytes: int) -> int:
        return max(0, self.size - len(self._refs))

    def submit(self, function: Callable[..., Any], calls: Sequence[Sequence[Any]]) -> list[Future[Any]]:
        execute = self._execute.options(num_cpus=self.options.cpus_per_run, num_gpus=self.options.gpus_per_run or None)
        futures = []
        for call in calls:
            ref = execute.remote(function, tuple(call), str(self.logs.absolute()), self.options.cpus_per_run)
            future: Future[Any] = Future()
            future.set_running_or_notify_cancel()
            self._refs[future] = ref
            ref.future().add_done_callback(lambda inner, outer=future: self._ended(outer, inner))
            futures.append(future)
        return futures

    def _ended(self, outer: Future[Any], inner: Future[Any]) -> None:
        """Pass on how a task ended. Called in a thread of Ray."""
        self._refs.pop(outer, None)
        error = inner.exception()
        exceptions = self._ray.exceptions
        if error is None:
            outer.set_result(inner.result())
        elif isinstance(error, exceptions.TaskCancelledError):
            outer.set_exception(CancelledError())
        elif isinstance(error, exceptions.RayTaskError):
            cause = error.cause
            outer.set_exception(CancelledError() if isinstance(cause, KeyboardInterrupt) else cause)
        else:  # the worker was killed, its node left, or memory ran out
            outer.set_exception(WorkerKilled(f"killed ({type(error).__name__})"))

    def request_stop(self) -> None:
        for ref in list(self._refs.values()):
            with contextlib.suppress(Exception):  # it has ended
                self._ray.cancel(ref, force=False)

    def shutdown(self, *, wait_s: float | None = None) -> None:
        if self._refs:
            self.request_stop()
            wait(list(self._refs), timeout=wait_s)
        for ref in list(self._refs.values()):
            with contextlib.suppress(Exception):
                self._ray.cancel(ref, force=True)
        if self._started_ray and self._ray.is_initialized():
            self._ray.shutdown()


def _call(function: Callable[..., Any], call: tuple[Any, ...], logs: str, threads: int) -> Any:
    """Execute a task in a worker of Ray, whose cancellation arrives as a Ctrl-C."""
    import torch

    prepare_process(None if torch.cuda.is_available() else threads)
    with _logged(Path(logs) / f"worker-{platform.node()}-{os.getpid()}.log"), stop_on_signal() as stop:
        return function(*call, stop=stop)


@contextlib.contextmanager
def _logged(log: Path) -> Iterator[None]:
    """Write what the block prints to a log, if its folder can be written to."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        file = log.open("a", encoding="utf-8")
    except OSError as error:
        print(f"{log}: {error}", file=sys.stderr)
        yield
        return
    with file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        yield
