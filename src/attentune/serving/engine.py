"""The run behind the API: one thread computes, because explaining changes a model for a moment."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from attentune.attribution.base import Settings
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.explain.explainer import default_method
from attentune.explain.texts import explain_rows
from attentune.inference.ensemble import EnsemblePredictor
from attentune.inference.predictor import ModelPredictor, Predictor, predictions_of_input
from attentune.models.precision import INT8, TRUE_BF16
from attentune.serving.limits import LIME_SAMPLES, RequestError, ServerLimits

Item = TypeVar("Item")
Result = TypeVar("Result")

_MAX_RETRY_S = 60


class QueueFullError(Exception):
    """The queue has no room for a request."""

    def __init__(self, waiting: int, retry_after_s: int) -> None:
        super().__init__(f"{waiting} items wait")
        self.waiting, self.retry_after_s = waiting, retry_after_s


@dataclass(eq=False)
class _Request(Generic[Item, Result]):
    """A request in the queue."""

    items: Sequence[Item]  # what is to be computed
    arrived_s: float  # when it came, on the clock of the event loop
    answer: asyncio.Future[list[Result]]  # the results, or the exception
    taken: int = 0  # how many of its items are in batches already
    results: list[Result] = field(default_factory=list)  # the results of finished batches


class Batcher(Generic[Item, Result]):
    """Joins items of waiting requests into batches, first come first served, and computes one batch at a time.

    A request with more items than a batch holds is divided. Items of a request that is cancelled leave the queue. If
    a batch of several requests fails, each of them is computed alone, so that only those fail that cause it.
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
        """Wait for the results of these items, in their order."""
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


# A text and its second text, or None.
Row = tuple[str, str | None]
T = TypeVar("T")

# Precisions that exist for prediction only, and those that explanations use in their place.
_EXPLAINS_IN = {TRUE_BF16: "bf16", INT8: "fp32"}


@dataclass(frozen=True)
class ExplainOptions:
    """Options of a request for explanations, see `explain.texts.explain_texts`."""

    method: str | None = None
    target: str | None = None
    level: str = "word"
    seed: int = 0
    steps: int = 50
    samples: int | None = None


class Backend(Protocol):
    """What computes the answers, in one thread."""

    is_pair: bool  # whether it reads pairs of texts

    def facts(self) -> dict[str, Any]:
        """Return what clients may know about the run, as JSON."""
        ...

    def predict(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Predict rows; for each an object as `attentune.predict` returns."""
        ...

    def explain(self, row: Row, options: ExplainOptions, stop: threading.Event) -> dict[str, Any]:
        """Explain the prediction of a row; raise `StoppedError` soon after `stop` is set."""
        ...


class StoppedError(Exception):
    """Nobody waits for this explanation any more."""


class RunBackend:
    """A saved run of any kind."""

    def __init__(self, saved: Predictor, *, name: str, precision: str | None = None) -> None:
        self._saved, self._name = saved, name
        self._evaluator = saved.prepared(precision=precision)
        self._explains_in = None if precision is None else _EXPLAINS_IN.get(precision, precision)
        self.is_pair = saved.is_pair

    def facts(self) -> dict[str, Any]:
        """Return the run's name, kind, what it does, task type, labels and default method of explanation."""
        return {
            "run": self._name,
            "kind": self._saved.kind,
            "does": self._saved.job,
            "task_type": self._saved.label_space.task_type,
            "labels": list(self._saved.label_space.names),
            "pairs": self.is_pair,
            "explains_by": default_method(self._saved),
        }

    def predict(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Predict rows, with six digits as in the files of `attentune predict`."""
        space = self._saved.label_space
        data = TaskData("input", space, (), {"input": self._rows(rows)})
        return [_rounded(answer) for answer in predictions_of_input(self._evaluator(data))]

    def explain(self, row: Row, options: ExplainOptions, stop: threading.Event) -> dict[str, Any]:
        """Explain the prediction of a row."""
        method = options.method or default_method(self._saved)
        samples = LIME_SAMPLES if options.samples is None and method == "lime" else options.samples
        settings = Settings(seed=options.seed, steps=options.steps, samples=samples)
        with _stoppable(self._saved, stop):
            (explanation,) = explain_rows(
                self._saved,
                self._rows([row]),
                methods=(method,),
                target=options.target,
                level=options.level,
                settings=settings,
                precision=self._explains_in,
            )[method]
        return explanation.to_dict()

    def _rows(self, rows: Sequence[Row]) -> TextRows:
        ids = tuple(map(str, range(len(rows))))
        pairs = tuple(second or "" for _, second in rows) if self.is_pair else None
        return TextRows(ids, tuple(text for text, _ in rows), pairs, None, "texts")


def _rounded(answer: dict[str, Any]) -> dict[str, Any]:
    """Round to six digits, or four behind the point: the last ones depend on what else is in the batch."""
    if "probabilities" not in answer:
        return {**answer, "prediction": float(LabelSpace("regression").text_of(answer["prediction"]))}
    return {**answer, "probabilities": {name: round(share, 6) for name, share in answer["probabilities"].items()}}


@contextlib.contextmanager
def _stoppable(saved: Predictor, stop: threading.Event) -> Iterator[None]:
    """Raise `StoppedError` before a pass of the run's models once `stop` is set."""

    def check(module: Any, inputs: Any) -> None:
        if stop.is_set():
            raise StoppedError

    check(None, None)
    handles = [model.register_forward_pre_hook(check) for model in _models(saved)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _models(saved: Predictor) -> list[Any]:
    """Return the models of a run that are in memory."""
    if isinstance(saved, ModelPredictor):
        return [saved.model]
    if isinstance(saved, EnsemblePredictor) and saved.loaded.keeps:
        return [run.model for _, run in saved.weighted_runs() if isinstance(run, ModelPredictor)]
    return []


class Engine:
    """Answers requests with a backend, in batches; use it as an asynchronous context manager."""

    def __init__(
        self,
        backend: Backend,
        *,
        limits: ServerLimits,
        max_batch: int,
        max_wait_s: float,
        on_batch: Callable[[int, float], None] = lambda texts, seconds: None,
    ) -> None:
        self.backend, self._limits = backend, limits
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")
        self.batcher: Batcher[Row, dict[str, Any]] = Batcher(
            lambda rows: self._in_thread(backend.predict, rows),
            max_batch=max_batch,
            max_wait_s=max_wait_s,
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
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def predict(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Predict rows, together with those of other requests."""
        try:
            return await self.batcher.submit(rows)
        except QueueFullError as error:
            raise RequestError(
                503,
                f"{error.waiting:,} texts wait, and this server lets at most {self._limits.queue:,} wait. Send the"
                f" request again in {error.retry_after_s} s, or start the server with a higher --max_queue.",
                retry_after_s=error.retry_after_s,
            ) from None

    async def explain(self, rows: Sequence[Row], options: ExplainOptions) -> list[dict[str, Any]]:
        """Explain rows, one after the other; batches of predictions come between them."""
        if self.explaining >= self._limits.explain_queue:
            raise RequestError(
                503,
                f"{self.explaining} requests for explanations wait, the most that this server lets wait. Send the"
                " request again in 5 s.",
                retry_after_s=5,
            )
        self.explaining += 1
        stop = threading.Event()
        try:
            return [await self._in_thread(self.backend.explain, row, options, stop) for row in rows]
        finally:
            stop.set()
            self.explaining -= 1

    async def _in_thread(self, function: Callable[..., T], *given: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *given)
