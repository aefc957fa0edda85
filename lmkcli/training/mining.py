"""Mining: a collection's judged queries become examples; runs give negatives and teacher scores.

Hard negatives are documents that a search ranks high for a training query and that nobody judged
relevant. Some of them are relevant all the same. They are dropped by rank, or by their score beside
that of the positive (Moreira et al. 2024, NV-Retriever, §3), in the run itself or in a judge's, such as
a cross-encoder's.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmkcli.data.collection import Collection
from lmkcli.data.run import Ranking, read_run
from lmkcli.errors import Mismatch, UsageError
from lmkcli.training.examples import Example, Passage, Tally

Scores = Mapping[str, float]


@dataclass(frozen=True)
class Mining:
    """Where negatives and teacher scores come from, and which candidates count as false negatives.

    The ranks of `depth` are those after the first number, up to the last: '10:100' is 11 … 100. With
    a judge, a margin or a highest score, a candidate is dropped whose score is above that of the
    query's best positive less both margins.
    """

    negatives: str = ""  # a run
    depth: str = ""  # first:last ranks that are taken; all of the run without it
    relative_margin: float | None = None  # of the positive's score: 0.05 keeps up to 95 % of it
    absolute_margin: float | None = None  # below the positive's score
    max_score: float | None = None  # nor above this, whatever the positive's score is
    judge: str = (
        ""  # a run whose scores decide, such as a cross-encoder's, instead of the run's own
    )
    teacher: str = ""  # a run whose scores the objective learns from

    def __post_init__(self) -> None:
        first, last = self.ranks
        if first < 0 or (last is not None and last <= first):
            raise UsageError(f"depth={self.depth}: write first:last, such as 10:100")
        if not self.negatives and (self.depth or self.judged):
            raise UsageError(
                "depth, judge and margins choose among negatives=RUN; name that run too"
            )

    @property
    def ranks(self) -> tuple[int, int | None]:
        """How many of the first ranks are passed over, and the last that is taken."""
        first, colon, last = self.depth.partition(":")
        if not colon:
            first, last = "", first
        try:
            return int(first or 0), int(last) if last else None
        except ValueError:
            raise UsageError(f"depth={self.depth}: write first:last, such as 10:100") from None

    @property
    def judged(self) -> bool:
        """Whether scores decide about candidates."""
        margins = (self.relative_margin, self.absolute_margin, self.max_score)
        return bool(self.judge) or any(margin is not None for margin in margins)


def mined(collection: Collection, mining: Mining, tally: Tally) -> Iterator[Example]:
    """An example for each query that the split judges, with all its relevant documents as positives.

    Negatives are all candidates that remain, best first; without a run, what is judged irrelevant.
    Documents are read once, and those that are needed are kept. Mismatch for a run of other queries
    or documents.
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
        kept = _passages(answers, texts, scores)
        others = _passages(negatives.get(query.id, []), texts, scores)
        tally.queries_without_negatives += bool(mining.negatives) and not others
        if mining.teacher:
            tally.unscored_passages += sum(math.isnan(each.score) for each in (*kept, *others))
        yield Example(query.id, query.text, kept, others)


def _passages(doc_ids: list[str], texts: Mapping[str, str], scores: Scores) -> tuple[Passage, ...]:
    return tuple(Passage(texts[doc_id], scores.get(doc_id, math.nan)) for doc_id in doc_ids)


def hard_negatives(
    ranking: Ranking, positives: Sequence[str], scores: Scores, mining: Mining, tally: Tally
) -> list[str]:
    """The documents of a ranking, in its order, that may be negatives of a query.

    `scores` are those that decide about false negatives.
    """
    first, last = mining.ranks
    near = ranking.doc_ids[first:last]
    candidates = [doc_id for doc_id in near if doc_id not in positives]
    tally.positives_in_run += len(near) - len(candidates)
    if not mining.judged:
        return candidates
    known = [doc_id for doc_id in candidates if doc_id in scores]
    tally.unjudged_candidates += len(candidates) - len(known)
    limit = _limit([scores[doc_id] for doc_id in positives if doc_id in scores], mining)
    tally.queries_without_threshold += limit is None
    kept = [doc_id for doc_id in known if limit is None or scores[doc_id] <= limit]
    tally.false_negatives += len(known) - len(kept)
    return kept


def _limit(positives: Sequence[float], mining: Mining) -> float | None:
    """The highest score that a negative may have; None when nothing limits it."""
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
    """Query id -> the documents judged relevant, and those judged irrelevant."""
    relevant: dict[str, list[str]] = {}
    irrelevant: dict[str, list[str]] = {}
    for query_id, doc_id, grade in collection.qrels():
        (relevant if grade > 0 else irrelevant).setdefault(query_id, []).append(doc_id)
    return relevant, irrelevant


def _run(path: str, queries: Mapping[str, object]) -> dict[str, Ranking]:
    """The rankings of these queries; {} without a path. Mismatch when it has none of them."""
    if not path:
        return {}
    rankings = read_run(Path(os.path.expanduser(path))).rankings
    judged = {query_id: ranking for query_id, ranking in rankings.items() if query_id in queries}
    if not judged:
        raise Mismatch(
            f"{path} has no query that the split judges: its first is '{next(iter(rankings), '')}', "
            f"that of the split '{next(iter(queries), '')}'; search with the queries of this split"
        )
    return judged


def _scores(ranking: Ranking | None) -> Scores:
    return dict(zip(ranking.doc_ids, ranking.scores.tolist(), strict=True)) if ranking else {}


def _texts(
    collection: Collection, positives: Mapping[str, list[str]], negatives: Mapping[str, list[str]]
) -> dict[str, str]:
    """The texts of all documents that are needed; Mismatch when a negative is not in the collection."""
    wanted = {
        doc_id for table in (positives, negatives) for ids in table.values() for doc_id in ids
    }
    texts = {doc.id: doc.content for doc in collection.docs() if doc.id in wanted}
    lost = [doc_id for ids in negatives.values() for doc_id in ids if doc_id not in texts]
    if lost:
        raise Mismatch(
            f"{len(set(lost))} documents of the run are not in {collection.name}, such as '{lost[0]}'; "
            "mine in a run over the same documents"
        )
    return texts
