"""Rows of different lengths in one flat array."""

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Longs = NDArray[np.int64]
_Number = TypeVar("_Number", bound=np.generic)


def ranges(starts: Longs, counts: Longs) -> Longs:
    """Return the concatenated ranges starts[i] … starts[i] + counts[i] - 1, [sum of counts].

    Position p of the result belongs to range i and is p - before[i] after starts[i], where before[i] counts
    the positions of earlier ranges. So it is p + (starts[i] - before[i]).
    """
    if len(starts) == 1:  # a short cut, because one text is a block of one
        first = int(starts[0])
        return np.arange(first, first + int(counts[0]))
    before = np.cumsum(counts) - counts
    shifts: Longs = np.repeat(starts - before, counts)
    return shifts + np.arange(len(shifts))


def interleave(
    rows: NDArray[_Number], counts: Longs, others: NDArray[_Number], other_counts: Longs
) -> NDArray[_Number]:
    """Return flat rows in which row i of `others` follows row i of `rows`."""
    total = counts + other_counts
    starts = np.cumsum(total) - total
    joined = np.empty(len(rows) + len(others), rows.dtype)
    joined[ranges(starts, counts)] = rows
    joined[ranges(starts + counts, other_counts)] = others
    return joined


def cut(starts: Longs, size: int) -> Iterator[tuple[int, int]]:
    """Yield ranges (first, stop) of texts with at most `size` vectors, or a single text with more."""
    first = 0
    while first < len(starts) - 1:
        stop = int(np.searchsorted(starts, starts[first] + size, side="right")) - 1
        stop = max(stop, first + 1)
        yield first, stop
        first = stop
