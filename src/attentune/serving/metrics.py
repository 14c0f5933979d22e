"""What the server counts, for Prometheus."""

from collections.abc import Callable, Mapping

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class ServerMetrics:
    """Counters of one server, in a registry of its own."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, facts: Mapping[str, str]) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        Info("attentune_run", "The run that is served", registry=registry).info(dict(facts))
        labels = ("path", "status")
        self._requests = Counter("attentune_requests", "Requests by path and status", labels, registry=registry)
        self._seconds = Histogram(
            "attentune_request_seconds",
            "Seconds from a request's head to the end of its answer",
            ("path",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._texts = Counter("attentune_texts", "Texts that were answered", ("path",), registry=registry)
        self._batch_texts = Histogram(
            "attentune_batch_texts", "Texts of a batch of predictions", buckets=_TEXTS, registry=registry
        )
        self._batch_seconds = Histogram(
            "attentune_batch_seconds", "Seconds of a batch of predictions", buckets=_SECONDS, registry=registry
        )

    def watch_queues(self, waiting_texts: Callable[[], int], explaining: Callable[[], int]) -> None:
        """Report the lengths of the queues, read from these functions."""
        for name, text, read in (
            ("attentune_waiting_texts", "Texts that wait for their prediction", waiting_texts),
            ("attentune_explanation_requests", "Requests for explanations that wait or are at work", explaining),
        ):
            Gauge(name, text, registry=self._registry).set_function(read)

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """Count an answered request; `path` is one of the server's own."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def count_texts(self, path: str, texts: int) -> None:
        self._texts.labels(path).inc(texts)

    def count_batch(self, texts: int, seconds: float) -> None:
        self._batch_texts.observe(texts)
        self._batch_seconds.observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
