"""Exact search: every vector is compared, block by block, in bounded memory; no index is built.

score(q, d) = sum over query vectors of the max over document vectors of their dot product: MaxSim,
which with one vector on either side is a dot product, and with one query vector MaxP.

Runs through torch on the CPU or a GPU alike. Products in float32, or in bfloat16 where that is much
quicker, choose candidates; a bound on their error proves that no other row can be among the best; and
the candidates are scored again in float64. So the order is that of exact arithmetic.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lmkcli.retrieval.indexes.best import Best
from lmkcli.retrieval.indexes.products import LOW_FROM, Asked, Matrix, Pieces
from lmkcli.retrieval.indexes.rescore import Rescore, top
from lmkcli.store.ragged import Ragged

SAMPLE = 16384  # vectors that tell roughly how high the k-th score lies


class Hits(NamedTuple):
    """Per query: rows and their float64 scores, unordered, the top k and all ties with it."""

    rows: list[NDArray[np.int64]]
    scores: list[NDArray[np.float64]]


class Exact:
    """Brute force over a Matrix on a device, with products in float32 or in bfloat16."""

    def __init__(
        self, matrix: Matrix, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> None:
        self._matrix, self._device, self._dtype = matrix, device, dtype

    def search(self, queries: Ragged, k: int) -> Hits:
        """The k best rows of each query, with every row that ties with the last of them in float32."""
        count, k = len(queries.counts), min(k, self._matrix.rows)
        made = Hits([np.zeros(0, np.int64)] * count, [np.zeros(0)] * count)
        left = self._search(queries, np.arange(count if k else 0), k, made, first=True)
        left = self._search(queries, left, k, made)
        for query in left.tolist():  # with more ties than there is room for beside other queries
            self._search(queries, np.array([query]), k, made)
        return made

    def _search(
        self, queries: Ragged, numbers: NDArray[np.int64], k: int, made: Hits, first: bool = False
    ) -> NDArray[np.int64]:
        """Find the k best of some queries in one pass; returns those for which that did not do.

        The first pass may go by a guess and by rough products; what they fail at is left to the next.
        """
        if not len(numbers):
            return numbers
        guessing = first and self._matrix.total >= 8 * SAMPLE
        dtype = self._dtype if first and len(queries.vectors) >= LOW_FROM else torch.float32
        asked = Asked(queries.take(numbers), self._device, dtype)
        best = Best(asked.error, k, self._guess(asked, k) if guessing else None)
        self._offer_all(asked, best)
        found, failed = best.result()
        done = np.flatnonzero(~failed)
        rescore = Rescore(self._matrix, self._device, self._dtype)
        scores = rescore(queries.take(numbers[done]), [found[i] for i in done])
        for i, exact in zip(done.tolist(), scores, strict=True):
            number = int(numbers[i])
            made.rows[number], made.scores[number] = top(found[i], exact, k)
        return numbers[failed]

    def _offer_all(self, asked: Asked, best: Best) -> None:
        first = 0
        for piece in self._pieces(asked).of(self._matrix):
            error = asked.error.of(piece.norm, piece.off)
            for tile in asked.tiles:
                best.offer(asked.scores(tile, piece), tile.queries, first, error)
            first += piece.rows

    def _pieces(self, asked: Asked) -> Pieces:
        return Pieces(self._device, asked.dtype, self._matrix.single)

    def _guess(self, asked: Asked, k: int) -> torch.Tensor | None:
        """A score that, going by a sample of the rows, a good k of them reach with all their error.

        None where a sample would be of too few rows to tell.
        """
        matrix = self._matrix
        size = max(1, SAMPLE * matrix.rows // matrix.total)
        mean = k * size / matrix.rows
        rank = int(mean + 4 * mean**0.5 + 4)
        if rank >= size:
            return None
        rows = np.linspace(0, matrix.rows - 1, size).astype(np.int64)
        pieces = list(self._pieces(asked).of([matrix.at(rows)]))
        norm, off = max(piece.norm for piece in pieces), max(piece.off for piece in pieces)
        values = []
        for tile in asked.tiles:
            scores = torch.cat([asked.scores(tile, piece).clone() for piece in pieces], 1)
            best = scores.float().topk(rank, dim=1, sorted=False).values
            values.append(best.amin(1).double())
        error = asked.error.of(norm, off)
        return asked.error.lowered(torch.cat(values)) - 2 * error
