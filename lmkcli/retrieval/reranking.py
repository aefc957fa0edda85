"""Reranking: the top of a run, or of an index, scored again by whatever scores documents for a query."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lmkcli import manifest
from lmkcli.data.collection import Doc, Query
from lmkcli.data.run import Ranking, Run, ranked
from lmkcli.retrieval.fusion import SCALES
from lmkcli.retrieval.index import Index, IndexInfo, Passage
from lmkcli.settings import RerankSettings


class Scorer(Protocol):
    """Scores documents for one query; NaN where a document cannot be scored."""

    def __call__(self, query: Query, doc_ids: Sequence[str]) -> NDArray[np.float64]: ...


class Reranker(Protocol):
    """What scores the top again: stored vectors, or a cross-encoder.

    `info` says what it is, for a run's manifest.
    """

    info: IndexInfo

    def scorer(self, queries: list[Query]) -> Scorer:
        """A scorer for these queries."""

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage] | None:
        """The best chunk of each document; None where it knows of no chunks."""


class RerankedIndex:
    """The top of an index, scored again."""

    def __init__(self, index: Index, reranker: Reranker, settings: RerankSettings) -> None:
        self._index, self._reranker, self._settings = index, reranker, settings
        first, by = index.info, reranker.info
        how = {**first.search, "rerank": asdict(settings), "by": by.kind, **by.search}
        chain = manifest.digest([first.digest, by.digest])
        self.info = IndexInfo(first.path, f"{first.kind}-rerank", chain, how, first.notes)

    def search(self, queries: list[Query], k: int) -> Run:
        """The first `depth` documents in their new order, cut to k."""
        first = self._index.search(queries, self._settings.depth)
        run = rerank(first, queries, self._reranker.scorer(queries), self._settings)
        return Run({q: r.cut(k) for q, r in run.rankings.items()}, run.tag, run.unscored)

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """As the index that is reranked."""
        return self._index.texts(ids)

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """Of what scored last, as far as it knows of chunks."""
        passages = self._reranker.passages(query, ids)
        return self._index.passages(query, ids) if passages is None else passages


def rerank(run: Run, queries: list[Query], scorer: Scorer, settings: RerankSettings) -> Run:
    """The first `settings.depth` documents of each query under the scorer.

    With `interpolate` a: a * new + (1 - a) * old, both scaled to 0 … 1 over the reranked documents.
    Documents that cannot be scored follow the others, in their old order, and are counted.
    """
    rankings = {}
    unscored = 0
    for query in queries:
        old = run.rankings.get(query.id)
        if old is None:
            continue
        ids, before = old.doc_ids[: settings.depth], old.scores[: settings.depth].astype(np.float64)
        new = scorer(query, ids) if ids else np.zeros(0)
        scored = ~np.isnan(new)
        unscored += int((~scored).sum())
        if settings.interpolate is not None:
            scale, a = SCALES["minmax"], settings.interpolate
            new[scored] = a * scale(new[scored]) + (1 - a) * scale(before[scored])
        rankings[query.id] = _ordered(ids, new, scored)
    return Run(rankings, "rerank", unscored)


def _ordered(ids: list[str], scores: NDArray[np.float64], scored: NDArray[np.bool_]) -> Ranking:
    best = ranked([name for name, s in zip(ids, scored, strict=True) if s], scores[scored])
    rest = [name for name, s in zip(ids, scored, strict=True) if not s]
    if not rest:
        return best
    floor = float(best.scores[-1]) if len(best.scores) else 0.0
    # whole steps below the last score: they survive float32 and keep the old order
    tail = (floor - 1.0 - np.arange(len(rest))).astype(np.float32)
    return Ranking([*best.doc_ids, *rest], np.concatenate([best.scores, tail]))
