"""Engines over sparse vectors."""

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from lmkcli.progress import Report
from lmkcli.retrieval.dense.vector_search import SparseProduct
from lmkcli.retrieval.engine import Engine
from lmkcli.retrieval.engines.settings import IndexSettings
from lmkcli.retrieval.index import LEXICAL, SEARCH, Index, IndexInfo
from lmkcli.retrieval.index_folder import BuiltIndex
from lmkcli.retrieval.index_input import VectorsInput, indexed_vectors, notes_of
from lmkcli.retrieval.settings import OpenSettings
from lmkcli.store.sparse import SparseVectors


class SparseEngine(Engine[VectorsInput[SparseVectors]]):
    """A search over the sparse vectors of a folder.

    searched_with: the settings of every search, for the manifest of a run.
    """

    variant: ClassVar[str] = "sparse"
    searched_with: ClassVar[dict[str, Any]] = {}

    @abstractmethod
    def open(self, files: Path, vectors: SparseVectors) -> SparseProduct:
        """Open the search of the index in the folder `files`. Raises DataError if a file is damaged."""

    def open_input(
        self, source: str, settings: IndexSettings, report: Report
    ) -> VectorsInput[SparseVectors]:
        """Open the vectors. Raises UsageError if they are dense."""
        return VectorsInput.open(SparseVectors, Path(source), settings.allow_incomplete, report)

    def open_index(self, index: BuiltIndex, settings: OpenSettings) -> Index:
        """Open an index."""
        from lmkcli.retrieval.sparse.sparse_index import open_ranked  # imports torch

        others = (name for name in SEARCH if name != "vectors")
        settings.refuse(f"an index of kind {self.kind}", *LEXICAL, *others)
        vectors = indexed_vectors(SparseVectors, index, settings.vectors)
        search = self.open(index.files, vectors)
        notes = notes_of(index, vectors)
        place, digest = str(index.folder.absolute()), index.built["digest"]
        info = IndexInfo(place, self.kind, digest, self.searched_with, notes)
        return open_ranked(info, vectors, settings, search)
