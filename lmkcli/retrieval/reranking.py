"""Reranking: the top of a run scored again, by dense vectors or by a cross-encoder."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import Query
from lmkcli.data.run import Ranking, Run, ranked
from lmkcli.progress import Progress
from lmkcli.retrieval.fusion import SCALES


class Scorer(Protocol):
    """Scores documents for one query; NaN where a document cannot be scored."""

    def __call__(self, query: Query, doc_ids: Sequence[str]) -> NDArray[np.float64]: ...


class Reranked(NamedTuple):
    """The new run, and how many of its documents could not be scored."""

    run: Run
    unscored: int


def rerank(
    run: Run, queries: list[Query], scorer: Scorer, settings: "Rerank", progress: Progress
) -> Reranked:
    """The first `settings.depth` documents of each query under the scorer.

    With `interpolate` a: a * new + (1 - a) * old, both scaled to 0 … 1 over the reranked documents.
    Documents that cannot be scored follow the others, in their old order.
    """
    made = {}
    unscored = 0
    for number, query in enumerate(queries, 1):
        old = run.rankings.get(query.id)
        if old is None:
            continue
        ids, before = old.doc_ids[: settings.depth], old.scores[: settings.depth].astype(np.float64)
        new = scorer(query, ids) if ids else np.zeros(0)
        known = ~np.isnan(new)
        unscored += int((~known).sum())
        if settings.interpolate is not None:
            scale, a = SCALES["minmax"], settings.interpolate
            new[known] = a * scale(new[known]) + (1 - a) * scale(before[known])
        made[query.id] = _ordered(ids, new, known)
        progress(number, len(queries), "queries")
    return Reranked(Run(made, tag="rerank"), unscored)


class Rerank(NamedTuple):
    """How many documents a query, and how much the new score weighs (None: alone)."""

    depth: int = 100
    interpolate: float | None = None


def _ordered(ids: list[str], scores: NDArray[np.float64], known: NDArray[np.bool_]) -> Ranking:
    best = ranked([name for name, k in zip(ids, known, strict=True) if k], scores[known])
    rest = [name for name, k in zip(ids, known, strict=True) if not k]
    if not rest:
        return best
    floor = float(best.scores[-1]) if len(best.scores) else 0.0
    # whole steps below the last score: they survive float32 and keep the old order
    tail = (floor - 1.0 - np.arange(len(rest))).astype(np.float32)
    return Ranking([*best.doc_ids, *rest], np.concatenate([best.scores, tail]))
