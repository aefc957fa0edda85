"""Pipelines: runs, fusions and rerankings that can be searched like an index."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmkcli import catalog, manifest
from lmkcli.collection import Doc, Query
from lmkcli.encoder import Encoder
from lmkcli.errors import UsageError
from lmkcli.fusion import Fusion, fuse
from lmkcli.index import Index, Opened, OpenSettings, open_index, open_query_encoder
from lmkcli.progress import silent
from lmkcli.reranking import Rerank, Scorer, rerank
from lmkcli.run import Ranking, Run, ranked, read_run
from lmkcli.vectors import Vectors

POOL = 1000  # documents that each fused index is asked for, at least


# Which settings of opening mean something to what.
_QUERIES = {"model", "dtype"}
_SEARCH = {"vectors", "ef_search", "nprobe"}


def open_searchable(path: Path, settings: OpenSettings) -> Index:
    """An index folder, vectors, or a TREC run that stands where an index does."""
    if not path.is_file():
        return open_index(path, settings)
    settings.refuse("a run", *(getattr(settings, name) for name in _QUERIES | _SEARCH))
    return FromRun(path)


def open_all(paths: Sequence[Path], settings: OpenSettings, reranked: bool) -> list[Index]:
    """Several indexes, or one that is `reranked` by vectors. Each is given the settings that mean
    something to it; UsageError for one that means nothing to any of them.
    """
    takes = [_takes(path) for path in paths]
    taken = set().union(*takes, _QUERIES if reranked else set())
    none: dict[str, Any] = {name: getattr(OpenSettings(), name) for name in taken}
    return [
        open_searchable(path, replace(settings, **{n: none[n] for n in taken - mine}))
        for path, mine in zip(paths, takes, strict=True)
    ]


def _takes(path: Path) -> set[str]:
    if not (path / manifest.NAME).is_file():
        return set()
    found = manifest.read(path)
    if found.kind == "vectors":
        return _QUERIES
    return set() if found.identity.get("family") in catalog.LEXICAL else _QUERIES | _SEARCH


class FromRun:
    """A finished run: answers the queries that it has."""

    def __init__(self, path: Path) -> None:
        self._run = read_run(path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        self.opened = Opened(str(path.absolute()), self._run.tag, digest, {})

    def search(self, queries: list[Query], k: int) -> Run:
        """The run's first k documents of each query; none for a query that it lacks."""
        empty = ranked([], np.zeros(0, np.float32))
        found = {query.id: self._run.rankings.get(query.id, empty) for query in queries}
        return Run({name: Ranking(r.doc_ids[:k], r.scores[:k]) for name, r in found.items()})

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """A run has ids alone."""
        return {name: Doc(name, "") for name in ids}


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


class Reranked:
    """The top of an index scored again by `scorer`, which is made for the queries at hand."""

    def __init__(
        self, index: Index, make: Callable[[list[Query]], Scorer], settings: Rerank, by: Opened
    ) -> None:
        self._index, self._make, self._settings = index, make, settings
        how = {**index.opened.search, "rerank": settings._asdict(), "by": by.kind}
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
    """Rerank by the dot product with stored vectors (BM25 rerank, LoCo Table 10)."""
    vectors = Vectors(path)
    encoder: list[Encoder] = []

    def make(queries: list[Query]) -> Scorer:
        if not encoder:
            encoder.append(open_query_encoder(vectors, opening))
        return ByVectors(vectors, queries, encoder[0].queries(queries))

    by = Opened(str(path.absolute()), "vectors", vectors.digest(), {})
    return Reranked(index, make, settings, by)


class ByVectors:
    """Scores documents by float64 dot products; NaN for documents without a vector."""

    def __init__(
        self, vectors: Vectors, queries: list[Query], encoded: NDArray[np.float32]
    ) -> None:
        self._vectors = vectors
        self._queries = {query.id: vector for query, vector in zip(queries, encoded, strict=True)}
        self._rows: dict[str, int] | None = None

    def __call__(self, query: Query, doc_ids: Sequence[str]) -> NDArray[np.float64]:
        if self._rows is None:
            self._rows = self._vectors.numbers()
        rows = np.array([self._rows.get(name, -1) for name in doc_ids], dtype=np.int64)
        scores = np.full(len(rows), np.nan)
        known = rows >= 0
        if known.any():
            matrix = self._vectors.at(rows[known]).astype(np.float64)
            scores[known] = matrix @ self._queries[query.id].astype(np.float64)
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
    """Rerank by a cross-encoder that reads the stored texts; UsageError for a run, which has none."""
    if isinstance(index, FromRun):
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
