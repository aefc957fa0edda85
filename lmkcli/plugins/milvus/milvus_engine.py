"""The Milvus engine: writes vectors into a collection of Milvus, keeps it up to date, and opens it.

The index folder contains only its manifest and `built.json`. Milvus finds a vector by its number. Documents,
ties and exact scores come from the vectors folder, as with every index over vectors.

The collection stores a state record of three digests: of the settings that make its vectors, of its current
vectors, and of the vectors that it will contain after the update. lmk writes the record before and after the
vectors. If a process is interrupted, the next process reads the record and continues from that state.
"""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import IndexManifest
from lmkcli.artifact.outputs import rollback_on_error
from lmkcli.artifact.shards import Shards
from lmkcli.data.collection import Collection, Shard
from lmkcli.errors import DataError, Mismatch, UsageError
from lmkcli.plugins.milvus.milvus_collection import (
    CollectionState,
    MilvusCollection,
    StoredVector,
)
from lmkcli.plugins.milvus.milvus_settings import MilvusSearchSettings, MilvusSettings
from lmkcli.progress import Report
from lmkcli.retrieval.dense.candidates import Numbering
from lmkcli.retrieval.dense.rows import NumberedPart, number, read_numbering
from lmkcli.retrieval.dense.vector_search import check_finite
from lmkcli.retrieval.dense.vector_source import (
    built_from,
    built_of,
    claim_vectors,
    new_parts,
    open_source,
    other_vectors,
)
from lmkcli.retrieval.engine import IndexTask, IndexUpdate
from lmkcli.retrieval.index import Index
from lmkcli.retrieval.index_folder import read_built, write_built
from lmkcli.retrieval.settings import OpenSettings
from lmkcli.store.vectors import Vectors
from lmkcli.system import network
from lmkcli.system.atomic import locked
from lmkcli.system.input_files import validate

FAMILY, TOKEN = "milvus", "LMK_MILVUS_TOKEN"
NUMBERS = 1 << 20  # vector numbers that are checked for deletion at a time


class Milvus:
    """Search over vectors in a collection of Milvus."""

    variant: ClassVar[str] = "database"

    @classmethod
    def plan(cls, task: IndexTask, report: Report) -> "MilvusPlan":
        """Open the vectors and connect to Milvus. Raises Mismatch if the collection holds other vectors."""
        settings = task.settings.part(MilvusSettings)
        if not (settings.uri and settings.collection):
            raise UsageError(
                f"--kind {FAMILY} needs an address and a name, for instance --uri ./milvus.db --collection "
                "docs"
            )
        vectors = open_source(Vectors, task, report)
        collection = reserve(vectors, settings, task.overwrite)
        return MilvusPlan(vectors, task.folder, settings, collection if task.overwrite else None)

    @classmethod
    def open_index(
        cls, folder: Path, described: IndexManifest, built: dict[str, Any], settings: OpenSettings
    ) -> Index:
        """Open an index that `lmk index` built."""
        from lmkcli.retrieval.dense.dense_index import (  # imports torch
            OpenedEngine,
            open_approximate,
        )

        def open_collection(vectors: Vectors) -> OpenedEngine:
            rows = sum(part.vectors for part in read_numbering(built["of"]))
            return OpenedEngine(open_milvus(folder, described, vectors, rows, settings))

        return open_approximate(folder, described, built, settings, open_collection)


@dataclass(frozen=True)
class MilvusPlan:
    """An index in Milvus of open vectors; `replaced` is the collection that it replaces."""

    vectors: Vectors
    folder: Path
    settings: MilvusSettings
    replaced: MilvusCollection | None = None
    collection: Collection | None = None

    def build(self, report: Report) -> dict[str, Any]:
        """Write all vectors, or continue where an interrupted process stopped."""
        if self.replaced is not None:
            self.replaced.drop()
        return build_milvus(self.vectors, self.folder, self.settings, report)

    def update(self, report: Report) -> IndexUpdate:
        """Write new vectors and remove deleted ones."""
        return update_milvus(self.vectors, self.folder, self.settings, report)

    def build_shard(self, shard: Shard, report: Report) -> Shards | None:
        """Raise UsageError: one process writes a collection."""
        raise UsageError(f"--shard: an index of kind {FAMILY} is built whole; drop the flag")


