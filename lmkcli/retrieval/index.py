"""Index: something with `search(queries, k) -> Run`, dense or lexical, and opening one."""

import hashlib
import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from lmkcli import catalog, manifest
from lmkcli.data.collection import Doc, Query
from lmkcli.data.run import Ranking, Run, ranked
from lmkcli.encoding.encoder import Encoder
from lmkcli.encoding.recorded import open_recorded
from lmkcli.errors import DataError, Mismatch, UnknownName
from lmkcli.manifest import Manifest
from lmkcli.models.devices import choose_device, native_dtype
from lmkcli.retrieval.passages import Passage, best_passages, passages_of
from lmkcli.retrieval.rescoring import Numbered, Numbering, Rescored
from lmkcli.retrieval.views import Rows
from lmkcli.settings import AnnSettings, Bm25Settings, OpenSettings
from lmkcli.store import parts
from lmkcli.store.doctable import DocTable
from lmkcli.store.parts import PartSlice
from lmkcli.store.vectors import Vectors

DOCS, BUILT = "docs.parquet", "built.json"


def family_of(kind: str) -> str:
    """The catalog row of an index kind; a FAISS factory string belongs to that of hnsw."""
    if kind in catalog.INDEXES:
        return kind
    if kind.isidentifier() and kind.islower():
        raise UnknownName("index kind", kind, catalog.INDEXES, "(or a FAISS factory string)")
    return "hnsw"


class Index(Protocol):
    """What `lmk search` needs: rankings, and the texts behind ids for showing them."""

    @property
    def opened(self) -> "Opened":
        """Where it is and what it is, for a run's manifest."""

    def search(self, queries: list[Query], k: int) -> Run:
        """k documents a query (fewer only when the collection has no more), best first."""

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """The documents behind some ids, as far as their text was stored."""

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """The best chunk of each document, where there are vectors of chunks; else nothing."""


class Opened(NamedTuple):
    """An artifact that can be searched: its folder, kind and digest, and how it is searched.

    `note` is what its user should know, such as that its vectors were updated since.
    """

    path: str
    kind: str
    digest: str
    search: dict[str, Any]
    note: str = ""


# Which of the settings below mean something to what.
QUERIES = ("model", "dtype", "trust_remote_code")  # the encoding of queries
SEARCH = ("vectors", "ef_search", "nprobe")  # an index of vectors
SEVERAL = ("aggregate", "level")  # several vectors of a document
DENSE = (*SEARCH, *SEVERAL, *QUERIES)


class Dense:
    """Vectors with a way of searching them; queries are encoded as the recipe says."""

    def __init__(self, opened: Opened, rows: Rows, kind: Any, settings: OpenSettings) -> None:
        self.opened = opened
        self._rows, self._kind, self._settings = rows, kind, settings
        self._encoder: Encoder | None = None

    def search(self, queries: list[Query], k: int) -> Run:
        """Candidates of the kind, rescored in float64, ties by document id."""
        if not queries or not self._rows.matrix.rows:
            return Run({query.id: ranked([], np.zeros(0, np.float32)) for query in queries})
        encoded = self.encoder().queries(queries)
        self._rows.check(encoded)
        hits = self._kind.search(encoded, min(k, self._rows.matrix.rows))
        ids = self._rows.matrix.ids(np.concatenate(hits.rows))
        starts = np.cumsum([0, *(len(rows) for rows in hits.rows)])
        rankings = {}
        for query, start, stop, scores in zip(
            queries, starts[:-1], starts[1:], hits.scores, strict=True
        ):
            made = ranked(ids[start:stop], scores)
            if len(set(made.doc_ids)) < len(made.doc_ids):
                raise DataError(
                    f"{self.opened.path}: a document id occurs in two shards; encode again"
                )
            rankings[query.id] = Ranking(made.doc_ids[:k], made.scores[:k])
        return Run(rankings)

    def encoder(self) -> Encoder:
        """The query side's encoder, loaded when it is first needed."""
        if self._encoder is None:
            self._encoder = open_query_encoder(self._rows.vectors, self._settings)
        return self._encoder

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """Looks rows up by id; the ids of all parts are read once. The text of a chunk is its own."""
        if self._rows.level == "doc":
            return {doc.id: doc for doc in self._rows.vectors.by_ids(ids)}
        found = passages_of(self._rows.vectors, ids)
        return {name: Doc(name, part.text, doc.title) for name, (doc, part) in found.items()}

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """The best chunk of each document, or the chunks that the ids name."""
        vectors = self._rows.vectors
        if self._rows.level == "chunk":
            return {name: part for name, (_, part) in passages_of(vectors, ids).items()}
        if vectors.recipe.doc.unit != "chunk":
            return {}
        return best_passages(vectors, self.encoder().queries([query]).vectors, ids)


class Lexical:
    """A lexical kind with the documents that it indexed, which are beside it in `folder`."""

    def __init__(self, opened: Opened, kind: Any, folder: Path) -> None:
        self.opened = opened
        self._kind, self._folder = kind, folder

    def search(self, queries: list[Query], k: int) -> Run:
        """As the kind ranks; documents without a query term are not returned."""
        return self._kind.search(queries, k)  # type: ignore[no-any-return]

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """None: words are counted over whole documents."""
        return {}

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """Reads the stored documents through once; an index that lmk did not make gives ids alone."""
        path = self._folder / DOCS
        if not path.is_file():
            return {name: Doc(name, "") for name in ids}
        table = DocTable(path)
        return {doc.id: doc for doc in table.docs_at(table.rows_by_ids(ids))}


