"""Streams of items: batches of bounded size, and prefetching in a background thread."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def batched(items: Iterable[Item], size: Callable[[Item], int], limit: int) -> Iterator[list[Item]]:
    """Group consecutive items into lists with a total size of at most `limit`.

    An item that is larger than `limit` gets a list of its own.
    """
    batch: list[Item] = []
    total = 0
    for item in items:
        cost = size(item)
        if batch and total + cost > limit:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += cost
    if batch:
        yield batch


class _Failure:
    """An exception of the background thread, which the reader raises."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def prefetch(items: Iterable[Item], depth: int) -> Iterator[Item]:
    """Iterate over `items` in a background thread that is at most `depth` items ahead of the reader.

    An exception of the thread is raised here, after the items before it. Closing the generator stops
    the thread.
    """
    ready: queue.Queue[Item | _Failure | None] = queue.Queue(depth)
    stopped = threading.Event()

    def put(value: Item | _Failure | None) -> None:
        while not stopped.is_set():
            try:
                return ready.put(value, timeout=0.1)
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                put(item)
                if stopped.is_set():
                    return
            put(None)
        except BaseException as error:  # every exception is passed on to the reader
            put(_Failure(error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while (value := ready.get()) is not None:
            if isinstance(value, _Failure):
                raise value.error
            yield value
    finally:
        stopped.set()
        thread.join()
