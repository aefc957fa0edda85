"""Vectors in memory: `VectorRows` is the interface, and `Ragged` has dense vectors.

Rows are the vectors of some texts, in their order. Each text has one or several vectors. The codec of a
vectors folder (`codec.py`) determines the class of its rows: code that reads, selects and joins vectors does
not know it.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from lmkcli.store.ragged import Longs, ranges


class VectorRows(Protocol):
    """The vectors of n texts. Text i has the vectors starts[i] … starts[i + 1] - 1."""

    @property
    def starts(self) -> Longs:
        """[n + 1]: the number of the first vector of each text, and the total."""

    @property
    def counts(self) -> Longs:
        """The number of vectors of each text, [n]."""

    @property
    def dim(self) -> int:
        """The number of dimensions of a vector."""

    def take(self, texts: Longs) -> Self:
        """Return some texts, in the given order."""

    def one(self, number: int) -> Self:
        """Return only one text."""

    def apart(self) -> Self:
        """Return every vector as a text of its own."""

    def not_finite(self) -> int | None:
        """Return the first text with a value that is not finite; None if all are finite."""

    def products(self, query: Self) -> NDArray[np.float64]:
        """Return the score of each vector for a query of one text, [vectors].

        It is the sum of the dot products with the vectors of the query.
        """

    def matrix(self) -> NDArray[np.float64]:
        """Return all vectors as a matrix, [vectors, dim]."""

    @classmethod
    def joined(cls, pieces: Iterable[Self], dim: int) -> Self:
        """Return the texts of several pieces, in order."""

    @classmethod
    def gathered(cls, counts: Longs, pieces: Iterable[tuple[Longs, Self]], dim: int) -> Self:
        """Return the texts of several pieces in another order.

        Text i of the result has `counts[i]` vectors; text j of a piece becomes the text texts[j], where
        `texts` stands before the piece.
        """


AnyRows = TypeVar("AnyRows", bound=VectorRows)
RowsOut = TypeVar("RowsOut", bound=VectorRows, covariant=True)  # of interfaces that return rows
RowsIn = TypeVar("RowsIn", bound=VectorRows, contravariant=True)  # of interfaces that take rows


class Ragged(NamedTuple):
    """The vectors of n texts in one array. Text i has the vectors vectors[starts[i]:starts[i + 1]]."""

    vectors: NDArray[np.floating]
    """[total, dim], float32 unless they are in their stored type."""
    starts: NDArray[np.int64]
    """[n + 1]: the position of the first vector of each text, and the total."""

    def __repr__(self) -> str:
        total, dim = self.vectors.shape
        return f"<Ragged: {total:,} vectors of {dim} dimensions, {len(self.starts) - 1:,} texts>"

    @classmethod
    def single(cls, vectors: NDArray[np.floating]) -> "Ragged":
        """Return one vector for each text."""
        return cls(vectors, np.arange(len(vectors) + 1))

    @classmethod
    def of(cls, vectors: NDArray[np.floating], counts: NDArray[np.int64]) -> "Ragged":
        """Return `counts[i]` vectors for text i."""
        return cls(vectors, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of vectors of each text, [n]."""
        return np.diff(self.starts)

    @property
    def dim(self) -> int:
        """The number of dimensions of a vector."""
        return int(self.vectors.shape[1])

    def text(self, number: int) -> NDArray[np.floating]:
        """Return the vectors of one text, [vectors of the text, dim]."""
        return self.vectors[self.starts[number] : self.starts[number + 1]]

    def one(self, number: int) -> "Ragged":
        """Return only one text."""
        return Ragged.of(self.text(number), self.counts[number : number + 1])

    def take(self, texts: NDArray[np.int64]) -> "Ragged":
        """Return the vectors of some texts."""
        counts = self.counts[texts]
        return Ragged.of(self.vectors[ranges(self.starts[texts], counts)], counts)

    def apart(self) -> "Ragged":
        """Return every vector as a text of its own."""
        return Ragged.single(self.vectors)

    def not_finite(self) -> int | None:
        """Return the first text with a value that is not finite; None if all are finite."""
        bad = np.flatnonzero(~np.isfinite(self.vectors).all(axis=1))
        return int(np.searchsorted(self.starts, bad[0], side="right")) - 1 if len(bad) else None

    def products(self, query: "Ragged") -> NDArray[np.float64]:
        """Return the sum of the dot products of each vector with those of a query, [vectors]."""
        products = self.matrix() @ query.matrix().T
        sums: NDArray[np.float64] = products.sum(1)
        return sums

    def matrix(self) -> NDArray[np.float64]:
        """Return all vectors in float64, [vectors, dim]."""
        return self.vectors.astype(np.float64)

    @classmethod
    def joined(cls, pieces: "Iterable[Ragged]", dim: int) -> "Ragged":
        """Return the texts of several pieces, in order."""
        pieces = list(pieces)
        vectors = [np.zeros((0, dim), np.float32), *(piece.vectors for piece in pieces)]
        counts = [np.zeros(0, np.int64), *(piece.counts for piece in pieces)]
        return cls.of(np.concatenate(vectors), np.concatenate(counts))

    @classmethod
    def gathered(
        cls, counts: Longs, pieces: "Iterable[tuple[Longs, Ragged]]", dim: int
    ) -> "Ragged":
        """Return the texts of several pieces in another order: each is copied once to its place."""
        whole = cls.of(np.empty((int(counts.sum()), dim), np.float32), counts)
        for texts, piece in pieces:
            whole.vectors[ranges(whole.starts[texts], counts[texts])] = piece.vectors
        return whole
