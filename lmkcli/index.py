"""Index: something with `search(queries, k) -> Run`, dense or lexical; building one and opening it."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lmkcli import catalog, manifest, parts
from lmkcli.building import SeenIds
from lmkcli.collection import Collection, CollectionDigest, Doc, Query, doc_hash
from lmkcli.doctable import DocRow, DocTable, DocTableWriter
from lmkcli.encoder import Encoder, open_encoder
from lmkcli.errors import DataError, Mismatch, UnknownName, UsageError
from lmkcli.indexes.exact import MARGIN, Hits, rescore, top
from lmkcli.manifest import Manifest
from lmkcli.models.devices import choose_device
from lmkcli.models.folder import read_model
from lmkcli.parts import PartSlice
from lmkcli.progress import Progress
from lmkcli.recipe import AnnSettings, Bm25Settings, EncodeSettings, Recipe
from lmkcli.run import Ranking, Run, ranked
from lmkcli.streams import batched
from lmkcli.vectors import Vectors

DOCS, BUILT = "docs.parquet", "built.json"


def family(kind: str) -> str:
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


class Opened(NamedTuple):
    """An artifact that can be searched: its folder, kind and digest, and how it is searched."""

    path: str
    kind: str
    digest: str
    search: dict[str, Any]


@dataclass(frozen=True)
class OpenSettings:
    """Where to look when things were moved, and how queries are encoded."""

    model: str = ""
    vectors: str = ""
    device: str = "auto"
    dtype: str = ""  # empty: the dtype in which the documents were encoded
    offline: bool = False
    ef_search: int = 0  # hnsw: how widely to search; 0 grows with k
    nprobe: int = 0  # ivf: lists that are searched; 0 grows with k

    def refuse(self, what: str, *given: object) -> None:
        """UsageError when a setting was given that means nothing for `what`."""
        if any(given):
            flags = "--vectors, --ef-search, --nprobe, --model or --dtype"
            raise UsageError(f"one of {flags} has no effect on {what}; drop it")


class Dense:
    """Vectors with a way of searching them; queries are encoded as the recipe says."""

    def __init__(self, opened: Opened, vectors: Vectors, kind: Any, settings: OpenSettings) -> None:
        self.opened = opened
        self._vectors, self._kind, self._settings = vectors, kind, settings
        self._encoder: Encoder | None = None

    def search(self, queries: list[Query], k: int) -> Run:
        """Candidates of the kind, rescored in float64, ties by document id."""
        if not queries or not self._vectors.rows:
            return Run({query.id: ranked([], np.zeros(0, np.float32)) for query in queries})
        hits = self._kind.search(self.encoder().queries(queries), min(k, self._vectors.rows))
        ids = self._vectors.ids(np.concatenate(hits.rows))
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
            self._encoder = open_query_encoder(self._vectors, self._settings)
        return self._encoder

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """Looks rows up by id; the ids of all parts are read once."""
        return {doc.id: doc for doc in self._vectors.by_ids(ids)}


class Lexical:
    """A lexical kind with the documents that it indexed."""

    def __init__(self, opened: Opened, kind: Any) -> None:
        self.opened = opened
        self._kind = kind

    def search(self, queries: list[Query], k: int) -> Run:
        """As the kind ranks; documents without a query term are not returned."""
        return self._kind.search(queries, k)  # type: ignore[no-any-return]

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """Reads the stored documents through once; an index that lmk did not make gives ids alone."""
        path = Path(self.opened.path) / DOCS
        if not path.is_file():
            return {name: Doc(name, "") for name in ids}
        table = DocTable(path)
        return {doc.id: doc for doc in table.docs_by_ids(ids)}


def open_query_encoder(vectors: Vectors, settings: OpenSettings) -> Encoder:
    """The encoder of the query side of the vectors' recipe."""
    recipe: Recipe = vectors.recipe.moved(settings.model) if settings.model else vectors.recipe
    folder = read_model(recipe.query.model, recipe.query.revision or None, settings.offline)
    dtype: Any = settings.dtype or vectors.manifest.execution["dtype"]
    return open_encoder(recipe.query, folder, EncodeSettings(dtype=dtype, device=settings.device))


def open_index(folder: Path, settings: OpenSettings) -> Index:
    """Whatever can be searched: an index folder, vectors (exact search), or what Anserini or pyserini
    indexed. DataError otherwise.
    """
    if any(folder.glob("segments_*")):
        return _foreign(folder, settings)
    found = manifest.read(folder)
    path = str(folder.absolute())
    if found.kind == "vectors":
        settings.refuse("vectors", settings.vectors, settings.ef_search, settings.nprobe)
        vectors = Vectors(folder)
        opened = Opened(path, "exact", vectors.digest(), {})
        return Dense(opened, vectors, exact(vectors, settings), settings)
    if found.kind != "index":
        raise DataError(
            f"{folder} holds {found.kind}, which cannot be searched; give vectors or an index"
        )
    built = ready(folder)
    if not built:
        raise DataError(f"{folder} is not complete; run its index command again")
    name = found.identity["family"]
    kind = catalog.load(catalog.INDEXES, name, "index kind")
    if name in catalog.LEXICAL:
        settings.refuse(
            f"a {name} index",
            settings.vectors,
            settings.ef_search,
            settings.nprobe,
            settings.model,
            settings.dtype,
        )
        lexical = kind.open(folder, Bm25Settings(**found.identity["settings"]))
        return Lexical(Opened(path, name, built["digest"], {}), lexical)
    vectors = _frozen_vectors(folder, found, settings)
    how: dict[str, Any] = {"ef_search": settings.ef_search, "nprobe": settings.nprobe}
    opened = Opened(path, found.identity["settings"]["kind"], built["digest"], how)
    graph = kind.open(folder, replace(AnnSettings(**found.identity["settings"]), **how))
    return Dense(opened, vectors, Rescored(graph, vectors), settings)


