"""Streams: documents in batches of bounded size, and work done ahead in the background."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def batched(items: Iterable[Item], size: Callable[[Item], int], limit: int) -> Iterator[list[Item]]:
    """Consecutive items in lists whose sizes add up to at most `limit` (a larger item is alone)."""
    batch: list[Item] = []
    held = 0
    for item in items:
        cost = size(item)
        if batch and held + cost > limit:
            yield batch
            batch, held = [], 0
        batch.append(item)
        held += cost
    if batch:
        yield batch


class _Failure:
    """An exception on its way from the background thread to the reader."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def ahead(items: Iterable[Item], depth: int) -> Iterator[Item]:
    """The same items, made by a background thread that is at most `depth` items ahead.

    An exception of the thread is raised here; closing the generator stops the thread.
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
