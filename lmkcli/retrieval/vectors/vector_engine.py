"""Engines over vectors. `NearestEngine` finds candidates among dense vectors, which lmk scores exactly."""

from abc import abstractmethod
from pathlib import Path
from typing import Any, Generic, NamedTuple

from lmkcli import catalog
from lmkcli.errors import UsageError
from lmkcli.progress import Report
from lmkcli.retrieval.engine import Engine
from lmkcli.retrieval.engines.index_settings import IndexSettings, search_identity
from lmkcli.retrieval.index import FEEDBACK_FIELDS, Index, IndexInfo
from lmkcli.retrieval.index_folder import BuiltIndex
from lmkcli.retrieval.index_input import VectorsInput, indexed_vectors, notes_of
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.vectors.ranked_units import ChunkRows, RankedUnits, read_numbering
from lmkcli.retrieval.vectors.vector_search import OpenedEngine, RowSearch, scoring_of
from lmkcli.vectors.rows import AnyRows, Ragged
from lmkcli.vectors.stored import DenseVectors


class OpenedSearch(NamedTuple, Generic[AnyRows]):
    """The search of an opened index.

    constants: what else changes the results, besides the settings of a search, for the manifest of a run.
    note: for the user; may be empty.
    """

    search: RowSearch[AnyRows]
    constants: dict[str, Any]
    note: str = ""


class VectorEngine(Engine[VectorsInput[AnyRows]]):
    """A search over the vectors of a folder. `EngineRow.takes` declares their kind."""

    @property
    def by_document(self) -> bool:
        """Whether the index numbers documents, because it contains one encoding for each."""
        return False

    @abstractmethod
    def open_search(
        self, index: BuiltIndex, units: RankedUnits[AnyRows], settings: OpenSettings
    ) -> OpenedSearch[AnyRows]:
        """Open the search of an index over the units of the vectors that it was built from or updated to.

        Raises DataError if a file is damaged, and UsageError for settings without an effect.
        """

    def open_input(
        self, source: str, settings: IndexSettings, report: Report
    ) -> VectorsInput[AnyRows]:
        """Open the vectors. Raises UsageError if they are of another kind than the engine takes."""
        allow, kind = settings.allow_incomplete, catalog.engine_row(self.kind).takes
        return VectorsInput.open(Path(source), kind, allow, report, self.by_document)

    def open_index(self, index: BuiltIndex, settings: OpenSettings) -> Index:
        """Open an index."""
        from lmkcli.retrieval.vectors.vector_index import VectorIndex  # imports torch

        settings.refuse(f"an index of kind {self.kind}", *FEEDBACK_FIELDS)
        kind = catalog.engine_row(self.kind).takes
        units = RankedUnits(
            indexed_vectors(index, settings.vectors, kind),
            settings.level or "",
            settings.aggregate or "",
        )
        search, constants, note = self.open_search(index, units, settings)
        info = IndexInfo(
            str(index.folder.absolute()),
            self.kind,
            index.record.digest,
            search_identity(self.kind, settings) | constants | units.identity,
            (*notes_of(index, units.vectors), *([note] if note else [])),
        )
        return VectorIndex(info, units, search, settings)


class NearestEngine(VectorEngine[Ragged]):
    """A search for the nearest dense vectors of a folder.

    The index numbers the vectors of its input in their order: `given.vectors` are numbered from zero, and
    appended ones from `Changes.first` on. Deleted vectors keep their numbers.
    """

    @abstractmethod
    def open(
        self, files: Path, vectors: DenseVectors, rows: int, settings: OpenSettings
    ) -> OpenedEngine:
        """Open the search of the index in the folder `files`, which numbers `rows` vectors.

        `vectors` are those that the index was built from or updated to. Raises DataError if a file is
        damaged, and UsageError for settings without an effect.
        """

    def open_search(
        self, index: BuiltIndex, units: RankedUnits[Ragged], settings: OpenSettings
    ) -> OpenedSearch[Ragged]:
        """Open the search: the engine finds candidates, which get exact scores.

        Raises UsageError for `--level chunk` with encodings of whole documents.
        """
        from lmkcli.retrieval.vectors.candidates import ApproximateSearch  # imports torch

        numbered = read_numbering(index.vectors)
        total = sum(part.vectors for part in numbered)
        nearest, note, encoding = self.open(index.files, units.vectors, total, settings)
        if encoding and units.level == "chunk":
            raise UsageError(
                f"--level chunk: {index.folder} contains one encoding for each document (--muvera); search "
                "the vectors themselves, or build an index without --muvera"
            )
        if isinstance(units.matrix, ChunkRows):
            raise UsageError(
                f"--level chunk: {index.folder} finds documents with vectors of unit token, not their "
                f"chunks; search the vectors themselves ({units.vectors.folder})"
            )
        exact = scoring_of(units.vectors.codec_name).search(units.matrix, settings)
        search = ApproximateSearch(nearest, units, numbered, exact, encoding)
        return OpenedSearch(search, {}, note)
