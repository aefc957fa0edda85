"""Development sets: the judged queries of collections that score a model in training."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from lmkcli.data.collection import Query, open_collection
from lmkcli.errors import DataError
from lmkcli.evaluation.measures import parse_measures
from lmkcli.evaluation.scoring import QrelSet, qrel_set_of
from lmkcli.retrieval.searching import queries_of


class DevSet(NamedTuple):
    """A collection with its judged queries, and the measure at its threshold of relevance."""

    spelling: str
    judged: QrelSet
    queries: list[Query]
    measure: Any  # of ir_measures


def read(spellings: Sequence[str], measure: str) -> tuple[DevSet, ...]:
    """Reads the judgements. UsageError for a measure that is none, DataError without judgements."""
    return tuple(_read(each, measure) for each in spellings)


def _read(spelling: str, measure: str) -> DevSet:
    parse_measures([measure])  # before a collection is read
    if not open_collection(spelling).has_qrels():
        raise DataError(
            f"--dev {spelling} has no judgements, so there is nothing to score; name a split"
        )
    judged = qrel_set_of(spelling)
    queries, _ = queries_of(spelling, False)
    return DevSet(spelling, judged, queries, parse_measures([measure], judged.rel)[0])
