"""The inverted engine: an inverted file of sparse vectors.

The index returns the documents and scores of exact search over its vectors. It is faster, because it reads
only the postings of the query terms.
"""

from pathlib import Path
from typing import Any

from lmkcli.plugins.sparse.postings import Postings
from lmkcli.progress import Report
from lmkcli.retrieval.dense.vector_search import SparseProduct
from lmkcli.retrieval.index_input import VectorsInput
from lmkcli.retrieval.sparse.sparse_engine import SparseEngine
from lmkcli.store.sparse import SparseVectors


class Inverted(SparseEngine):
    """Exact search over sparse vectors with an inverted file."""

    kind = "inverted"
    built_again = "its postings are ordered by term"

    def build(
        self, given: VectorsInput[SparseVectors], folder: Path, report: Report
    ) -> dict[str, Any]:
        """Write the inverted file."""
        return Postings.build(given.vectors, folder, report.progress)

    def open(self, files: Path, vectors: SparseVectors) -> SparseProduct:
        """Open the inverted file."""
        return Postings(files, vectors).search
