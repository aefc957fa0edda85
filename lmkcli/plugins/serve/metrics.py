"""Measurements of a server in the text format of Prometheus."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters of one server. `waiting` returns the number of waiting requests."""

    def __init__(self, waiting: Callable[[], int]) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter("lmk_requests", "Requests.", ["route", "status"], registry=registry)
        self.seconds = Histogram(
            "lmk_request_seconds",
            "Seconds from a request to its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._batches = Histogram(
            "lmk_batch_items",
            "Queries, texts or documents of a batch.",
            buckets=_SIZES,
            registry=registry,
        )
        self._jobs = Counter("lmk_batch_requests", "Requests in batches.", registry=registry)
        self.reloads = Counter("lmk_reloads", "Reloads after updates.", registry=registry)
        self.running = Gauge("lmk_running_requests", "Unanswered requests.", registry=registry)
        queue = Gauge("lmk_waiting_requests", "Requests in the queue.", registry=registry)
        queue.set_function(waiting)

    def batch(self, jobs: int, items: int) -> None:
        """Count a batch."""
        self._jobs.inc(jobs)
        self._batches.observe(items)

    def text(self) -> bytes:
        """Return all measurements."""
        return generate_latest(self._registry)
