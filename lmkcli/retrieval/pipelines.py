"""Pipelines: runs, fusions and rerankings that can be searched like an index."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmkcli import catalog, manifest
from lmkcli.data.collection import Collection, Doc, Query
from lmkcli.data.run import Ranking, Run, ranked, read_run
from lmkcli.data.subset import Selected
from lmkcli.encoding.encoder import Encoder
from lmkcli.errors import DataError, UsageError
from lmkcli.progress import silent
from lmkcli.retrieval.fusion import Fusion, fuse
from lmkcli.retrieval.index import (
    DENSE,
    QUERIES,
    SEARCH,
    SEVERAL,
    Index,
    Opened,
    open_index,
    open_query_encoder,
)
from lmkcli.retrieval.indexes.rescore import Rescore
from lmkcli.retrieval.passages import Passage, best_passages
from lmkcli.retrieval.reranking import Rerank, Scorer, rerank
from lmkcli.retrieval.views import Rows
from lmkcli.settings import OpenSettings
from lmkcli.store.ragged import Ragged
from lmkcli.store.vectors import Vectors

POOL = 1000  # documents that each fused index is asked for, at least


def open_searchable(path: Path, settings: OpenSettings, texts: Collection | None = None) -> Index:
    """An index folder, vectors, or a TREC run that stands where an index does, with texts of `texts`."""
    if not path.is_file():
        return open_index(path, settings)
    settings.refuse("a run", *DENSE)
    return FromRun(path, texts)


def open_all(
    paths: Sequence[Path],
    settings: OpenSettings,
    rerank: Path | None = None,
    texts: Collection | None = None,
) -> list[Index]:
    """Several indexes, or one that is reranked by the vectors in `rerank`; runs have their texts from
    `texts`. Each is given the settings that mean something to it; UsageError for one that means
    nothing to any of them.
    """
    takes = [_takes(path) for path in paths]
    alone = len(paths) == 1 or all("level" in mine for mine in takes)
    if settings.level == "chunk" and (rerank or not alone):
        raise UsageError(
            f"--level {settings.level} needs vectors of unit chunk, or indexes of them, alone: what "
            "ranks documents cannot be fused with chunks, nor rerank them"
        )
    taken = set().union(*takes, _takes(rerank).difference(SEARCH) if rerank else set())
    none: dict[str, Any] = {name: getattr(OpenSettings(), name) for name in taken}
    return [
        open_searchable(path, replace(settings, **{n: none[n] for n in taken - mine}), texts)
        for path, mine in zip(paths, takes, strict=True)
    ]


def _takes(path: Path) -> set[str]:
    if not (path / manifest.NAME).is_file():
        return set()
    found = manifest.read(path)
    if "recipe" not in found.identity:
        return set()
    several = SEVERAL if found.identity["recipe"]["doc"]["unit"] != "doc" else ()
    return {*QUERIES, *several, *(() if found.kind == "vectors" else SEARCH)}


class FromRun:
    """A finished run: answers the queries that it has.

    With `texts` it holds those of all documents that it names; DataError when there are none.
    """

    def __init__(self, path: Path, texts: Collection | None = None) -> None:
        self._run = read_run(path)
        self.held = {doc.id: doc for doc in Selected(texts, path).docs()} if texts else {}
        if texts and not self.held:
            raise DataError(f"{texts.name} has none of the documents of {path}")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        read = sorted((doc.id, doc.content) for doc in self.held.values())
        how = {"texts": manifest.digest(read)} if read else {}
        self.opened = Opened(str(path.absolute()), self._run.tag, digest, how)

    def search(self, queries: list[Query], k: int) -> Run:
        """The run's first k documents of each query; none for a query that it lacks."""
        empty = ranked([], np.zeros(0, np.float32))
        found = {query.id: self._run.rankings.get(query.id, empty) for query in queries}
        return Run({name: Ranking(r.doc_ids[:k], r.scores[:k]) for name, r in found.items()})

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """Those that it holds; a run itself has ids alone."""
        return {name: self.held.get(name, Doc(name, "")) for name in ids}

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """None."""
        return {}


class Fused:
    """Several indexes asked the same; their rankings fused."""

    def __init__(self, indexes: Sequence[Index], fusion: Fusion) -> None:
        fusion.shares(len(indexes))
        self._indexes, self._fusion = indexes, fusion
        chain = manifest.digest([index.opened.digest for index in indexes])
        how = {"fuse": _plain(fusion), "of": [i.opened.search for i in indexes]}
        self.opened = Opened(indexes[0].opened.path, fusion.method, chain, how)

    def search(self, queries: list[Query], k: int) -> Run:
        """Each index is asked for k documents, 1,000 at least; the k best of the fusion remain."""
        runs = [index.search(queries, max(k, POOL)) for index in self._indexes]
        return fuse(runs, self._fusion, k)

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """From the first index that stores texts."""
        found: dict[str, Doc] = {}
        for index in reversed(self._indexes):
            found |= {
                name: doc for name, doc in index.texts(ids).items() if doc.text or name not in found
            }
        return found

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """From the first index that has vectors of chunks."""
        found: dict[str, Passage] = {}
        for index in reversed(self._indexes):
            found |= index.passages(query, ids)
        return found


