"""The Seismic engine: search over sparse vectors with Seismic (Bruch et al., SIGIR 2024, arXiv 2404.18812).

Seismic divides the postings of each term into blocks of similar vectors. A search reads the blocks of the
QUERY_CUT largest terms of a query whose summary promises a good score. Seismic stores weights in 16 bits, so
it only finds candidates. They get the scores of exact search.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import seismic
from numpy.typing import NDArray

from lmkcli.errors import DataError
from lmkcli.plugins.sparse.seismic_builder import SMALL, SUFFIX
from lmkcli.plugins.sparse.sparse_vectors import SparseRows
from lmkcli.progress import Report
from lmkcli.retrieval.index_folder import BuiltIndex
from lmkcli.retrieval.index_input import VectorsInput
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.vectors.ranked_units import RankedUnits
from lmkcli.retrieval.vectors.vector_engine import OpenedSearch, VectorEngine
from lmkcli.retrieval.vectors.vector_search import RowHits
from lmkcli.store.ragged import ranges
from lmkcli.system.atomic import sync
from lmkcli.system.programs import installed_version
from lmkcli.vectors.stored import Vectors

QUERY_CUT, HEAP_FACTOR = 10, 0.8  # the fastest settings of the authors
MARGIN = 32  # rows beyond k that are scored exactly
SPREAD = 4  # vectors that are fetched for a wanted document, if documents have several vectors
FILE = f"vectors{SUFFIX}"
_BUILDER = "lmkcli.plugins.sparse.seismic_builder"
_AGAIN = "build the index again with --if-exists overwrite"


class Seismic(VectorEngine[SparseRows]):
    """Approximate search over sparse vectors with Seismic."""

    kind = "seismic"
    built_again = "Seismic cannot change an index"
    digests_on_open: ClassVar[bool] = True  # Seismic opens most damaged files without an error

    def build(
        self, given: VectorsInput[SparseRows], folder: Path, report: Report
    ) -> dict[str, Any]:
        """Build and write the index in a process of its own."""
        report.note(
            "Seismic reports no progress; a million passages of 130 terms take about a quarter of an hour of "
            "one processor"
        )
        return SeismicSearch.build(given.vectors, folder)

    def open_search(
        self, index: BuiltIndex, units: RankedUnits[SparseRows], settings: OpenSettings
    ) -> OpenedSearch[SparseRows]:
        """Read the index into memory."""
        search = SeismicSearch(index.files, units)
        return OpenedSearch(search, {"query_cut": QUERY_CUT, "heap_factor": HEAP_FACTOR})


class SeismicSearch:
    """An opened index of Seismic."""

    def __init__(self, folder: Path, units: RankedUnits[SparseRows]) -> None:
        """Raises DataError if the file cannot be read."""
        self._units, self._by_vector = units, units.level == "chunk"
        vectors, path = units.vectors, folder / FILE
        kind = seismic.SeismicIndex if vectors.dim <= SMALL else seismic.SeismicIndexLV
        try:
            self._index = kind.load(str(path))
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error}); {_AGAIN}") from None

    @classmethod
    def build(cls, vectors: Vectors[SparseRows], folder: Path) -> dict[str, Any]:
        """Write the index of all vectors, and return its facts.

        Another process builds it. Seismic prints to stdout, which is for results, and a signal cannot
        interrupt it. A failure of it, such as too little memory, is one error here.
        """
        path = folder / FILE
        slices = [piece.as_json() for piece in vectors.slices]
        task = json.dumps([str(vectors.folder.absolute()), slices, str(path.absolute())])
        paths = os.pathsep.join(filter(None, sys.path))
        done = subprocess.run(
            [sys.executable, "-P", "-m", _BUILDER],
            input=task,
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths, "RUST_BACKTRACE": "0"},
        )
        if done.returncode:
            reason = done.stderr.strip() or f"it ended with exit code {done.returncode}"
            raise DataError(f"Seismic cannot build an index of {vectors.folder}: {reason}")
        sync(path)
        return {
            "documents": vectors.rows,
            "rows": vectors.total,
            "bytes": path.stat().st_size,
            "seismic": installed_version("pyseismic-lsr"),
        }

    def search(self, queries: SparseRows, k: int) -> RowHits:
        """Return the k best candidates of each query and all ties with the last, with exact scores.

        If Seismic finds fewer than k rows for a query, they come from exact search.
        """
        # here, because a module of it imports torch, which building an index does not need
        from lmkcli.plugins.sparse.exact_product import ExactProduct
        from lmkcli.retrieval.engines.exact.exact_search import top

        hits, incomplete = RowHits([], []), []
        vectors, matrix = self._units.vectors, self._units.matrix
        for number in range(len(queries.counts)):
            query = queries.one(number)
            found = self._candidates(vectors, query, k)
            candidates = vectors.at(found)
            scores = candidates.products(query)
            if self._by_vector:
                found = ranges(vectors.starts[found], candidates.counts)
            elif not vectors.single and len(found):
                scores = np.maximum.reduceat(scores, candidates.starts[:-1])
            found, scores = top(found[scores > 0], scores[scores > 0], k)
            hits.rows.append(found)
            hits.scores.append(scores)
            if len(found) < min(k, matrix.rows) and len(query.terms):
                incomplete.append(number)
        if incomplete:
            exact = ExactProduct(matrix).search(queries.take(np.array(incomplete)), k)
            for number, best, scores in zip(incomplete, *exact, strict=True):
                hits.rows[number], hits.scores[number] = best, scores
        return hits

    def _candidates(
        self, vectors: Vectors[SparseRows], query: SparseRows, k: int
    ) -> NDArray[np.int64]:
        """Return the candidate documents of a query, ascending.

        The search fetches four times as many vectors, repeatedly, if they belong to too few documents, or if
        a tie is cut off: chance decides which of the tied vectors Seismic returns.
        """
        wanted = min(k + MARGIN, vectors.total if self._by_vector else vectors.rows)
        depth = wanted if self._by_vector or vectors.single else SPREAD * wanted
        terms = query.terms.astype(seismic.get_seismic_string())
        weights = query.weights / query.weights.max(initial=1e-30)  # no product is infinite
        while True:
            found = self._index.search("", terms, weights, depth + 1, QUERY_CUT, HEAP_FACTOR)
            numbers = np.array([int(name) for _, _, name in found[:depth]], np.int64)
            documents = np.unique(np.searchsorted(vectors.starts, numbers, side="right") - 1)
            enough = len(numbers if self._by_vector else documents) >= wanted
            if len(found) <= depth or (enough and found[-2][1] > found[-1][1]):
                return documents
            depth *= 4
