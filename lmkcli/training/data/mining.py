"""Mining: turn the judged queries of a collection into examples; take negatives and scores from runs.

Hard negatives are documents with a high rank for a training query and no relevant judgement. Some of them
are relevant nevertheless (false negatives). Two filters drop these: the rank, and the score relative to
the positive's score (Moreira et al. 2024, NV-Retriever, §3). The scores come from the run itself or from
the run of a judge, such as a cross-encoder.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmkcli.data.collection import Collection
from lmkcli.data.run import Ranking, read_run
from lmkcli.errors import Mismatch, UsageError
from lmkcli.spec.values import is_digits
from lmkcli.training.data.examples import Example, ScoredText, Tally

Scores = Mapping[str, float]


@dataclass(frozen=True)
class Mining:
    """The sources of negatives and teacher scores, and the filters against false negatives.

    `depth` is first:last. It skips the ranks up to `first` and takes all ranks up to `last`: '10:100' takes
    ranks 11 … 100. With a judge, a margin or a maximum score, a candidate is dropped if its score is above

        min(max_score, best - relative_margin * |best| - absolute_margin),

    where `best` is the score of the query's best positive.
    """

    negatives: str = ""  # path of a run
    depth: str = ""  # first:last, the ranks to take; empty takes all ranks of the run
    relative_margin: float | None = (
        None  # share of the positive's score: 0.05 keeps up to 95 % of it
    )
    absolute_margin: float | None = None  # distance below the positive's score
    max_score: float | None = None  # upper limit, independent of the positive's score
    judge: str = ""  # path of a run with the scores for the filters, such as a cross-encoder's
    teacher: str = ""  # path of a run with the scores that the objective learns from

    def __post_init__(self) -> None:
        first, last = self.ranks
        if first < 0 or (last is not None and last <= first):
            raise UsageError(f"depth={self.depth}: write first:last, such as 10:100")
        if not self.negatives and (self.depth or self.judged):
            raise UsageError(
                "depth, judge, margins and max-score filter the negatives of a run; add negatives=RUN"
            )

    @property
    def ranks(self) -> tuple[int, int | None]:
        """The number of ranks to skip, and the last rank to take (None: all)."""
        first, colon, last = self.depth.partition(":")
        if not colon:
            first, last = "", first
        if not all(is_digits(rank or "0") for rank in (first, last)):
            raise UsageError(f"depth={self.depth}: write first:last, such as 10:100")
        return int(first or 0), int(last) if last else None

    @property
    def judged(self) -> bool:
        """Whether scores filter the candidates."""
        margins = (self.relative_margin, self.absolute_margin, self.max_score)
        return bool(self.judge) or any(margin is not None for margin in margins)


def mined(collection: Collection, mining: Mining, tally: Tally) -> Iterator[Example]:
    """Yield an example for each judged query of the split, with all its relevant documents as positives.

    The negatives are all candidates that pass the filters, best first. Without a run, they are the
    documents judged irrelevant. The collection is read once, and only the required documents stay in
    memory. Raises Mismatch if a run has other queries or documents.
    """
    positives, negatives = _judgements(collection)
    queries = [query for query in collection.queries() if query.id in positives]
    if mining.negatives:
        negatives = _from_run(positives, mining, tally)
    texts = _texts(collection, positives, negatives)
    teacher = _run(mining.teacher, positives)
    for query in queries:
        scores = _scores(teacher.get(query.id))
        answers = [doc_id for doc_id in positives[query.id] if doc_id in texts]
        tally.positives_not_in_collection += len(positives[query.id]) - len(answers)
        relevant = _passages(answers, texts, scores)
        hard = _passages(negatives.get(query.id, []), texts, scores)
        tally.queries_without_negatives += bool(mining.negatives) and not hard
        if mining.teacher:
            tally.unscored_passages += sum(math.isnan(each.score) for each in (*relevant, *hard))
        yield Example(query.id, query.text, relevant, hard)


def _passages(
    doc_ids: list[str], texts: Mapping[str, str], scores: Scores
) -> tuple[ScoredText, ...]:
    return tuple(ScoredText(texts[doc_id], scores.get(doc_id, math.nan)) for doc_id in doc_ids)


def hard_negatives(
    ranking: Ranking, positives: Sequence[str], scores: Scores, mining: Mining, tally: Tally
) -> list[str]:
    """Return the documents of a ranking that may be negatives of a query, in the order of the ranking.

    `scores` are the scores for the filters.
    """
    first, last = mining.ranks
    in_depth = ranking.doc_ids[first:last]
    candidates = [doc_id for doc_id in in_depth if doc_id not in positives]
    tally.positives_in_run += len(in_depth) - len(candidates)
    if not mining.judged:
        return candidates
    scored = [doc_id for doc_id in candidates if doc_id in scores]
    tally.unjudged_candidates += len(candidates) - len(scored)
    limit = _limit([scores[doc_id] for doc_id in positives if doc_id in scores], mining)
    tally.queries_without_threshold += limit is None
    kept = [doc_id for doc_id in scored if limit is None or scores[doc_id] <= limit]
    tally.false_negatives += len(scored) - len(kept)
    return kept


def _limit(positives: Sequence[float], mining: Mining) -> float | None:
    """Return the highest score that a negative may have; None means no limit."""
    limits = [] if mining.max_score is None else [mining.max_score]
    if positives:
        best = max(positives)
        margin = (mining.relative_margin or 0) * abs(best) + (mining.absolute_margin or 0)
        limits.append(best - margin)
    return min(limits, default=None)


def _from_run(
    positives: Mapping[str, list[str]], mining: Mining, tally: Tally
) -> dict[str, list[str]]:
    run = _run(mining.negatives, positives)
    judge = _run(mining.judge, positives) if mining.judge else run
    tally.queries_not_in_run = len(positives.keys() - run.keys())
    return {
        query_id: hard_negatives(
            ranking, positives[query_id], _scores(judge.get(query_id)), mining, tally
        )
        for query_id, ranking in run.items()
    }


def _judgements(collection: Collection) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return two maps from query id to document ids: judged relevant, and judged irrelevant."""
    relevant: dict[str, list[str]] = {}
    irrelevant: dict[str, list[str]] = {}
    for query_id, doc_id, grade in collection.qrels():
        (relevant if grade > 0 else irrelevant).setdefault(query_id, []).append(doc_id)
    return relevant, irrelevant


