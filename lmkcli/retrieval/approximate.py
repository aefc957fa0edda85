"""Approximate search: candidates of an approximate index, which exact scores then put in order."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lmkcli.retrieval.indexes.exact_scorer import ExactScorer, top
from lmkcli.retrieval.kinds import AnnKind, Hits, Matrix, VectorSearch
from lmkcli.store.ragged import Ragged

MARGIN = 32  # rows beyond k that are fetched, at least
SPREAD = 4  # vectors that are fetched for a row that is wanted, where rows have many
LEAST = 128  # and for each of several query vectors

RowsOf = Callable[[NDArray[np.int64]], NDArray[np.int64]]  # of an index's numbers; -1: deleted


class ApproximateSearch:
    """Searches a Matrix by the candidates of an approximate index, scored again in float64.

    Fetches more until k rows are there; where the index has no more, brute force fills them up.
    """

    def __init__(self, kind: AnnKind, matrix: Matrix, rows_of: RowsOf, exact: VectorSearch) -> None:
        self._kind, self._matrix, self._rows_of, self._exact = kind, matrix, rows_of, exact

    def search(self, queries: Ragged, k: int) -> Hits:
        """The k best of the candidates, and what ties with the last of them."""
        k = min(k, self._matrix.rows)
        hits, candidates = Hits([], []), self._candidates(queries, k)
        exact_scores = ExactScorer(self._matrix)(queries, candidates)
        for rows, scores in zip(candidates, exact_scores, strict=True):
            best, best_scores = top(rows, scores, k)
            hits.rows.append(best)
            hits.scores.append(best_scores)
        lacking = np.flatnonzero([len(rows) < k for rows in hits.rows])
        brute = self._exact.search(queries.take(lacking), k)
        for number, rows, scores in zip(lacking.tolist(), *brute, strict=True):
            hits.rows[number], hits.scores[number] = rows, scores
        return hits

    def _candidates(self, queries: Ragged, k: int) -> list[NDArray[np.int64]]:
        """Rows of the matrix for each query; looks deeper for those that have too few."""
        candidates: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * len(queries.counts)
        wanted = min(k * self._kind.overfetch + MARGIN, self._matrix.rows)
        depth, left = self._depth(wanted, queries), np.arange(len(candidates))
        while len(left):
            asked = queries.take(left)
            _, numbers = self._kind.candidates(asked.vectors, depth)
            again = []
            for i, query in enumerate(left):
                mine = numbers[asked.starts[i] : asked.starts[i + 1]]
                rows = np.unique(self._rows_of(mine[mine >= 0]))
                candidates[query] = rows[rows >= 0]
                enough = k if (mine[:, -1] < 0).all() else wanted
                if len(candidates[query]) < enough:
                    again.append(query)
            if depth >= self._kind.rows:
                break
            left, depth = np.array(again, np.int64), min(4 * depth, self._kind.rows)
        return candidates

    def _depth(self, wanted: int, queries: Ragged) -> int:
        """Vectors to fetch at first for each query vector."""
        matrix, numbered = self._matrix, self._kind.rows
        share = -(-wanted * numbered // max(1, matrix.total))  # some may be deleted
        if not matrix.rows < matrix.total:
            return min(share, numbered)
        spread = min(SPREAD, -(-matrix.total // matrix.rows))
        longest = int(queries.counts.max(initial=1))
        return min(max(spread * share // longest, min(share, LEAST)), numbered)