def _foreign(folder: Path, settings: OpenSettings) -> Lexical:
    """A Lucene index that lmk did not make: English, and scored with the default k1 and b."""
    asked = (settings.vectors, settings.ef_search, settings.nprobe, settings.model, settings.dtype)
    settings.refuse("a Lucene index", *asked)
    commit = max(folder.glob("segments_*"), key=lambda path: path.stat().st_mtime_ns)
    lucene = catalog.load(catalog.INDEXES, "lucene", "index kind").read(folder, Bm25Settings())
    digest = hashlib.sha256(commit.read_bytes()).hexdigest()  # it names its segments by random ids
    path = str(folder.absolute())
    return Lexical(Opened(path, "lucene", digest, asdict(Bm25Settings())), lucene)


def exact(vectors: Vectors, settings: OpenSettings) -> Any:
    """Brute force over vectors, on the device that queries are encoded on."""
    return catalog.load(catalog.INDEXES, "exact", "index kind")(
        vectors, choose_device(settings.device)
    )


class Rescored:
    """An approximate kind whose candidates are scored again in float64 from the stored vectors."""

    def __init__(self, kind: Any, vectors: Vectors) -> None:
        self._kind, self._vectors = kind, vectors

    def search(self, queries: NDArray[np.float32], k: int) -> Hits:
        """The k best of the candidates, and what ties with the last of them."""
        wanted = k * self._kind.overfetch + MARGIN
        _, rows = self._kind.candidates(queries, min(wanted, self._vectors.rows))
        found = [row[row >= 0] for row in rows]
        scores = [rescore(self._vectors, q, r) for q, r in zip(queries, found, strict=True)]
        tops = [top(r, s, k) for r, s in zip(found, scores, strict=True)]
        return Hits([r for r, _ in tops], [s for _, s in tops])


def _frozen_vectors(folder: Path, found: Manifest, settings: OpenSettings) -> Vectors:
    """The vectors that an index was built from: found beside it or where --vectors says, checked."""
    path = Path(settings.vectors) if settings.vectors else folder / found.facts["vectors"]
    if not (path / manifest.NAME).exists():
        raise DataError(
            f"the vectors of {folder} are not at {path}; say where they are with --vectors"
        )
    slices = [PartSlice.from_json(item) for item in found.identity["parts"]]
    vectors = Vectors(path, slices)
    gone = {piece.name for piece in slices} - set(parts.list_parts(path))
    if gone or vectors.digest() != found.identity["vectors"]:
        raise Mismatch(
            f"{path} are not the vectors that {folder} was built from; build the index again"
        )
    return vectors


def build_dense(
    vectors: Vectors, folder: Path, family: str, settings: Any, progress: Progress
) -> dict[str, Any]:
    """Build an index over vectors; returns its facts. A finished one of the same identity is kept."""
    kind = catalog.load(catalog.INDEXES, family, "index kind")
    identity = {
        "family": family,
        "settings": asdict(replace(settings, max_memory=0)),  # the machine's, not the index's
        "vectors": vectors.digest(),
        "parts": [piece.as_json() for piece in vectors.slices],
        "recipe": vectors.recipe.identity(),
    }
    facts = {**manifest.environment(), "vectors": os.path.relpath(vectors.folder, folder)}
    manifest.claim(folder, Manifest("index", identity, facts=facts))
    if built := ready(folder):
        return built
    made = kind.build(vectors, folder, settings, progress)
    return _finish(folder, made, identity)


def build_lexical(
    collection: Collection, folder: Path, family: str, settings: Any, progress: Progress
) -> dict[str, Any]:
    """Build a lexical index, with the documents beside it; returns its facts."""
    kind = catalog.load(catalog.INDEXES, family, "index kind")
    identity = {
        "family": family,
        "settings": asdict(settings),
        "analysis": kind.analysis(settings),
        "collection": {"name": collection.name, "settings": collection.settings},
    }
    stamp = {"stamp": collection.stamp()}
    manifest.claim(folder, Manifest("index", identity, stamp, manifest.environment()))
    if built := ready(folder):
        return built
    kept = _Kept(folder)
    made = kind.build(kept.through(collection.docs()), folder, settings, progress)
    return _finish(folder, {**made, "collection": str(kept.digest)}, identity)


class _Kept:
    """Writes documents to docs.parquet while they pass by, and sums their digest."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / DOCS
        self.digest = CollectionDigest()

    def through(self, docs: Iterable[Doc]) -> Iterator[Doc]:
        """The same documents; DataError for an id that comes twice."""
        seen = SeenIds()
        with parts.atomic_file(self._path) as temporary:
            table = DocTableWriter(temporary, store_text=True)
            for batch in batched(docs, lambda doc: len(doc.text) + 64, 1 << 20):
                seen.add((doc.id for doc in batch), "this collection")
                for doc in batch:
                    row = DocRow(doc, doc_hash(doc), 0, 0, 0)
                    table.append(row)
                    self.digest.add(row.hash)
                    yield doc
            table.close()


def ready(folder: Path) -> dict[str, Any]:
    """What built.json says; empty while the index is not finished."""
    try:
        return dict(json.loads((folder / BUILT).read_text()))
    except FileNotFoundError:
        return {}


def _finish(folder: Path, facts: dict[str, Any], identity: dict[str, Any]) -> dict[str, Any]:
    """Say that the index is whole, with its digest for the chain."""
    chain = manifest.digest({"identity": identity, "collection": facts.get("collection", "")})
    facts = {"digest": chain, **facts}
    with parts.atomic_file(folder / BUILT) as temporary:
        temporary.write_text(json.dumps(facts, indent=1))
    return facts