def reserve(vectors: Vectors, settings: MilvusSettings, replaces: bool) -> MilvusCollection:
    """Connect to the collection to write to, and check that lmk may write to it. Nothing is changed.

    Raises Mismatch if it is another index, unless `replaces` is True.
    """
    database = _connect(settings, os.environ.get(TOKEN, ""))
    state = database.state()
    if state and not replaces and state.made != _recipe_digest(vectors, settings):
        raise Mismatch(_occupied(settings, "vectors that were made or indexed in another way"))
    return database


def _connect(settings: MilvusSettings, token: str) -> MilvusCollection:
    if network.forbidden() and not network.is_local(settings.uri):
        raise DataError(
            f"{settings.uri} is not on this machine, and --offline forbids the network; drop --offline"
        )
    local = "://" not in settings.uri
    absolute = replace(settings, uri=os.path.abspath(settings.uri)) if local else settings
    return MilvusCollection.connect(absolute, "" if local else token)


def _recipe_digest(vectors: Vectors, settings: MilvusSettings) -> str:
    """A digest of the recipe and the index settings of vectors, without the location of the collection."""
    recorded = {key: value for key, value in _recorded(settings).items() if key not in _LOCATION}
    return manifest.digest({**recorded, "recipe": vectors.recipe.identity(), "dim": vectors.dim})


_LOCATION = ("uri", "collection")  # settings that do not change vectors


def _recorded(settings: MilvusSettings) -> dict[str, Any]:
    """The settings that an index records; those of HNSW only for that index type."""
    values = {"kind": FAMILY, **asdict(settings)}
    hnsw = settings.index_type == "HNSW"
    return {k: v for k, v in values.items() if hnsw or k not in ("m", "ef_construction")}


def _occupied(settings: MilvusSettings, contents: str) -> str:
    return (
        f"{settings.uri}: the collection {settings.collection} holds {contents}; choose another "
        "--collection, or replace it with --if-exists overwrite"
    )


def build_milvus(
    vectors: Vectors, folder: Path, settings: MilvusSettings, report: Report = Report()
) -> dict[str, Any]:
    """Write all vectors into a collection, or continue an interrupted process, and return the facts.

    Raises Mismatch if the folder or the collection contains other vectors.
    """
    with rollback_on_error(folder):
        database = reserve(vectors, settings, replaces=False)
        _claim(vectors, folder, settings, report)
        if built := built_from(vectors, folder):
            _check_contents(database, folder, vectors, settings)
            return built
        state = database.state()
        if state and vectors.digest() not in (state.holds, state.becomes):
            raise Mismatch(_occupied(settings, f"other vectors than {vectors.folder}"))
        return _fill(database, vectors, folder, settings, report)


def _claim(vectors: Vectors, folder: Path, settings: MilvusSettings, report: Report) -> None:
    if "://" not in settings.uri:
        settings = replace(settings, uri=os.path.relpath(settings.uri, folder))
    claim_vectors(vectors, folder, FAMILY, _recorded(settings), report.call)


def _fill(
    database: MilvusCollection,
    vectors: Vectors,
    folder: Path,
    settings: MilvusSettings,
    report: Report,
) -> dict[str, Any]:
    """Write the missing vectors of the collection, and record that collection and index are complete."""
    made, wanted = _recipe_digest(vectors, settings), vectors.digest()
    state = database.state()
    if state is None:
        database.create(vectors.dim, state := CollectionState(made, "", wanted))
    if not _is_complete(database, state, vectors):
        _write(database, vectors, 0, report)
        database.write_state(CollectionState(made, wanted, ""))
    facts = {"rows": vectors.total, "dim": vectors.dim}
    return write_built(folder, facts, built_of(vectors, number(vectors)), "")


