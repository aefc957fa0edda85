"""Sparse vectors, in memory (`SparseRagged`) and in a folder of immutable parts (`SparseVectors`).

A sparse vector has terms (ids of the vocabulary, ascending) and their weights, which are positive. Several
vectors are stored as a matrix in compressed sparse rows, as SciPy names it:

    offsets  [vectors + 1]  vector i has the terms offsets[i] … offsets[i + 1] - 1
    terms    [terms]        int32
    weights  [terms]        float32

A part has these arrays for all vectors of its documents. A vector without terms is an empty row.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.artifact.artifact import Artifact, open_artifact
from lmkcli.artifact.kinds import VectorsManifest
from lmkcli.errors import DataError
from lmkcli.store.codes import is_sparse
from lmkcli.store.doctable import DocRow
from lmkcli.store.part_writer import PartWriter
from lmkcli.store.parts import MAKE_AGAIN, ArrayTypes
from lmkcli.store.ragged import ranges
from lmkcli.store.vectors import StoredVectors, Vectors, cut

ARRAYS: ArrayTypes = {
    "offsets": ("int64", ()),
    "terms": ("int32", ()),
    "weights": ("float32", ()),
}
BLOCK_TERMS = 1 << 21  # terms in memory at a time, in code that reads all vectors


class SparseRagged(NamedTuple):
    """The sparse vectors of n texts. Text i has the vectors starts[i] … starts[i + 1] - 1."""

    offsets: NDArray[np.int64]
    """[vectors + 1]: the position of the first term of each vector, and the total."""
    terms: NDArray[np.int32]
    """[total], ascending in each vector."""
    weights: NDArray[np.float32]
    """[total]."""
    starts: NDArray[np.int64]
    """[n + 1]: the position of the first vector of each text, and the total."""
    dim: int
    """The size of the vocabulary."""

    @classmethod
    def of(
        cls,
        lengths: NDArray[np.int64],
        terms: NDArray[np.int32],
        weights: NDArray[np.float32],
        counts: NDArray[np.int64],
        dim: int,
    ) -> "SparseRagged":
        """Return vectors of `lengths[i]` terms; text i has `counts[i]` of them."""
        offsets, starts = (np.concatenate([[0], np.cumsum(each)]) for each in (lengths, counts))
        return cls(offsets.astype(np.int64), terms, weights, starts.astype(np.int64), dim)

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of vectors of each text, [n]."""
        return np.diff(self.starts)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of terms of each vector, [vectors]."""
        return np.diff(self.offsets)

    def take(self, texts: NDArray[np.int64]) -> "SparseRagged":
        """Return the vectors of some texts."""
        counts = self.counts[texts]
        vectors = ranges(self.starts[texts], counts)
        lengths = self.lengths[vectors]
        at = ranges(self.offsets[vectors], lengths)
        return SparseRagged.of(lengths, self.terms[at], self.weights[at], counts, self.dim)

    @classmethod
    def joined(cls, pieces: "list[SparseRagged]", dim: int) -> "SparseRagged":
        """Return the texts of several pieces, in order."""
        none = np.zeros(0, np.int64)
        return cls.of(
            np.concatenate([none, *(piece.lengths for piece in pieces)]),
            np.concatenate([none.astype(np.int32), *(piece.terms for piece in pieces)]),
            np.concatenate([none.astype(np.float32), *(piece.weights for piece in pieces)]),
            np.concatenate([none, *(piece.counts for piece in pieces)]),
            dim,
        )

    def not_finite(self) -> int | None:
        """Return the first text with a weight that is not finite; None if all are finite."""
        bad = np.flatnonzero(~np.isfinite(self.weights))
        if not len(bad):
            return None
        first = self.offsets[self.starts]  # the first term of each text
        return int(np.searchsorted(first, bad[0], side="right")) - 1

    def pruned(self, most: int) -> "SparseRagged":
        """Return the `most` terms of the largest weights of each vector. Of ties, lower terms are kept."""
        vectors = self._vectors_of_terms()
        order = np.lexsort((self.terms, -self.weights, vectors))
        kept = np.zeros(len(order), np.bool_)
        kept[order] = np.arange(len(order)) - self.offsets[vectors] < most
        lengths = np.minimum(self.lengths, most)
        return self.of(lengths, self.terms[kept], self.weights[kept], self.counts, self.dim)

    def normalized(self) -> "SparseRagged":
        """Return vectors of length 1. Vectors without terms stay empty."""
        vectors = self._vectors_of_terms()
        squares = np.bincount(vectors, np.square(self.weights, dtype=np.float64), len(self.lengths))
        return self._replace(weights=(self.weights / np.sqrt(squares)[vectors]).astype(np.float32))

    def products(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the dot product of each vector with the weights [dim] of all terms, [vectors]."""
        single = self.weights * weights[self.terms]
        totals: NDArray[np.float64] = np.zeros(len(self.lengths))
        np.add.at(totals, self._vectors_of_terms(), single)
        return totals

    def dense(self) -> NDArray[np.float64]:
        """Return all vectors as a matrix, [vectors, dim], which takes much memory."""
        matrix = np.zeros((len(self.lengths), self.dim))
        matrix[self._vectors_of_terms(), self.terms] = self.weights
        return matrix

    def _vectors_of_terms(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def fault(self) -> str:
        """Return why these are no sparse vectors, for a message; empty if they are valid."""
        ascending = np.diff(self.terms) > 0
        ends = self.offsets[1:-1]
        ascending[ends[(ends > 0) & (ends < len(self.terms))] - 1] = True  # between two vectors
        if not ascending.all() or ((self.terms < 0) | (self.terms >= self.dim)).any():
            return f"its terms are not ascending numbers below {self.dim}"
        if not np.isfinite(self.weights).all():
            return "it has weights that are not finite"
        return "" if (self.weights > 0).all() else "it has weights that are not positive"

    def arrays(self, writer: PartWriter) -> dict[str, NDArray[Any]]:
        """Return the arrays to append to a part; the offsets continue after its terms."""
        fresh = not writer.array_rows("offsets")
        offsets = self.offsets if fresh else self.offsets[1:] + writer.array_rows("terms")
        return {"offsets": offsets, "terms": self.terms, "weights": self.weights}


class Entries(NamedTuple):
    """Weights of terms in vectors, in any order."""

    vectors: NDArray[np.int64]
    terms: NDArray[np.int64]
    weights: NDArray[np.float32]


def collected(
    entries: Entries, counts: NDArray[np.int64], dim: int, summed: bool = False
) -> SparseRagged:
    """Return the texts of some entries; text i has `counts[i]` vectors.

    Of several entries of a term in a vector, the largest weight counts, or their sum if `summed`.
    """
    keys, weights = entries.vectors * dim + entries.terms, entries.weights
    order = np.argsort(keys, kind="stable")
    keys, weights = keys[order], weights[order]
    firsts = np.flatnonzero(np.diff(keys, prepend=-1))
    if len(firsts) < len(keys):
        weights = (np.add if summed else np.maximum).reduceat(weights, firsts)
    keys = keys[firsts]
    lengths = np.bincount(keys // dim, minlength=int(counts.sum()))
    return SparseRagged.of(lengths, (keys % dim).astype(np.int32), weights, counts, dim)


class SparseVectors(StoredVectors):
    """A folder of sparse vectors. Iteration yields all rows in order, in blocks of bounded size."""

    sparse = True

    @property
    def types(self) -> ArrayTypes:
        """The arrays of the vectors of a part: dtype and width of each, by name."""
        return ARRAYS

    def _array_rows(self, number: int, stem: str) -> int:
        vectors = super()._array_rows(number, stem)
        if stem == "offsets":
            return vectors + 1
        return int(self._array(number, "offsets")[-1]) if stem in ARRAYS else vectors

    def __iter__(self) -> Iterator[SparseRagged]:
        """Yield all rows in order, in blocks of at most BLOCK_TERMS, or of one larger document."""
        for number, piece in enumerate(self.slices):
            starts, offsets = self._part_starts(number), self._array(number, "offsets")
            live = np.flatnonzero(piece.live)
            sizes = offsets[starts[live + 1]] - offsets[starts[live]]
            for first, stop in cut(np.concatenate([[0], np.cumsum(sizes + 1)]), BLOCK_TERMS):
                yield self._read(number, live[first:stop])

    def batches(self) -> Iterator[tuple[list[DocRow], SparseRagged, dict[str, NDArray[np.int32]]]]:
        """Yield all documents, their vectors, and the spans of their chunks by the name of the array."""
        for number, piece in enumerate(self.slices):
            live, first = piece.live, 0
            starts = self._part_starts(number)
            for docs in self._table(number).doc_rows():
                kept = first + np.flatnonzero(live[first : first + len(docs)])
                vectors = self._read(number, kept)
                spans = {}
                if self.recipe.doc.unit == "chunk":
                    at = ranges(starts[kept], vectors.counts)
                    spans = {"spans": self._array(number, "spans")[at]}
                yield [docs[i - first] for i in kept], vectors, spans
                first += len(docs)

    def at(self, rows: NDArray[np.int64]) -> SparseRagged:
        """Return the vectors of some rows, in their order."""
        owners = self._owners(rows)
        numbers = np.unique(owners)
        read = [self._read(n, self._documents(n, rows[owners == n])) for n in numbers.tolist()]
        order = np.argsort(np.argsort(owners, kind="stable"), kind="stable")
        return SparseRagged.joined(read, self.dim).take(order)

    def without_terms(self) -> int:
        """Return the number of documents without any term, which no query finds."""
        return sum(int((np.diff(block.offsets[block.starts]) == 0).sum()) for block in self)

    def _read(self, number: int, documents: NDArray[np.int64]) -> SparseRagged:
        """Return the vectors of some documents of a slice. Raises DataError if they are damaged."""
        starts, offsets = self._part_starts(number), self._array(number, "offsets")
        terms, weights = self._array(number, "terms"), self._array(number, "weights")
        counts = starts[documents + 1] - starts[documents]
        vectors = ranges(starts[documents], counts)
        lengths = offsets[vectors + 1] - offsets[vectors]
        if (
            (lengths < 0).any()
            or (offsets[vectors] < 0).any()
            or (offsets[vectors + 1] > len(terms)).any()
        ):
            raise self._damaged(number, "its offsets are not in order")
        at = ranges(offsets[vectors], lengths)
        read = SparseRagged.of(lengths, terms[at], weights[at], counts, self.dim)
        if reason := read.fault():
            raise self._damaged(number, reason)
        return read

    def _damaged(self, number: int, reason: str) -> DataError:
        return DataError(
            f"{self._part(number)} is damaged: {reason}; delete this part and {MAKE_AGAIN}"
        )


def open_stored(folder: Path | Artifact[VectorsManifest]) -> Vectors | SparseVectors:
    """Open a vectors folder, dense or sparse. Raises DataError if shards are missing."""
    opened = open_artifact(folder, VectorsManifest)
    return SparseVectors(opened) if is_sparse(opened.manifest) else Vectors(opened)
