"""The queue: jobs with equal work run together, and it is bounded."""

import asyncio
import threading
from dataclasses import dataclass

import pytest

from lmkcli.plugins.serve.batching import BatchQueue, Busy


@dataclass(frozen=True)
class Double:
    """Doubles numbers; negative numbers are an error."""

    name: str = ""

    def run(self, context: threading.Event, items: list[int]) -> list[int]:
        context.wait()
        if any(item < 0 for item in items):
            raise ValueError(self.name)
        return [2 * item for item in items]


def test_waiting_jobs_with_equal_work_are_one_batch() -> None:
    sizes: list[tuple[int, int]] = []
    gate = threading.Event()
    queue = BatchQueue(lambda: gate, 100, lambda jobs, items: sizes.append((jobs, items)))

    async def run() -> list[list[int]]:
        first = asyncio.create_task(queue.submit(Double("first"), [1], 60))
        while not sizes:
            await asyncio.sleep(0.001)
        rest = [asyncio.create_task(queue.submit(Double(), [n, n + 1], 60)) for n in range(20)]
        other = asyncio.create_task(queue.submit(Double("other"), [5], 60))
        while len(queue) < 21:
            await asyncio.sleep(0.001)
        gate.set()
        return await asyncio.gather(first, *rest, other)

    answers = asyncio.run(run())
    assert answers == [[2], *([2 * n, 2 * n + 2] for n in range(20)), [10]]
    assert sizes == [(1, 1), (20, 40), (1, 1)]
    queue.stop()


@dataclass(frozen=True)
class Length:
    """The lengths of texts."""

    def run(self, context: threading.Event, items: list[str]) -> list[int]:
        context.wait()
        return [len(item) for item in items]


def test_long_texts_make_small_batches() -> None:
    """Otherwise, a client with one query would wait for millions of characters."""
    sizes: list[tuple[int, int]] = []
    gate = threading.Event()
    queue = BatchQueue(lambda: gate, 100, lambda jobs, items: sizes.append((jobs, items)))

    async def run() -> None:
        jobs = [asyncio.create_task(queue.submit(Length(), ["a"], 60))]
        while not sizes:
            await asyncio.sleep(0.001)
        long = "a" * 50_000
        jobs += [asyncio.create_task(queue.submit(Length(), [long], 60)) for _ in range(10)]
        while len(queue) < 10:
            await asyncio.sleep(0.001)
        jobs.append(asyncio.create_task(queue.submit(Double(), [5], 60)))
        while len(queue) < 11:
            await asyncio.sleep(0.001)
        gate.set()
        await asyncio.gather(*jobs)

    asyncio.run(run())
    assert all(jobs <= 5 for jobs, _ in sizes)
    assert (1, 1) in sizes[1:3]  # at most one batch before the client with one query
    queue.stop()


def test_an_error_belongs_to_one_job() -> None:
    gate = threading.Event()
    queue = BatchQueue(lambda: gate, 100)

    async def run() -> list[object]:
        jobs = [asyncio.create_task(queue.submit(Double(), [n], 60)) for n in (1, -1, 2)]
        await asyncio.sleep(0)
        gate.set()
        return list(await asyncio.gather(*jobs, return_exceptions=True))

    first, error, last = asyncio.run(run())
    assert (first, last) == ([2], [4])
    assert isinstance(error, ValueError)
    queue.stop()


def test_a_full_queue_and_a_late_answer_are_busy_and_a_stop_finishes_jobs() -> None:
    gate = threading.Event()
    queue = BatchQueue(lambda: gate, 1)

    async def run() -> list[int]:
        running = asyncio.create_task(queue.submit(Double("running"), [1], 60))
        while len(queue) or not running:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        waiting = asyncio.create_task(queue.submit(Double("waiting"), [2], 60))
        await asyncio.sleep(0.01)
        with pytest.raises(Busy, match="waiting already"):
            await queue.submit(Double(), [3], 60)
        stopping = asyncio.create_task(asyncio.to_thread(queue.stop))
        await asyncio.sleep(0.01)
        with pytest.raises(Busy, match="stops"):
            await queue.submit(Double(), [3], 60)
        gate.set()
        await stopping
        return [*(await running), *(await waiting)]

    assert asyncio.run(run()) == [2, 4]
    late = BatchQueue(threading.Event, 5)
    with pytest.raises(Busy, match="took more than"):
        asyncio.run(late.submit(Double(), [1], 0.01))


def test_a_single_item_waits_for_one_batch_of_large_jobs() -> None:
    sizes: list[tuple[int, int]] = []
    gate = threading.Event()
    queue = BatchQueue(lambda: gate, 100, lambda jobs, items: sizes.append((jobs, items)))

    async def run() -> None:
        tasks = [asyncio.create_task(queue.submit(Double("first"), [1], 60))]
        while not sizes:
            await asyncio.sleep(0.001)
        large = [list(range(50))] * 10
        tasks += [asyncio.create_task(queue.submit(Double(), each, 60)) for each in large]
        tasks.append(asyncio.create_task(queue.submit(Double("single"), [5], 60)))
        while len(queue) < 11:
            await asyncio.sleep(0.001)
        gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert sizes[:3] == [(1, 1), (1, 50), (1, 1)]
    assert sizes[3:] == [(5, 250), (4, 200)]
    queue.stop()
