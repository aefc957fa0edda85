"""Index: something with `search(queries, k) -> Run`, dense or lexical, and opening one."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lmkcli import catalog, manifest, parts
from lmkcli.collection import Doc, Query
from lmkcli.doctable import DocTable
from lmkcli.encoder import Encoder, open_encoder
from lmkcli.errors import DataError, Mismatch, UnknownName, UsageError
from lmkcli.indexes.exact import MARGIN, Hits, rescore, top
from lmkcli.manifest import Manifest
from lmkcli.models.devices import choose_device
from lmkcli.models.folder import read_model
from lmkcli.parts import PartSlice
from lmkcli.recipe import AnnSettings, Bm25Settings, EncodeSettings, Recipe
from lmkcli.run import Ranking, Run, ranked
from lmkcli.vectors import Vectors

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


class Opened(NamedTuple):
    """An artifact that can be searched: its folder, kind and digest, and how it is searched.

    `note` is what its user should know, such as that its vectors were updated since.
    """

    path: str
    kind: str
    digest: str
    search: dict[str, Any]
    note: str = ""


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
    """A lexical kind with the documents that it indexed, which are beside it in `folder`."""

    def __init__(self, opened: Opened, kind: Any, folder: Path) -> None:
        self.opened = opened
        self._kind, self._folder = kind, folder

    def search(self, queries: list[Query], k: int) -> Run:
        """As the kind ranks; documents without a query term are not returned."""
        return self._kind.search(queries, k)  # type: ignore[no-any-return]

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """Reads the stored documents through once; an index that lmk did not make gives ids alone."""
        path = self._folder / DOCS
        if not path.is_file():
            return {name: Doc(name, "") for name in ids}
        table = DocTable(path)
        return {doc.id: doc for doc in table.docs_at(table.rows_by_ids(ids))}


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
    if found.kind == "vectors":
        path = str(folder.absolute())
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
        settings.refuse(
            f"a {name} index",
            settings.vectors,
            settings.ef_search,
            settings.nprobe,
            settings.model,
            settings.dtype,
        )
        lexical = kind.open(where, Bm25Settings(**found.identity["settings"]))
        return Lexical(Opened(path, name, built["digest"], {}), lexical, where)
    vectors = _frozen_vectors(folder, found, built["of"], settings)
    how: dict[str, Any] = {"ef_search": settings.ef_search, "nprobe": settings.nprobe}
    note = " ".join(filter(None, [_incomplete(folder, built), _behind(folder, vectors)]))
    opened = Opened(path, found.identity["settings"]["kind"], built["digest"], how, note)
    graph = kind.open(where, replace(AnnSettings(**found.identity["settings"]), **how))
    numbering = [PartSlice.from_json(item) for item in built["of"]["numbering"]]
    return Dense(opened, vectors, Rescored(graph, vectors, numbering), settings)


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
    asked = (settings.vectors, settings.ef_search, settings.nprobe, settings.model, settings.dtype)
    settings.refuse("a Lucene index", *asked)
    commit = max(folder.glob("segments_*"), key=lambda path: path.stat().st_mtime_ns)
    lucene = catalog.load(catalog.INDEXES, "lucene", "index kind").read(folder, Bm25Settings())
    digest = hashlib.sha256(commit.read_bytes()).hexdigest()  # it names its segments by random ids
    path = str(folder.absolute())
    return Lexical(Opened(path, "lucene", digest, asdict(Bm25Settings())), lucene, folder)


def exact(vectors: Vectors, settings: OpenSettings) -> Any:
    """Brute force over vectors, on the device that queries are encoded on."""
    return catalog.load(catalog.INDEXES, "exact", "index kind")(
        vectors, choose_device(settings.device)
    )


class Rescored:
    """An approximate kind whose candidates are scored again in float64 from the stored vectors.

    `numbering` says what the kind's rows number; those that do not count any more are passed over.
    """

    def __init__(self, kind: Any, vectors: Vectors, numbering: list[PartSlice]) -> None:
        self._kind, self._vectors = kind, vectors
        alive = still_alive(numbering, vectors.slices)
        self._rows = len(alive)
        self._numbers = None if alive.all() else np.where(alive, np.cumsum(alive) - 1, -1)

    def search(self, queries: NDArray[np.float32], k: int) -> Hits:
        """The k best of the candidates, and what ties with the last of them."""
        found = self._candidates(queries, k * self._kind.overfetch + MARGIN)
        scores = [rescore(self._vectors, q, r) for q, r in zip(queries, found, strict=True)]
        tops = [top(r, s, k) for r, s in zip(found, scores, strict=True)]
        return Hits([r for r, _ in tops], [s for _, s in tops])

    def _candidates(self, queries: NDArray[np.float32], wanted: int) -> list[NDArray[np.int64]]:
        """Rows of the vectors; looks deeper while dead rows leave too few of those that there are."""
        wanted = min(wanted, self._vectors.rows)
        depth = -(-wanted * self._rows // max(1, self._vectors.rows))
        while True:
            _, rows = self._kind.candidates(queries, depth)
            found = [row[row >= 0] for row in rows]
            if self._numbers is None:
                return found
            found = [numbers[numbers >= 0] for numbers in (self._numbers[row] for row in found)]
            full = (len(f) >= wanted or row[-1] < 0 for f, row in zip(found, rows, strict=True))
            if depth >= self._rows or all(full):
                return found
            depth = min(4 * depth, self._rows)


def still_alive(numbering: list[PartSlice], now: list[PartSlice]) -> NDArray[np.bool_]:
    """For each row that an index numbers, whether it counts among the slices `now`."""
    there = {piece.name: piece for piece in now}
    masks = [
        there[piece.name].alive[piece.alive] if piece.name in there else np.zeros(piece.rows, bool)
        for piece in numbering
    ]
    return np.concatenate([np.zeros(0, np.bool_), *masks])


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
