"""Exact search over sparse vectors: the product of the queries with all vectors, block by block.

The score of a document is the dot product of its weights with those of the query; of several vectors of a
document (chunks), the largest product counts. Products are computed in float64, so scores and ties are those
of exact arithmetic. A document that shares no term with a query has no score, and is not found.

Each block is transposed first, which takes as long as its product with one query. Then a query takes the time
of the postings of its terms, not of all terms.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from lmkcli.plugins.sparse.sparse_vectors import SparseRows
from lmkcli.retrieval.engines.exact.exact_search import top
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.vectors.vector_search import PairScorer, RowHits, RowMatrix

QUERIES = 256  # that are multiplied together: the scores of a block of documents stay below 100 MB


class ExactProduct:
    """Exact search over rows of sparse vectors. A row is a document, or a vector."""

    def __init__(self, rows: Iterable[SparseRows]) -> None:
        self._rows = rows

    def search(self, queries: SparseRows, k: int) -> RowHits:
        """Return the k best rows of each query and all ties with the last, with their scores."""
        hits = RowHits([], [])
        for first in range(0, len(queries.counts), QUERIES):
            stop = min(first + QUERIES, len(queries.counts))
            found = self._search(queries.take(np.arange(first, stop)), k)
            hits.rows.extend(found.rows)
            hits.scores.extend(found.scores)
        return hits

    def _search(self, queries: SparseRows, k: int) -> RowHits:
        count = len(queries.counts)
        hits = RowHits([np.zeros(0, np.int64)] * count, [np.zeros(0)] * count)
        asked = _matrix(queries)
        before = 0  # rows of earlier blocks
        for block in self._rows:
            products = asked @ _matrix(block).T.tocsr()  # [queries, vectors of the block]
            products.sort_indices()
            for query in range(count):
                span = slice(*products.indptr[query : query + 2])
                rows, scores = products.indices[span].astype(np.int64), products.data[span]
                if len(block.counts) < len(block.lengths):
                    rows, scores = _best_of_documents(block.starts, rows, scores)
                rows, scores = _joined(hits, query, rows + before, scores)
                hits.rows[query], hits.scores[query] = top(rows, scores, k)
            before += len(block.counts)
        return hits


class SparseScoring:
    """Exact products of sparse vectors. A document has the largest product of its vectors."""

    def search(self, matrix: RowMatrix[SparseRows], settings: OpenSettings) -> ExactProduct:
        """Return exact search over all rows of a matrix."""
        return ExactProduct(matrix)

    def scorer(self, matrix: RowMatrix[SparseRows]) -> PairScorer[SparseRows]:
        """Return a function that scores queries with rows; 0 for a row that shares no term with a query."""

        def scores(
            queries: SparseRows, rows: Sequence[NDArray[np.int64]]
        ) -> list[NDArray[np.float64]]:
            return [
                best_products(matrix.at(own), queries.one(number))
                for number, own in enumerate(rows)
            ]

        return scores


def best_products(texts: SparseRows, query: SparseRows) -> NDArray[np.float64]:
    """Return the largest product of the vectors of each text with a query, [texts]."""
    products = texts.products(query)
    if not len(texts.counts):
        return products
    best: NDArray[np.float64] = np.maximum.reduceat(products, texts.starts[:-1])
    return best


SPARSE = SparseScoring()


def _matrix(texts: SparseRows) -> csr_array:
    """Return all vectors as a matrix in float64, [vectors, vocabulary]."""
    shape = (len(texts.lengths), texts.dim)
    return csr_array((texts.weights.astype(np.float64), texts.terms, texts.offsets), shape=shape)


def _best_of_documents(
    starts: NDArray[np.int64], rows: NDArray[np.int64], scores: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the documents of some vectors (ascending) with the maximum of their scores."""
    documents = np.searchsorted(starts, rows, side="right") - 1
    firsts = np.flatnonzero(np.diff(documents, prepend=-1))
    if len(firsts):
        scores = np.maximum.reduceat(scores, firsts)
    return documents[firsts], scores


def _joined(
    hits: RowHits, query: int, rows: NDArray[np.int64], scores: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    return (
        np.concatenate([hits.rows[query], rows]),
        np.concatenate([hits.scores[query], scores]),
    )
