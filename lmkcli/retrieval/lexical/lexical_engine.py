"""Lexical engines: indexes of the words of documents, with the documents stored next to them.

`LexicalEngine` is the base of lexical engines. It builds, updates and opens index folders; an engine adds
its analysis of texts, and reads and writes its own files. `LexicalIndex` ranks documents. `ChunkedIndex`
ranks chunks, or documents by their best chunk.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import (
    IndexedCollection,
    IndexFacts,
    IndexIdentity,
    IndexManifest,
)
from lmkcli.artifact.outputs import rollback_on_error
from lmkcli.artifact.shards import Shards
from lmkcli.data.collection import (
    Collection,
    CollectionDigest,
    Doc,
    Query,
    Shard,
    doc_hash,
    open_collection,
)
from lmkcli.data.contexts import field_of
from lmkcli.data.run import Ranking, Run, ranked
from lmkcli.errors import DataError, Mismatch, UsageError
from lmkcli.progress import Call, Progress, Report
from lmkcli.retrieval.engine import IndexTask, IndexUpdate
from lmkcli.retrieval.index import DENSE, Index, IndexInfo, Passage
from lmkcli.retrieval.index_folder import (
    DOCS,
    read_built,
    remove_replaced,
    replace_files,
    write_built,
)
from lmkcli.retrieval.lexical.chunks import chunking_error, chunks, passage_of
from lmkcli.retrieval.lexical.settings import Feedback, LexicalSettings
from lmkcli.retrieval.settings import OpenSettings
from lmkcli.spec.values import is_digits
from lmkcli.store.doctable import DocRow, DocTable, DocTableWriter
from lmkcli.store.part_writer import UniqueIds, duplicates_located
from lmkcli.store.tokens import estimate_total
from lmkcli.system.atomic import atomic_file, locked
from lmkcli.system.input_files import validate
from lmkcli.system.streams import batched
from lmkcli.text.analyzer import NONE, read_stopwords


class LexicalEngine(ABC):
    """The base of lexical engines. An object is an opened index that ranks the indexed documents."""

    variant: ClassVar[str] = "lexical"
    name: ClassVar[str]  # the row of the catalog

    @staticmethod
    @abstractmethod
    def analysis(settings: LexicalSettings) -> dict[str, Any]:
        """Return all settings that determine terms, as JSON values.

        Raises UsageError for invalid settings.
        """

    @classmethod
    @abstractmethod
    def build(
        cls, docs: Iterable[Doc], folder: Path, settings: LexicalSettings, progress: Progress
    ) -> dict[str, Any]:
        """Write an index of documents into `folder` and return its facts, as JSON values."""

    @classmethod
    @abstractmethod
    def open(
        cls, folder: Path, settings: LexicalSettings, feedback: Feedback | None = None
    ) -> Self:
        """Open the index in `folder`; `feedback` expands its queries.

        Raises DataError or Mismatch if it cannot be searched here, or not with feedback.
        """

    @abstractmethod
    def search(self, queries: list[Query], k: int) -> Run:
        """Return the best k documents of each query. Documents without a query term are left out."""

    @classmethod
    def plan(cls, task: IndexTask, report: Report) -> "LexicalPlan":
        """Open the collection. Raises UsageError for invalid settings."""
        settings = task.settings.part(LexicalSettings)
        if (file := task.settings.stopwords_file) is not None:
            words = "" if file == NONE else read_stopwords(Path(file))
            settings = replace(settings, stopwords=words)
        collection = open_collection(task.source, context=field_of(settings.context))
        if task.overwrite:
            _identity(collection, cls, settings)
        return LexicalPlan(cls, collection, task.folder, settings)

    @classmethod
    def open_index(
        cls, folder: Path, described: IndexManifest, built: dict[str, Any], settings: OpenSettings
    ) -> Index:
        """Open an index that `lmk index` built."""
        recorded = described.identity.settings
        validate(recorded, LexicalSettings, f"the settings of {folder}", "build it again")
        own = LexicalSettings(**recorded)
        files, path = folder / built["at"], str(folder.absolute())
        if own.unit == "doc":
            settings.refuse(f"a {cls.name} index", *DENSE)
            info = IndexInfo(path, cls.name, built["digest"], expansion(settings))
            return LexicalIndex(info, cls.open(files, own, settings.feedback), files)
        settings.refuse(
            f"a {cls.name} index of chunks", *(name for name in DENSE if name != "level")
        )
        if settings.feedback:
            raise UsageError(
                f"--{settings.feedback.method} takes its terms from whole documents, and {folder} ranks "
                "chunks; index the collection without --unit chunk"
            )
        if reason := chunking_error(own):
            raise DataError(f"the settings of {folder} are invalid ({reason}); build it again")
        search = {"level": "chunk"} if settings.level == "chunk" else {"aggregate": "max"}
        info = IndexInfo(path, cls.name, built["digest"], search)
        return ChunkedIndex(info, cls.open(files, own), files, own)


def expansion(settings: OpenSettings) -> dict[str, Any]:
    """The settings of a search that change lexical scores, as a run records them."""
    return {"feedback": asdict(settings.feedback)} if settings.feedback else {}


@dataclass(frozen=True)
class LexicalPlan:
    """A lexical index of an open collection."""

    engine: type[LexicalEngine]
    collection: Collection
    folder: Path
    settings: LexicalSettings

    def build(self, report: Report) -> dict[str, Any]:
        """Build the index."""
        return build_lexical(self.collection, self.folder, self.engine, self.settings, report)

    def update(self, report: Report) -> IndexUpdate:
        """Build the index again if the collection has changed."""
        return update_lexical(self.collection, self.folder, self.engine, self.settings, report)

    def build_shard(self, shard: Shard, report: Report) -> Shards | None:
        """Raise UsageError, because scores need counts over the whole collection."""
        raise UsageError(f"--shard: a {self.engine.name} index is built whole; drop the flag")


def build_lexical(
    collection: Collection,
    folder: Path,
    engine: type[LexicalEngine],
    settings: LexicalSettings,
    report: Report = Report(),
) -> dict[str, Any]:
    """Build a lexical index, with the documents next to it, and return its facts.

    Raises Mismatch if the folder contains an index with other settings, or of an earlier state of the
    collection.
    """
    with rollback_on_error(folder):
        _claim(engine, collection, folder, settings, report.call)
        stamp = collection.file_stats()
        if built := read_built(folder):
            if lines := manifest.json_differences(built["of"]["stamp"], stamp):
                raise Mismatch(
                    f"{collection.name} has changed since {folder} was built (then | now):\n  "
                    + "\n  ".join(lines)
                    + "\nupdate the index with --if-exists update"
                )
            return built
        facts = _write_files(engine, collection, folder, settings, report.progress)
        return write_built(folder, facts, {"stamp": stamp}, "")


def update_lexical(
    collection: Collection,
    folder: Path,
    engine: type[LexicalEngine],
    settings: LexicalSettings,
    report: Report = Report(),
) -> IndexUpdate:
    """Build the index again from the collection, unless its files are unchanged."""
    _claim(engine, collection, folder, settings, report.call)
    with locked(folder):
        built = read_built(folder)
        if not built:
            return IndexUpdate(build_lexical(collection, folder, engine, settings, report), "built")
        remove_replaced(folder, built["at"])
        stamp = collection.file_stats()
        if stamp and stamp == built["of"]["stamp"]:
            return IndexUpdate(built, "already up to date")

        def build(where: Path) -> dict[str, Any]:
            return _write_files(engine, collection, where, settings, report.progress)

        facts = replace_files(folder, built, build, {"stamp": stamp})
        return IndexUpdate(
            facts, f"built again: {engine.name} counts words over the whole collection"
        )


def _claim(
    engine: type[LexicalEngine],
    collection: Collection,
    folder: Path,
    settings: LexicalSettings,
    call: Call,
) -> None:
    """Make `folder` an index of this engine. Raises Mismatch if it is an index with other settings."""
    identity = _identity(collection, engine, settings)
    facts = IndexFacts(**manifest.environment(call))
    manifest.claim(folder, IndexManifest(identity=identity, facts=facts))


def _identity(
    collection: Collection, engine: type[LexicalEngine], settings: LexicalSettings
) -> IndexIdentity:
    """The settings that determine a lexical index. Raises UsageError for invalid settings."""
    if reason := chunking_error(settings):
        raise UsageError(reason)
    return IndexIdentity(
        family=engine.name,
        settings=settings.identity(),
        analysis=engine.analysis(settings),
        collection=IndexedCollection(name=collection.name, settings=collection.settings),
    )


def _write_files(
    engine: type[LexicalEngine],
    collection: Collection,
    where: Path,
    settings: LexicalSettings,
    progress: Progress,
) -> dict[str, Any]:
    """Write the files of an index and its documents into a folder, and return the facts."""
    stored = _StoredDocs(where, bool(settings.context))
    stream, seen = collection.docs(), 0

    def counted() -> Iterator[Doc]:
        nonlocal seen
        for seen, doc in enumerate(stream, 1):  # noqa: B007
            yield doc

    docs: Iterable[Doc] = stored.through(counted())
    if settings.unit == "chunk":
        docs = chunks(docs, settings)

    def reported(done: int, total: int | None, unit: str, detail: str = "") -> None:
        if settings.unit != "chunk":
            total = stream.total or estimate_total(seen, stream.fraction)
        progress(done, total, unit, detail)

    with duplicates_located(collection):
        facts = engine.build(docs, where, settings, reported)
    if skipped := collection.skipped_count():
        facts |= {"skipped": skipped}
    if settings.unit == "chunk":
        facts |= {"documents": stored.digest.count, "chunks": facts["documents"]}
    return {**facts, "collection": str(stored.digest)}


class _StoredDocs:
    """Writes documents to docs.parquet while an engine reads them, and computes their digest."""

    def __init__(self, folder: Path, contexts: bool) -> None:
        self._path, self._contexts = folder / DOCS, contexts
        self.digest = CollectionDigest()

    def through(self, docs: Iterable[Doc]) -> Iterator[Doc]:
        """Yield the same documents. Raises DataError for a duplicate id."""
        seen = UniqueIds()
        with atomic_file(self._path) as temporary:
            table = DocTableWriter(temporary, store_text=True, contexts=self._contexts)
            for batch in batched(docs, lambda doc: len(doc.text) + 64, 1 << 20):
                seen.add((doc.id for doc in batch), "this collection")
                for doc in batch:
                    row = DocRow(doc, doc_hash(doc), 0, 0, 0)
                    table.append(row)
                    self.digest.add(row.hash)
                    yield doc
            table.close()


class LexicalIndex:
    """A lexical engine, with its documents stored in `folder`."""

    def __init__(self, info: IndexInfo, engine: LexicalEngine, folder: Path) -> None:
        self.info = info
        self._engine, self._folder = engine, folder

    def search(self, queries: list[Query], k: int) -> Run:
        """Rank documents. Documents without a query term are left out."""
        return self._engine.search(queries, k)

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """Read the stored documents once. An index that lmk did not make has no texts."""
        table = self._table
        if table is None:
            return {name: Doc(name, "") for name in ids}
        return {doc.id: doc for doc in table.docs_at(table.rows_by_ids(ids))}

    def open_files(self, kept: int = 0) -> None:
        """Open the stored documents now. Then the object needs no names, which an update may remove.

        Up to `kept` bytes of the texts that were read last stay in memory.
        """
        if self._table is not None:
            self._table.keep_recent(kept)

    @cached_property
    def _table(self) -> DocTable | None:
        """The stored documents; None for an index that lmk did not make."""
        path = self._folder / DOCS
        return DocTable(path) if path.is_file() else None

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """Return nothing, because the index ranks whole documents."""
        return {}


class ChunkedIndex(LexicalIndex):
    """A lexical engine over chunks, with their documents stored in `folder`."""

    def __init__(
        self, info: IndexInfo, engine: LexicalEngine, folder: Path, settings: LexicalSettings
    ) -> None:
        super().__init__(info, engine, folder)
        self._settings = settings

    def search(self, queries: list[Query], k: int) -> Run:
        """Rank chunks, or documents by their best chunk."""
        if self._by_chunk:
            return self._engine.search(queries, k)
        rankings = {query.id: self._documents(query, k) for query in queries}
        return Run(rankings, tag=self.info.kind)

    def _documents(self, query: Query, k: int) -> Ranking:
        """Return the best k documents, each with the score of its best chunk."""
        best = Ranking([], np.zeros(0, np.float32))
        for ranked_chunks in self._deeper(query, 4 * k):
            best = _best(ranked_chunks)
            # Chunks that follow may have the same score as the last chunk.
            if (best.scores > ranked_chunks.scores[-1:]).sum() >= k:
                break
        return ranked(*best).cut(k)

    def _deeper(self, query: Query, depth: int) -> Iterator[Ranking]:
        """Yield the best chunks of a query: `depth`, then four times as many, until all are found."""
        while True:
            chunks = self._engine.search([query], depth).rankings[query.id]
            yield chunks
            if len(chunks.doc_ids) < depth:
                return
            depth *= 4

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """Documents, or chunks with their own text."""
        if not self._by_chunk:
            return super().texts(ids)
        return {
            name: Doc(name, part.text, doc.title) for name, (doc, part) in self._parts(ids).items()
        }

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """The best chunk of each document that shares a term with the query, or the ranked chunks."""
        if self._by_chunk:
            return {name: part for name, (_, part) in self._parts(ids).items()}
        best: dict[str, str] = {}
        for ranked_chunks in self._deeper(query, 4 * len(ids)) if ids else ():
            for name in ranked_chunks.doc_ids:
                best.setdefault(_owner(name), name)
            if best.keys() >= set(ids):
                break
        named = [best[name] for name in ids if name in best]
        return {_owner(name): part for name, (_, part) in self._parts(named).items()}

    @property
    def _by_chunk(self) -> bool:
        return self.info.search.get("level") == "chunk"

    def _parts(self, names: list[str]) -> dict[str, tuple[Doc, Passage]]:
        """The documents and chunks of ids such as `doc#12`, but for chunks that do not exist."""
        docs = super().texts([_owner(name) for name in names])
        found = {}
        for name in names:
            doc, number = docs.get(_owner(name)), name.rpartition("#")[2]
            if doc and is_digits(number) and (part := passage_of(doc, int(number), self._settings)):
                found[name] = (doc, part)
        return found


def _owner(chunk: str) -> str:
    return chunk.rpartition("#")[0]


def _best(chunks: Ranking) -> Ranking:
    """Each document of the chunks once, with the score of its first chunk."""
    firsts: dict[str, int] = {}
    for place, name in enumerate(chunks.doc_ids):
        firsts.setdefault(_owner(name), place)
    return Ranking(list(firsts), chunks.scores[list(firsts.values())])