def _write(database: MilvusCollection, vectors: Vectors, first: int, report: Report) -> None:
    """Write vectors, numbered from `first`. If earlier vectors are missing, write all vectors again."""

    def progress(done: int) -> None:
        report.progress(done, vectors.total, "vectors")

    database.write(stored(vectors, first), first, progress)
    if database.count(first) != vectors.total:
        database.delete_from(first)
        database.write(stored(vectors, first), first, progress)
    if (count := database.count(first)) != vectors.total:
        raise DataError(
            f"{vectors.total} vectors were written, but the collection contains {count} of them; another "
            "process is writing to it: run the same command again when it has finished"
        )


def stored(vectors: Vectors, first: int) -> Iterator[StoredVector]:
    """Yield all vectors of a folder in its order, numbered from `first`.

    `text` is the text of the chunk for unit chunk, of the document for unit doc, and empty for unit token.
    """
    unit, next_number = vectors.recipe.doc.unit, first
    spans = (array for _, array in vectors.stored("spans")) if unit == "chunk" else repeat(None)
    for (docs, block), block_spans in zip(vectors.decoded(), spans, strict=False):
        i = 0  # the vector in its block
        check_finite(float(np.abs(block).max(initial=0)))
        for row in docs:
            title, text = row.doc.title, "" if unit == "token" else row.doc.text
            for chunk in range(1 if vectors.single else row.vectors):
                span = (
                    None
                    if block_spans is None
                    else (int(block_spans[i][0]), int(block_spans[i][1]))
                )
                own_text = text if span is None or not text else row.doc.content[slice(*span)]
                yield StoredVector(next_number, block[i], row.doc.id, chunk, span, title, own_text)
                next_number, i = next_number + 1, i + 1


def update_milvus(
    vectors: Vectors, folder: Path, settings: MilvusSettings, report: Report = Report()
) -> IndexUpdate:
    """Write new vectors, include them in the index, then remove deleted ones.

    Continues an interrupted update.

    Raises Mismatch if the collection was changed after this index was built or updated, and Stopped if
    another process updates the index.
    """
    database = reserve(vectors, settings, replaces=False)
    _claim(vectors, folder, settings, report)
    with locked(folder):
        built, wanted, state = read_built(folder), vectors.digest(), database.state()
        if not built:
            return IndexUpdate(build_milvus(vectors, folder, settings, report), "built")
        expected = (wanted, built["of"]["vectors"])
        if state and state.holds and state.holds not in expected and state.becomes != wanted:
            raise Mismatch(_occupied(settings, f"other vectors than {folder} was built from"))
        if built["of"]["vectors"] == wanted and _is_complete(database, state, vectors):
            return IndexUpdate(built, "already up to date")
        if reason := _obstacle(database, state, built, vectors):
            if state and (state.holds or state.becomes != wanted):
                database.drop()
            facts = _fill(database, vectors, folder, settings, report)
            return IndexUpdate(facts, f"built again: {reason}")
        return _extend(database, built, vectors, folder, report)


def _is_complete(
    database: MilvusCollection, state: CollectionState | None, vectors: Vectors
) -> bool:
    return (
        state is not None and state.holds == vectors.digest() and database.count() == vectors.total
    )


def _obstacle(
    database: MilvusCollection,
    state: CollectionState | None,
    built: dict[str, Any],
    vectors: Vectors,
) -> str:
    """The reason why a collection cannot be updated to `vectors`; empty if it can."""
    if state is None or not state.holds:
        return "the collection did not exist, or was not complete"
    if state.holds == built["of"]["vectors"] == vectors.digest():
        return "vectors were missing from the collection"
    return "these are other vectors" if other_vectors(built["of"], vectors) else ""


