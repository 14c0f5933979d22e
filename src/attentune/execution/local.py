"""Executes tasks in processes of this machine, one per core or GPU.

On Linux without an accelerator the processes are forked from a server that has imported PyTorch and the training code,
so that a fresh process costs little. No process outlives the one that started it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import wait as wait_for_handles
from pathlib import Path
from typing import Any

from attentune.execution.executor import (
    Slots,
    WorkerKilled,
    available_memory_bytes,
    prepare_process,
    resident_bytes,
    thread_settings,
)
from attentune.io.files import storage_errors
from attentune.training.run_folder import StopRequest

# Imported by the server from which workers are forked, in this order.
_PRELOADED = ["attentune.training.run", "attentune.inference.predictor", "attentune.execution.preloaded"]
# Workers whose parent is gone have this long to save; their runs go on from the last checkpoint.
_ORPHAN_SAVE_S = 1.5
# Memory that is left to the system and to what grows later.
_SPARE_SHARE = 0.1


def start_server(slots: Slots) -> bool:
    """Start the server from which workers are forked, unless it runs; return whether they are forked."""
    # A process that was forked cannot use CUDA if its parent has; elsewhere than on Linux, forking is not safe.
    if sys.platform != "linux" or slots.devices or slots.threads is None:
        return False
    multiprocessing.set_forkserver_preload(_PRELOADED)
    with _interrupts_later(), _without_main_module(), _environment(thread_settings(slots.threads)):
        forkserver.ensure_running()
    return True


@dataclass(eq=False)
class _Slot:
    number: int  # from 0
    pool: ProcessPoolExecutor | None = None  # has its process; None if there is none
    outer: Future[Any] | None = None  # the future that was given to the caller; None while the slot is free
    process: Any = None  # the process of the pool

    @property
    def is_free(self) -> bool:
        return self.outer is None


@dataclass
class LocalExecutor:
    slots: Slots
    logs: Path
    reuse: bool = False
    initializer: Callable[..., None] | None = None
    initargs: tuple[Any, ...] = ()
    _slots: list[_Slot] = field(default_factory=list)
    _waiting: deque[tuple[Callable[..., Any], Sequence[Any], Future[Any]]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._context: Any = multiprocessing.get_context("forkserver" if start_server(self.slots) else "spawn")
        # Closed to request a stop. Not an event, which a killed process that waits for it would block for ever.
        self._stop_reader, self._stop_writer = self._context.Pipe(duplex=False)
        self._lock = threading.RLock()
        self._slots = [_Slot(number) for number in range(self.slots.count)]
        self._is_closed = False

    @property
    def size(self) -> int:
        return len(self._slots)

    @property
    def pids(self) -> list[int]:
        return [slot.process.pid for slot in self._slots if slot.process is not None]

    def room(self, expected_bytes: int) -> int:
        with self._lock:
            busy = [slot.process.pid for slot in self._slots if not slot.is_free and slot.process is not None]
        free = self.size - len(busy)
        available = available_memory_bytes()
        if not free or available is None or expected_bytes <= 0:
            return free
        # What the running tasks may still take.
        growth = sum(max(0, expected_bytes - resident_bytes(pid)) for pid in busy)
        fitting = int(((1 - _SPARE_SHARE) * available - growth) / expected_bytes)
        return max(0 if busy else 1, min(free, fitting))

    def submit(self, function: Callable[..., Any], calls: Sequence[Sequence[Any]]) -> list[Future[Any]]:
        futures: list[Future[Any]] = [Future() for _ in calls]
        with _interrupts_later(), self._lock:
            self._waiting += ((function, call, future) for call, future in zip(calls, futures, strict=True))
            self._start_waiting()
        return futures

    def _start_waiting(self) -> None:
        for slot in self._slots:
            while slot.is_free and self._waiting:
                function, call, outer = self._waiting.popleft()
                if outer.set_running_or_notify_cancel():
                    self._start(slot, function, call, outer)

    def _start(self, slot: _Slot, function: Callable[..., Any], call: Sequence[Any], outer: Future[Any]) -> None:
        if slot.pool is None:
            device = self.slots.devices[slot.number] if self.slots.devices else None
            setup = self._new_log(slot), self.slots.threads, device, self._stop_reader, self.initializer, self.initargs
            slot.pool = ProcessPoolExecutor(1, mp_context=self._context, initializer=_start_worker, initargs=setup)
        with _without_main_module():
            inner = slot.pool.submit(_call, function, tuple(call))
        (slot.process,) = (slot.pool._processes or {}).values()
        slot.outer = outer
        inner.add_done_callback(lambda inner: self._ended(slot, inner))

    def _new_log(self, slot: _Slot) -> str:
        log = self.logs / f"worker-{os.getpid()}-{slot.number + 1}.log"
        with storage_errors(log):
            log.parent.mkdir(parents=True, exist_ok=True)
            log.open("ab").close()
        return str(log.absolute())

    def _ended(self, slot: _Slot, inner: Future[Any]) -> None:
        """Pass on how a task ended, and start the next one. Called in a thread of the slot's pool."""
        error = inner.exception()
        with self._lock:
            outer, process = slot.outer, slot.process
            slot.outer = None
            if not self.reuse or isinstance(error, BrokenProcessPool):
                pool, slot.pool, slot.process = slot.pool, None, None
                if pool is not None:
                    pool.shutdown(wait=False)
            if not self._is_closed:
                try:
                    self._start_waiting()
                except Exception as problem:  # in this thread nobody would see it
                    for _, _, future in self._waiting:
                        future.set_exception(problem)
                    self._waiting.clear()
        assert outer is not None
        if isinstance(error, BrokenProcessPool):
            outer.set_exception(WorkerKilled(_how_it_ended(process)))
        elif error is not None:
            outer.set_exception(error)
        else:
            outer.set_result(inner.result())

    def request_stop(self) -> None:
        self._stop_writer.close()
        with self._lock:
            for _, _, future in self._waiting:
                future.cancel()
            self._waiting.clear()

    def shutdown(self, *, wait_s: float | None = None) -> None:
        self.request_stop()
        with self._lock:
            self._is_closed = True
            running = [slot.outer for slot in self._slots if slot.outer is not None]
        wait(running, timeout=wait_s)
        with self._lock:
            pools = [(slot.pool, slot.process, slot.is_free) for slot in self._slots if slot.pool is not None]
        for pool, process, is_free in pools:
            if process is not None and (self.reuse or not is_free):  # one that ends by itself takes seconds
                process.kill()
            assert pool is not None
            pool.shutdown(wait=is_free)
        for slot in self._slots:
            slot.pool = slot.process = None


