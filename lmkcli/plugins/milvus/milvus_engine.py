"""The Milvus engine: writes vectors into a collection of Milvus, keeps it up to date, and opens it.

The index folder contains only its manifest and `built.json`. Milvus finds a vector by its number. Documents,
ties and exact scores come from the vectors folder, as with every index over vectors.

The collection stores a state record of three digests: of the settings that make its vectors, of its current
vectors, and of the vectors that it will contain after the update. lmk writes the record before and after the
vectors. If a process is interrupted, the next process reads the record and continues from that state.
"""

import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lmkcli.artifact import manifest
from lmkcli.errors import DataError, Mismatch, UsageError
from lmkcli.plugins.milvus.milvus_collection import (
    CollectionState,
    MilvusCollection,
    StoredVector,
)
from lmkcli.plugins.milvus.milvus_settings import MilvusSearchSettings, MilvusSettings
from lmkcli.progress import Report
from lmkcli.retrieval.engine import Appended
from lmkcli.retrieval.engines.index_settings import IndexSettings
from lmkcli.retrieval.index_folder import BuiltIndex
from lmkcli.retrieval.index_input import CannotAppend, VectorsInput
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.vectors.candidates import Numbering
from lmkcli.retrieval.vectors.ranked_units import NumberedPart
from lmkcli.retrieval.vectors.vector_engine import NearestEngine
from lmkcli.retrieval.vectors.vector_search import OpenedEngine, check_finite
from lmkcli.system import network
from lmkcli.vectors.rows import Ragged
from lmkcli.vectors.stored import DenseVectors

TOKEN = "LMK_MILVUS_TOKEN"
NUMBERS = 1 << 20  # vector numbers that are checked for deletion at a time
_LOCATION = ("uri", "collection")  # settings that do not change vectors


class Milvus(NearestEngine):
    """Search over vectors in a collection of Milvus.

    `index` is the folder of an index that was opened; the address of a file is relative to it.
    """

    settings_type = MilvusSettings
    kind = "milvus"
    settings: MilvusSettings

    def __init__(self, settings: MilvusSettings, index: Path | None = None) -> None:
        super().__init__(settings)
        self._index = index

    @classmethod
    def configured(cls, settings: IndexSettings) -> Self:
        """Return the engine. Raises UsageError without an address or a name."""
        engine = super().configured(settings)
        if not (engine.settings.uri and engine.settings.collection):
            raise UsageError(
                "--kind milvus needs an address and a name, for instance --uri ./milvus.db --collection docs"
            )
        return engine

    @classmethod
    def recorded(cls, values: dict[str, Any], folder: Path) -> Self:
        """Return the engine with the settings that the index in `folder` records."""
        return cls(super().recorded(values, folder).settings, folder)

    def identity(self, folder: Path) -> dict[str, Any]:
        """Return the settings; those of HNSW only for that index type."""
        settings = self.settings
        if "://" not in settings.uri:
            settings = replace(settings, uri=os.path.relpath(settings.uri, folder))
        return {"settings": self._recorded(settings)}

    def _recorded(self, settings: MilvusSettings) -> dict[str, Any]:
        values = {"kind": self.kind, **asdict(settings)}
        hnsw = settings.index_type == "HNSW"
        return {k: v for k, v in values.items() if hnsw or k not in ("m", "ef_construction")}

    @cached_property
    def database(self) -> MilvusCollection:
        """The collection to write to. Raises DataError if no server answers."""
        return _connect(self.settings, os.environ.get(TOKEN, ""))

    def check(self, given: VectorsInput[Ragged], overwrite: bool, report: Report) -> None:
        """Raise Mismatch if the collection holds vectors of another kind, and may not be replaced."""
        state = self.database.state()
        if state and not overwrite and state.made != self._made(given.vectors):
            raise self._occupied("vectors that were made or indexed in another way")

    def _made(self, vectors: DenseVectors) -> str:
        """Return a digest of the recipe and the index settings of vectors, without their location."""
        recorded = {k: v for k, v in self._recorded(self.settings).items() if k not in _LOCATION}
        return manifest.digest(
            {**recorded, "recipe": vectors.recipe.identity(), "dim": vectors.dim}
        )

    def _occupied(self, contents: str) -> Mismatch:
        return Mismatch(
            f"{self.settings.uri}: the collection {self.settings.collection} holds {contents}; choose "
            "another --collection, or replace it with --if-exists overwrite"
        )

    def build(self, given: VectorsInput[Ragged], folder: Path, report: Report) -> dict[str, Any]:
        """Write all vectors into the collection, or continue where an interrupted process stopped.

        Raises Mismatch if the collection contains other vectors.
        """
        vectors, database = given.vectors, self.database
        made, wanted, state = self._made(vectors), vectors.digest(), database.state()
        if state and wanted not in (state.holds, state.becomes):
            raise self._occupied(f"other vectors than {vectors.folder}")
        if state is None:
            database.create(vectors.dim, state := CollectionState(made, "", wanted))
        if not self._holds(state, vectors):
            self._write(vectors, 0, report)
            database.write_state(CollectionState(made, wanted, ""))
        return {"rows": vectors.total, "dim": vectors.dim}

    def _write(self, vectors: DenseVectors, first: int, report: Report) -> None:
        """Write vectors, numbered from `first`. If earlier vectors are missing, write all vectors again."""
        database = self.database

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

    def discard(self, given: VectorsInput[Ragged]) -> None:
        """Remove the collection, unless an interrupted process was writing the same vectors into it."""
        state = self.database.state()
        made, wanted = self._made(given.vectors), given.vectors.digest()
        if state and (state.holds or (state.made, state.becomes) != (made, wanted)):
            self.database.drop()

    def is_complete(self, given: VectorsInput[Ragged], index: BuiltIndex) -> bool:
        """Return whether the collection holds exactly the vectors.

        Raises Mismatch if it was changed after this index was built or updated.
        """
        vectors, state = given.vectors, self.database.state()
        wanted = vectors.digest()
        expected = (wanted, index.vectors.digest)
        if state and state.holds and state.holds not in expected and state.becomes != wanted:
            raise self._occupied(f"other vectors than {index.folder} was built from")
        return self._holds(state, vectors)

    def _holds(self, state: CollectionState | None, vectors: DenseVectors) -> bool:
        if state is None or state.holds != vectors.digest():
            return False
        return self.database.count() == vectors.total

    def append(
        self, given: VectorsInput[Ragged], index: BuiltIndex, folder: Path, report: Report
    ) -> Appended:
        """Write the new parts with the next numbers. Continues an interrupted update.

        The index includes new vectors before `settle` removes the deleted ones. If the process stops in
        between, a search skips deleted vectors, because `Numbering` maps them to no document.
        """
        vectors, database, state = given.vectors, self.database, self.database.state()
        wanted = vectors.digest()
        if state is None or not state.holds:
            raise CannotAppend("the collection did not exist, or was not complete")
        if state.holds == index.vectors.digest == wanted:
            raise CannotAppend("vectors were missing from the collection")
        changes = given.changes(index.vectors)
        if state.holds != wanted:
            if state.becomes != wanted:
                database.delete_from(changes.first)  # the vectors of an abandoned update
                database.write_state(state._replace(becomes=wanted))
            self._write(changes.fresh, changes.first, report)
        facts = {"rows": changes.first + changes.fresh.total, "dim": vectors.dim}
        deleted = len(_deleted(vectors, changes.numbering))
        how = f"{changes.fresh.total} vectors written, {deleted} are deleted"
        return Appended(facts, changes.numbering, how)

    def settle(self, given: VectorsInput[Ragged], numbering: list[NumberedPart]) -> None:
        """Remove the deleted vectors, and record that the collection is complete."""
        self.database.delete(_deleted(given.vectors, numbering))
        made, wanted = self._made(given.vectors), given.vectors.digest()
        self.database.write_state(CollectionState(made, wanted, ""))

    def check_contents(self, given: VectorsInput[Ragged], folder: Path) -> None:
        """Raise Mismatch if the collection is missing, or does not contain the vectors."""
        _check_contents(self.database, folder, given.vectors, self.settings)

    def open(
        self, files: Path, vectors: DenseVectors, rows: int, settings: OpenSettings
    ) -> OpenedEngine:
        """Open the collection of an index for searching vectors with numbers below `rows`.

        lmk contacts a server on another machine only if `settings` name it. Only a server that they name
        gets the token. Raises DataError if the collection cannot or must not be contacted, and Mismatch if
        it contains other vectors.
        """
        folder = self._index or files
        settings.refuse("a collection in Milvus", "nprobe")
        if self.settings.index_type != "HNSW":
            settings.refuse(f"a collection with {self.settings.index_type}", "ef_search")
        given = settings.part(MilvusSearchSettings).uri
        located = replace(self.settings, uri=given or _recorded_uri(folder, self.settings.uri))
        database = _connect(located, os.environ.get(TOKEN, "") if given else "")
        _check_contents(database, folder, vectors, located)
        database.open(rows, settings.ef_search)
        return OpenedEngine(database)