def _extend(
    database: MilvusCollection,
    built: dict[str, Any],
    vectors: Vectors,
    folder: Path,
    report: Report,
) -> IndexUpdate:
    """Write the new parts with the next numbers, then remove deleted vectors.

    The index includes new vectors before deleted ones are removed. If the process stops in between, a search
    skips deleted vectors, because `Numbering` maps them to no document.
    """
    state, wanted = database.state(), vectors.digest()
    assert state is not None
    numbered = read_numbering(built["of"])
    first, fresh = sum(part.vectors for part in numbered), new_parts(numbered, vectors)
    if state.holds != wanted:
        if state.becomes != wanted:
            database.delete_from(first)  # the vectors of an abandoned update
            database.write_state(state._replace(becomes=wanted))
        _write(database, fresh, first, report)
    numbered += number(fresh)
    facts = {"rows": sum(part.vectors for part in numbered), "dim": vectors.dim}
    built = write_built(folder, facts, built_of(vectors, numbered), "")
    deleted = _deleted(vectors, numbered)
    database.delete(deleted)
    database.write_state(CollectionState(state.made, wanted, ""))
    return IndexUpdate(built, f"{fresh.total} vectors written, {len(deleted)} are deleted")


def _deleted(vectors: Vectors, numbered: list[NumberedPart]) -> NDArray[np.int64]:
    """The numbers of vectors with a deleted document."""
    numbering, total = Numbering(vectors, numbered), sum(part.vectors for part in numbered)
    blocks = (np.arange(start, min(start + NUMBERS, total)) for start in range(0, total, NUMBERS))
    deleted = [block[numbering.docs(block) < 0] for block in blocks]
    return np.concatenate([np.zeros(0, np.int64), *deleted])


def open_milvus(
    folder: Path, described: IndexManifest, vectors: Vectors, rows: int, settings: OpenSettings
) -> MilvusCollection:
    """Open the collection of an index for searching vectors with numbers below `rows`.

    lmk contacts a server on another machine only if `settings` name it. Only a server that they name gets
    the token. Raises DataError if the collection cannot or must not be contacted, and Mismatch if it
    contains other vectors.
    """
    values = {k: v for k, v in described.identity.settings.items() if k != "kind"}
    validate(values, MilvusSettings, f"the settings of {folder}", "build the index again")
    recorded = MilvusSettings(**values)
    settings.refuse("a collection in Milvus", "nprobe")
    uri = settings.part(MilvusSearchSettings).uri
    if recorded.index_type != "HNSW":
        settings.refuse(f"a collection with {recorded.index_type}", "ef_search")
    located = replace(recorded, uri=uri or _recorded_uri(folder, recorded.uri))
    database = _connect(located, os.environ.get(TOKEN, "") if uri else "")
    _check_contents(database, folder, vectors, located)
    database.open(rows, settings.ef_search)
    return database


def _recorded_uri(folder: Path, uri: str) -> str:
    """The address that an index recorded. Raises DataError for another machine, or a missing file."""
    if not network.is_local(uri):
        raise DataError(
            f"the vectors of {folder} are on the server {uri}, and lmk contacts no server on another machine "
            f"because an index names it; if you trust it, add --uri {uri}"
        )
    if "://" in uri:
        return uri
    path = folder / uri
    if not path.exists():
        raise DataError(
            f"the vectors of {folder} are not at {path}; give their location with --uri"
        )
    return str(path)


def _check_contents(
    database: MilvusCollection, folder: Path, vectors: Vectors, settings: MilvusSettings
) -> None:
    """Raise Mismatch if a collection is missing, or does not contain `vectors`."""
    state, wanted = database.state(), vectors.digest()
    collection = f"{settings.uri}: the collection {settings.collection}"
    advice = f"update {folder} with its index command and --if-exists update"
    if state is None:
        raise Mismatch(f"{collection} does not exist; {advice}")
    if wanted not in (state.holds, state.becomes):
        raise Mismatch(
            f"{collection} does not hold the vectors that {folder} was built from; {advice}"
        )
    if (count := database.count()) < vectors.total:
        raise Mismatch(f"{collection} holds {count} of {vectors.total} vectors; {advice}")