# The stop request of this worker process, and whether it executes a task.
_STOP = StopRequest()
_IS_BUSY = threading.Event()


def _start_worker(
    log: str,
    threads: int | None,
    device: str | None,
    stop_reader: Any,
    initializer: Callable[..., None] | None,
    initargs: tuple[Any, ...],
) -> None:
    """Prepare a worker process: its log, threads, device and signals, and the end of its parent."""
    # Ctrl-C at the terminal reaches workers only through the parent. Training finds this handler and shares it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):  # blocked while this process started; programs that it starts need it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, _STOP)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    threading.Thread(target=_watch, args=(stop_reader,), daemon=True).start()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    prepare_process(threads)
    if initializer is not None:
        initializer(*initargs)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ |= values
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


def _watch(stop_reader: Any) -> None:
    wait_for_handles([stop_reader])
    _STOP.requested = True


def _end_with_parent() -> None:
    """Save and exit when the parent has ended, however that happened."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    wait_for_handles([parent.sentinel])
    _STOP.requested = True
    until = time.monotonic() + _ORPHAN_SAVE_S
    while _IS_BUSY.is_set() and time.monotonic() < until:
        time.sleep(0.05)
    os._exit(1)


def _call(function: Callable[..., Any], call: tuple[Any, ...]) -> Any:
    _IS_BUSY.set()
    try:
        return function(*call, stop=_STOP)
    finally:
        _IS_BUSY.clear()


def _how_it_ended(process: Any) -> str:
    with contextlib.suppress(Exception):
        process.join(5)
        if process.exitcode is not None and process.exitcode < 0:
            return f"killed by signal {-process.exitcode}"
        if process.exitcode is not None:
            return f"ended with status {process.exitcode}"
    return "killed"


@contextlib.contextmanager
def _without_main_module() -> Iterator[None]:
    """Start processes without the main module, which would run a script without `if __name__ == "__main__"` again."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextlib.contextmanager
def _interrupts_later() -> Iterator[None]:
    """Let Ctrl-C take effect at the end of the block; processes that start in it do not get it (main thread only)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: arrived.append(number))
    # Inherited by new processes until they ignore the signal. Windows has no masks.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else None
    try:
        yield
    finally:
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
        if arrived:
            signal.raise_signal(signal.SIGINT)