def _run(path: str, queries: Mapping[str, object]) -> dict[str, Ranking]:
    """Return the rankings of these queries; {} if `path` is empty. Mismatch if the run has none of them."""
    if not path:
        return {}
    rankings = read_run(Path(os.path.expanduser(path))).rankings
    judged = {query_id: ranking for query_id, ranking in rankings.items() if query_id in queries}
    if not judged:
        raise Mismatch(
            f"{path}: the run has no judged query of the split; its first query is "
            f"'{next(iter(rankings), '')}', the split's first query is '{next(iter(queries), '')}'; search "
            "with the queries of this split"
        )
    return judged


def _scores(ranking: Ranking | None) -> Scores:
    return dict(zip(ranking.doc_ids, ranking.scores.tolist(), strict=True)) if ranking else {}


def _texts(
    collection: Collection, positives: Mapping[str, list[str]], negatives: Mapping[str, list[str]]
) -> dict[str, str]:
    """Return the texts of the required documents. Raises Mismatch if the collection lacks a negative."""
    required = {
        doc_id for table in (positives, negatives) for ids in table.values() for doc_id in ids
    }
    texts = {doc.id: doc.content for doc in collection.docs() if doc.id in required}
    missing = [doc_id for ids in negatives.values() for doc_id in ids if doc_id not in texts]
    if missing:
        raise Mismatch(
            f"{collection.name}: {len(set(missing))} documents of the run are missing, such as "
            f"'{missing[0]}'; use a run over the same documents"
        )
    return texts
