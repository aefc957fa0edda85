"""How a search over dense vectors is divided among tasks."""

from collections.abc import Callable, Iterator
from functools import partial, reduce
from pathlib import Path
from typing import Protocol

import numpy as np

from lmkcli.data.collection import Query, Shard
from lmkcli.data.run import Run
from lmkcli.encoding.encoder import Encoder
from lmkcli.retrieval.dense.candidates import ApproximateSearch
from lmkcli.retrieval.dense.rows import RankedUnits
from lmkcli.retrieval.dense.vector_search import (
    Candidates,
    Matrix,
    PieceLayout,
    RowHits,
    VectorSearch,
)
from lmkcli.retrieval.sharding import (
    damaged,
    load_arrays,
    mask_of,
    merge_hits,
    save_arrays,
    sums_to,
)
from lmkcli.store.vectors import Ragged

Search = Callable[[Ragged, int], RowHits]


class _DividedIndex(Protocol):
    """What the divisions need of a dense index."""

    @property
    def units(self) -> RankedUnits: ...

    def encoder(self) -> Encoder: ...

    def encoded(self, queries: list[Query]) -> Ragged: ...

    def ranked(self, queries: list[Query], hits: RowHits, k: int) -> Run: ...


class _DenseDivision:
    """What both divisions of a dense index share."""

    def __init__(self, index: _DividedIndex) -> None:
        self._index, self._units = index, index.units

    @property
    def rows(self) -> int:
        return self._units.matrix.rows

    def encode(self, queries: list[Query], path: Path) -> None:
        encoded = self._index.encoded(queries)
        cut = mask_of(queries, self._index.encoder().cut(queries))
        save_arrays(path, vectors=encoded.vectors, counts=encoded.counts, cut=cut)

    def read(self, path: Path, queries: int) -> Ragged:
        return _read_queries(path, queries, self._units.matrix.dim)

    def ranked(self, queries: list[Query], hits: RowHits, k: int) -> Run:
        return self._index.ranked(queries, hits, k)


class ExactDivision(_DenseDivision):
    """Exact search: each shard has a range of consecutive documents. A piece has one list per query."""

    def __init__(self, index: _DividedIndex, exact: Callable[[Matrix], VectorSearch]) -> None:
        super().__init__(index)
        self._exact = exact

    def layout(self, queries: Ragged) -> PieceLayout:
        return PieceLayout(len(queries.counts), range(self._units.matrix.rows))

    def lists(self, queries: Ragged, part: slice) -> slice:
        return part

    def shard_search(self, shard: Shard) -> Search:
        units, first = self._units.share(shard)
        exact = self._exact(units.matrix)

        def search(queries: Ragged, k: int) -> RowHits:
            rows, scores = exact.search(queries, k)
            return RowHits([query_rows + first for query_rows in rows], scores)

        return search

    def join(self, queries: Ragged, k: int, shard_hits: Iterator[RowHits]) -> RowHits:
        return reduce(partial(merge_hits, k), shard_hits)


class ApproximateDivision(_DenseDivision):
    """Inverted lists: each shard has a range of consecutive vector numbers. A piece has one list per
    looked-up vector, with the candidates of the index."""

    def __init__(self, index: _DividedIndex, search: ApproximateSearch) -> None:
        super().__init__(index)
        self._search = search

    def layout(self, queries: Ragged) -> PieceLayout:
        # Lists of candidates have equal lengths, padded with row -1.
        rows = range(-1, self._search.nearest.rows)
        return PieceLayout(int(self._search.starts(queries)[-1]), rows, equal_lengths=True)

    def lists(self, queries: Ragged, part: slice) -> slice:
        starts = self._search.starts(queries)
        return slice(int(starts[part.start]), int(starts[part.stop]))

    def shard_search(self, shard: Shard) -> Search:
        numbers = shard.rows(self._search.nearest.rows)

        def search(queries: Ragged, k: int) -> RowHits:
            scores, rows = self._search.first_candidates(queries, k, numbers)
            return RowHits(list(rows), list(scores.astype(np.float64)))

        return search

    def join(self, queries: Ragged, k: int, shard_hits: Iterator[RowHits]) -> RowHits:
        candidates = (Candidates(np.array(scores), np.array(rows)) for rows, scores in shard_hits)
        return self._search.search(queries, k, reduce(_merge_candidates, candidates))


def _merge_candidates(left: Candidates, right: Candidates) -> Candidates:
    """The n best of the candidates [query vectors, n] of two shards, equal scores by row number."""
    scores = np.concatenate([left.scores, right.scores], axis=1)
    rows = np.concatenate([left.rows, right.rows], axis=1)
    order = np.lexsort((rows, -scores))[:, : left.rows.shape[1]]
    return Candidates(np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1))


def _read_queries(path: Path, queries: int, dim: int) -> Ragged:
    """Read the vectors of a batch of queries. Raises DataError for impossible values."""
    vectors, counts = load_arrays(path, vectors=np.float32, counts=np.int64)
    valid = sums_to(counts, queries, len(vectors)) and vectors.shape == (len(vectors), dim)
    if not valid or not np.isfinite(vectors).all():
        raise damaged(path, "its arrays do not fit together")
    return Ragged.of(vectors, counts)
