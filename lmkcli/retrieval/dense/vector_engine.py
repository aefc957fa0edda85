"""Engines over dense vectors: they find candidates, which lmk scores exactly."""

from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

from lmkcli.progress import Report
from lmkcli.retrieval.dense.rows import read_numbering
from lmkcli.retrieval.dense.vector_search import OpenedEngine
from lmkcli.retrieval.engine import Engine
from lmkcli.retrieval.engines.settings import IndexSettings
from lmkcli.retrieval.index import LEXICAL, Index
from lmkcli.retrieval.index_folder import BuiltIndex
from lmkcli.retrieval.index_input import VectorsInput, indexed_vectors
from lmkcli.retrieval.settings import OpenSettings
from lmkcli.store.vectors import Vectors


class VectorEngine(Engine[VectorsInput[Vectors]]):
    """A search for the nearest vectors of a folder.

    The index numbers the vectors of its input in their order: `given.vectors` are numbered from zero, and
    appended ones from `Changes.first` on. Deleted vectors keep their numbers.
    """

    variant: ClassVar[str] = "vectors"

    @property
    def by_document(self) -> bool:
        """Whether the index numbers documents, because it contains one encoding for each."""
        return False

    @abstractmethod
    def open(
        self, files: Path, vectors: Vectors, rows: int, settings: OpenSettings
    ) -> OpenedEngine:
        """Open the search of the index in the folder `files`, which numbers `rows` vectors.

        `vectors` are those that the index was built from or updated to. Raises DataError if a file is
        damaged, and UsageError for settings without an effect.
        """

    def open_input(
        self, source: str, settings: IndexSettings, report: Report
    ) -> VectorsInput[Vectors]:
        """Open the vectors. Raises UsageError if they are sparse."""
        allow = settings.allow_incomplete
        return VectorsInput.open(Vectors, Path(source), allow, report, self.by_document)

    def open_index(self, index: BuiltIndex, settings: OpenSettings) -> Index:
        """Open an index: the engine finds candidates, which get exact scores."""
        from lmkcli.retrieval.dense.dense_index import approximate_index  # imports torch

        settings.refuse("an index of vectors", *LEXICAL)
        vectors = indexed_vectors(Vectors, index, settings.vectors)
        numbered = read_numbering(index.of)
        opened = self.open(index.files, vectors, sum(part.vectors for part in numbered), settings)
        return approximate_index(index, self.kind, vectors, opened, settings)
