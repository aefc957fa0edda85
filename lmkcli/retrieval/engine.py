"""Engines: the kinds of indexes that `lmk index` builds and `lmk search` opens.

An engine is a class in a folder of `engines/`, or in another package, with a row in the catalog. Lexical
engines inherit from `lexical.lexical_engine.LexicalEngine`. Engines over vectors implement `Engine` with the
functions of `dense.vector_source`. No engine encodes queries.
"""

from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from lmkcli import catalog
from lmkcli.artifact.kinds import IndexManifest
from lmkcli.artifact.shards import Shards
from lmkcli.data.collection import Collection, Shard
from lmkcli.errors import UnknownName
from lmkcli.progress import Report
from lmkcli.retrieval.engines.settings import IndexSettings
from lmkcli.retrieval.index import Index
from lmkcli.retrieval.settings import OpenSettings


class IndexTask(NamedTuple):
    """The task of `lmk index`.

    `source` is a vectors folder or a collection, `folder` the future index. `overwrite` is True if an
    existing index is to be replaced.
    """

    source: str
    folder: Path
    settings: IndexSettings
    overwrite: bool = False


class IndexUpdate(NamedTuple):
    """The facts of an index that was updated, and a description of the changes."""

    facts: dict[str, Any]
    how: str


class IndexPlan(Protocol):
    """An index that is ready to be built: its input is open, and the settings are checked.

    `collection` is the indexed collection of a lexical engine.
    """

    @property
    def collection(self) -> Collection | None: ...

    def build(self, report: Report) -> dict[str, Any]:
        """Build the index and return its facts. A finished index of the same input is kept.

        Raises Mismatch if the folder contains an index of other input or with other settings.
        """

    def update(self, report: Report) -> IndexUpdate:
        """Bring an existing index up to date, or build it.

        Raises Mismatch for other settings, and Stopped if another process updates the index.
        """

    def build_shard(self, shard: Shard, report: Report) -> Shards | None:
        """Build one shard and return all shards; None if the whole index exists already.

        Raises UsageError if this engine builds whole indexes only.
        """


class Engine(Protocol):
    """One kind of index. `variant` selects the flags of `lmk index`: vectors, sparse, database or lexical."""

    variant: ClassVar[str]

    @classmethod
    def plan(cls, task: IndexTask, report: Report) -> IndexPlan:
        """Open the input and check the task before anything is written; notes go to the report."""

    @classmethod
    def open_index(
        cls, folder: Path, described: IndexManifest, built: dict[str, Any], settings: OpenSettings
    ) -> Index:
        """Open an index that `lmk index` built, from its manifest and its built.json.

        Raises DataError if it cannot be searched, UsageError for settings without an effect.
        """


def family_of(kind: str) -> str:
    """Return the catalog row of an index kind. Factory strings belong to the row that accepts them.

    Raises UnknownName for a lower-case word that is not in the catalog.
    """
    if kind in catalog.INDEXES:
        return kind
    family, row = next((name, row) for name, row in catalog.INDEXES.items() if row.factory)
    if kind.isidentifier() and kind.islower():
        raise UnknownName("index kind", kind, catalog.INDEXES, f"(or a {row.factory})")
    return family


def engine_of(kind: str) -> type[Engine]:
    """Return the engine of an index kind. Raises MissingExtra if its library is not installed."""
    engine: type[Engine] = catalog.INDEXES.load(family_of(kind))
    return engine
