"""How a search over sparse vectors is divided among tasks."""

from collections.abc import Callable, Iterator
from functools import partial, reduce
from pathlib import Path
from typing import Protocol

import numpy as np

from lmkcli.data.collection import Query, Shard
from lmkcli.data.run import Run
from lmkcli.encoding.encoder import SparseEncoder
from lmkcli.encoding.static_queries import StaticQueries
from lmkcli.retrieval.dense.vector_search import PieceLayout, RowHits
from lmkcli.retrieval.sharding import (
    damaged,
    load_arrays,
    mask_of,
    merge_hits,
    save_arrays,
    sums_to,
)
from lmkcli.retrieval.sparse.exact_product import exact_product
from lmkcli.store.sparse import SparseRagged, SparseVectors


class _DividedIndex(Protocol):
    """What a division needs of sparse vectors."""

    vectors: SparseVectors
    by_chunk: bool

    @property
    def encoder(self) -> SparseEncoder | StaticQueries: ...

    def encoded(self, queries: list[Query]) -> SparseRagged: ...

    def ranked(self, queries: list[Query], hits: RowHits, k: int) -> Run: ...


class SparseDivision:
    """Exact search over sparse vectors, divided by documents."""

    def __init__(self, index: _DividedIndex) -> None:
        self._index, self._vectors = index, index.vectors

    @property
    def rows(self) -> int:
        return self._vectors.total if self._index.by_chunk else self._vectors.rows

    def encode(self, queries: list[Query], path: Path) -> None:
        encoded = self._index.encoded(queries)
        arrays = {"lengths": encoded.lengths, "terms": encoded.terms, "weights": encoded.weights}
        save_arrays(path, **arrays, cut=mask_of(queries, self._index.encoder.cut(queries)))

    def read(self, path: Path, queries: int) -> SparseRagged:
        lengths, terms, weights = load_arrays(
            path, lengths=np.int64, terms=np.int32, weights=np.float32
        )
        if not sums_to(lengths, queries, len(terms)) or weights.shape != terms.shape:
            raise damaged(path, "its arrays do not fit together")
        ones = np.ones(queries, np.int64)
        encoded = SparseRagged.of(lengths, terms, weights, ones, self._vectors.dim)
        if fault := encoded.fault():
            raise damaged(path, fault)
        return encoded

    def layout(self, queries: SparseRagged) -> PieceLayout:
        return PieceLayout(len(queries.counts), range(self.rows))

    def lists(self, queries: SparseRagged, part: slice) -> slice:
        return part

    def shard_search(self, shard: Shard) -> Callable[[SparseRagged, int], RowHits]:
        documents, by_chunk = shard.rows(self._vectors.rows), self._index.by_chunk
        share = self._vectors.share(documents)
        first = int(self._vectors.starts[documents.start]) if by_chunk else documents.start

        def search(queries: SparseRagged, k: int) -> RowHits:
            rows, scores = exact_product(share, queries, k, by_chunk)
            return RowHits([query_rows + first for query_rows in rows], scores)

        return search

    def join(self, queries: SparseRagged, k: int, shard_hits: Iterator[RowHits]) -> RowHits:
        return reduce(partial(merge_hits, k), shard_hits)

    def ranked(self, queries: list[Query], hits: RowHits, k: int) -> Run:
        return self._index.ranked(queries, hits, k)
