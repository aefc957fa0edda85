"""What the numbers of an evaluation rest on: missing queries, unjudged documents, ties, depth."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from lmkcli.data.run import Ranking, Run

Judgements = Mapping[str, Mapping[str, int]]
"""Query id -> document id -> grade."""
_NO_CUTOFF = 10  # where documents and ties are looked at when no measure has a cut-off


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
    beyond: list[str]
    """Measures whose cut-off is below `depth` in the ranking: they see nothing from there on."""
    judged_at: dict[int, float]
    """Cut-off -> share of the documents down to it with a judgement, mean over answered queries."""
    tied_at: dict[int, float]
    """Cut-off -> share of answered queries whose documents just above and below it score alike."""
    self_hits: int
    """Judged queries for which the run holds a document of the query's own id (unless it was dropped,
    one that is judged for it is no hit on itself)."""
    self_dropped: bool
    """Whether these documents were removed before anything else was counted."""
    strangers: tuple[str, str] | None = None
    """A document of the run and a judged one, where the run holds not one judged document."""


def answers(run: Run, judgements: Judgements) -> dict[str, Ranking]:
    """The rankings of the judged queries that have documents, in the order of the judgements."""
    rankings = {query_id: run.rankings.get(query_id) for query_id in judgements}
    return {
        query_id: ranking for query_id, ranking in rankings.items() if ranking and ranking.doc_ids
    }


def without_self(run: Run) -> Run:
    """The run without documents that have the id of their query."""
    return Run({query_id: _others(query_id, r) for query_id, r in run.rankings.items()}, run.tag)


def _others(query_id: str, ranking: Ranking) -> Ranking:
    kept = [row for row, doc_id in enumerate(ranking.doc_ids) if doc_id != query_id]
    if len(kept) == len(ranking.doc_ids):
        return ranking
    return Ranking([ranking.doc_ids[row] for row in kept], ranking.scores[kept])


def cover(
    run: Run, judgements: Judgements, cutoffs: Mapping[str, int], drop_self: bool = False
) -> Coverage:
    """The coverage of a run as it was read; `cutoffs` are those of the measures that have one."""
    hits = sum(
        query_id in ranking.doc_ids and (drop_self or query_id not in judgements[query_id])
        for query_id, ranking in answers(run, judgements).items()
    )
    run = without_self(run) if drop_self else run
    answered = answers(run, judgements)
    depth = max((len(ranking.doc_ids) for ranking in answered.values()), default=0)
    levels = sorted(set(cutoffs.values())) or [_NO_CUTOFF]
    return Coverage(
        judged=len(judgements),
        answered=len(answered),
        missing=[query_id for query_id in judgements if query_id not in answered],
        unjudged=sum(query_id not in judgements for query_id in run.rankings),
        depth=depth,
        beyond=[measure for measure, cutoff in cutoffs.items() if cutoff > depth],
        judged_at={
            k: _mean(_judged(ranking, judgements[q], k) for q, ranking in answered.items())
            for k in levels
        },
        tied_at={k: _mean(_tied(ranking, k) for ranking in answered.values()) for k in levels},
        self_hits=hits,
        self_dropped=drop_self,
        strangers=_strangers(answered, judgements),
    )


def _strangers(answered: Mapping[str, Ranking], judgements: Judgements) -> tuple[str, str] | None:
    for query_id, ranking in answered.items():
        if not judgements[query_id].keys().isdisjoint(ranking.doc_ids):
            return None
    for query_id, ranking in answered.items():
        for judged in judgements[query_id]:
            return ranking.doc_ids[0], judged
    return None


def _judged(ranking: Ranking, grades: Mapping[str, int], k: int) -> float:
    return fmean(doc_id in grades for doc_id in ranking.doc_ids[:k])


def _tied(ranking: Ranking, k: int) -> float:
    scores = ranking.scores
    return float(len(scores) > k and scores[k - 1] == scores[k])


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return fmean(values) if values else 0.0
