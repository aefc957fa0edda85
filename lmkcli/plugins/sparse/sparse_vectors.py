"""Sparse vectors: their rows in memory (`SparseRows`), and their codec.

A sparse vector has terms (ids of the vocabulary, ascending) and their weights, which are positive. Several
vectors are stored as a matrix in compressed sparse rows, as SciPy names it:

    offsets  [vectors + 1]  vector i has the terms offsets[i] … offsets[i + 1] - 1
    terms    [terms]        int32
    weights  [terms]        float32

A part has these arrays for all vectors of its documents. A vector without terms is an empty row.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.spec.recipe import EncoderConfig
from lmkcli.store.parts import ArrayTypes
from lmkcli.store.ragged import Longs, ranges
from lmkcli.text.formatting import counted
from lmkcli.vectors.codec import ArraySource, RowsBefore
from lmkcli.vectors.stored import Vectors

OFFSETS, TERMS, WEIGHTS = "offsets", "terms", "weights"
ARRAYS: ArrayTypes = {OFFSETS: ("int64", ()), TERMS: ("int32", ()), WEIGHTS: ("float32", ())}
TERM_BYTES = 8  # in memory


class SparseRows(NamedTuple):
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
    ) -> "SparseRows":
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

    def one(self, number: int) -> "SparseRows":
        """Return only one text."""
        return self.take(np.array([number]))

    def apart(self) -> "SparseRows":
        """Return every vector as a text of its own."""
        return self._replace(starts=np.arange(len(self.lengths) + 1))

    def take(self, texts: NDArray[np.int64]) -> "SparseRows":
        """Return the vectors of some texts."""
        counts = self.counts[texts]
        vectors = ranges(self.starts[texts], counts)
        lengths = self.lengths[vectors]
        at = ranges(self.offsets[vectors], lengths)
        return SparseRows.of(lengths, self.terms[at], self.weights[at], counts, self.dim)

    @classmethod
    def joined(cls, pieces: "Iterable[SparseRows]", dim: int) -> "SparseRows":
        """Return the texts of several pieces, in order."""
        pieces, none = list(pieces), np.zeros(0, np.int64)
        return cls.of(
            np.concatenate([none, *(piece.lengths for piece in pieces)]),
            np.concatenate([none.astype(np.int32), *(piece.terms for piece in pieces)]),
            np.concatenate([none.astype(np.float32), *(piece.weights for piece in pieces)]),
            np.concatenate([none, *(piece.counts for piece in pieces)]),
            dim,
        )

    @classmethod
    def gathered(
        cls, counts: Longs, pieces: "Iterable[tuple[Longs, SparseRows]]", dim: int
    ) -> "SparseRows":
        """Return the texts of several pieces in another order."""
        places, parts = [np.zeros(0, np.int64)], []
        for texts, piece in pieces:
            places.append(texts)
            parts.append(piece)
        return cls.joined(parts, dim).take(np.argsort(np.concatenate(places)))

    def not_finite(self) -> int | None:
        """Return the first text with a weight that is not finite; None if all are finite."""
        bad = np.flatnonzero(~np.isfinite(self.weights))
        if not len(bad):
            return None
        first = self.offsets[self.starts]  # the first term of each text
        return int(np.searchsorted(first, bad[0], side="right")) - 1

    def pruned(self, most: int) -> "SparseRows":
        """Return the `most` terms of the largest weights of each vector. Of ties, lower terms are kept."""
        vectors = self._vectors_of_terms()
        order = np.lexsort((self.terms, -self.weights, vectors))
        kept = np.zeros(len(order), np.bool_)
        kept[order] = np.arange(len(order)) - self.offsets[vectors] < most
        lengths = np.minimum(self.lengths, most)
        return self.of(lengths, self.terms[kept], self.weights[kept], self.counts, self.dim)

    def normalized(self) -> "SparseRows":
        """Return vectors of length 1. Vectors without terms stay empty."""
        vectors = self._vectors_of_terms()
        squares = np.bincount(vectors, np.square(self.weights, dtype=np.float64), len(self.lengths))
        return self._replace(weights=(self.weights / np.sqrt(squares)[vectors]).astype(np.float32))

    def products(self, query: "SparseRows") -> NDArray[np.float64]:
        """Return the dot product of each vector with the vector of a query, [vectors]."""
        asked = np.zeros(self.dim)
        np.add.at(asked, query.terms, query.weights)
        single = self.weights * asked[self.terms]
        totals: NDArray[np.float64] = np.zeros(len(self.lengths))
        np.add.at(totals, self._vectors_of_terms(), single)
        return totals

    def matrix(self) -> NDArray[np.float64]:
        """Return all vectors as a matrix, [vectors, dim], which takes much memory."""
        matrix = np.zeros((len(self.lengths), self.dim))
        matrix[self._vectors_of_terms(), self.terms] = self.weights
        return matrix

    def _vectors_of_terms(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def finished(self, side: EncoderConfig) -> "SparseRows":
        """Return the vectors as one side of a recipe wants them: with few terms, and perhaps of length 1."""
        most = int(side.settings.get("top_terms", 0))
        pruned = self.pruned(most) if most > 0 else self
        return pruned.normalized() if side.normalize else pruned

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


class Entries(NamedTuple):
    """Weights of terms in vectors, in any order."""

    vectors: NDArray[np.int64]
    terms: NDArray[np.int64]
    weights: NDArray[np.float32]


def collected(
    entries: Entries, counts: NDArray[np.int64], dim: int, summed: bool = False
) -> SparseRows:
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
    return SparseRows.of(lengths, (keys % dim).astype(np.int32), weights, counts, dim)


class SparseCodec:
    """Sparse vectors in their only stored form, which loses nothing."""

    rows = SparseRows
    slack = 0.0

    @property
    def exact(self) -> "SparseCodec":
        """This codec."""
        return self

    def types(self, dim: int) -> ArrayTypes:
        """Return the arrays of a part: dtype and width of each, by name."""
        return ARRAYS

    def coded(self, rows: SparseRows, before: RowsBefore) -> dict[str, NDArray[Any]]:
        """Return the arrays to append to a part; the offsets continue after its terms."""
        offsets = rows.offsets[1:] + before(TERMS) if before(OFFSETS) else rows.offsets
        return {OFFSETS: offsets, TERMS: rows.terms, WEIGHTS: rows.weights}

    def not_finite(self, rows: SparseRows, coded: Mapping[str, NDArray[Any]]) -> int | None:
        """Return the first text with a weight that is not finite; None if all are finite."""
        return rows.not_finite()

    def notes(self, blocks: Iterable[SparseRows]) -> list[str]:
        """Return the number of documents without any term."""
        empty = sum(int((np.diff(block.offsets[block.starts]) == 0).sum()) for block in blocks)
        if not empty:
            return []
        return [f"{counted(empty, 'document')} without any term: no query finds them"]

    def open(self, source: ArraySource, dim: int) -> "CodedSparse":
        """Open the arrays of a part."""
        return CodedSparse(source, dim)


class CodedSparse:
    """The opened arrays of a part."""

    def __init__(self, source: ArraySource, dim: int) -> None:
        self._source, self._dim = source, dim
        self._offsets = source.array(OFFSETS, *ARRAYS[OFFSETS], source.vectors + 1)
        total = int(self._offsets[-1])
        self._terms = source.array(TERMS, *ARRAYS[TERMS], total)
        self._weights = source.array(WEIGHTS, *ARRAYS[WEIGHTS], total)
        self.arrays: Mapping[str, NDArray[Any]] = {
            OFFSETS: self._offsets,
            TERMS: self._terms,
            WEIGHTS: self._weights,
        }

    def sizes(self, starts: Longs, counts: Longs) -> Longs:
        """Return the bytes of texts in memory. A text without terms takes as much as a term."""
        sizes: Longs = self._offsets[starts + counts] - self._offsets[starts]
        return (sizes + 1) * TERM_BYTES

    def read(self, numbers: slice | Longs, counts: Longs) -> SparseRows:
        """Return some vectors. Raises DataError if they are damaged."""
        vectors = (
            np.arange(self._source.vectors)[numbers] if isinstance(numbers, slice) else numbers
        )
        firsts, stops = self._offsets[vectors], self._offsets[vectors + 1]
        if (stops < firsts).any() or (firsts < 0).any() or (stops > len(self._terms)).any():
            raise self._source.damaged("its offsets are not in order")
        lengths = stops - firsts
        at = ranges(firsts, lengths)
        read = SparseRows.of(lengths, self._terms[at], self._weights[at], counts, self._dim)
        if reason := read.fault():
            raise self._source.damaged(reason)
        return read

    def copied(self, numbers: slice | Longs, before: RowsBefore) -> dict[str, NDArray[Any]]:
        """Return some vectors, with offsets that continue after the terms of the other part."""
        vectors = np.arange(self._source.vectors)[numbers]
        return SPARSE.coded(self.read(vectors, np.ones_like(vectors)), before)


SPARSE = SparseCodec()


def open_sparse(folder: Path) -> Vectors[SparseRows]:
    """Open a folder of sparse vectors. Raises DataError if shards are missing, UsageError for others."""
    vectors: Vectors[SparseRows] = Vectors(folder)
    vectors.require("sparse")
    return vectors
