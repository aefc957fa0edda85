"""The FAISS engine: builds, appends to, joins and opens the file of a FAISS index.

Sharded building: the first task trains the index, and each task adds its documents to its own lists. Joining
the lists on disk gives the index that a single process would build.
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

from lmkcli.data.collection import Shard
from lmkcli.errors import DataError, UsageError
from lmkcli.progress import Report
from lmkcli.retrieval.engine import Appended
from lmkcli.retrieval.engines.faiss.faiss_index import FaissIndex, Share
from lmkcli.retrieval.engines.faiss.faiss_settings import FaissSettings
from lmkcli.retrieval.engines.index_settings import IndexSettings
from lmkcli.retrieval.index import DATABASE_FIELDS
from lmkcli.retrieval.index_folder import BuiltIndex
from lmkcli.retrieval.index_input import CannotAppend, VectorsInput
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.vectors.ranked_units import flat
from lmkcli.retrieval.vectors.vector_engine import NearestEngine
from lmkcli.retrieval.vectors.vector_search import Blocks, OpenedEngine
from lmkcli.text.formatting import size
from lmkcli.vectors.rows import Ragged
from lmkcli.vectors.stored import DenseVectors

DELETED_SHARE = 0.25  # of the rows; an index with more deleted rows is built again


class Faiss(NearestEngine):
    """Approximate search with FAISS over the vectors of a folder."""

    settings_type = FaissSettings
    in_shards: ClassVar[bool] = True
    settings: FaissSettings

    @property
    def kind(self) -> str:
        """The name of the index kind, or a factory string."""
        return self.settings.kind

    @property
    def by_document(self) -> bool:
        """With MUVERA, the index contains one encoding of each document."""
        return bool(self.settings.muvera)

    def identity(self, folder: Path) -> dict[str, Any]:
        """Return the settings that belong to the index; the memory limit belongs to the machine."""
        settings = asdict(self.settings)
        del settings["max_memory"]
        return {"settings": settings}

    def open_input(
        self, source: str, settings: IndexSettings, report: Report
    ) -> VectorsInput[Ragged]:
        """Open the vectors. Raises UsageError for MUVERA with one vector for each document."""
        given = super().open_input(source, settings, report)
        if self.settings.muvera and given.vectors.single:
            raise UsageError(
                f"--muvera: {source} holds one vector for each document, which needs no encoding; drop it"
            )
        return given

    def check(self, given: VectorsInput[Ragged], overwrite: bool, report: Report) -> None:
        """Raise UsageError and DataError for an index that cannot be built; note the memory it needs."""
        blocks = self._blocks(given.vectors)
        needed = FaissIndex.memory(blocks, self.settings)
        if overwrite:
            FaissIndex.check_buildable(blocks, self.settings)
        report.note(
            f"{self.kind} over {blocks.rows:,} x {blocks.dim}: about {size(needed)} to build"
        )

    def build(self, given: VectorsInput[Ragged], folder: Path, report: Report) -> dict[str, Any]:
        """Build the index of all vectors."""
        blocks = self._blocks(given.vectors)
        return FaissIndex.build(blocks, folder, self.settings, report.progress)

    def append(
        self, given: VectorsInput[Ragged], index: BuiltIndex, folder: Path, report: Report
    ) -> Appended:
        """Add the new parts behind those of the index. Deleted rows stay in the index and are skipped."""
        changes = given.changes(index.vectors)
        total = changes.kept + changes.deleted + changes.fresh.rows
        if changes.deleted > DELETED_SHARE * total:
            raise CannotAppend(f"{changes.deleted} of its {total} rows would be deleted rows")
        facts = {}
        if changes.fresh.slices:
            fresh = self._blocks(changes.fresh)
            try:
                facts = FaissIndex.append(fresh, index.files, folder, report.progress)
            except DataError as error:
                raise CannotAppend(str(error)) from None
        how = f"{changes.fresh.rows} rows appended, {changes.deleted} deleted rows skipped"
        return Appended(facts, changes.numbering, how)

    def open(
        self, files: Path, vectors: DenseVectors, rows: int, settings: OpenSettings
    ) -> OpenedEngine:
        """Open the index in a folder."""
        from lmkcli.models.devices import choose_device  # imports torch
        from lmkcli.retrieval.vectors.muvera import FixedDimensional

        settings.refuse("an index of FAISS", *DATABASE_FIELDS)
        search = replace(self.settings, ef_search=settings.ef_search, nprobe=settings.nprobe)
        device = choose_device(settings.device)
        # Copying all lists to a GPU takes time, so a GPU is used only if the user named it.
        named = device.type == "cuda" and settings.device != "auto"
        opened = FaissIndex.open(files, search, (device.index or 0) if named else None)
        encoding = None
        if self.settings.muvera:
            encoding = FixedDimensional(self.settings.muvera, vectors.dim)
        return OpenedEngine(opened, opened.note, encoding)

    def check_shards(self, given: VectorsInput[Ragged]) -> None:
        """Raise UsageError for an index without inverted lists."""
        FaissIndex.check_joinable(self._blocks(given.vectors), self.settings)

    def write_common(self, given: VectorsInput[Ragged], path: Path) -> None:
        """Train the index on a sample of all vectors."""
        FaissIndex.train(self._blocks(given.vectors), path, self.settings)

    def write_shard(
        self,
        given: VectorsInput[Ragged],
        shard: Shard,
        common: Path,
        path: Path,
        report: Report,
    ) -> None:
        """Add the documents of a shard to the trained index."""
        vectors, documents = given.vectors, shard.rows(given.vectors.rows)
        by_document = vectors.single or self.by_document
        first = documents.start if by_document else int(vectors.starts[documents.start])
        share = Share(self._blocks(vectors.share(documents)), first)
        FaissIndex.build_shard(share, common, path, self.settings, report.progress)

    def join(
        self,
        given: VectorsInput[Ragged],
        common: Path,
        shards: list[Path],
        folder: Path,
        apart: bool,
    ) -> dict[str, Any]:
        """Join the lists of all shards."""
        return FaissIndex.join(common, shards, folder, self.settings, apart)

    def _blocks(self, vectors: DenseVectors) -> Blocks:
        """Return what the index contains: every vector, or one encoding for each document."""
        if not self.by_document:
            return flat(vectors)
        from lmkcli.retrieval.vectors.muvera import EncodedDocs  # imports torch

        return EncodedDocs(vectors, self.settings.muvera)
