"""Rescoring: an approximate kind's vectors, the rows behind them now, and their exact scores."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.retrieval.indexes.exact import Exact, Hits
from lmkcli.retrieval.indexes.products import Matrix
from lmkcli.retrieval.indexes.rescore import Rescore, top
from lmkcli.store.parts import PartSlice
from lmkcli.store.ragged import Ragged
from lmkcli.store.vectors import Vectors

MARGIN = 32  # rows beyond k that are fetched, at least
SPREAD = 4  # vectors that are fetched for a row that is wanted, where rows have many
LEAST = 128  # and for each of several query vectors


class Numbered(NamedTuple):
    """A part that an index holds: which of its rows counted then, and how many vectors they had."""

    piece: PartSlice
    vectors: int

    def as_json(self) -> list[Any]:
        """[name, dead ranges, vectors]."""
        return [*self.piece.as_json(), self.vectors]

    @classmethod
    def from_json(cls, item: list[Any]) -> "Numbered":
        """What `as_json` wrote; where every row had one vector the number may be missing."""
        piece = PartSlice.from_json(item)
        return cls(piece, item[2] if len(item) > 2 else piece.rows)


def still_alive(numbering: list[Numbered], now: list[PartSlice]) -> NDArray[np.bool_]:
    """For each document that an index numbers, whether it counts among the slices `now`."""
    there = {piece.name: piece for piece in now}
    masks = [
        there[piece.name].alive[piece.alive] if piece.name in there else np.zeros(piece.rows, bool)
        for piece, _ in numbering
    ]
    return np.concatenate([np.zeros(0, np.bool_), *masks])


class Numbering:
    """What the vectors of an index, numbered from zero, are among `vectors` now; -1 for the dead."""

    def __init__(self, vectors: Vectors, numbering: list[Numbered]) -> None:
        self._vectors = vectors
        alive = still_alive(numbering, vectors.slices)
        self._docs = np.where(alive, np.cumsum(alive) - 1, -1)
        if not vectors.single:
            counts = [self._counts(numbered) for numbered in numbering]
            self._starts = np.concatenate([[0], *counts]).cumsum().astype(np.int64)

    def _counts(self, numbered: Numbered) -> NDArray[np.int64]:
        counts = self._vectors.part_counts(numbered.piece.name)
        if counts is not None:
            return counts[numbered.piece.alive]
        gone = np.zeros(
            numbered.piece.rows, np.int64
        )  # the part was deleted, all its rows are dead
        gone[0] = numbered.vectors
        return gone

    def docs(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The document of each vector."""
        return self._docs[numbers if self._vectors.single else self._owners(numbers)]

    def flat(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The vector of each vector, counted over all that are there now."""
        owners = self._owners(numbers)
        docs = self._docs[owners]
        within = numbers - self._starts[owners]
        return np.where(docs < 0, -1, self._vectors.starts[docs] + within)

    def _owners(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._starts, numbers, side="right") - 1


RowsOf = Callable[[NDArray[np.int64]], NDArray[np.int64]]  # of a kind's vectors; -1 for the dead


class Rescored:
    """Searches a Matrix by the candidates of an approximate kind, scored again in float64.

    Fetches more until k rows are there; where the kind has no more, brute force fills them up.
    """

    def __init__(self, kind: Any, matrix: Matrix, rows_of: RowsOf, exact: Exact) -> None:
        self._kind, self._matrix, self._rows_of, self._exact = kind, matrix, rows_of, exact

    def search(self, queries: Ragged, k: int) -> Hits:
        """The k best of the candidates, and what ties with the last of them."""
        k = min(k, self._matrix.rows)
        made, found = Hits([], []), self._candidates(queries, k)
        for rows, exact in zip(found, Rescore(self._matrix)(queries, found), strict=True):
            best, scores = top(rows, exact, k)
            made.rows.append(best)
            made.scores.append(scores)
        lacking = np.flatnonzero([len(rows) < k for rows in made.rows])
        more = self._exact.search(queries.take(lacking), k)
        for number, rows, scores in zip(lacking.tolist(), *more, strict=True):
            made.rows[number], made.scores[number] = rows, scores
        return made

    def _candidates(self, queries: Ragged, k: int) -> list[NDArray[np.int64]]:
        """Rows of the matrix for each query; looks deeper for those that have too few."""
        found: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * len(queries.counts)
        wanted = min(k * self._kind.overfetch + MARGIN, self._matrix.rows)
        depth, left = self._depth(wanted, queries), np.arange(len(found))
        while len(left):
            asked = queries.take(left)
            _, numbers = self._kind.candidates(asked.vectors, depth)
            again = []
            for i, query in enumerate(left):
                mine = numbers[asked.starts[i] : asked.starts[i + 1]]
                rows = np.unique(self._rows_of(mine[mine >= 0]))
                found[query] = rows[rows >= 0]
                enough = k if (mine[:, -1] < 0).all() else wanted
                if len(found[query]) < enough:
                    again.append(query)
            if depth >= self._kind.rows:
                break
            left, depth = np.array(again, np.int64), min(4 * depth, self._kind.rows)
        return found

    def _depth(self, wanted: int, queries: Ragged) -> int:
        """Vectors to fetch at first for each query vector."""
        matrix, numbered = self._matrix, int(self._kind.rows)
        share = -(-wanted * numbered // max(1, matrix.total))  # some may be dead
        if not matrix.rows < matrix.total:
            return min(share, numbered)
        spread = min(SPREAD, -(-matrix.total // matrix.rows))
        longest = int(queries.counts.max(initial=1))
        return min(max(spread * share // longest, min(share, LEAST)), numbered)
