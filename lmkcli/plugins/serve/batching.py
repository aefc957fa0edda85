"""A bounded queue in front of one thread, which puts equal work of several clients into one batch.

The thread takes the first job. It waits until the job is WINDOW old, takes all waiting jobs with equal work,
and runs their items together: one forward pass encodes the queries of many clients. While a batch runs, the
next one collects, so a busy server never waits. All work on indexes happens in this thread.

A long job is divided: after each piece it goes to the end of the queue. Short and long jobs get equal shares
of the thread's time while both wait. So a client with one question waits for about one piece of a long job,
whatever other clients ask for. A single item is never divided. The pieces of a job grow while they take less
than TURN, so that a GPU gets large batches.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

WINDOW = 0.003  # seconds that a job waits for others
SHORT = 4  # the largest size of a short job
BATCH = 64  # the largest size of a batch of short jobs
PIECE = 32  # the largest size of the first piece of a long job, with the jobs that run with it
TURN = 0.05  # seconds; a piece that takes less is followed by one of twice the size

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Context = TypeVar("Context")
_Context = TypeVar("_Context", contravariant=True)
_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


class Work(Hashable, Protocol[_Context, _Item, _Answer]):
    """What to do with items. Jobs with equal work can run together."""

    def size(self, item: _Item) -> int:
        """Return how much work an item is: 1 for the question of a person."""

    def run(self, context: _Context, items: list[_Item]) -> list[_Answer]:
        """Return an answer for each item."""


class Busy(Exception):
    """The queue is full, the time of a job is over, or the server stops: try again later."""


class _Job:
    """The items of a client that are left, and the answers so far."""

    def __init__(self, work: Any, items: Iterable[Any], check: Callable[[list[Any]], None]) -> None:
        self.work, self.items, self.check = work, deque(items), check
        self.future: Future[list[Any]] = Future()
        self.arrived = time.monotonic()
        self.answers: list[Any] = []
        self.context: Any = None  # that of the first piece; so all answers come from one context
        self.size = sum(map(work.size, self.items))
        self.short = self.size <= SHORT
        self.piece = PIECE

    def take(self, most: int) -> list[Any]:
        """Remove and return the next items: at least one, and otherwise at most of the size `most`."""
        taken = [self.items.popleft()]
        left = most - self.work.size(taken[0])
        while self.items and (size := self.work.size(self.items[0])) <= left:
            taken.append(self.items.popleft())
            left -= size
        self.size -= sum(map(self.work.size, taken))
        return taken

    def add(self, answers: list[Any]) -> None:
        """Add the answers of a piece; they end the job if no items are left."""
        self.answers += answers
        try:
            self.check(self.answers)
        except Exception as error:
            return self.fail(error)
        if not self.items and self.future.set_running_or_notify_cancel():
            self.future.set_result(self.answers)

    def fail(self, error: Exception) -> None:
        """End the job with an error."""
        self.items.clear()
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


class _Piece(NamedTuple):
    """Some items of a job, which run in one batch."""

    job: _Job
    items: list[Any]


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
        self._debt = 0.0  # seconds that short jobs have had less than long ones
        self._thread = threading.Thread(target=self._serve, name="lmk-batches", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Return the number of waiting jobs."""
        return len(self._waiting)

    async def submit(
        self,
        work: Work[Context, Item, Answer],
        items: Sequence[Item],
        timeout: float,
        check: Callable[[list[Answer]], None] = lambda answers: None,
    ) -> list[Answer]:
        """Return the answers for items. Raises Busy, or the error of the work.

        `check` is called with the answers so far after each piece of the items, and may raise an error.
        """
        job = _Job(work, items, check)
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
        while pieces := self._next():
            started = time.monotonic()
            self._run(pieces, pieces[0].job.context)
            seconds = time.monotonic() - started
            first = pieces[0].job
            first.piece = first.piece * 2 if seconds < TURN else max(PIECE, first.piece // 2)
            with self._changed:
                self._debt += -seconds if first.short else seconds
                self._waiting += [each.job for each in pieces if each.job.items]

    def _next(self) -> list[_Piece]:
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
                and sum(job.size for job in self._waiting) < BATCH
            ):
                self._changed.wait(left)
            return self._batch(first)

    def _first(self) -> _Job:
        """Return the first job, or the first of those that have had less time, if short and long ones wait.

        A long job has one turn at a time, although the short ones before it may have taken longer.
        """
        if len({job.short for job in self._waiting}) < 2:
            self._debt = 0.0
            return self._waiting[0]
        short = self._debt >= 0
        if not short:
            self._debt = 0.0
        return next(job for job in self._waiting if job.short == short)

    def _batch(self, first: _Job) -> list[_Piece]:
        """Take the next piece of a job, and other jobs with equal work that fit into the same batch."""
        if first.context is None:
            first.context = self._context()
        left = BATCH if first.short else first.piece
        pieces: list[_Piece] = []
        rest: deque[_Job] = deque()
        for job in (first, *(each for each in self._waiting if each is not first)):
            fits = (
                job.size <= left
                and job.short >= first.short
                and (job.context is None or job.context is first.context)
                and job.work == first.work
            )
            if job is first or fits:
                size = job.size
                pieces.append(_Piece(job, job.take(left)))
                left -= size - job.size
            else:
                rest.append(job)
        self._waiting = rest
        return pieces

    def _run(self, pieces: list[_Piece], context: Context) -> None:
        """Run a batch. If it fails, run each piece alone, so that a job fails only by its own items."""
        for each in pieces:
            if each.job.future.cancelled():  # the client has left
                each.job.items.clear()
        pieces = [each for each in pieces if not each.job.future.cancelled()]
        if not pieces:
            return None
        items = [item for piece in pieces for item in piece.items]
        self._observe(len(pieces), len(items))
        try:
            answers = iter(pieces[0].job.work.run(context, items))
            parts = [[next(answers) for _ in piece.items] for piece in pieces]
        except Exception as error:
            if len(pieces) == 1:
                return pieces[0].job.fail(error)
            for piece in pieces:
                self._run([piece], context)
            return None
        for piece, part in zip(pieces, parts, strict=True):
            piece.job.add(part)
