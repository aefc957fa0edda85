"""Exact search: every vector is compared, block by block, in bounded memory; no index is built.

score(q, d) = sum over query vectors of the max over document vectors of their dot product: MaxSim,
which with one vector on either side is a dot product, and with one query vector MaxP.

Runs through torch on the CPU or a GPU alike. Products in float32, or in bfloat16 where that is much
quicker, choose candidates; a bound on their error proves that no other row can be among the best; and
the candidates are scored again in float64. So the order is that of exact arithmetic.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from lmkcli.retrieval.indexes.exact_scorer import ExactScorer, top
from lmkcli.retrieval.indexes.products import LOW_FROM, Pieces, QueryTiles
from lmkcli.retrieval.indexes.topk import TopKBuffer
from lmkcli.retrieval.kinds import Hits, Matrix, VectorSearch
from lmkcli.store.ragged import Ragged

SAMPLE = 16384  # vectors from which the k-th best score is estimated


class Exact(VectorSearch):
    """Brute force over a Matrix on a device, with products in float32 or in bfloat16."""

    def __init__(
        self, matrix: Matrix, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> None:
        self._matrix, self._device, self._dtype = matrix, device, dtype

    def search(self, queries: Ragged, k: int) -> Hits:
        """The k best rows of each query, with every row that ties with the last of them in float32."""
        count, k = len(queries.counts), min(k, self._matrix.rows)
        hits = Hits([np.zeros(0, np.int64)] * count, [np.zeros(0)] * count)
        left = self._search(queries, np.arange(count if k else 0), k, hits, first=True)
        left = self._search(queries, left, k, hits)
        for query in left.tolist():  # with more ties than there is room for beside other queries
            self._search(queries, np.array([query]), k, hits)
        return hits

    def _search(
        self, queries: Ragged, numbers: NDArray[np.int64], k: int, hits: Hits, first: bool = False
    ) -> NDArray[np.int64]:
        """Find the k best of some queries in one pass; returns those for which that did not do.

        The first pass may go by a guess and by rough products; what they fail at is left to the next.
        """
        if not len(numbers):
            return numbers
        guessing = first and self._matrix.total >= 8 * SAMPLE
        dtype = self._dtype if first and len(queries.vectors) >= LOW_FROM else torch.float32
        tiles = QueryTiles(queries.take(numbers), self._device, dtype)
        buffer = TopKBuffer(tiles.error, k, self._guess(tiles, k) if guessing else None)
        self._offer_all(tiles, buffer)
        candidates, failed = buffer.result()
        done = np.flatnonzero(~failed)
        scorer = ExactScorer(self._matrix, self._device, self._dtype)
        scores = scorer(queries.take(numbers[done]), [candidates[i] for i in done])
        for i, exact in zip(done.tolist(), scores, strict=True):
            number = int(numbers[i])
            hits.rows[number], hits.scores[number] = top(candidates[i], exact, k)
        return numbers[failed]

    def _offer_all(self, tiles: QueryTiles, buffer: TopKBuffer) -> None:
        first = 0
        for piece in self._pieces(tiles).of(self._matrix):
            error = tiles.error.absolute(piece.norm, piece.rounding_norm)
            for tile in tiles:
                buffer.offer(tiles.scores(tile, piece), tile.queries, first, error)
            first += piece.rows

    def _pieces(self, tiles: QueryTiles) -> Pieces:
        return Pieces(self._device, tiles.dtype, self._matrix.single)

    def _guess(self, tiles: QueryTiles, k: int) -> torch.Tensor | None:
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
        pieces = list(self._pieces(tiles).of([matrix.at(rows)]))
        norm = max(piece.norm for piece in pieces)
        rounding_norm = max(piece.rounding_norm for piece in pieces)
        values = []
        for tile in tiles:
            scores = torch.cat([tiles.scores(tile, piece).clone() for piece in pieces], 1)
            best = scores.float().topk(rank, dim=1, sorted=False).values
            values.append(best.amin(1).double())
        error = tiles.error.absolute(norm, rounding_norm)
        return tiles.error.lowered(torch.cat(values)) - 2 * error
