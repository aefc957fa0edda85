"""What the numbers of an evaluation rest on: missing queries, unjudged documents, ties, depth."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from lmkcli.run import Ranking, Run

Judgements = Mapping[str, Mapping[str, int]]
"""Query id -> document id -> grade."""


@dataclass(frozen=True)
class Coverage:
    """How far a run and its judgements cover each other."""

    judged: int
    """Queries with judgements; all of them count."""
    answered: int
    """Judged queries for which the run has documents."""
    missing: list[str]
    """Judged queries for which it has none: they score 0."""
    unjudged: int
    """Queries of the run without judgements, which are ignored."""
    depth: int
    """The most documents that the run has for an answered query."""
    cutoff: int
    """The largest cut-off: a measure that looks deeper than `depth` sees nothing there."""
    judged_at: dict[int, float]
    """Cut-off -> share of the documents down to it with a judgement, mean over answered queries."""
    tied_at: dict[int, float]
    """Cut-off -> share of answered queries whose documents just above and below it score alike."""


def answers(run: Run, judgements: Judgements) -> dict[str, Ranking]:
    """The rankings of the judged queries that have documents, in the order of the judgements."""
    found = {query_id: run.rankings.get(query_id) for query_id in judgements}
    return {query_id: ranking for query_id, ranking in found.items() if ranking and ranking.doc_ids}


def cover(run: Run, judgements: Judgements, cutoffs: Sequence[int]) -> Coverage:
    """The coverage of a run at one cut-off or several."""
    answered = answers(run, judgements)
    return Coverage(
        judged=len(judgements),
        answered=len(answered),
        missing=[query_id for query_id in judgements if query_id not in answered],
        unjudged=sum(query_id not in judgements for query_id in run.rankings),
        depth=max((len(ranking.doc_ids) for ranking in answered.values()), default=0),
        cutoff=max(cutoffs),
        judged_at={
            k: _mean(
                _judged(ranking, judgements[query_id], k) for query_id, ranking in answered.items()
            )
            for k in cutoffs
        },
        tied_at={k: _mean(_tied(ranking, k) for ranking in answered.values()) for k in cutoffs},
    )


def _judged(ranking: Ranking, grades: Mapping[str, int], k: int) -> float:
    return fmean(doc_id in grades for doc_id in ranking.doc_ids[:k])


def _tied(ranking: Ranking, k: int) -> float:
    scores = ranking.scores
    return float(len(scores) > k and scores[k - 1] == scores[k])


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return fmean(values) if values else 0.0
