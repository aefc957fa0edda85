"""Filters of rankings by the ids of documents: exact, because rankings become deeper as needed."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from lmkcli.data.collection import Query
from lmkcli.data.run import Ranking, Run
from lmkcli.retrieval.index import Index

_EMPTY = Ranking([], np.zeros(0, np.float32))


class Filtered(NamedTuple):
    """The rankings of the accepted documents, in the order of the queries.

    complete: whether they are those of the whole ranking; False if the search stopped at the greatest depth.
    run: the deepest ranking, with the queries and documents that models read only in part.
    """

    rankings: list[Ranking]
    complete: bool
    run: Run


def filtered_search(
    index: Index,
    queries: list[Query],
    k: int,
    accepts: Callable[[str], bool],
    deepest: int | None = None,
) -> Filtered:
    """Rank the k best documents that `accepts` for each query; `deepest` limits the depth of the rankings."""
    depth = 8 * k if deepest is None else min(8 * k, deepest)
    while True:
        run = index.search(queries, depth)
        whole = [run.rankings.get(query.id, _EMPTY) for query in queries]
        kept = [_kept(ranking, accepts) for ranking in whole]
        short = any(
            len(part.doc_ids) < k and len(ranking.doc_ids) >= depth
            for part, ranking in zip(kept, whole, strict=True)
        )
        if not short or (deepest is not None and depth >= deepest):
            return Filtered([part.cut(k) for part in kept], not short, run)
        depth = 4 * depth if deepest is None else min(4 * depth, deepest)


def filtered_run(index: Index, queries: list[Query], k: int, accepts: Callable[[str], bool]) -> Run:
    """Search for the k best accepted documents of each query, however deep they are."""
    found = filtered_search(index, queries, k, accepts)
    rankings = zip((query.id for query in queries), found.rankings, strict=True)
    return Run(dict(rankings), cut=found.run.cut, cut_pairs=found.run.cut_pairs)


def _kept(ranking: Ranking, accepts: Callable[[str], bool]) -> Ranking:
    places: Sequence[int] = [i for i, name in enumerate(ranking.doc_ids) if accepts(name)]
    return Ranking([ranking.doc_ids[i] for i in places], ranking.scores[[*places]])
