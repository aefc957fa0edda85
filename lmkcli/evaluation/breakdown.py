"""Which queries a system answers well: by the length of what answers them, or by what they are.

Lengths are counted in words, so that systems with different tokenizers can stand in one table: runs
of characters between white space, and each Chinese character and kana by itself.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from lmkcli.data.collection import Collection, Qrel
from lmkcli.data.known import facts_of
from lmkcli.errors import DataError, UsageError
from lmkcli.evaluation.measures import aggregate
from lmkcli.evaluation.results import Grid, Result
from lmkcli.progress import Progress, silent

Value = str | float
Key = tuple[str, str]  # collection, query id
_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[^\s\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+"
)
_QUANTILES = 4
_FEW = 10  # this many different numbers are shown one by one
# The codes in the names of the known collections of several languages ('miracl/sw/dev').
_LANGUAGES = frozenset("ar bn de en es fa fi fr hi id it ja ko pt ru sw te th yo zh".split())
_EVERY = 10_000


class Stratum(NamedTuple):
    """Queries that have something in common, and what it is ('[512, 2048)', 'de')."""

    name: str
    queries: list[Key]


def words(text: str) -> int:
    """How many words a text has."""
    return sum(1 for _ in _WORD.finditer(text))


def values_of(
    by: str, collection: Collection, qrels: Sequence[Qrel], rel: int, progress: Progress = silent
) -> dict[str, Value]:
    """Query id -> its value; queries without one are left out.

    'length': words of a query's relevant documents (grade `rel` and above), their mean; a chunk
    ('d7#2') has the length of its document.
    'query-length': words of the query. Any other name: what the collection says of its queries under
    it, such as position or language. DataError when it says nothing.
    """
    values: dict[str, Value] = {}
    if by == "length":
        values.update(_lengths(collection, qrels, rel, progress))
    elif by == "query-length":
        values.update({query.id: float(words(query.text)) for query in collection.queries()})
    else:
        values.update(collection.query_facts(by))
    language = _language(collection.name) if by == "language" else ""
    if language and not values:
        values.update(dict.fromkeys((qrel.query_id for qrel in qrels), language))
    if not values and by == "length":
        raise DataError(
            f"{collection.name} holds none of the documents that its qrels call relevant"
        )
    if not values:
        raise DataError(
            f"{collection.name} says nothing about the {by} of its queries: break down by length or "
            f"query-length, or write a field '{by}' into each record of its queries"
        )
    return values


def _lengths(
    collection: Collection, qrels: Sequence[Qrel], rel: int, progress: Progress
) -> dict[str, float]:
    relevant: dict[str, list[str]] = {}
    for query_id, doc_id, grade in qrels:
        if grade >= rel:
            relevant.setdefault(query_id, []).append(doc_id)
    wanted = {
        name for doc_ids in relevant.values() for doc_id in doc_ids for name in _names(doc_id)
    }
    words_of: dict[str, int] = {}
    for number, doc in enumerate(collection.docs(), 1):
        if doc.id in wanted:
            words_of[doc.id] = words(doc.content)
        if number % _EVERY == 0:
            progress(number, None, "docs")
        if len(words_of) == len(wanted):
            break
    lengths = {
        query_id: [
            next(words_of[name] for name in _names(doc_id) if name in words_of)
            for doc_id in doc_ids
            if not words_of.keys().isdisjoint(_names(doc_id))
        ]
        for query_id, doc_ids in relevant.items()
    }
    return {query_id: sum(each) / len(each) for query_id, each in lengths.items() if each}


def _names(doc_id: str) -> list[str]:
    """A document's id, and that of the document whose chunk it may be ('d7#2' is in d7)."""
    return list(filter(None, (doc_id, doc_id.rpartition("#")[0])))


def _language(name: str) -> str:
    codes = _LANGUAGES.intersection(name.split(",")[0].split("/")) if facts_of(name) else set()
    return min(codes, default="")


def strata(values: Mapping[Key, Value], edges: Sequence[float] = ()) -> list[Stratum]:
    """The queries in groups: texts by themselves, numbers in bins.

    A bin [a, b) holds a <= x < b, and the last of given `edges` is open; without edges there are the
    four quarters of the queries, or one group for each number where there are at most ten. A bin
    that no query falls into is left out, and so are queries below the first edge. UsageError when
    edges are given for texts, do not rise, or are above all queries.
    """
    numbers = _numbers(values)
    if edges and numbers is None:
        example = next(iter(values.values()))
        raise UsageError(f"--bins are for numbers, and here the values are texts ('{example}')")
    if not all(low < high for low, high in pairwise(edges)):
        raise UsageError("--bins must rise from each number to the next, as in 0,512,2048,8192")
    if numbers is None:
        return _groups({key: str(value) for key, value in values.items()})
    if not edges and len(set(numbers.values())) <= _FEW:
        return _groups(dict(sorted(numbers.items(), key=lambda item: item[1])))
    return _bins(numbers, edges)


def _numbers(values: Mapping[Key, Value]) -> dict[Key, float] | None:
    """The values as numbers (a table has them as text), None unless all are."""
    try:
        numbers = {key: float(value) for key, value in values.items()}
    except ValueError:
        return None
    return numbers if all(map(math.isfinite, numbers.values())) else None


def _groups(values: Mapping[Key, Value]) -> list[Stratum]:
    """One group for each value: numbers as they come, texts in alphabetical order."""
    groups: dict[Value, list[Key]] = {}
    for key, value in values.items():
        groups.setdefault(value, []).append(key)
    if any(isinstance(value, str) for value in groups):
        groups = dict(sorted(groups.items(), key=lambda item: str(item[0])))
    return [
        Stratum(value if isinstance(value, str) else _number(value), queries)
        for value, queries in groups.items()
    ]


def _bins(numbers: Mapping[Key, float], edges: Sequence[float]) -> list[Stratum]:
    data = list(numbers.values())
    quarters = np.quantile(data, np.arange(_QUANTILES) / _QUANTILES, method="higher")
    lows = list(edges) or sorted(set(quarters.tolist()))
    strata = []
    for low, high in pairwise([*lows, math.inf]):
        end = f"{_number(max(data))}]" if math.isinf(high) and not edges else f"{_number(high)})"
        queries = [key for key, value in numbers.items() if low <= value < high]
        strata.append(Stratum(f"[{_number(low)}, {end}", queries))
    if not any(group.queries for group in strata):
        raise UsageError(
            f"--bins begin at {_number(lows[0])}, and no query has that much: the largest value is "
            f"{_number(max(data))}"
        )
    return [group for group in strata if group.queries]


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.6g}" if value < 1e6 else f"{value:.0f}"


def grid(results: Iterable[Result], groups: Sequence[Stratum], asked: str) -> Grid:
    """Systems x groups for one measure: the mean over a group's queries (or the sum, of counts).

    Queries of all collections count alike. None where a system lacks a collection of the group.
    """
    values: dict[str, dict[Key, float]] = {}
    for each in results:
        keyed = {(each.collection, q): value for q, value in each.by_query(asked).items()}
        values.setdefault(each.system, {}).update(keyed)
        measure = each.measures[asked]
    rows = {
        system: [
            aggregate(measure, (by_query[key] for key in group.queries))
            if all(key in by_query for key in group.queries)
            else None
            for group in groups
        ]
        for system, by_query in values.items()
    }
    return Grid(asked, [group.name for group in groups], rows)
