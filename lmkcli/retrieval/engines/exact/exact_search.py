"""Exact search: compares every vector with the queries, block by block, in bounded memory.

The score of a document d for a query q is MaxSim: the sum over query vectors of the maximum over document
vectors of their dot product. With one vector on both sides it is a dot product, with one query vector MaxP.

Search takes three steps, in torch on a CPU or a GPU:

1. Products of all queries and rows in float32, or in bfloat16 if that is much faster, select candidates.
2. A bound on the error of these products proves that no other row can be among the best k (topk.py).
3. The candidates are scored again in float64, so the result has the order of exact arithmetic.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from lmkcli.retrieval.engines.exact.topk import (
    SIZES,
    Norms,
    Pieces,
    QueryTiles,
    Sizes,
    TopKBuffer,
    true_places,
)
from lmkcli.retrieval.vectors.vector_search import Matrix, RowHits, VectorSearch, check_finite
from lmkcli.store.ragged import cut
from lmkcli.vectors.rows import Ragged


class Exact(VectorSearch):
    """Exact search over a Matrix on a device, with products in float32 or bfloat16."""

    def __init__(
        self,
        matrix: Matrix,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        sizes: Sizes = SIZES,
    ) -> None:
        self._matrix, self._device, self._dtype, self._sizes = matrix, device, dtype, sizes
        self._norms: dict[torch.dtype, Norms] = {}  # of the whole matrix, which never changes

    def search(self, queries: Ragged, k: int) -> RowHits:
        """Return the k best rows of each query, and every row that ties with the last of them in float32."""
        count, k = len(queries.counts), min(k, self._matrix.rows)
        hits = RowHits([np.zeros(0, np.int64)] * count, [np.zeros(0)] * count)
        pending = self._search(queries, np.arange(count if k else 0), k, hits, first=True)
        pending = self._search(queries, pending, k, hits)
        for (
            query
        ) in pending.tolist():  # with too many ties for the shared buffer; alone it may grow
            self._search(queries, np.array([query]), k, hits)
        return hits

    def _search(
        self,
        queries: Ragged,
        numbers: NDArray[np.int64],
        k: int,
        hits: RowHits,
        first: bool = False,
    ) -> NDArray[np.int64]:
        """Search some queries in one pass, and return the numbers of the queries that failed.

        The first pass may use bfloat16 and a guess of the k-th best score. Queries for which the guess was
        too high fail, and are repeated in a second pass without both.
        """
        if not len(numbers):
            return numbers
        use_guess = first and self._matrix.total >= 8 * self._sizes.sample
        use_low = first and len(queries.vectors) >= self._sizes.low_from
        dtype = self._dtype if use_low else torch.float32
        tiles = QueryTiles(queries.take(numbers), self._device, dtype, self._sizes)
        guess = self._guess(tiles, k) if use_guess else None
        buffer = TopKBuffer(tiles.error, k, guess, self._sizes.spare)
        self._offer_all(tiles, buffer)
        candidates, failed = buffer.result()
        found = np.flatnonzero(~failed)
        scorer = ExactScorer(self._matrix, self._device, self._dtype, self._sizes)
        scores = scorer(queries.take(numbers[found]), [candidates[i] for i in found])
        for i, exact in zip(found.tolist(), scores, strict=True):
            number = int(numbers[i])
            hits.rows[number], hits.scores[number] = top(candidates[i], exact, k)
        return numbers[failed]

    def _offer_all(self, tiles: QueryTiles, buffer: TopKBuffer) -> None:
        first = 0
        norms = self._norms.setdefault(tiles.dtype, {})
        for piece in self._pieces(tiles).of(self._matrix, norms):
            error = tiles.error.absolute(piece.norm, piece.rounding_norm)
            for tile in tiles:
                buffer.offer(tiles.scores(tile, piece), tile.queries, first, error)
            first += piece.rows

    def _pieces(self, tiles: QueryTiles) -> Pieces:
        return Pieces(self._device, tiles.dtype, self._matrix.single, self._sizes.block)

    def _guess(self, tiles: QueryTiles, k: int) -> torch.Tensor | None:
        """Guess a score for each query that slightly more than k rows reach, from a sample of the rows.

        On average, a sample of `size` rows contains `mean` = k * size / rows of the best k rows, with a
        standard deviation of at most sqrt(mean). So the score at rank mean + 4 * sqrt(mean) + 4 of the
        sample is almost always below the k-th best score of all rows. The guess is lowered by twice the
        error bound. `TopKBuffer` checks it.

        Returns None if the sample has fewer rows than that rank.
        """
        matrix = self._matrix
        size = max(1, self._sizes.sample * matrix.rows // matrix.total)
        mean = k * size / matrix.rows
        rank = int(mean + 4 * mean**0.5 + 4)
        if rank >= size:
            return None
        rows = np.linspace(0, matrix.rows - 1, size).astype(np.int64)
        pieces = list(self._pieces(tiles).of([matrix.at(rows)]))
        norm = max(piece.norm for piece in pieces)
        rounding_norm = max(piece.rounding_norm for piece in pieces)
        guesses = []
        for tile in tiles:
            scores = torch.cat([tiles.scores(tile, piece).clone() for piece in pieces], 1)
            best = scores.float().topk(rank, dim=1, sorted=False).values
            guesses.append(best.amin(1).double())
        error = tiles.error.absolute(norm, rounding_norm)
        return tiles.error.lowered(torch.cat(guesses)) - 2 * error


RowNumbers = NDArray[np.int64]
Scores = NDArray[np.float64]


class ExactScorer:
    """Scores pairs of queries and rows of a matrix in float64."""

    def __init__(
        self,
        matrix: Matrix,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        sizes: Sizes = SIZES,
    ) -> None:
        self._matrix, self._dtype, self._sizes = matrix, dtype, sizes
        self._device = device or torch.device("cpu")
        # Reused for every block, because allocating memory takes longer than the copy.
        self._block = torch.empty(sizes.exact_rows, matrix.dim, dtype=torch.float64)

    def __call__(self, queries: Ragged, rows: Sequence[RowNumbers]) -> list[Scores]:
        """Return the scores of each query with its own rows, in their order."""
        if self._matrix.single:
            return [self._sums(queries.text(i), own) for i, own in enumerate(rows)]
        scores = [np.empty(len(own)) for own in rows]
        for batch in _batches(queries, rows, self._sizes):
            union = np.unique(np.concatenate([rows[query] for query in batch]))
            table = self._maxsim(queries.take(np.array(batch)), union)
            for query, union_scores in zip(batch, table, strict=True):
                scores[query] = union_scores[np.searchsorted(union, rows[query])]
        return scores

    def _sums(self, query: NDArray[np.floating], rows: RowNumbers) -> Scores:
        """Scores [rows] of rows with one vector: the dot product with the sum of the query vectors."""
        total = torch.from_numpy(query).double().sum(0)
        scores = np.empty(len(rows))
        size = self._sizes.exact_rows
        for first in range(0, len(rows), size):
            vectors = torch.from_numpy(self._matrix.at(rows[first : first + size]).vectors)
            products = torch.mv(self._block[: len(vectors)].copy_(vectors), total)
            scores[first : first + size] = products.numpy()
        check_finite(float(scores.sum()))
        return scores

    def _maxsim(self, queries: Ragged, rows: RowNumbers) -> Scores:
        """MaxSim [queries, rows] of every query with every row.

        `_maxima` gives [query vectors, rows]; the vectors of a query are consecutive and are summed.
        """
        sizes = self._sizes
        low = self._dtype if len(queries.vectors) >= sizes.low_from else torch.float32
        tiles = QueryTiles(Ragged.single(queries.vectors), self._device, low, sizes)
        pieces = Pieces(self._device, low, single=False)
        scores = np.empty((len(queries.counts), len(rows)))
        step = max(1, sizes.block * self._matrix.rows // max(1, self._matrix.total))
        for first in range(0, len(rows), step):
            vectors = self._matrix.at(rows[first : first + step])
            maxima = _maxima(tiles, pieces, torch.from_numpy(queries.vectors), vectors, sizes)
            scores[:, first : first + step] = np.add.reduceat(maxima, queries.starts[:-1], axis=0)
        return scores


def _batches(queries: Ragged, rows: Sequence[RowNumbers], sizes: Sizes) -> Iterator[list[int]]:
    """Batches of queries to score with the union of their rows.

    A batch is one tile if its queries share many rows, else a single query.
    """
    for first, stop in cut(queries.starts, sizes.tile):
        batch = list(range(first, stop))
        wanted = sum(len(rows[query]) for query in batch)
        union = len(np.unique(np.concatenate(rows[first:stop])))
        yield from [batch] if wanted >= sizes.shared * union * len(batch) else ([q] for q in batch)


def _maxima(
    tiles: QueryTiles, pieces: Pieces, queries: torch.Tensor, rows: Ragged, sizes: Sizes
) -> NDArray[np.float64]:
    """Return the exact maximum [query vectors, rows] of each query vector's products with the vectors of each
    row.

    Products [vectors, query vectors] in low precision give the best product of each row and query vector.
    Vectors that are near it, within twice the error bound, may have the exact maximum. These are few, and
    only their dot products are computed in float64.
    """
    piece = pieces.piece(rows)
    assert piece.owners is not None
    whole = torch.from_numpy(rows.vectors)
    maxima = torch.full((piece.rows, len(queries)), -torch.inf, dtype=torch.float64)
    error = tiles.error.absolute(piece.norm, piece.rounding_norm)
    width = max(1, sizes.tile * sizes.block // len(whole))  # one row may have very many vectors
    for first in range(0, len(queries), width):
        part = slice(first, first + width)
        products = tiles.products(piece.vectors, tiles.vectors[part])
        owners = piece.owners[:, None].expand_as(products)
        best = products.new_full((piece.rows, products.shape[1]), -torch.inf)
        best.scatter_reduce_(0, owners, products, "amax")
        # The threshold is rounded to the precision of the products.
        threshold = tiles.error.part(part).lowered(best.double()) - 2 * error[part]
        near = products >= threshold.to(products.dtype).index_select(0, piece.owners)
        at = true_places(near).cpu()
        vector, query = at // products.shape[1], at % products.shape[1]
        dots = _dots(whole, queries[part], vector, query, sizes.exact_pairs)
        places = piece.owners.cpu()[vector] * len(queries) + first + query
        maxima.view(-1).scatter_reduce_(0, places, dots, "amax")
    return maxima.numpy().T


def _dots(
    vectors: torch.Tensor,
    queries: torch.Tensor,
    vector: torch.Tensor,
    query: torch.Tensor,
    size: int,
) -> torch.Tensor:
    """Return the float64 dot products of pairs: vector number `vector[i]` with query vector `query[i]`.

    `size` pairs are multiplied at a time.
    """
    queries = queries.double()
    dots = torch.empty(len(vector), dtype=torch.float64)
    for first in range(0, len(vector), size):
        part = slice(first, first + size)
        left = vectors.index_select(0, vector[part]).double()
        torch.sum(left.mul_(queries.index_select(0, query[part])), 1, out=dots[part])
    return dots


def top(rows: RowNumbers, exact: Scores, k: int) -> tuple[RowNumbers, Scores]:
    """Return the k best rows, and all ties with the last of them in float32, the precision of a run."""
    if len(rows) <= k:
        return rows, exact
    rounded = exact.astype(np.float32)
    kept = rounded >= np.partition(rounded, -k)[-k]
    return rows[kept], exact[kept]
