"""The Seismic engine: candidates from blocks of similar sparse vectors, which are scored exactly."""

from pathlib import Path
from typing import Any, ClassVar

from lmkcli.plugins.sparse.seismic_index import HEAP_FACTOR, QUERY_CUT, SeismicSearch
from lmkcli.plugins.sparse.sparse_vectors import SparseRows
from lmkcli.progress import Report
from lmkcli.retrieval.index_folder import BuiltIndex
from lmkcli.retrieval.index_input import VectorsInput
from lmkcli.retrieval.settings import OpenSettings
from lmkcli.retrieval.vectors.ranked_units import RankedUnits
from lmkcli.retrieval.vectors.vector_engine import OpenedSearch, VectorEngine


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
