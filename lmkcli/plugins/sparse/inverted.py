"""The inverted engine: an inverted file of sparse vectors.

The index returns the documents and scores of exact search over its vectors. It is faster, because it reads
only the postings of the query terms.
"""

from pathlib import Path
from typing import Any

from lmkcli.plugins.sparse.postings import Postings
from lmkcli.plugins.sparse.sparse_vectors import SparseRows
from lmkcli.progress import Report
from lmkcli.retrieval.index_folder import BuiltIndex
from lmkcli.retrieval.index_input import VectorsInput
from lmkcli.retrieval.settings import OpenSettings
from lmkcli.retrieval.vectors.ranked_units import RankedUnits
from lmkcli.retrieval.vectors.vector_engine import OpenedSearch, VectorEngine


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
