"""Joins waiting requests into batches, and calls the run in one thread: explaining changes a model for a moment."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from attentune.data.dataset import TextRows
from attentune.serving.backend import Row, RunBackend, Span, chunks_of
from attentune.serving.limits import RequestError, ServerLimits

T = TypeVar("T")

_MAX_RETRY_S = 60


@dataclass(eq=False)
class _Request:
    """A request in the queue."""

    items: Sequence[Any]  # what is to be computed
    arrived_s: float  # when it came, on the clock of the event loop
    answer: asyncio.Future[list[Any]]  # the results, or the exception
    taken: int = 0  # how many of its items are in batches already
    results: list[Any] = field(default_factory=list)  # the results of finished batches


class Batcher:
    """Joins items of waiting requests into batches, first come first served, and computes one batch at a time.

    A request with more items than a batch holds is divided. Items of a request that is cancelled leave the queue. If
    a batch of several requests fails, each of them is computed alone, so that only those fail that cause it.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[Any]], Awaitable[Sequence[Any]]],
        *,
        max_batch: int,
        max_wait_s: float,
        max_queue: int,
        on_batch: Callable[[int, float], None] = lambda items, seconds: None,
    ) -> None:
        self._compute, self._on_batch = compute, on_batch
        self._max_batch, self._max_wait_s, self._max_queue = max_batch, max_wait_s, max_queue
        self._queue: deque[_Request] = deque()
        self._arrived = asyncio.Event()
        self._seconds_per_item = 0.0

    @property
    def waiting(self) -> int:
        """The number of items that are in no batch yet."""
        return sum(len(request.items) - request.taken for request in self._queue)

    async def submit(self, items: Sequence[Any]) -> list[Any]:
        """Wait for the results of these items, in their order."""
        loop = asyncio.get_running_loop()
        waiting = self.waiting
        if waiting + len(items) > self._max_queue:
            seconds = min(max(math.ceil(waiting * self._seconds_per_item), 1), _MAX_RETRY_S)
            raise RequestError(
                503,
                f"{waiting:,} texts wait, and this server lets at most {self._max_queue:,} wait. Send the request again"
                f" in {seconds} s, or start the server with a higher --max_queue.",
                retry_after_s=seconds,
            )
        request = _Request(items, loop.time(), loop.create_future())
        self._queue.append(request)
        self._arrived.set()
        try:
            return await request.answer
        finally:
            with contextlib.suppress(ValueError):  # it has left the queue, unless it was cancelled
                self._queue.remove(request)

    async def run(self) -> None:
        """Compute batches until this task is cancelled."""
        while True:
            await self._wait()
            batch = self._next_batch()
            if batch:
                await self._answer(batch)

    async def _wait(self) -> None:
        """Wait until there is a full batch, or the first request has waited long enough."""
        loop = asyncio.get_running_loop()
        while self.waiting < self._max_batch:
            left = self._queue[0].arrived_s + self._max_wait_s - loop.time() if self._queue else None
            if left is not None and left <= 0:
                return
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._arrived.wait()

    def _next_batch(self) -> list[tuple[_Request, Sequence[Any]]]:
        """Take the first items of the queue, by request."""
        batch, room = [], self._max_batch
        while self._queue and room:
            request = self._queue[0]
            if request.answer.done():  # cancelled, or its first part has failed
                self._queue.popleft()
                continue
            part = request.items[request.taken : request.taken + room]
            request.taken += len(part)
            room -= len(part)
            batch.append((request, part))
            if request.taken == len(request.items):
                self._queue.popleft()
        return batch

    async def _answer(self, batch: list[tuple[_Request, Sequence[Any]]]) -> None:
        """Compute a batch and hand the results to its requests."""
        items = [item for _, part in batch for item in part]
        began = time.perf_counter()
        try:
            results = list(await self._compute(items))
            for request, part in batch:
                request.results += results[: len(part)]
                del results[: len(part)]
                if len(request.results) == len(request.items) and not request.answer.done():
                    request.answer.set_result(request.results)
        except Exception as error:
            if len(batch) > 1:
                for alone in batch:
                    await self._answer([alone])
            elif not batch[0][0].answer.done():
                batch[0][0].answer.set_exception(error)
            return
        seconds = time.perf_counter() - began
        self._seconds_per_item = 0.8 * self._seconds_per_item + 0.2 * seconds / len(items)
        self._on_batch(len(items), seconds)


