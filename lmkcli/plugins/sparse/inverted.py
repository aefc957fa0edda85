"""The inverted engine: an inverted file of sparse vectors.

The index returns the documents and scores of exact search over its vectors. It is faster, because it reads
only the postings of the query terms.
"""

from pathlib import Path
from typing import Any, ClassVar

from lmkcli.plugins.sparse.postings import Postings
from lmkcli.progress import Report
from lmkcli.retrieval.dense.vector_search import SparseProduct
from lmkcli.retrieval.sparse.sparse_engine import SparseEngine
from lmkcli.store.sparse import SparseVectors


class Inverted(SparseEngine):
    """Exact search over sparse vectors with an inverted file."""

    family: ClassVar[str] = "inverted"
    rebuilt: ClassVar[str] = "its postings are ordered by term"

    @classmethod
    def build_files(cls, vectors: SparseVectors, folder: Path, report: Report) -> dict[str, Any]:
        """Write the inverted file."""
        return Postings.build(vectors, folder, report.progress)

    @classmethod
    def open_files(
        cls, folder: Path, built: dict[str, Any], vectors: SparseVectors
    ) -> SparseProduct:
        """Open the inverted file."""
        return Postings(folder / built["at"], vectors).search
