"""Approximate search: an approximate index provides candidates, and exact scores rank them.

For each query vector the index returns the `depth` vectors that it considers best. Their rows (documents, or
chunks) are scored exactly in float64, so the index decides only which rows are scored, never their order. In
two cases the search fetches four times as many candidates, repeatedly. (1) There are too few different rows,
because the vectors belong to few documents or to deleted ones. (2) The end of a list is a tie, and chance
decides which of the tied vectors the index returns. Rows that are still missing come from exact search.

An index may contain one encoding for each document instead of its vectors (muvera.py). A query is then
looked up by its own encoding. The exact scores are those of the vectors in both cases.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmkcli.retrieval.engines.exact.exact_search import ExactScorer, top
from lmkcli.retrieval.vectors.muvera import FixedDimensional
from lmkcli.retrieval.vectors.ranked_units import NumberedPart, RankedUnits, still_live
from lmkcli.retrieval.vectors.vector_search import Candidates, Nearest, RowHits, VectorSearch
from lmkcli.vectors.rows import Ragged
from lmkcli.vectors.stored import Vectors

ENCODED = 4  # rows that are scored exactly for a wanted row, if the index contains encodings
MARGIN = 32  # rows beyond k * overfetch that are scored exactly
SPREAD = 4  # vectors that are fetched for a wanted row, if rows have several vectors
LEAST = 128  # minimum number of fetched vectors for each of several query vectors
# Assumed number of vectors of a query with one per token. It is fixed, so that the result of a query does
# not depend on the queries that are searched together with it.
TOKENS = 32


class ApproximateSearch:
    """Searches a Matrix: an approximate index finds candidates, which are scored again in float64."""

    def __init__(
        self,
        nearest: Nearest,
        units: RankedUnits[Ragged],
        numbered: list[NumberedPart],
        exact: VectorSearch,
        encoding: FixedDimensional | None = None,
    ) -> None:
        """Search with an index that numbers all vectors, or with `encoding` one encoding per document."""
        self._nearest, self._matrix, self._exact = nearest, units.matrix, exact
        self._encoding = encoding
        self._total = units.matrix.rows if encoding else units.matrix.total
        by_token = units.vectors.recipe.query.unit == "token" and not encoding
        self._query_vectors = TOKENS if by_token else 1
        numbering = Numbering(units.vectors, numbered, by_document=bool(encoding))
        self._rows_of = numbering.vectors if units.level == "chunk" else numbering.docs

    @property
    def nearest(self) -> Nearest:
        """The approximate index."""
        return self._nearest

    def looked_up(self, queries: Ragged) -> Ragged:
        """Return the vectors that are looked up in the index: those of the queries, or their encodings."""
        return self._encoding.queries(queries) if self._encoding else queries

    def starts(self, queries: Ragged) -> NDArray[np.int64]:
        """Return the number of the first looked-up vector of each query, and the total [n + 1]."""
        return np.arange(len(queries.counts) + 1) if self._encoding else queries.starts

    def first_candidates(self, queries: Ragged, k: int, among: range | None = None) -> Candidates:
        """Fetch the first candidates of each looked-up vector, among all numbers or a range of them."""
        return self._nearest.candidates(self.looked_up(queries).vectors, self._depth(k) + 1, among)

    def search(self, queries: Ragged, k: int, first: Candidates | None = None) -> RowHits:
        """Return the k best candidates of each query, and all ties with the last of them.

        `first` is the result of `first_candidates`, if it was called before.
        """
        k = min(k, self._matrix.rows)
        hits, candidates = RowHits([], []), self._candidates(queries, k, first)
        exact_scores = ExactScorer(self._matrix)(queries, candidates)
        for rows, scores in zip(candidates, exact_scores, strict=True):
            best, best_scores = top(rows, scores, k)
            hits.rows.append(best)
            hits.scores.append(best_scores)
        incomplete = np.flatnonzero([len(rows) < k for rows in hits.rows])
        exact_hits = self._exact.search(queries.take(incomplete), k)
        for number, rows, scores in zip(incomplete.tolist(), *exact_hits, strict=True):
            hits.rows[number], hits.scores[number] = rows, scores
        return hits

    def _candidates(
        self, queries: Ragged, k: int, first: Candidates | None
    ) -> list[NDArray[np.int64]]:
        """Return candidate rows of the matrix for each query; empty for queries that need exact search.

        One candidate more than `depth` is fetched for each looked-up vector [n, depth + 1]. If it has the
        same score as the candidate before it, a tie is cut off, and the query is repeated with a larger
        depth.
        """
        queries = self.looked_up(queries)
        candidates: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * len(queries.counts)
        depth, pending = self._depth(k), np.arange(len(candidates))
        repeat: list[np.integer] = []
        while len(pending):
            batch = queries.take(pending)
            fetched = first or self._nearest.candidates(batch.vectors, depth + 1)
            numbers, tied, first = fetched.rows[:, :depth], _ends_in_tie(fetched), None
            repeat = []
            for i, query in enumerate(pending):
                vectors = slice(batch.starts[i], batch.starts[i + 1])
                rows = np.unique(self._rows_of(numbers[vectors][numbers[vectors] >= 0]))
                candidates[query] = rows[rows >= 0]
                exhausted = (numbers[vectors, -1] < 0).all()  # the index has no more for this query
                enough = k if exhausted else self._wanted(k)
                if len(candidates[query]) < enough or tied[vectors].any():
                    repeat.append(query)
            if depth >= self._nearest.most:
                break
            pending, depth = np.array(repeat, np.int64), min(4 * depth, self._nearest.most)
        if depth < self._nearest.rows:
            # The index returns at most `most` rows, so better rows may be among the others.
            for number in repeat:
                candidates[number] = np.zeros(0, np.int64)
        return candidates

    def _wanted(self, k: int) -> int:
        """Return the number of rows to score exactly, if the index finds so many."""
        overfetch = max(self._nearest.overfetch, ENCODED if self._encoding else 1)
        return min(k * overfetch + MARGIN, self._matrix.rows)

    def _depth(self, k: int) -> int:
        """Return the number of vectors to fetch first for each query vector."""
        matrix, numbered, wanted = self._matrix, self._nearest.rows, self._wanted(k)
        # If an index also numbers deleted vectors, about total / numbered of the returned vectors are
        # live.
        share = -(-wanted * numbered // max(1, self._total))
        if not matrix.rows < self._total:
            return min(share, self._nearest.most)
        spread = min(SPREAD, -(-self._total // matrix.rows))
        depth = max(spread * share // self._query_vectors, min(share, LEAST))
        return min(depth, self._nearest.most)


def _ends_in_tie(candidates: Candidates) -> NDArray[np.bool_]:
    """For each query vector, whether its last two candidates have the same score."""
    if candidates.rows.shape[1] < 2:
        return np.zeros(len(candidates.rows), np.bool_)
    same = np.equal(candidates.scores[:, -2], candidates.scores[:, -1])
    return np.logical_and(same, candidates.rows[:, -1] >= 0)


class Numbering:
    """Maps the vector numbers of an index to the current rows of `vectors`; -1 for deleted ones.

    An index numbers the vectors of its parts one after the other, in their state at the time of building;
    with `by_document`, it numbers their documents.
    """

    def __init__(
        self, vectors: Vectors[Any], numbered: list[NumberedPart], by_document: bool = False
    ) -> None:
        self._vectors, self._by_document = vectors, by_document or vectors.single
        # The current row of each document that the index numbers; None if no document was deleted since.
        self._rows: NDArray[np.int64] | None = None
        if [part.piece for part in numbered] != vectors.slices:
            live = still_live(numbered, vectors.slices)
            self._rows = np.where(live, np.cumsum(live) - 1, -1)
        if not self._by_document:
            counts = [self._counts(part) for part in numbered]
            self._starts = np.concatenate([[0], *counts]).cumsum().astype(np.int64)

    def _counts(self, part: NumberedPart) -> NDArray[np.int64]:
        """Return the number of vectors of each document in a part.

        The counts of a removed part are lost. All its documents are deleted, so all its vectors are assigned
        to its first document.
        """
        counts = self._vectors.part_counts(part.piece.name)
        if counts is not None:
            return counts[part.piece.live]
        removed = np.zeros(part.piece.rows, np.int64)
        removed[0] = part.vectors
        return removed

    def docs(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the document of each number, as a row of the folder."""
        return self._current(numbers if self._by_document else self._owners(numbers))

    def vectors(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the vector of each number, counted over all current vectors."""
        owners = self._owners(numbers)
        docs = self._current(owners)
        within = numbers - self._starts[owners]
        return np.where(docs < 0, -1, self._vectors.starts[docs] + within)

    def _current(self, docs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the current rows of documents, given their rows in the index."""
        return docs if self._rows is None else self._rows[docs]

    def _owners(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the document of each vector number, as a row in the index."""
        return np.searchsorted(self._starts, numbers, side="right") - 1
