"""Approximate search: candidates of an approximate index, which exact scores then put in order."""

import numpy as np
from numpy.typing import NDArray

from lmkcli.retrieval.indexes.exact_scorer import ExactScorer, top
from lmkcli.retrieval.kinds import Candidates, Hits, Nearest, VectorSearch
from lmkcli.retrieval.numbering import NumberedPart, still_live
from lmkcli.retrieval.views import RankedUnits
from lmkcli.store.ragged import Ragged
from lmkcli.store.vectors import Vectors

MARGIN = 32  # rows beyond k that are fetched, at least
SPREAD = 4  # vectors that are fetched for a row that is wanted, where rows have many
LEAST = 128  # and for each of several query vectors
TOKENS = 32  # vectors of a query that has one for each token; a fixed number, so that what is found for a
# query does not depend on those that are searched with it


class ApproximateSearch:
    """Searches a Matrix by the candidates of an approximate index, scored again in float64.

    Fetches more until k rows are there; where the index has no more, brute force fills them up.
    """

    def __init__(
        self,
        kind: Nearest,
        units: RankedUnits,
        numbered: list[NumberedPart],
        exact: VectorSearch,
    ) -> None:
        self._kind, self._matrix, self._exact = kind, units.matrix, exact
        self._asked = TOKENS if units.vectors.recipe.query.unit == "token" else 1
        numbering = Numbering(units.vectors, numbered)
        self._rows_of = numbering.vectors if units.level == "chunk" else numbering.docs

    @property
    def kind(self) -> Nearest:
        """The approximate index."""
        return self._kind

    def first_candidates(self, queries: Ragged, k: int, among: range | None = None) -> Candidates:
        """What a search fetches at first for each query vector, of all vectors or of a range."""
        return self._kind.candidates(queries.vectors, self._depth(k) + 1, among)

    def search(self, queries: Ragged, k: int, fetched: Candidates | None = None) -> Hits:
        """The k best of the candidates, and what ties with the last of them.

        `fetched` stands for what would be fetched at first.
        """
        k = min(k, self._matrix.rows)
        hits, candidates = Hits([], []), self._candidates(queries, k, fetched)
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

    def _candidates(
        self, queries: Ragged, k: int, fetched: Candidates | None
    ) -> list[NDArray[np.int64]]:
        """Rows of the matrix for each query; looks deeper for those that have too few, and where a
        tie is cut: which of the tied vectors come first is chance.
        """
        candidates: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * len(queries.counts)
        depth, left = self._depth(k), np.arange(len(candidates))
        again: list[np.integer] = []
        while len(left):
            asked = queries.take(left)
            found = fetched or self._kind.candidates(asked.vectors, depth + 1)
            numbers, tied, fetched = found.rows[:, :depth], _ties(found), None
            again = []
            for i, query in enumerate(left):
                mine = slice(asked.starts[i], asked.starts[i + 1])
                rows = np.unique(self._rows_of(numbers[mine][numbers[mine] >= 0]))
                candidates[query] = rows[rows >= 0]
                enough = k if (numbers[mine, -1] < 0).all() else self._wanted(k)
                if len(candidates[query]) < enough or tied[mine].any():
                    again.append(query)
            if depth >= self._kind.most:
                break
            left, depth = np.array(again, np.int64), min(4 * depth, self._kind.most)
        if (
            depth < self._kind.rows
        ):  # it gives no more than this, and nobody knows what would follow
            for unsure in again:
                candidates[unsure] = np.zeros(0, np.int64)
        return candidates

    def _wanted(self, k: int) -> int:
        """Rows that are scored exactly, as far as they are found."""
        return min(k * self._kind.overfetch + MARGIN, self._matrix.rows)

    def _depth(self, k: int) -> int:
        """Vectors to fetch at first for each query vector."""
        matrix, numbered, wanted = self._matrix, self._kind.rows, self._wanted(k)
        share = -(-wanted * numbered // max(1, matrix.total))  # some may be deleted
        if not matrix.rows < matrix.total:
            return min(share, self._kind.most)
        spread = min(SPREAD, -(-matrix.total // matrix.rows))
        return min(max(spread * share // self._asked, min(share, LEAST)), self._kind.most)


def _ties(found: Candidates) -> NDArray[np.bool_]:
    """For each query vector, whether its last two candidates have one score."""
    if found.rows.shape[1] < 2:
        return np.zeros(len(found.rows), np.bool_)
    same = np.equal(found.scores[:, -2], found.scores[:, -1])
    return np.logical_and(same, found.rows[:, -1] >= 0)


class Numbering:
    """What the numbers of an index mean among `vectors` now: -1 for what was deleted since."""

    def __init__(self, vectors: Vectors, numbered: list[NumberedPart]) -> None:
        self._vectors = vectors
        self._rows: NDArray[np.int64] | None = (
            None  # of the documents that it numbers, where some left
        )
        if [part.piece for part in numbered] != vectors.slices:
            live = still_live(numbered, vectors.slices)
            self._rows = np.where(live, np.cumsum(live) - 1, -1)
        if not vectors.single:
            counts = [self._counts(part) for part in numbered]
            self._starts = np.concatenate([[0], *counts]).cumsum().astype(np.int64)

    def _counts(self, part: NumberedPart) -> NDArray[np.int64]:
        """Vectors of each document; of a part that is no more, all as if they were its first's."""
        counts = self._vectors.part_counts(part.piece.name)
        if counts is not None:
            return counts[part.piece.live]
        removed = np.zeros(part.piece.rows, np.int64)
        removed[0] = part.vectors
        return removed

    def docs(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The document of each number, as a row of the folder."""
        return self._now(numbers if self._vectors.single else self._owners(numbers))

    def vectors(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The vector of each number, counted over all that are there now."""
        owners = self._owners(numbers)
        docs = self._now(owners)
        within = numbers - self._starts[owners]
        return np.where(docs < 0, -1, self._vectors.starts[docs] + within)

    def _now(self, docs: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of documents that were there when the index was built."""
        return docs if self._rows is None else self._rows[docs]

    def _owners(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._starts, numbers, side="right") - 1
