"""The queue: jobs with equal work run together, long ones are divided, and it is bounded."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from lmkcli.plugins.serve import batching
from lmkcli.plugins.serve.batching import BatchQueue, Busy
from lmkcli.plugins.serve.indexes import SearchPlan
from lmkcli.plugins.serve.work import DocumentWork, EmbedWork, SearchWork


@dataclass(frozen=True)
class Double:
    """Doubles numbers; negative numbers are an error."""

    name: str = ""

    def size(self, item: int) -> int:
        return 1

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

    def size(self, item: str) -> int:
        return len(item)

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
        long = "a" * 10
        jobs += [asyncio.create_task(queue.submit(Length(), [long], 60)) for _ in range(10)]
        while len(queue) < 10:
            await asyncio.sleep(0.001)
        jobs.append(asyncio.create_task(queue.submit(Double(), [5], 60)))
        while len(queue) < 11:
            await asyncio.sleep(0.001)
        gate.set()
        await asyncio.gather(*jobs)

    asyncio.run(run())
    assert [items for _, items in sizes if items > 1] == [3, 3, 3]
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


@dataclass(frozen=True)
class Record:
    """Squares numbers, and records the context and the items of each batch."""

    name: str
    seconds: float = 0.0

    def size(self, item: int) -> int:
        return 1

    def run(self, context: "Recorder", items: list[int]) -> list[int]:
        context.gate.wait()
        context.batches.append((self.name, items))
        time.sleep(self.seconds)
        return [item * item for item in items]


@dataclass
class Recorder:
    """A gate, and the batches that passed it."""

    gate: threading.Event
    batches: list[tuple[str, list[int]]]


Jobs = Callable[[BatchQueue[Recorder]], Iterable[Coroutine[Any, Any, Any]]]


def recorded(make: Jobs) -> tuple[list[tuple[str, list[int]]], list[Any]]:
    """The batches of jobs that all wait when the first batch starts, and the answers."""
    recorder = Recorder(threading.Event(), [])
    started: list[int] = []
    queue = BatchQueue(lambda: recorder, 100, lambda jobs, items: started.append(items))

    async def run() -> list[Any]:
        first = asyncio.create_task(queue.submit(Record("first"), [1], 60))
        while not started:
            await asyncio.sleep(0.001)
        tasks = [asyncio.create_task(job) for job in make(queue)]
        while len(queue) < len(tasks):
            await asyncio.sleep(0.001)
        recorder.gate.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        await first
        return found

    answers = asyncio.run(run())
    queue.stop()
    return recorder.batches[1:], answers


@pytest.mark.parametrize(
    ("seconds", "pieces"),
    [
        (2 * batching.TURN, [batching.PIECE] * 3 + [5]),
        (0.0, [batching.PIECE, 2 * batching.PIECE, 5]),
    ],
    ids=["slow", "quick"],
)
def test_a_long_job_is_divided(seconds: float, pieces: list[int]) -> None:
    many = list(range(3 * batching.PIECE + 5))
    batches, answers = recorded(lambda queue: [queue.submit(Record("long", seconds), many, 60)])
    assert [len(items) for _, items in batches] == pieces
    assert answers == [[n * n for n in many]]


def test_short_and_long_jobs_share_the_time() -> None:
    many = list(range(10 * batching.PIECE))

    def order(long: float, short: float) -> str:
        batches, _ = recorded(
            lambda queue: [
                queue.submit(Record("long", long), many, 60),
                *(queue.submit(Record(f"short {n}", short), [n], 60) for n in range(20)),
            ]
        )
        return "".join(name[0] for name, _ in batches)

    slow = order(0.3, 0.0)
    assert "ll" not in slow[: slow.rindex("s")]
    assert "ss" in slow
    quick = order(0.0, 0.03)
    assert "ll" not in quick[: quick.rindex("s")]
    assert quick[: quick.rindex("s")].count("l") > 1
    assert slow.count("l") == 10


def test_long_jobs_take_turns() -> None:
    batches, _ = recorded(
        lambda queue: [
            queue.submit(Record(name), list(range(2 * batching.PIECE)), 60) for name in "abc"
        ]
    )
    assert [name for name, _ in batches] == [*"abcabc"]


def test_answers_of_a_divided_job_come_from_one_context() -> None:
    contexts = iter(range(100))
    queue: BatchQueue[int] = BatchQueue(lambda: next(contexts), 100)

    class Context:
        def size(self, item: int) -> int:
            return 1

        def run(self, context: int, items: list[int]) -> list[int]:
            return [context] * len(items)

    size = 5 * batching.PIECE
    assert asyncio.run(queue.submit(Context(), [0] * size, 60)) == [0] * size
    assert asyncio.run(queue.submit(Context(), [0], 60)) == [1]
    queue.stop()


def test_an_abandoned_job_runs_no_further_piece() -> None:
    many = list(range(10 * batching.PIECE))
    batches, answers = recorded(
        lambda queue: [
            queue.submit(Record("left", 0.1), many, 0.05),
            queue.submit(Record("other"), many[:20], 60),
        ]
    )
    assert isinstance(answers[0], Busy)
    assert len(answers[1]) == 20
    assert len([name for name, _ in batches if name == "left"]) < 3


def test_the_answers_of_pieces_are_checked() -> None:
    def check(answers: list[int]) -> None:
        if len(answers) > batching.PIECE:
            raise ValueError("too many")

    many = list(range(5 * batching.PIECE))
    batches, answers = recorded(lambda queue: [queue.submit(Record("a"), many, 60, check)])
    assert len(batches) == 2
    assert isinstance(answers[0], ValueError)


def test_the_size_of_work_grows_with_texts_documents_and_pairs() -> None:
    def search(**given: Any) -> SearchWork:
        plan = SearchPlan(("i",), None, given.pop("reranker", ""))
        return SearchWork(plan, **{"k": 10, **given})

    question = "why does the pump start twice?"
    assert search().size(question) == 1
    assert search().size("word " * 190) <= batching.SHORT
    assert search().size("word " * 20_000) > batching.PIECE
    assert search(k=1000).size(question) > batching.SHORT
    assert search(k=1000, texts=False, passages=False).size(question) == 1
    assert search(reranker="vectors").size(question) <= batching.SHORT
    assert search(reranker="model").size(question) > batching.PIECE
    assert DocumentWork("i", question).size("doc") == 1
    assert DocumentWork("i", question, contributions=True).size("doc") > batching.SHORT
    assert EmbedWork("i", "document").size((1,) * 8192) > batching.PIECE
