"""The inverted engine: an inverted file of sparse vectors, exact and faster than a search without an index.

The file has the vectors of each term, with their weights. It is the matrix of the sparse vectors in
compressed sparse columns, as SciPy names it. Term t has the postings starts[t] … starts[t + 1] - 1:

    starts   [vocabulary + 1]  int64
    rows     [postings]        uint32, numbers of vectors, ascending for each term
    weights  [postings]        float32

A search adds the products of a query term to the scores of its vectors, one query term after the other. It
reads only the postings of the query terms. Scores are sums in float64 in the order of the terms, as in exact
search, so both return the same scores and ties.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmkcli.errors import DataError
from lmkcli.plugins.sparse.sparse_vectors import SparseRows
from lmkcli.progress import Progress, Report
from lmkcli.retrieval.index_folder import BuiltIndex
from lmkcli.retrieval.index_input import VectorsInput
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.vectors.ranked_units import RankedUnits
from lmkcli.retrieval.vectors.vector_engine import OpenedSearch, VectorEngine
from lmkcli.retrieval.vectors.vector_search import RowHits
from lmkcli.store.part_reader import open_array
from lmkcli.store.part_writer import NpyAppender
from lmkcli.vectors.stored import Vectors

STARTS, ROWS, WEIGHTS = "starts.npy", "rows.npy", "weights.npy"
MOST = 1 << 32  # vectors that uint32 can number
IN_MEMORY = 1 << 26  # postings in memory while building: 512 MB
_AGAIN = "build the index again with --if-exists overwrite"


class Inverted(VectorEngine[SparseRows]):
    """Exact search over sparse vectors with an inverted file."""

    kind = "inverted"
    built_again = "its postings are ordered by term"

    def build(
        self, given: VectorsInput[SparseRows], folder: Path, report: Report
    ) -> dict[str, Any]:
        """Write the inverted file."""
        return Postings.build(given.vectors, folder, report.progress)

    def open_search(
        self, index: BuiltIndex, units: RankedUnits[SparseRows], settings: OpenSettings
    ) -> OpenedSearch[SparseRows]:
        """Open the inverted file."""
        return OpenedSearch(Postings(index.files, units), {})


class Postings:
    """An opened inverted file."""

    def __init__(self, folder: Path, units: RankedUnits[SparseRows]) -> None:
        """Raises DataError if a file is damaged, or if it does not fit the vectors."""
        vectors, self._folder = units.vectors, folder
        self._vectors, self._total = vectors, vectors.total
        self._by_vector = vectors.single or units.level == "chunk"
        self._starts = open_array(folder / STARTS, "int64", (), vectors.dim + 1)
        if self._starts[0] or (np.diff(self._starts) < 0).any():
            raise self._damaged(STARTS)
        postings = int(self._starts[-1])
        self._rows = open_array(folder / ROWS, "uint32", (), postings)
        self._weights = open_array(folder / WEIGHTS, "float32", (), postings)

    @classmethod
    def build(
        cls, vectors: Vectors[SparseRows], folder: Path, progress: Progress
    ) -> dict[str, Any]:
        """Write the inverted file of all vectors, and return its facts.

        The vectors are read once to count the postings of each term, and once for each range of terms with
        IN_MEMORY postings.
        """
        if vectors.total >= MOST:
            raise DataError(
                f"{vectors.folder} has {vectors.total:,} vectors, and an inverted file can number {MOST:,}; "
                "divide the collection, and fuse the runs"
            )
        counts = np.zeros(vectors.dim, np.int64)
        for block in vectors:
            counts += np.bincount(block.terms, minlength=vectors.dim)
        starts = np.concatenate([[0], np.cumsum(counts)])
        np.save(folder / STARTS, starts)
        rows = NpyAppender(folder / ROWS, "uint32")
        weights = NpyAppender(folder / WEIGHTS, "float32")
        try:
            first = 0
            while first < vectors.dim:
                stop = int(np.searchsorted(starts, starts[first] + IN_MEMORY, side="right")) - 1
                stop = max(stop, first + 1)
                numbers, values = _postings(vectors, starts, first, stop)
                rows.append(numbers)
                weights.append(values)
                progress(int(starts[stop]), int(starts[-1]), "postings")
                first = stop
            rows.close()
            weights.close()
        finally:
            rows.abandon()
            weights.abandon()
        files = (folder / name for name in (STARTS, ROWS, WEIGHTS))
        return {
            "documents": vectors.rows,
            "rows": vectors.total,
            "vocabulary": int((counts > 0).sum()),
            "postings": int(starts[-1]),
            "bytes": sum(file.stat().st_size for file in files),
        }

    def search(self, queries: SparseRows, k: int) -> RowHits:
        """Return the k best rows of each query and all ties with the last, as exact search does."""
        hits = RowHits([], [])
        for number in range(len(queries.counts)):
            scores = self._scores(queries.one(number))
            if not self._by_vector and len(scores):
                scores = np.maximum.reduceat(scores, self._vectors.starts[:-1])
            rounded = scores.astype(np.float32)  # the precision of a run, for ties
            least = np.partition(rounded, -k)[-k] if k < len(rounded) else 0
            rows = np.flatnonzero(rounded >= least if least else scores)
            hits.rows.append(rows)
            hits.scores.append(scores[rows])
        return hits

    def _scores(self, query: SparseRows) -> NDArray[np.float64]:
        """Return the scores of all vectors for one query, [vectors]."""
        scores: NDArray[np.float64] = np.zeros(self._total)
        for term, weight in zip(query.terms.tolist(), query.weights.tolist(), strict=True):
            span = slice(self._starts[term], self._starts[term + 1])
            try:
                scores[self._rows[span]] += weight * self._weights[span].astype(np.float64)
            except IndexError:
                raise self._damaged(ROWS) from None
        if not np.isfinite(scores.sum()):
            raise self._damaged(WEIGHTS)
        return scores

    def _damaged(self, name: str) -> DataError:
        return DataError(f"{self._folder / name} is damaged; {_AGAIN}")


def _postings(
    vectors: Vectors[SparseRows], starts: NDArray[np.int64], first: int, stop: int
) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """Return the vectors and the weights of the terms first … stop - 1, in the order of the terms."""
    rows = np.empty(starts[stop] - starts[first], np.uint32)
    weights = np.empty(len(rows), np.float32)
    ends = starts[first:stop] - starts[first]  # the end of the postings of each term so far
    before = 0  # vectors of earlier blocks
    for block in vectors:
        owners = np.repeat(np.arange(before, before + len(block.lengths)), block.lengths)
        mine = np.flatnonzero((block.terms >= first) & (block.terms < stop))
        mine = mine[np.argsort(block.terms[mine], kind="stable")]
        terms = block.terms[mine] - first
        counts = np.bincount(terms, minlength=stop - first)
        within = np.arange(len(terms)) - (np.cumsum(counts) - counts)[terms]
        at = ends[terms] + within
        rows[at], weights[at] = owners[mine], block.weights[mine]
        ends += counts
        before += len(block.lengths)
    return rows, weights
