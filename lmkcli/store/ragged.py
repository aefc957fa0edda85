"""Ragged: several vectors for each of several texts, in one array."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Ragged(NamedTuple):
    """Vectors of n texts, one after another; those of text i are vectors[starts[i]:starts[i + 1]]."""

    vectors: NDArray[np.floating]
    """[total, dim], float32 unless it holds what is stored."""
    starts: NDArray[np.int64]
    """[n + 1]: where the vectors of each text begin, and the total."""

    @classmethod
    def single(cls, vectors: NDArray[np.floating]) -> "Ragged":
        """One vector a text."""
        return cls(vectors, np.arange(len(vectors) + 1))

    @classmethod
    def of(cls, vectors: NDArray[np.floating], counts: NDArray[np.int64]) -> "Ragged":
        """`counts[i]` vectors for text i."""
        return cls(vectors, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many vectors each text has."""
        return np.diff(self.starts)

    def text(self, number: int) -> NDArray[np.floating]:
        """The vectors of one text."""
        return self.vectors[self.starts[number] : self.starts[number + 1]]

    def one(self, number: int) -> "Ragged":
        """One text alone."""
        return Ragged.of(self.text(number), self.counts[number : number + 1])

    def take(self, texts: NDArray[np.int64]) -> "Ragged":
        """The vectors of some texts."""
        counts = self.counts[texts]
        return Ragged.of(self.vectors[ranges(self.starts[texts], counts)], counts)


def ranges(begins: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """counts[0] numbers from begins[0] on, then counts[1] from begins[1] on, and so forth."""
    before = np.cumsum(counts) - counts
    shifts: NDArray[np.int64] = np.repeat(begins - before, counts)
    return shifts + np.arange(len(shifts))


def cut(starts: NDArray[np.int64], size: int) -> Iterator[tuple[int, int]]:
    """Ranges of texts with at most `size` vectors together, or of one text that has more."""
    first = 0
    while first < len(starts) - 1:
        stop = int(np.searchsorted(starts, starts[first] + size, side="right")) - 1
        stop = max(stop, first + 1)
        yield first, stop
        first = stop
