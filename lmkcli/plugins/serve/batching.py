"""A bounded queue in front of one thread, which puts equal work of several clients into one batch.

The thread takes the oldest job. It waits until the job is WINDOW old, takes all waiting jobs with equal work,
and runs their items together: one forward pass encodes the queries of many clients. While a batch runs, the
next one collects, so a busy server never waits. All work on indexes happens in this thread.

Every second batch starts with the oldest job of a single item instead, and a batch of larger jobs is short
while such jobs wait. So a client with one query waits for at most one batch of large requests. A long text
counts as several items.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

WINDOW = 0.003  # seconds that a job waits for others
MAX_ITEMS = 256  # items of a batch, unless one job has more
SHORT_ITEMS = 64  # the same while jobs of a single item wait
CHARACTERS = 1000  # characters of a text that count as one item

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Context = TypeVar("Context")
_Context = TypeVar("_Context", contravariant=True)
_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


class Work(Hashable, Protocol[_Context, _Item, _Answer]):
    """What to do with items. Jobs with equal work can run together."""

    def run(self, context: _Context, items: list[_Item]) -> list[_Answer]:
        """Return an answer for each item."""


class Busy(Exception):
    """The queue is full, the time of a job is over, or the server stops: try again later."""


@dataclass
class _Job:
    work: Any
    items: list[Any]
    future: "Future[list[Any]]" = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)
    size: int = field(init=False)  # items, at least

    def __post_init__(self) -> None:
        texts = (item for item in self.items if isinstance(item, str))
        self.size = len(self.items) + sum(len(text) // CHARACTERS for text in texts)


class BatchQueue(Generic[Context]):
    """Runs jobs in one thread. `context` returns the object that all jobs of a batch use."""

    def __init__(
        self,
        context: Callable[[], Context],
        most: int,
        observe: Callable[[int, int], None] = lambda jobs, items: None,
    ) -> None:
        """`most` is the number of jobs that may wait; `observe` is called with the size of each batch."""
        self._context, self._most, self._observe = context, most, observe
        self._waiting: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._single_next = False
        self._thread = threading.Thread(target=self._serve, name="lmk-batches", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """The number of waiting jobs."""
        return len(self._waiting)

    async def submit(
        self, work: Work[Context, Item, Answer], items: Sequence[Item], timeout: float
    ) -> list[Answer]:
        """Return the answers for items. Raises Busy, or the error of the work."""
        job = _Job(work, list(items))
        with self._changed:
            if self._stopping:
                raise Busy("the server stops")
            if len(self._waiting) >= self._most:
                raise Busy(f"{self._most} requests are waiting already")
            self._waiting.append(job)
            self._changed.notify()
        try:
            # wait_for of Python 3.11 would take one more turn of the event loop, which may be long.
            async with asyncio.timeout(timeout):
                return await asyncio.wrap_future(job.future)
        except TimeoutError:
            raise Busy(f"the request took more than {timeout:g} seconds") from None

    def stop(self) -> None:
        """Finish all accepted jobs, and end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def _serve(self) -> None:
        while jobs := self._next():
            self._run(jobs)

    def _next(self) -> list[_Job]:
        """Wait for the next batch; empty if the queue stops."""
        with self._changed:
            while not self._waiting:
                if self._stopping:
                    return []
                self._changed.wait()
            first = self._first()
            while (
                (left := first.arrived + WINDOW - time.monotonic()) > 0
                and not self._stopping
                and sum(job.size for job in self._waiting) < MAX_ITEMS
            ):
                self._changed.wait(left)
            waiting = first.size > 1 and any(job.size == 1 for job in self._waiting)
            most = SHORT_ITEMS if waiting else MAX_ITEMS
            batch, size = [first], first.size
            rest: deque[_Job] = deque()
            for job in self._waiting:
                if job is first:
                    continue
                if size + job.size <= most and job.work == first.work:
                    batch.append(job)
                    size += job.size
                else:
                    rest.append(job)
            self._waiting = rest
            return batch

    def _first(self) -> _Job:
        """Return the oldest job, or in every second batch the oldest one with a single item."""
        self._single_next = not self._single_next
        single = (job for job in self._waiting if self._single_next and job.size == 1)
        return next(single, self._waiting[0])

    def _run(self, jobs: list[_Job]) -> None:
        """Run a batch. If it fails, run each job alone, so that a job fails only by its own items."""
        jobs = [job for job in jobs if job.future.set_running_or_notify_cancel()]
        if not jobs:
            return
        items = [item for job in jobs for item in job.items]
        self._observe(len(jobs), len(items))
        try:
            answers = iter(jobs[0].work.run(self._context(), items))
            parts = [[next(answers) for _ in job.items] for job in jobs]
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
                return
            for job in jobs:
                try:
                    job.future.set_result(job.work.run(self._context(), job.items))
                except Exception as own:
                    job.future.set_exception(own)
            return
        for job, part in zip(jobs, parts, strict=True):
            job.future.set_result(part)
