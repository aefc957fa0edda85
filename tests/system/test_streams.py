"""Batches of bounded size, and prefetching in a background thread."""

import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.errors import DataError
from lmkcli.system.item_streams import batched, prefetch


@given(st.lists(st.integers(0, 30)), st.integers(1, 50))
def test_batches_are_the_items_in_order_and_bounded(items: list[int], limit: int) -> None:
    made = list(batched(items, lambda item: item, limit))
    assert [item for batch in made for item in batch] == items
    assert all(batch for batch in made)
    assert all(len(batch) == 1 or sum(batch) <= limit for batch in made)
    for batch, after in pairwise(made):
        assert sum(batch) + after[0] > limit


@given(st.lists(st.integers()), st.integers(1, 4))
def test_prefetch_keeps_items_and_order(items: list[int], depth: int) -> None:
    assert list(prefetch(items, depth)) == items


def test_prefetch_is_at_most_depth_items_ahead() -> None:
    made: list[int] = []

    def work() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    before = set(threading.enumerate())
    stream = prefetch(work(), 2)
    assert next(stream) == 0
    wait_until(lambda: len(made) == 4)  # one read, two in the queue, one waiting for the queue
    time.sleep(0.25)
    assert len(made) == 4
    stream.close()  # type: ignore[attr-defined]
    assert len(made) == 4
    assert not started_after(before)


def test_an_exception_is_raised_after_the_items_before_it() -> None:
    def work() -> Iterator[int]:
        yield 1
        yield 2
        raise DataError("line 3 is broken")

    before = set(threading.enumerate())
    stream = prefetch(work(), 1)
    assert [next(stream), next(stream)] == [1, 2]
    with pytest.raises(DataError, match="line 3"):
        next(stream)
    assert not started_after(before)


def test_a_reader_that_fails_leaves_no_thread() -> None:
    def read() -> None:
        for item in prefetch(range(1000), 2):
            assert item < 3

    before = set(threading.enumerate())
    with pytest.raises(AssertionError):
        read()
    wait_until(lambda: not started_after(before))


def test_nothing_starts_before_it_is_read() -> None:
    before = set(threading.enumerate())
    stream = prefetch([1], 1)
    assert not started_after(before)
    assert list(stream) == [1]


def started_after(before: set[threading.Thread]) -> set[threading.Thread]:
    """The threads that are new and still run. (A count would fall when one of another test ends.)"""
    return set(threading.enumerate()) - before


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; fail after five minutes, which a busy machine does not take."""
    stop = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < stop
        time.sleep(0.005)
