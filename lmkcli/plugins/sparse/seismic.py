"""The Seismic engine: candidates from blocks of similar sparse vectors, which are scored exactly."""

from pathlib import Path
from typing import Any, ClassVar

from lmkcli.plugins.sparse.seismic_index import HEAP_FACTOR, QUERY_CUT, SeismicSearch
from lmkcli.progress import Report
from lmkcli.retrieval.dense.vector_search import SparseProduct
from lmkcli.retrieval.index_folder import check_files
from lmkcli.retrieval.sparse.sparse_engine import SparseEngine
from lmkcli.store.sparse import SparseVectors


class Seismic(SparseEngine):
    """Approximate search over sparse vectors with Seismic."""

    family: ClassVar[str] = "seismic"
    rebuilt: ClassVar[str] = "Seismic cannot change an index"
    searched_with: ClassVar[dict[str, Any]] = {"query_cut": QUERY_CUT, "heap_factor": HEAP_FACTOR}

    @classmethod
    def build_files(cls, vectors: SparseVectors, folder: Path, report: Report) -> dict[str, Any]:
        """Build and write the index in a process of its own."""
        report.note(
            "Seismic reports no progress; a million passages of 130 terms take about a quarter of an hour of "
            "one processor"
        )
        return SeismicSearch.build(vectors, folder)

    @classmethod
    def open_files(
        cls, folder: Path, built: dict[str, Any], vectors: SparseVectors
    ) -> SparseProduct:
        """Read the index into memory."""
        check_files(folder)  # Seismic opens most damaged files without an error
        return SeismicSearch(folder / built["at"], vectors).search
