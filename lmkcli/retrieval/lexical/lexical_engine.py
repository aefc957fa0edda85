"""Lexical engines: indexes of the words of documents, with the documents stored next to them.

A `LexicalEngine` adds its analysis of texts, and writes and opens its own files. `LexicalIndex` ranks
documents. `ChunkedIndex` ranks chunks, or documents by their best chunk.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from lmkcli.data.collection import CollectionDigest, Doc, Query, doc_hash
from lmkcli.data.contexts import field_of
from lmkcli.data.run import Ranking, Run, ranked
from lmkcli.errors import DataError, UsageError
from lmkcli.progress import Progress, Report, estimate_total
from lmkcli.retrieval.engine import Engine
from lmkcli.retrieval.engines.index_settings import IndexSettings
from lmkcli.retrieval.index import (
    DENSE_FIELDS,
    BoundsScores,
    Index,
    IndexInfo,
    Passage,
    query_words,
)
from lmkcli.retrieval.index_folder import BuiltIndex
from lmkcli.retrieval.index_input import CollectionInput
from lmkcli.retrieval.lexical.lexical_chunks import chunking_error, chunks, passage_of
from lmkcli.retrieval.lexical.lexical_settings import Feedback, LexicalSettings
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.spec.values import is_digits
from lmkcli.store.doctable import DocRows, DocTable, DocTableWriter
from lmkcli.store.part_writer import UniqueIds, duplicates_located
from lmkcli.system.item_streams import batched
from lmkcli.text.analyzer import NONE, read_stopwords
from lmkcli.text.query_words import QueryWords

DOCS = "docs.parquet"
BM25 = "BM25 score"


class WordSearch(Protocol):
    """An opened lexical index that ranks the indexed documents."""

    def search(self, queries: list[Query], k: int) -> Run:
        """Return the best k documents of each query. Documents without a query term are left out."""


class LexicalEngine(Engine[CollectionInput]):
    """A search over the words of a collection.

    The documents are stored with the index. With unit `chunk`, the engine indexes each chunk like a
    document.
    """

    settings_type: ClassVar[type[LexicalSettings]] = LexicalSettings
    settings: LexicalSettings

    @abstractmethod
    def analysis(self) -> dict[str, Any]:
        """Return all settings that determine terms, as JSON values.

        Raises UsageError for invalid settings.
        """

    @abstractmethod
    def write(self, docs: Iterable[Doc], folder: Path, progress: Progress) -> dict[str, Any]:
        """Write an index of documents into `folder` and return its facts, as JSON values."""

    @abstractmethod
    def open(self, files: Path, feedback: Feedback | None = None) -> WordSearch:
        """Open the index in the folder `files`; `feedback` expands its queries.

        Raises DataError or Mismatch if it cannot be searched here, or not with feedback.
        """

    @classmethod
    def configured(cls, settings: IndexSettings) -> Self:
        """Return the engine with the settings of a command, and with the stop words of a file."""
        own = settings.part(cls.settings_type)
        if (file := settings.stopwords_file) is not None:
            own = replace(own, stopwords="" if file == NONE else read_stopwords(Path(file)))
        return cls(own)

    @property
    def built_again(self) -> str:
        """The reason why an index of a changed collection is built again."""
        return f"{self.kind} counts words over the whole collection"

    def identity(self, folder: Path) -> dict[str, Any]:
        """Return the settings and the analysis. Raises UsageError for invalid settings."""
        if reason := chunking_error(self.settings):
            raise UsageError(reason)
        return {"settings": self.settings.identity(), "analysis": self.analysis()}

    def open_input(self, source: str, settings: IndexSettings, report: Report) -> CollectionInput:
        """Open the collection."""
        return CollectionInput.open(source, field_of(self.settings.context))

    def build(self, given: CollectionInput, folder: Path, report: Report) -> dict[str, Any]:
        """Write the index and the documents into a folder, and return the facts."""
        collection, settings = given.collection, self.settings
        stored = _StoredDocs(folder, bool(settings.context))
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
            report.progress(done, total, unit, detail)

        with duplicates_located(collection):
            facts = self.write(docs, folder, reported)
        if skipped := collection.skipped_count():
            facts |= {"skipped": skipped}
        if settings.unit == "chunk":
            facts |= {"documents": stored.digest.count, "chunks": facts["documents"]}
        return {**facts, "collection": str(stored.digest)}

    def open_index(self, index: BuiltIndex, settings: OpenSettings) -> Index:
        """Open an index of documents or of chunks."""
        own, files, path = self.settings, index.files, str(index.folder.absolute())
        digest, documents = index.record.digest, index.record.facts.get("documents")
        if own.unit == "doc":
            settings.refuse(f"a {self.kind} index", *DENSE_FIELDS)
            info = IndexInfo(path, self.kind, digest, expansion(settings), (), BM25)
            return LexicalIndex(info, self.open(files, settings.feedback), files, documents)
        settings.refuse(
            f"a {self.kind} index of chunks", *(name for name in DENSE_FIELDS if name != "level")
        )
        if settings.feedback:
            raise UsageError(
                f"--{settings.feedback.method} takes its terms from whole documents, and {index.folder} "
                "ranks chunks; index the collection without --unit chunk"
            )
        if reason := chunking_error(own):
            raise DataError(
                f"the settings of {index.folder} are invalid ({reason}); build it again"
            )
        search = {"level": "chunk"} if settings.level == "chunk" else {"aggregate": "max"}
        info = IndexInfo(path, self.kind, digest, search, (), BM25)
        return ChunkedIndex(info, self.open(files), files, own, documents)


def expansion(settings: OpenSettings) -> dict[str, Any]:
    """Return the settings of a search that change lexical scores, as a run records them."""
    return {"feedback": asdict(settings.feedback)} if settings.feedback else {}


class _StoredDocs:
    """Writes documents to docs.parquet while an engine reads them, and computes their digest."""

    def __init__(self, folder: Path, contexts: bool) -> None:
        self._path, self._contexts = folder / DOCS, contexts
        self.digest = CollectionDigest()

    def through(self, docs: Iterable[Doc]) -> Iterator[Doc]:
        """Yield the same documents. Raises DataError for a duplicate id."""
        seen = UniqueIds()
        table = DocTableWriter(self._path, store_text=True, contexts=self._contexts)
        for batch in batched(docs, lambda doc: len(doc.text) + 64, 1 << 20):
            seen.add((doc.id for doc in batch), "this collection")
            rows = DocRows(batch, [doc_hash(doc) for doc in batch], {})
            table.append(rows)
            self.digest.add(*rows.hashes)
            yield from batch
        table.close()


class LexicalIndex:
    """A search over words, with its documents stored in `folder`. It has `documents` documents, if known."""

    unit, dimensions = "doc", None

    def __init__(
        self, info: IndexInfo, engine: WordSearch, folder: Path, documents: int | None = None
    ) -> None:
        self.info, self.documents = info, documents
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

    def unfindable(self, ids: Sequence[str]) -> list[str]:
        """Return those ids that the index does not contain; nothing if it stores no documents."""
        table = self._table
        found = {*ids} if table is None else {*table.ids_at(table.rows_by_ids([*ids]))}
        return [name for name in ids if name not in found]

    def greatest_score(self, query: Query) -> float | None:
        """Return the limit of the score of a document, if the engine knows it."""
        engine = self._engine
        return engine.greatest_score(query) if isinstance(engine, BoundsScores) else None

    def query_words(self, question: str) -> QueryWords:
        """Return the words of a question, weighted if the engine knows their frequencies."""
        return query_words(self._engine, question)

    def sample(self, count: int) -> list[Doc]:
        """Return some stored documents, spread over the collection."""
        table, total = self._table, self.documents or 0
        if table is None or not total:
            return []
        return table.docs_at(np.unique(np.linspace(0, total - 1, count).astype(np.int64)))

    def open_files(self, text_bytes: int = 0) -> None:
        """Open the stored documents now. Then the object needs no names, which an update may remove.

        Up to `text_bytes` bytes of the texts that were read last stay in memory.
        """
        if self._table is not None:
            self._table.keep_recent(text_bytes)

    @cached_property
    def _table(self) -> DocTable | None:
        """The stored documents; None for an index that lmk did not make."""
        path = self._folder / DOCS
        return DocTable(path) if path.is_file() else None

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """Return nothing, because the index ranks whole documents."""
        return {}


class ChunkedIndex(LexicalIndex):
    """A search over the words of chunks, with their documents stored in `folder`."""

    unit = "chunk"

    def __init__(
        self,
        info: IndexInfo,
        engine: WordSearch,
        folder: Path,
        settings: LexicalSettings,
        documents: int | None = None,
    ) -> None:
        super().__init__(info, engine, folder, documents)
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

    def unfindable(self, ids: Sequence[str]) -> list[str]:
        """Return those ids, of documents or of chunks, that the index does not contain."""
        if not self._by_chunk:
            return super().unfindable(ids)
        found = self._parts([*ids])
        return [name for name in ids if name not in found]

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """Return the best chunk of each document that shares a term with the query, or the ranked chunks."""
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
        """Return the documents and chunks of ids such as `doc#12`, but for chunks that do not exist."""
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
    """Return each document of the chunks once, with the score of its first chunk."""
    firsts: dict[str, int] = {}
    for place, name in enumerate(chunks.doc_ids):
        firsts.setdefault(_owner(name), place)
    return Ranking(list(firsts), chunks.scores[list(firsts.values())])
