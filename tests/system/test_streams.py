"""Batches of bounded size, and the background thread."""

import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.errors import DataError
from lmkcli.system.streams import ahead, batched


@given(st.lists(st.integers(0, 30)), st.integers(1, 50))
def test_batches_are_the_items_in_order_and_bounded(items: list[int], limit: int) -> None:
    made = list(batched(items, lambda item: item, limit))
    assert [item for batch in made for item in batch] == items
    assert all(batch for batch in made)
    assert all(len(batch) == 1 or sum(batch) <= limit for batch in made)
    for batch, after in pairwise(made):
        assert sum(batch) + after[0] > limit


@given(st.lists(st.integers()), st.integers(1, 4))
def test_ahead_yields_the_same_in_the_same_order(items: list[int], depth: int) -> None:
    assert list(ahead(items, depth)) == items


def test_ahead_runs_beside_the_reader_but_not_far_ahead() -> None:
    made: list[int] = []

    def work() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    before = threading.active_count()
    stream = ahead(work(), 2)
    assert next(stream) == 0
    wait_until(lambda: len(made) == 4)  # one read, two ready, one waiting for room
    time.sleep(0.25)
    assert len(made) == 4
    stream.close()  # type: ignore[attr-defined]
    assert len(made) == 4
    assert threading.active_count() == before


def test_an_exception_comes_after_the_items_before_it() -> None:
    def work() -> Iterator[int]:
        yield 1
        yield 2
        raise DataError("line 3 is broken")

    before = threading.active_count()
    stream = ahead(work(), 1)
    assert [next(stream), next(stream)] == [1, 2]
    with pytest.raises(DataError, match="line 3"):
        next(stream)
    assert threading.active_count() == before


def test_a_reader_that_fails_leaves_no_thread() -> None:
    def read() -> None:
        for item in ahead(range(1000), 2):
            assert item < 3

    before = threading.active_count()
    with pytest.raises(AssertionError):
        read()
    wait_until(lambda: threading.active_count() == before)


def test_nothing_starts_before_it_is_read() -> None:
    before = threading.active_count()
    stream = ahead([1], 1)
    assert threading.active_count() == before
    assert list(stream) == [1]


def wait_until(condition: Callable[[], bool]) -> None:
    """Returns when it holds; fails after a minute."""
    stop = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < stop
        time.sleep(0.005)