class Engine:
    """Answers requests with a backend, in batches; use it as an asynchronous context manager."""

    def __init__(
        self,
        backend: RunBackend,
        limits: ServerLimits,
        *,
        on_batch: Callable[[int, float], None] = lambda texts, seconds: None,
    ) -> None:
        self.backend, self._limits = backend, limits
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")
        self._data_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="data")
        self.batcher = Batcher(
            lambda rows: self.in_thread(backend.predict, rows),
            max_batch=limits.batch,
            max_wait_s=limits.wait_ms / 1000,
            max_queue=limits.queue,
            on_batch=on_batch,
        )
        self.explaining = 0

    async def __aenter__(self) -> Engine:
        self._batches = asyncio.create_task(self.batcher.run())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._batches.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._batches
        for thread in (self._thread, self._data_thread):
            thread.shutdown(wait=True, cancel_futures=True)

    async def predict(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Predict rows, together with those of other requests."""
        return await self.batcher.submit(rows)

    async def explain(self, rows: Sequence[Row], **options: Any) -> list[dict[str, Any]]:
        """Explain rows, one after the other; batches of predictions come between them."""
        stop = threading.Event()
        explain = functools.partial(self.backend.explain, stop=stop, **options)
        with self._long_request():
            try:
                return [await self.in_thread(explain, row) for row in rows]
            finally:
                stop.set()

    async def mask(self, row: Row, words: Sequence[Span]) -> dict[str, Any]:
        with self._long_request():
            return await self.in_thread(self.backend.mask, row, words)

    async def file(
        self, content: bytes, name: str, columns: Mapping[str, str | None], *, words: bool
    ) -> dict[str, Any]:
        """Predict the rows of a file part by part; other requests come between the parts."""
        with self._long_request():
            rows = await self.in_thread(self.backend.read_file, content, name, columns, self._limits.rows)
            scored = await self._scored(rows, words=words)
            return await self.in_thread(self.backend.file_answer, rows, scored)

    async def example(self) -> dict[str, Any]:
        """Return the text that the page begins with; predictions do not wait until the data of the run are read."""
        return await asyncio.get_running_loop().run_in_executor(self._data_thread, self.backend.example)

    async def errors(self) -> dict[str, Any]:
        """Return the validation rows that the run gets most wrong; if they must be predicted, part by part."""
        loop = asyncio.get_running_loop()
        with self._long_request():
            rows, errors = await loop.run_in_executor(self._data_thread, self.backend.saved_errors, self._limits.rows)
            if errors is not None:
                return errors
            return await self.in_thread(self.backend.errors_of, await self._scored(rows, words=False))

    async def _scored(self, rows: TextRows, *, words: bool) -> list[tuple[np.ndarray, dict[str, Any]]]:
        score = functools.partial(self.backend.score, words=words)
        return [await self.in_thread(score, part) for part in chunks_of(rows)]

    @contextlib.contextmanager
    def _long_request(self) -> Iterator[None]:
        if self.explaining >= self._limits.explain_queue:
            raise RequestError(
                503,
                f"{self.explaining} requests for explanations or files wait, the most that this server lets wait. Send"
                " the request again in 5 s.",
                retry_after_s=5,
            )
        self.explaining += 1
        try:
            yield
        finally:
            self.explaining -= 1

    async def in_thread(self, function: Callable[..., T], *given: Any) -> T:
        """Call a function in the thread that computes."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *given)
