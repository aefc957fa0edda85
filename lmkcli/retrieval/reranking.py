"""Reranking: the first documents of an index or a run are scored again by vectors or a cross-encoder."""

from collections.abc import Sequence
from copy import copy
from dataclasses import asdict
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lmkcli import catalog
from lmkcli.artifact import manifest
from lmkcli.data.collection import Doc, Query
from lmkcli.data.run import Ranking, Run, Scored, ranked
from lmkcli.retrieval.fusion import SCALES
from lmkcli.retrieval.index import Index, IndexInfo, Passage, query_words, unfindable
from lmkcli.retrieval.open_settings import OpenSettings, RerankSettings
from lmkcli.text.query_words import QueryWords


class Scorer(Protocol):
    """Scores documents for one query."""

    def __call__(self, query: Query, doc_ids: Sequence[str]) -> Scored: ...


class Reranker(Protocol):
    """A second scorer of the first documents: stored vectors or a cross-encoder.

    `info` describes it in the manifest of a run.
    """

    info: IndexInfo

    def scorer(self, queries: list[Query]) -> Scorer:
        """Return a scorer for these queries."""

    def cut(self, queries: list[Query]) -> frozenset[str]:
        """Return the ids of the queries that it reads only in part."""

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage] | None:
        """Return the best chunk of each document; None if it has no chunks."""


class RerankedIndex:
    """An index with its first documents reranked. `note` is a message for the user."""

    def __init__(
        self, index: Index, reranker: Reranker, settings: RerankSettings, note: str = ""
    ) -> None:
        self._index, self._reranker, self._settings = index, reranker, settings
        first, second = index.info, reranker.info
        search = {
            **first.search,
            "rerank": asdict(settings),
            "by": second.kind,
            **second.search,
        }
        digest = manifest.digest([first.digest, second.digest])
        meaning = (
            "score of the reranker"
            if settings.interpolate is None
            else "weighted sum of scaled scores"
        )
        self.info = IndexInfo(
            first.path,
            f"{first.kind}-rerank",
            digest,
            search,
            (*first.notes, *filter(None, [note])),
            meaning,
        )

    def search(self, queries: list[Query], k: int) -> Run:
        """Rerank the first `depth` documents and return the best k."""
        first = self._index.search(queries, self._settings.depth)
        run = rerank(first, queries, self._reranker.scorer(queries), self._settings)
        cut = first.cut | self._reranker.cut(queries)
        rankings = {query: ranking.cut(k) for query, ranking in run.rankings.items()}
        incomplete = first.incomplete
        return Run(rankings, run.tag, run.unscored, cut, run.cut_pairs, incomplete=incomplete)

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """Documents of the reranked index."""
        return self._index.texts(ids)

    def query_words(self, question: str) -> QueryWords:
        """Return the words of a question with the weights of the reranked index."""
        return query_words(self._index, question)

    def unfindable(self, ids: Sequence[str]) -> list[str]:
        """Return the ids that the reranked index cannot return."""
        return unfindable(self._index, ids)

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """Chunks of the reranker if it has chunks, else of the reranked index."""
        passages = self._reranker.passages(query, ids)
        return self._index.passages(query, ids) if passages is None else passages


def rerank(run: Run, queries: list[Query], scorer: Scorer, settings: RerankSettings) -> Run:
    """Score the first `settings.depth` documents of each query again.

    With `interpolate` a, the score is a * new + (1 - a) * old, both scaled to 0 … 1 over the reranked
    documents. Documents that cannot be scored follow the others in their old order. The run counts them, and
    pairs that the model cut.
    """
    rankings = {}
    unscored = 0
    cut_pairs = {}
    for query in queries:
        old = run.rankings.get(query.id)
        if old is None:
            continue
        ids = old.doc_ids[: settings.depth]
        old_scores = old.scores[: settings.depth].astype(np.float64)
        new, cut_pairs[query.id] = scorer(query, ids) if ids else Scored(np.zeros(0))
        scored = ~np.isnan(new)
        unscored += int((~scored).sum())
        if settings.interpolate is not None:
            scale, a = SCALES["minmax"], settings.interpolate
            new[scored] = a * scale(new[scored]) + (1 - a) * scale(old_scores[scored])
        rankings[query.id] = _ordered(ids, new, scored)
    return Run(rankings, "rerank", unscored, cut_pairs=cut_pairs)


def _ordered(ids: list[str], scores: NDArray[np.float64], scored: NDArray[np.bool_]) -> Ranking:
    best = ranked([name for name, s in zip(ids, scored, strict=True) if s], scores[scored])
    rest = [name for name, s in zip(ids, scored, strict=True) if not s]
    if not rest:
        return best
    floor = float(best.scores[-1]) if len(best.scores) else 0.0
    # Scores of the tail fall in steps of 1. float32 distinguishes these, so the old order is kept.
    tail = (floor - 1.0 - np.arange(len(rest))).astype(np.float32)
    return Ranking([*best.doc_ids, *rest], np.concatenate([best.scores, tail]))


class CrossEncoder(Protocol):
    """Scores a query with each of several texts; `digest` identifies the weights."""

    digest: str

    def __call__(self, query: str, texts: list[str]) -> Scored: ...


class CrossEncoderOpener(Protocol):
    """The interface of the catalog's CROSS_ENCODERS: opens a cross-encoder by folder or hub name."""

    def __call__(
        self, name: str, device: str, offline: bool, trust_remote_code: bool, dtype: str | None
    ) -> CrossEncoder: ...


class ModelReranker:
    """A cross-encoder that scores the texts of `index`; NaN for documents without a text."""

    def __init__(self, index: Index, name: str, settings: OpenSettings) -> None:
        opener: CrossEncoderOpener = catalog.CROSS_ENCODERS.load("crossencoder")
        self._index = index
        self._model = opener(
            name, settings.device, settings.offline, settings.trust_remote_code, settings.dtype
        )
        self.info = IndexInfo(name, "crossencoder", self._model.digest, {})

    def reading(self, index: Index) -> "ModelReranker":
        """Return the same model for the texts of another index."""
        other = copy(self)
        other._index = index
        return other

    def scorer(self, queries: list[Query]) -> Scorer:
        """Return the scorer, which is the same for all queries."""
        return self._score

    def cut(self, queries: list[Query]) -> frozenset[str]:
        """Return nothing: a cross-encoder cuts pairs, and `Scored` counts them."""
        return frozenset()

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage] | None:
        """Return None, because a cross-encoder reads whole documents."""
        return None

    def _score(self, query: Query, doc_ids: Sequence[str]) -> Scored:
        docs = self._index.texts(list(doc_ids))
        with_text = [
            i for i, name in enumerate(doc_ids) if name in docs and docs[name].content.strip()
        ]
        scores, cut = np.full(len(doc_ids), np.nan), 0
        if with_text:
            texts = [docs[doc_ids[i]].content for i in with_text]
            scores[with_text], cut = self._model(query.text, texts)
        return Scored(scores, cut)