class Reranked:
    """The top of an index scored again by `scorer`, which is made for the queries at hand."""

    passages: Callable[[Query, list[str]], dict[str, Passage]]  # of what scored last

    def __init__(
        self, index: Index, make: Callable[[list[Query]], Scorer], settings: Rerank, by: Opened
    ) -> None:
        self._index, self._make, self._settings = index, make, settings
        self.passages = index.passages
        how = {**index.opened.search, "rerank": settings._asdict(), "by": by.kind, **by.search}
        chain = manifest.digest([index.opened.digest, by.digest])
        self.opened = Opened(index.opened.path, f"{index.opened.kind}-rerank", chain, how)
        self.unscored = 0

    def search(self, queries: list[Query], k: int) -> Run:
        """The first `depth` documents in their new order, cut to k."""
        first = self._index.search(queries, self._settings.depth)
        made = rerank(first, queries, self._make(queries), self._settings, silent)
        self.unscored += made.unscored
        kept = {q: Ranking(r.doc_ids[:k], r.scores[:k]) for q, r in made.run.rankings.items()}
        return Run(kept, made.run.tag)

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """As the index that is reranked."""
        return self._index.texts(ids)


def by_vectors(index: Index, path: Path, settings: Rerank, opening: OpenSettings) -> Reranked:
    """Rerank by the score with stored vectors (BM25 rerank, LoCo Table 10)."""
    vectors = Vectors(path)
    rows = Rows(vectors, aggregate="" if vectors.single else opening.aggregate or "")
    encoder: list[Encoder] = []

    def encoded(queries: list[Query]) -> Ragged:
        if not encoder:
            encoder.append(open_query_encoder(vectors, opening))
        made = encoder[0].queries(queries)
        rows.check(made)
        return made

    def passages(query: Query, ids: list[str]) -> dict[str, Passage]:
        return best_passages(vectors, encoded([query]).vectors, ids)

    by = Opened(str(path.absolute()), "vectors", vectors.digest(), rows.identity)
    reranked = Reranked(index, lambda q: ByVectors(rows, q, encoded(q)), settings, by)
    if vectors.recipe.doc.unit == "chunk":
        reranked.passages = passages
    return reranked


class ByVectors:
    """Scores documents in float64; NaN for documents without a vector."""

    def __init__(self, rows: Rows, queries: list[Query], encoded: Ragged) -> None:
        self._rows, self._rescore = rows, Rescore(rows.matrix)
        self._asked = {query.id: encoded.one(number) for number, query in enumerate(queries)}
        self._numbers: dict[str, int] | None = None

    def __call__(self, query: Query, doc_ids: Sequence[str]) -> NDArray[np.float64]:
        if self._numbers is None:
            self._numbers = self._rows.vectors.numbers()
        rows = np.array([self._numbers.get(name, -1) for name in doc_ids], dtype=np.int64)
        scores = np.full(len(rows), np.nan)
        known = rows >= 0
        (scores[known],) = self._rescore(self._asked[query.id], [rows[known]])
        return scores


def _plain(fusion: Fusion) -> dict[str, Any]:
    if fusion.method == "rrf":
        return {"method": "rrf", "k": fusion.k}
    return {"method": "linear", "weights": list(fusion.weights), "scale": fusion.scale}


def check_distinct(paths: Sequence[Path]) -> None:
    """UsageError when an index is to be fused with itself."""
    real = [path.resolve() for path in paths]
    if len(set(real)) < len(real):
        raise UsageError("--with names an index twice; a fusion needs different ones")


def by_model(index: Index, name: str, settings: Rerank, opening: OpenSettings) -> Reranked:
    """Rerank by a cross-encoder that reads the stored texts; UsageError for a run without any."""
    if isinstance(index, FromRun) and not index.held:
        raise UsageError(
            f"{index.opened.path} is a run and holds no texts for --rerank-model; "
            "rerank the index that it came from"
        )
    model = catalog.load(catalog.MODELS, "crossencoder", "model kind")(
        name, opening.device, opening.offline
    )

    def make(queries: list[Query]) -> Scorer:
        return lambda query, ids: _read(model, index.texts(list(ids)), query, ids)

    return Reranked(index, make, settings, Opened(name, "crossencoder", model.digest, {}))


def _read(
    model: Any, texts: dict[str, Doc], query: Query, ids: Sequence[str]
) -> NDArray[np.float64]:
    known = [name for name in ids if name in texts and texts[name].text]
    scores = np.full(len(ids), np.nan)
    at = {name: number for number, name in enumerate(ids)}
    if known:
        scores[[at[name] for name in known]] = model(query.text, [texts[n].content for n in known])
    return scores
