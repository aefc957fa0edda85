"""Scores in float64: of the rows that rough products chose, and of what a reranker is given.

Where rows have many vectors, float64 is spent on those alone that may be the best of their row: rough
products tell which, and a bound on their error proves that no other can be.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from lmkcli.retrieval.indexes.products import BLOCK_ROWS, LOW_FROM, QUERY_TILE, Pieces, QueryTiles
from lmkcli.retrieval.indexes.topk import true_places
from lmkcli.retrieval.kinds import Matrix, check_finite
from lmkcli.store.ragged import Ragged, cut

AGAIN = 256  # vectors at a time that are scored in float64: few enough for the nearer caches
PAIRS = 1024  # of a query vector and a document vector, likewise
SHARED = 0.25  # of all pairs of queries and rows, from which it pays to read each row once for all

RowNumbers = NDArray[np.int64]
Scores = NDArray[np.float64]


class ExactScorer:
    """Scores queries with rows of a matrix."""

    def __init__(
        self, matrix: Matrix, device: torch.device | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        self._matrix, self._dtype = matrix, dtype
        self._device = device or torch.device("cpu")
        # reused: touching new memory would cost more than copying into it
        self._room = torch.empty(AGAIN, matrix.dim, dtype=torch.float64)

    def __call__(self, queries: Ragged, rows: Sequence[RowNumbers]) -> list[Scores]:
        """Each query's scores with its own rows, in their order."""
        if self._matrix.single:
            return [self._sums(queries.text(i), mine) for i, mine in enumerate(rows)]
        scores = [np.empty(len(mine)) for mine in rows]
        for batch in _batches(queries, rows):
            union = np.unique(np.concatenate([rows[query] for query in batch]))
            table = self._maxsim(queries.take(np.array(batch)), union)
            for query, mine in zip(batch, table, strict=True):
                scores[query] = mine[np.searchsorted(union, rows[query])]
        return scores

    def _sums(self, query: NDArray[np.floating], rows: RowNumbers) -> Scores:
        """Rows of one vector: a sum of dot products is the dot product with the sum."""
        total = torch.from_numpy(query).double().sum(0)
        scores = np.empty(len(rows))
        for first in range(0, len(rows), AGAIN):
            vectors = torch.from_numpy(self._matrix.at(rows[first : first + AGAIN]).vectors)
            products = torch.mv(self._room[: len(vectors)].copy_(vectors), total)
            scores[first : first + AGAIN] = products.numpy()
        check_finite(float(scores.sum()))
        return scores

    def _maxsim(self, queries: Ragged, rows: RowNumbers) -> Scores:
        """[queries, rows]: every query with every row."""
        low = self._dtype if len(queries.vectors) >= LOW_FROM else torch.float32
        tiles = QueryTiles(Ragged.single(queries.vectors), self._device, low)
        pieces = Pieces(self._device, low, single=False)
        scores = np.empty((len(queries.counts), len(rows)))
        step = max(1, BLOCK_ROWS * self._matrix.rows // max(1, self._matrix.total))
        for first in range(0, len(rows), step):
            vectors = self._matrix.at(rows[first : first + step])
            most = _maxima(tiles, pieces, torch.from_numpy(queries.vectors), vectors)
            scores[:, first : first + step] = np.add.reduceat(most, queries.starts[:-1], axis=0)
        return scores


def _batches(queries: Ragged, rows: Sequence[RowNumbers]) -> Iterator[list[int]]:
    """Queries that are scored with all their rows together: a tile of them, or one."""
    for first, stop in cut(queries.starts, QUERY_TILE):
        batch = list(range(first, stop))
        wanted = sum(len(rows[query]) for query in batch)
        union = len(np.unique(np.concatenate(rows[first:stop])))
        yield from [batch] if wanted >= SHARED * union * len(batch) else ([q] for q in batch)


def _maxima(
    tiles: QueryTiles, pieces: Pieces, queries: torch.Tensor, rows: Ragged
) -> NDArray[np.float64]:
    """[query vectors, rows]: the largest product of each query vector with a vector of each row."""
    piece = pieces.piece(rows)
    assert piece.owners is not None
    whole = torch.from_numpy(rows.vectors)
    maxima = torch.full((piece.rows, len(queries)), -torch.inf, dtype=torch.float64)
    error = tiles.error.absolute(piece.norm, piece.rounding_norm)
    width = max(1, QUERY_TILE * BLOCK_ROWS // len(whole))  # a row may have any number of vectors
    for first in range(0, len(queries), width):
        part = slice(first, first + width)
        products = tiles.products(piece.vectors, tiles.vectors[part])
        owners = piece.owners[:, None].expand_as(products)
        best = products.new_full((piece.rows, products.shape[1]), -torch.inf)
        best.scatter_reduce_(0, owners, products, "amax")
        # the exact maximum is no lower than this, and any other that reaches it is as near; the
        # threshold is rounded as the products were
        threshold = tiles.error.part(part).lowered(best.double()) - 2 * error[part]
        near = products >= threshold.to(products.dtype).index_select(0, piece.owners)
        at = true_places(near).cpu()
        vector, query = at // products.shape[1], at % products.shape[1]
        dots = _dots(whole, queries[part], vector, query)
        places = piece.owners.cpu()[vector] * len(queries) + first + query
        maxima.view(-1).scatter_reduce_(0, places, dots, "amax")
    return maxima.numpy().T


def _dots(
    vectors: torch.Tensor, queries: torch.Tensor, vector: torch.Tensor, query: torch.Tensor
) -> torch.Tensor:
    """Dot products of pairs, in float64."""
    queries = queries.double()
    dots = torch.empty(len(vector), dtype=torch.float64)
    for first in range(0, len(vector), PAIRS):
        part = slice(first, first + PAIRS)
        left = vectors.index_select(0, vector[part]).double()
        torch.sum(left.mul_(queries.index_select(0, query[part])), 1, out=dots[part])
    return dots


def top(rows: RowNumbers, exact: Scores, k: int) -> tuple[RowNumbers, Scores]:
    """The k best and what ties with the last of them in float32, the precision of a run."""
    if len(rows) <= k:
        return rows, exact
    rounded = exact.astype(np.float32)
    kept = rounded >= np.partition(rounded, -k)[-k]
    return rows[kept], exact[kept]