def _connect(settings: MilvusSettings, token: str) -> MilvusCollection:
    if network.forbidden() and not network.is_local(settings.uri):
        raise DataError(
            f"{settings.uri} is not on this machine, and --offline forbids the network; drop --offline"
        )
    local = "://" not in settings.uri
    absolute = replace(settings, uri=os.path.abspath(settings.uri)) if local else settings
    return MilvusCollection.connect(absolute, "" if local else token)


def stored(vectors: DenseVectors, first: int) -> Iterator[StoredVector]:
    """Yield all vectors of a folder in its order, numbered from `first`.

    `text` is the text of the chunk for unit chunk, of the document for unit doc, and empty for unit token.
    """
    unit, next_number = vectors.recipe.doc.unit, first
    for docs, texts, block_spans in vectors.batches():
        block = texts.vectors.astype(np.float32, copy=False)
        i = 0  # the vector in its block
        check_finite(float(np.abs(block).max(initial=0)))
        for doc, count in zip(docs.docs, docs.count("vectors").tolist(), strict=True):
            title, text = doc.title, "" if unit == "token" else doc.text
            for chunk in range(1 if vectors.single else count):
                span = (
                    None
                    if block_spans is None
                    else (int(block_spans[i][0]), int(block_spans[i][1]))
                )
                own_text = text if span is None or not text else doc.content[slice(*span)]
                yield StoredVector(next_number, block[i], doc.id, chunk, span, title, own_text)
                next_number, i = next_number + 1, i + 1


def _deleted(vectors: DenseVectors, numbered: list[NumberedPart]) -> NDArray[np.int64]:
    """Return the numbers of vectors with a deleted document."""
    numbering, total = Numbering(vectors, numbered), sum(part.vectors for part in numbered)
    blocks = (np.arange(start, min(start + NUMBERS, total)) for start in range(0, total, NUMBERS))
    deleted = [block[numbering.docs(block) < 0] for block in blocks]
    return np.concatenate([np.zeros(0, np.int64), *deleted])


def _recorded_uri(folder: Path, uri: str) -> str:
    """Return the address that an index recorded. Raises DataError for another machine, or a missing file."""
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
    database: MilvusCollection, folder: Path, vectors: DenseVectors, settings: MilvusSettings
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