def open_query_encoder(vectors: Vectors, settings: OpenSettings) -> Encoder:
    """The encoder of the query side of the vectors' recipe."""
    return open_recorded(vectors, True, settings)


def open_index(folder: Path, settings: OpenSettings) -> Index:
    """Whatever can be searched: an index folder, vectors (exact search), or what Anserini or pyserini
    indexed. DataError otherwise.
    """
    if any(folder.glob("segments_*")):
        return _foreign(folder, settings)
    found = manifest.read(folder)
    if found.kind == "vectors":
        path = str(folder.absolute())
        settings.refuse("vectors", *SEARCH)
        rows = Rows(Vectors(folder), settings.level or "", settings.aggregate or "")
        opened = Opened(path, "exact", rows.vectors.digest(), rows.identity)
        return Dense(opened, rows, exact(rows.matrix, settings), settings)
    if found.kind != "index":
        raise DataError(
            f"{folder} holds {found.kind}, which cannot be searched; give vectors or an index"
        )
    built = ready(folder)
    if not built:
        raise DataError(f"{folder} is not complete; run its index command again")
    try:
        return _open_built(folder, found, built, settings)
    except DataError:
        if ready(folder) == built:
            raise
        return open_index(folder, settings)  # it was refreshed just now


def _open_built(
    folder: Path, found: Manifest, built: dict[str, Any], settings: OpenSettings
) -> Index:
    path, where = str(folder.absolute()), folder / built["at"]
    name = found.identity["family"]
    kind = catalog.load(catalog.INDEXES, name, "index kind")
    if name in catalog.LEXICAL:
        settings.refuse(f"a {name} index", *DENSE)
        lexical = kind.open(where, Bm25Settings(**found.identity["settings"]))
        return Lexical(Opened(path, name, built["digest"], {}), lexical, where)
    vectors = _frozen_vectors(folder, found, built["of"], settings)
    how: dict[str, Any] = {"ef_search": settings.ef_search, "nprobe": settings.nprobe}
    note = " ".join(filter(None, [_incomplete(folder, built), _behind(folder, vectors)]))
    graph = kind.open(where, replace(AnnSettings(**found.identity["settings"]), **how))
    rows = Rows(vectors, settings.level or "", settings.aggregate or "")
    how |= rows.identity
    opened = Opened(path, found.identity["settings"]["kind"], built["digest"], how, note)
    numbered = [Numbered.from_json(item) for item in built["of"]["numbering"]]
    numbering = Numbering(vectors, numbered)
    rows_of = numbering.flat if rows.level == "chunk" else numbering.docs
    search = Rescored(graph, rows.matrix, rows_of, exact(rows.matrix, settings))
    return Dense(opened, rows, search, settings)


def _incomplete(folder: Path, built: dict[str, Any]) -> str:
    """What to say when the index was built before its vectors were complete."""
    shards = built["of"].get("unfinished shards")
    if not shards:
        return ""
    return f"{folder} lacks what the shards {', '.join(map(str, shards))} had not finished."


def _behind(folder: Path, vectors: Vectors) -> str:
    """What to say when the vectors have moved on since the index was built or refreshed."""
    if Vectors.so_far(vectors.folder).digest() == vectors.digest():
        return ""
    return (
        f"{folder} is behind {os.path.normpath(vectors.folder)}, which was updated since; "
        "it searches what it was built from. Bring it up to date with its index command and "
        "--if-exists update"
    )


def _foreign(folder: Path, settings: OpenSettings) -> Lexical:
    """A Lucene index that lmk did not make: English, and scored with the default k1 and b."""
    settings.refuse("a Lucene index", *DENSE)
    commit = max(folder.glob("segments_*"), key=lambda path: path.stat().st_mtime_ns)
    lucene = catalog.load(catalog.INDEXES, "lucene", "index kind").read(folder, Bm25Settings())
    digest = hashlib.sha256(commit.read_bytes()).hexdigest()  # it names its segments by random ids
    path = str(folder.absolute())
    return Lexical(Opened(path, "lucene", digest, asdict(Bm25Settings())), lucene, folder)


def exact(matrix: Any, settings: OpenSettings) -> Any:
    """Brute force over vectors, on the device that queries are encoded on."""
    device = choose_device(settings.device)
    # a GPU is quick enough in float32, and cuBLAS may add parts of bfloat16 sums in bfloat16
    low = device.type == "cpu" and native_dtype(device) == "bf16"
    kind = catalog.load(catalog.INDEXES, "exact", "index kind")
    return kind(matrix, device, torch.bfloat16 if low else torch.float32)


def _frozen_vectors(
    folder: Path, found: Manifest, of: dict[str, Any], settings: OpenSettings
) -> Vectors:
    """The vectors that an index was built from: found beside it or where --vectors says, checked."""
    path = Path(settings.vectors) if settings.vectors else folder / found.facts["vectors"]
    if not (path / manifest.NAME).exists():
        raise DataError(
            f"the vectors of {folder} are not at {path}; say where they are with --vectors"
        )
    slices = [PartSlice.from_json(item) for item in of["parts"]]
    vectors = Vectors(path, slices)
    gone = {piece.name for piece in slices} - set(parts.list_parts(path))
    if gone or vectors.digest() != of["vectors"]:
        raise Mismatch(
            f"{path} are not the vectors that {folder} was built from; build the index again"
        )
    return vectors


def ready(folder: Path) -> dict[str, Any]:
    """What built.json says; empty while the index is not finished."""
    try:
        return dict(json.loads((folder / BUILT).read_text()))
    except FileNotFoundError:
        return {}
