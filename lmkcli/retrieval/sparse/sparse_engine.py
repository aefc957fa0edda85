"""Engines over sparse vectors: build, update and open the folder of an index."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lmkcli.artifact.kinds import IndexManifest
from lmkcli.artifact.outputs import rollback_on_error
from lmkcli.artifact.shards import Shards
from lmkcli.data.collection import Collection, Shard
from lmkcli.errors import UsageError
from lmkcli.progress import Report
from lmkcli.retrieval.dense.rows import number
from lmkcli.retrieval.dense.vector_search import SparseProduct
from lmkcli.retrieval.dense.vector_source import (
    behind,
    built_from,
    built_of,
    claim_vectors,
    frozen_vectors,
    incomplete,
    open_source,
)
from lmkcli.retrieval.engine import IndexTask, IndexUpdate
from lmkcli.retrieval.index import LEXICAL, SEARCH, Index, IndexInfo
from lmkcli.retrieval.index_folder import read_built, remove_replaced, replace_files, write_built
from lmkcli.retrieval.settings import OpenSettings
from lmkcli.store.sparse import SparseVectors
from lmkcli.system.atomic import locked


class SparseEngine:
    """A search over the sparse vectors of a folder.

    family: the kind of the index.
    rebuilt: the reason why an update builds the index again.
    searched_with: the settings of every search, for the manifest of a run.
    """

    variant: ClassVar[str] = "sparse"
    family: ClassVar[str]
    rebuilt: ClassVar[str]
    searched_with: ClassVar[dict[str, Any]] = {}

    @classmethod
    def build_files(cls, vectors: SparseVectors, folder: Path, report: Report) -> dict[str, Any]:
        """Write the files of the index of all vectors into `folder`, and return its facts."""
        raise NotImplementedError

    @classmethod
    def open_files(
        cls, folder: Path, built: dict[str, Any], vectors: SparseVectors
    ) -> SparseProduct:
        """Open the search of the index in `folder`. Raises DataError if a file is damaged."""
        raise NotImplementedError

    @classmethod
    def plan(cls, task: IndexTask, report: Report) -> "SparsePlan":
        """Open the vectors. Raises UsageError if they are dense."""
        return SparsePlan(open_source(SparseVectors, task, report), task.folder, cls)

    @classmethod
    def open_index(
        cls, folder: Path, described: IndexManifest, built: dict[str, Any], settings: OpenSettings
    ) -> Index:
        """Open an index that `lmk index` built."""
        from lmkcli.retrieval.sparse.sparse_index import open_ranked  # imports torch

        others = (name for name in SEARCH if name != "vectors")
        settings.refuse(f"an index of kind {cls.family}", *LEXICAL, *others)
        vectors = frozen_vectors(SparseVectors, folder, described, built["of"], settings.vectors)
        search = cls.open_files(folder, built, vectors)
        notes = tuple(filter(None, (incomplete(folder, built), behind(folder, vectors))))
        place, digest = str(folder.absolute()), built["digest"]
        info = IndexInfo(place, cls.family, digest, cls.searched_with, notes)
        return open_ranked(info, vectors, settings, search)


@dataclass(frozen=True)
class SparsePlan:
    """An index of open sparse vectors."""

    vectors: SparseVectors
    folder: Path
    engine: type[SparseEngine]
    collection: Collection | None = None

    def build(self, report: Report) -> dict[str, Any]:
        """Build the index. A finished index of the same vectors is kept."""
        with rollback_on_error(self.folder):
            self._claim(report)
            if built := built_from(self.vectors, self.folder):
                return built
            facts = self.engine.build_files(self.vectors, self.folder, report)
            return write_built(self.folder, facts, self._of(), "")

    def update(self, report: Report) -> IndexUpdate:
        """Build the index again, unless the vectors are unchanged."""
        self._claim(report)
        with locked(self.folder):
            built = read_built(self.folder)
            if not built:
                return IndexUpdate(self.build(report), "built")
            remove_replaced(self.folder, built["at"])
            if built["of"]["vectors"] == self.vectors.digest():
                return IndexUpdate(built, "already up to date")

            def build(where: Path) -> dict[str, Any]:
                return self.engine.build_files(self.vectors, where, report)

            facts = replace_files(self.folder, built, build, self._of())
            return IndexUpdate(facts, f"built again: {self.engine.rebuilt}")

    def build_shard(self, shard: Shard, report: Report) -> Shards | None:
        """Raise UsageError: one process builds the index."""
        raise UsageError(
            f"--shard: an index of kind {self.engine.family} is built whole; drop the flag"
        )

    def _claim(self, report: Report) -> None:
        family = self.engine.family
        claim_vectors(self.vectors, self.folder, family, {"kind": family}, report.call)

    def _of(self) -> dict[str, Any]:
        return built_of(self.vectors, number(self.vectors))
