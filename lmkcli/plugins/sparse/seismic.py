"""The Seismic engine: candidates from blocks of similar sparse vectors, which are scored exactly."""

from pathlib import Path
from typing import Any, ClassVar

from lmkcli.plugins.sparse.seismic_index import HEAP_FACTOR, QUERY_CUT, SeismicSearch
from lmkcli.progress import Report
from lmkcli.retrieval.dense.vector_search import SparseProduct
from lmkcli.retrieval.index_input import VectorsInput
from lmkcli.retrieval.sparse.sparse_engine import SparseEngine
from lmkcli.store.sparse import SparseVectors


class Seismic(SparseEngine):
    """Approximate search over sparse vectors with Seismic."""

    kind = "seismic"
    built_again = "Seismic cannot change an index"
    digests_on_open: ClassVar[bool] = True  # Seismic opens most damaged files without an error
    searched_with: ClassVar[dict[str, Any]] = {"query_cut": QUERY_CUT, "heap_factor": HEAP_FACTOR}

    def build(
        self, given: VectorsInput[SparseVectors], folder: Path, report: Report
    ) -> dict[str, Any]:
        """Build and write the index in a process of its own."""
        report.note(
            "Seismic reports no progress; a million passages of 130 terms take about a quarter of an hour of "
            "one processor"
        )
        return SeismicSearch.build(given.vectors, folder)

    def open(self, files: Path, vectors: SparseVectors) -> SparseProduct:
        """Read the index into memory."""
        return SeismicSearch(files, vectors).search
