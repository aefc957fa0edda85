"""The inverted engine: builds, updates and opens the inverted file of sparse vectors.

The index returns the documents and scores of exact search over its vectors. It is faster, because it reads
only the postings of the query terms.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lmkcli.data.collection import Collection, Shard
from lmkcli.errors import UsageError
from lmkcli.progress import Report
from lmkcli.retrieval.dense.rows import number
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
from lmkcli.retrieval.engines.inverted.postings import Postings
from lmkcli.retrieval.index import LEXICAL, SEARCH, Index, IndexInfo
from lmkcli.retrieval.index_folder import read_built, remove_replaced, replace_files, write_built
from lmkcli.retrieval.settings import OpenSettings
from lmkcli.spec.manifest import Manifest
from lmkcli.store.outputs import rollback_on_error
from lmkcli.store.shards import Shards
from lmkcli.store.sparse import SparseVectors
from lmkcli.system.atomic import locked

FAMILY = "inverted"


class Inverted:
    """Exact search over sparse vectors with an inverted file."""

    variant: ClassVar[str] = "sparse"

    @classmethod
    def plan(cls, task: IndexTask, report: Report) -> "InvertedPlan":
        """Open the vectors. Raises UsageError if they are dense."""
        return InvertedPlan(open_source(SparseVectors, task, report), task.folder)

    @classmethod
    def open_index(
        cls, folder: Path, described: Manifest, built: dict[str, Any], settings: OpenSettings
    ) -> Index:
        """Open an index that `lmk index` built."""
        from lmkcli.retrieval.sparse.sparse_index import open_ranked  # imports torch

        others = (name for name in SEARCH if name != "vectors")
        settings.refuse(f"an index of kind {FAMILY}", *LEXICAL, *others)
        vectors = frozen_vectors(SparseVectors, folder, described, built["of"], settings.vectors)
        postings = Postings(folder / built["at"], vectors)
        notes = tuple(filter(None, (incomplete(folder, built), behind(folder, vectors))))
        info = IndexInfo(str(folder.absolute()), FAMILY, built["digest"], {}, notes)
        return open_ranked(info, vectors, settings, postings.search)


@dataclass(frozen=True)
class InvertedPlan:
    """An inverted file of open vectors."""

    vectors: SparseVectors
    folder: Path
    collection: Collection | None = None

    def build(self, report: Report) -> dict[str, Any]:
        """Build the index. A finished index of the same vectors is kept."""
        with rollback_on_error(self.folder):
            self._claim(report)
            if built := built_from(self.vectors, self.folder):
                return built
            facts = Postings.build(self.vectors, self.folder, report.progress)
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
                return Postings.build(self.vectors, where, report.progress)

            facts = replace_files(self.folder, built, build, self._of())
            return IndexUpdate(facts, "built again: its postings are ordered by term")

    def build_shard(self, shard: Shard, report: Report) -> Shards | None:
        """Raise UsageError: one process builds the file."""
        raise UsageError(f"--shard: an index of kind {FAMILY} is built whole; drop the flag")

    def _claim(self, report: Report) -> None:
        claim_vectors(self.vectors, self.folder, FAMILY, {"kind": FAMILY}, report.call)

    def _of(self) -> dict[str, Any]:
        return built_of(self.vectors, number(self.vectors))
