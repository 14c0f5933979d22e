"""Dynamic batching: requests that wait are joined into one batch, from a queue of bounded length."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_MAX_RETRY_S = 60


class QueueFullError(Exception):
    """The queue has no room for a request.

    Attributes:
        waiting: the number of items that wait.
        retry_after_s: when there should be room, at the present speed.
    """

    def __init__(self, waiting: int, retry_after_s: int) -> None:
        super().__init__(f"{waiting} items wait")
        self.waiting, self.retry_after_s = waiting, retry_after_s


@dataclass(eq=False)
class _Request(Generic[Item, Result]):
    """A request in the queue.

    Attributes:
        items: what is to be computed.
        arrived_s: when it came, on the clock of the event loop.
        answer: the results, or the exception.
        taken: how many of its items are in batches already.
        results: the results of finished batches.
    """

    items: Sequence[Item]
    arrived_s: float
    answer: asyncio.Future[list[Result]]
    taken: int = 0
    results: list[Result] = field(default_factory=list)


class Batcher(Generic[Item, Result]):
    """Joins items of waiting requests into batches, first come first served, and computes one batch at a time.

    A request with more items than a batch holds is divided. Items of a request that is cancelled leave the queue. If
    a batch of several requests fails, each of them is computed alone, so that only those fail that cause it.

    Args:
        compute: computes the results of a batch, one for each item, in their order.
        max_batch: the most items in a batch.
        max_wait_s: how long the first item of a batch waits for others; 0 takes what waits when the model is free.
        max_queue: the most items that wait; a request beyond it is refused.
        on_batch: called with the number of items and the seconds of each finished batch.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        *,
        max_batch: int,
        max_wait_s: float,
        max_queue: int,
        on_batch: Callable[[int, float], None] = lambda items, seconds: None,
    ) -> None:
        self._compute, self._on_batch = compute, on_batch
        self._max_batch, self._max_wait_s, self._max_queue = max_batch, max_wait_s, max_queue
        self._queue: deque[_Request[Item, Result]] = deque()
        self._arrived = asyncio.Event()
        self._seconds_per_item = 0.0

    @property
    def waiting(self) -> int:
        """The number of items that are in no batch yet."""
        return sum(len(request.items) - request.taken for request in self._queue)

    async def submit(self, items: Sequence[Item]) -> list[Result]:
        """Wait for the results of these items, in their order.

        Raises:
            QueueFullError: too many items wait.
            Exception: what `compute` raised for them.
        """
        loop = asyncio.get_running_loop()
        waiting = self.waiting
        if waiting + len(items) > self._max_queue:
            seconds = math.ceil(waiting * self._seconds_per_item)
            raise QueueFullError(waiting, min(max(seconds, 1), _MAX_RETRY_S))
        request: _Request[Item, Result] = _Request(items, loop.time(), loop.create_future())
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
                await asyncio.wait_for(self._arrived.wait(), left)

    def _next_batch(self) -> list[tuple[_Request[Item, Result], Sequence[Item]]]:
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

    async def _answer(self, batch: list[tuple[_Request[Item, Result], Sequence[Item]]]) -> None:
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
