"""Coverage of an evaluation: missing queries, unjudged documents, ties and depth of a run."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from lmkcli.data.run import Ranking, Run

Judgements = Mapping[str, Mapping[str, int]]
"""Query id -> document id -> grade."""
_DEFAULT_CUTOFF = 10  # for shares of judged documents and ties if no measure has a cut-off


@dataclass(frozen=True)
class Coverage:
    """The match between a run and its judgements: missing queries, judged documents, ties and depth."""

    judged: int
    """Number of queries with judgements; all of them count in a mean."""
    answered: int
    """Number of judged queries for which the run has documents."""
    missing: list[str]
    """Judged queries without documents in the run: their score is 0."""
    unjudged: int
    """Number of queries of the run without judgements; they are ignored."""
    depth: int
    """The largest number of documents that the run has for an answered query."""
    beyond: list[str]
    """Measures with a cut-off larger than `depth`: the run has no documents for their last ranks."""
    judged_at: dict[int, float]
    """Cut-off -> share of judged documents up to this rank, mean over answered queries."""
    tied_at: dict[int, float]
    """Cut-off -> share of answered queries with equal scores just above and just below this rank."""
    self_hits: int
    """Number of judged queries for which the run has a document with the id of the query.

    A document that is judged for the query does not count, unless these documents were dropped.
    """
    self_dropped: bool
    """Whether these documents were removed before everything else was counted."""
    strangers: tuple[str, str] | None = None
    """A document of the run and a judged document, as examples, if the run has no judged document."""
    contradicted: int = 0
    """Number of judged queries whose ranks in the file contradict the scores, which determine the order."""


def answers(run: Run, judgements: Judgements) -> dict[str, Ranking]:
    """Return the non-empty rankings of judged queries, in the order of the judgements."""
    rankings = {query_id: run.rankings.get(query_id) for query_id in judgements}
    return {
        query_id: ranking for query_id, ranking in rankings.items() if ranking and ranking.doc_ids
    }


def without_self(run: Run) -> Run:
    """Return the run without documents that have the id of their query."""
    rankings = {}
    for query_id, ranking in run.rankings.items():
        kept = [row for row, doc_id in enumerate(ranking.doc_ids) if doc_id != query_id]
        doc_ids = [ranking.doc_ids[row] for row in kept]
        unchanged = len(doc_ids) == len(ranking.doc_ids)
        rankings[query_id] = ranking if unchanged else Ranking(doc_ids, ranking.scores[kept])
    return Run(rankings, run.tag)


def cover(
    run: Run, judgements: Judgements, cutoffs: Mapping[str, int], drop_self: bool
) -> Coverage:
    """Return the coverage of a run as it was read; `cutoffs` has each measure with a cut-off."""
    hits = sum(
        query_id in ranking.doc_ids and (drop_self or query_id not in judgements[query_id])
        for query_id, ranking in answers(run, judgements).items()
    )
    contradicted = sum(query_id in judgements for query_id in run.contradicted)
    run = without_self(run) if drop_self else run
    answered = answers(run, judgements)
    depth = max((len(ranking.doc_ids) for ranking in answered.values()), default=0)
    levels = sorted(set(cutoffs.values())) or [_DEFAULT_CUTOFF]
    return Coverage(
        judged=len(judgements),
        answered=len(answered),
        missing=[query_id for query_id in judgements if query_id not in answered],
        unjudged=sum(query_id not in judgements for query_id in run.rankings),
        depth=depth,
        beyond=[measure for measure, cutoff in cutoffs.items() if cutoff > depth],
        judged_at={
            k: _mean(
                fmean(doc_id in judgements[query_id] for doc_id in ranking.doc_ids[:k])
                for query_id, ranking in answered.items()
            )
            for k in levels
        },
        tied_at={
            k: _mean(
                float(len(ranking.scores) > k and ranking.scores[k - 1] == ranking.scores[k])
                for ranking in answered.values()
            )
            for k in levels
        },
        self_hits=hits,
        self_dropped=drop_self,
        strangers=_strangers(answered, judgements),
        contradicted=contradicted,
    )


def _strangers(answered: Mapping[str, Ranking], judgements: Judgements) -> tuple[str, str] | None:
    """Return the first document of the run and the first judged document, if no document is judged."""
    for query_id, ranking in answered.items():
        if not judgements[query_id].keys().isdisjoint(ranking.doc_ids):
            return None
    for query_id, ranking in answered.items():
        for judged in judgements[query_id]:
            return ranking.doc_ids[0], judged
    return None


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return fmean(values) if values else 0.0
