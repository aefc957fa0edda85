"""Lexical indexes: a kind that ranks by words, with the documents that it indexed beside it."""

import hashlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from lmkcli.data.collection import Doc, Query
from lmkcli.data.run import Ranking, Run, ranked
from lmkcli.errors import DataError, UsageError
from lmkcli.manifest import Manifest
from lmkcli.reading import checked
from lmkcli.retrieval.chunking import fault, passage_of
from lmkcli.retrieval.index import DENSE, IndexInfo, Passage
from lmkcli.retrieval.index_folder import DOCS
from lmkcli.retrieval.kinds import LexicalKind, lexical_kind
from lmkcli.settings import Bm25Settings, OpenSettings
from lmkcli.store.doctable import DocTable


def open_lexical(
    folder: Path, described: Manifest, built: dict[str, Any], settings: OpenSettings
) -> "LexicalIndex":
    """The index in a folder that `lmk index` made, described by its manifest and built.json."""
    family = described.identity["family"]
    checked(
        described.identity["settings"], Bm25Settings, f"the settings of {folder}", "build it again"
    )
    own = Bm25Settings(**described.identity["settings"])
    if own.unit == "chunk":
        return _open_chunked(folder, family, built, own, settings)
    settings.refuse(f"a {family} index", *DENSE)
    files = folder / built["at"]
    kind = lexical_kind(family).open(files, own, settings.feedback)
    info = IndexInfo(str(folder.absolute()), family, built["digest"], _how(settings))
    return LexicalIndex(info, kind, files)


def _open_chunked(
    folder: Path, family: str, built: dict[str, Any], own: Bm25Settings, settings: OpenSettings
) -> "ChunkedIndex":
    """An index of chunks, which ranks them, or documents by the best of theirs."""
    settings.refuse(f"a {family} index of chunks", *(name for name in DENSE if name != "level"))
    if settings.feedback:
        raise UsageError(
            f"--{settings.feedback.method} takes its terms from whole documents, and {folder} ranks chunks; "
            "index the collection without --unit chunk"
        )
    if said := fault(own):
        raise DataError(f"the settings of {folder} cannot be ({said}); build it again")
    how = {"level": "chunk"} if settings.level == "chunk" else {"aggregate": "max"}
    info = IndexInfo(str(folder.absolute()), family, built["digest"], how)
    files = folder / built["at"]
    return ChunkedIndex(info, lexical_kind(family).open(files, own), files, own)


def open_foreign(folder: Path, settings: OpenSettings) -> "LexicalIndex":
    """A Lucene index that lmk did not make: English, and scored with the default k1 and b."""
    settings.refuse("a Lucene index", *DENSE)
    commit = max(folder.glob("segments_*"), key=lambda path: path.stat().st_mtime_ns)
    kind = lexical_kind("lucene").open(folder, Bm25Settings(), settings.feedback)
    digest = hashlib.sha256(commit.read_bytes()).hexdigest()  # it names its segments by random ids
    how = Bm25Settings().identity() | _how(settings)
    return LexicalIndex(IndexInfo(str(folder.absolute()), "lucene", digest, how), kind, folder)


def _how(settings: OpenSettings) -> dict[str, Any]:
    """What decides scores beside the index itself, as a run records it."""
    return {"feedback": asdict(settings.feedback)} if settings.feedback else {}


class LexicalIndex:
    """A lexical kind; the documents that it indexed are stored in `folder`."""

    def __init__(self, info: IndexInfo, kind: LexicalKind, folder: Path) -> None:
        self.info = info
        self._kind, self._folder = kind, folder

    def search(self, queries: list[Query], k: int) -> Run:
        """As the kind ranks; documents without a query term are not returned."""
        return self._kind.search(queries, k)

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """Reads the stored documents through once; an index that lmk did not make gives ids alone."""
        path = self._folder / DOCS
        if not path.is_file():
            return {name: Doc(name, "") for name in ids}
        table = DocTable(path)
        return {doc.id: doc for doc in table.docs_at(table.rows_by_ids(ids))}

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """None: words are counted over whole documents."""
        return {}


class ChunkedIndex(LexicalIndex):
    """A lexical kind over the chunks of the documents that are stored in `folder`."""

    def __init__(
        self, info: IndexInfo, kind: LexicalKind, folder: Path, settings: Bm25Settings
    ) -> None:
        super().__init__(info, kind, folder)
        self._settings = settings

    def search(self, queries: list[Query], k: int) -> Run:
        """Chunks as the kind ranks them; or documents, each by the best of its chunks."""
        if self._by_chunk:
            return self._kind.search(queries, k)
        rankings = {query.id: self._documents(query, k) for query in queries}
        return Run(rankings, tag=self.info.kind)

    def _documents(self, query: Query, k: int) -> Ranking:
        """The k best documents, each with the score of its best chunk."""
        best = Ranking([], np.zeros(0, np.float32))
        for chunks in self._deeper(query, 4 * k):
            best = _best(chunks)
            # what ties with the last chunk may tie with chunks behind it too
            if (best.scores > chunks.scores[-1:]).sum() >= k:
                break
        return ranked(*best).cut(k)

    def _deeper(self, query: Query, depth: int) -> Iterator[Ranking]:
        """The best chunks for a query, `depth` of them and then more, until there are no others."""
        while True:
            chunks = self._kind.search([query], depth).rankings[query.id]
            yield chunks
            if len(chunks.doc_ids) < depth:
                return
            depth *= 4

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """The text of a chunk is its own."""
        if not self._by_chunk:
            return super().texts(ids)
        return {
            name: Doc(name, part.text, doc.title) for name, (doc, part) in self._parts(ids).items()
        }

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """The best chunk of each document that shares a term with the query, or the chunks themselves."""
        if self._by_chunk:
            return {name: part for name, (_, part) in self._parts(ids).items()}
        best: dict[str, str] = {}
        for chunks in self._deeper(query, 4 * len(ids)) if ids else ():
            for name in chunks.doc_ids:
                best.setdefault(_owner(name), name)
            if best.keys() >= set(ids):
                break
        named = [best[name] for name in ids if name in best]
        return {_owner(name): part for name, (_, part) in self._parts(named).items()}

    @property
    def _by_chunk(self) -> bool:
        return self.info.search.get("level") == "chunk"

    def _parts(self, names: list[str]) -> dict[str, tuple[Doc, Passage]]:
        """The documents and chunks behind ids such as `doc#12`."""
        docs = super().texts([_owner(name) for name in names])
        return {
            name: (
                docs[_owner(name)],
                passage_of(docs[_owner(name)], int(name.rpartition("#")[2]), self._settings),
            )
            for name in names
        }


def _owner(chunk: str) -> str:
    return chunk.rpartition("#")[0]


def _best(chunks: Ranking) -> Ranking:
    """The document of each chunk, once, with the score of the first."""
    firsts: dict[str, int] = {}
    for place, name in enumerate(chunks.doc_ids):
        firsts.setdefault(_owner(name), place)
    return Ranking(list(firsts), chunks.scores[list(firsts.values())])
