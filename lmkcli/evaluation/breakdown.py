"""Breakdowns: the scores of groups of queries, grouped by length or by a property of the query.

By default, lengths are counted in words, so that systems with different tokenizers fit into one table. A word
is a run of characters between white space; each Chinese character and each kana is a word of its own.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from lmkcli.data.collection import Collection, Qrel
from lmkcli.data.known_collections import facts_of
from lmkcli.errors import DataError, UsageError
from lmkcli.evaluation.measures import aggregate
from lmkcli.evaluation.results import ScoredRun, ScoreTable
from lmkcli.progress import Progress, silent

Value = str | float
Key = tuple[str, str]  # collection, query id
_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[^\s\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+"
)
_QUANTILES = 4
_FEW = 10  # up to this many different numbers, each number is a group of its own
# The language codes in the names of the known multilingual collections ('miracl/sw/dev').
_LANGUAGES = frozenset("ar bn de en es fa fi fr hi id it ja ko pt ru sw te th yo zh".split())
_EVERY = 10_000  # documents between two reports of progress


class Stratum(NamedTuple):
    """A group of queries. The name is its range or its common value ('[512, 2048)', 'de')."""

    name: str
    queries: list[Key]


def words(text: str) -> int:
    """Return the number of words in a text."""
    return sum(1 for _ in _WORD.finditer(text))


def values_of(
    by: str, collection: Collection, qrels: Sequence[Qrel], rel: int, progress: Progress = silent
) -> dict[str, Value]:
    """Query id -> the value to group it by; queries without a value are left out.

    'length' is the rounded mean number of words of a query's relevant documents (grade `rel` and above); a
    chunk ('d7#2') has the length of its document. 'tokens:MODEL' is the same in content tokens of a model's
    tokenizer. 'query-length' is the number of words of the query.
    Any other name, such as position or language, is a field of the collection's queries. DataError if
    no query has a value.
    """
    values: dict[str, Value] = {}
    if by == "length" or by.partition(":")[0] == "tokens":
        count = words if by == "length" else token_counter(by.partition(":")[2])
        values.update(_lengths(collection, qrels, rel, count, progress))
        if not values:
            raise DataError(
                f"{collection.name} contains none of the documents that its qrels mark as relevant"
            )
    elif by == "query-length":
        values.update({query.id: float(words(query.text)) for query in collection.queries()})
    else:
        values.update(collection.query_metadata(by))
    if by == "language" and not values and facts_of(collection.name):
        # Known multilingual collections have one language each, and its code is a part of the name.
        codes = _LANGUAGES.intersection(collection.name.split(",")[0].split("/"))
        if codes:
            values.update(dict.fromkeys((qrel.query_id for qrel in qrels), min(codes)))
    if not values:
        raise DataError(
            f"the queries of {collection.name} have no {by}: break down by length or query-length, "
            f"or write a field '{by}' into each record of the queries"
        )
    return values


def token_counter(model: str) -> Callable[[str], int]:
    """Return a function that counts the content tokens of a text. Raises UsageError without a model."""
    if not model:
        raise UsageError("--by tokens: name the model of the tokenizer, such as --by tokens:minilm")
    from lmkcli.encoding.resolution import resolve  # here: reading tokenizers takes time
    from lmkcli.models.tokenizer_folder import open_tokenizer
    from lmkcli.spec.recipe import RecipeOptions

    resolved = resolve(RecipeOptions(model=model))
    tokenizer = open_tokenizer(resolved.folder, resolved.recipe.doc)
    return lambda text: len(tokenizer([text])[0].ids)


def _lengths(
    collection: Collection,
    qrels: Sequence[Qrel],
    rel: int,
    count: Callable[[str], int],
    progress: Progress,
) -> dict[str, float]:
    """Query id -> mean length of the relevant documents that the collection contains."""
    wanted = {
        name
        for doc_ids in relevant_documents(qrels, rel).values()
        for doc_id in doc_ids
        for name in possible_ids(doc_id)
    }
    words_of: dict[str, int] = {}
    docs = collection.docs()
    for number, doc in enumerate(docs, 1):
        if doc.id in wanted:
            words_of[doc.id] = count(doc.content)
        if number % _EVERY == 0:
            progress(number, docs.total, "documents")
        if len(words_of) == len(wanted):
            break
    return mean_lengths(qrels, rel, words_of)


def relevant_documents(qrels: Sequence[Qrel], rel: int) -> dict[str, list[str]]:
    """Query id -> the documents with grade `rel` or higher."""
    relevant: dict[str, list[str]] = {}
    for query_id, doc_id, grade in qrels:
        if grade >= rel:
            relevant.setdefault(query_id, []).append(doc_id)
    return relevant


def mean_lengths(qrels: Sequence[Qrel], rel: int, words_of: Mapping[str, int]) -> dict[str, float]:
    """Query id -> mean number of words of its relevant documents, as a whole number, so that bins are whole.

    `words_of` is document id -> words.
    """
    means = {}
    for query_id, doc_ids in relevant_documents(qrels, rel).items():
        lengths = []
        for doc_id in doc_ids:
            found = [words_of[name] for name in possible_ids(doc_id) if name in words_of]
            lengths += found[:1]
        if lengths:
            means[query_id] = float(round(sum(lengths) / len(lengths)))
    return means


def possible_ids(doc_id: str) -> list[str]:
    """Return the judged id, and the id of the document if it is the id of a chunk ('d7#2' is in d7)."""
    return list(filter(None, (doc_id, doc_id.rpartition("#")[0])))


def strata(values: Mapping[Key, Value], edges: Sequence[float] = ()) -> list[Stratum]:
    """Return the queries in groups: a group for each text, or bins of numbers.

    A bin [a, b) contains a <= x < b. With `edges`, the last bin has no upper limit. Without edges, the bins
    are the quartiles of the queries, or single numbers if there are at most ten different numbers. Empty
    bins and queries below the first edge are left out. Raises UsageError for edges with values that are
    texts, for edges that do not rise, and for edges above all values.
    """
    numbers = _numbers(values)
    if edges and numbers is None:
        example = next(iter(values.values()))
        raise UsageError(f"--bins are for numbers, but the values are texts ('{example}')")
    if not all(low < high for low, high in pairwise(edges)):
        raise UsageError("--bins must rise from each number to the next, as in 0,512,2048,8192")
    if numbers is None:
        by_text: dict[str, list[Key]] = {}
        for key, value in values.items():
            by_text.setdefault(str(value), []).append(key)
        return [Stratum(text, by_text[text]) for text in sorted(by_text)]
    if not edges and len(set(numbers.values())) <= _FEW:
        by_number: dict[float, list[Key]] = {}
        for key, number in numbers.items():
            by_number.setdefault(number, []).append(key)
        return [Stratum(_shown(number), by_number[number]) for number in sorted(by_number)]
    return _bins(numbers, edges)


def _numbers(values: Mapping[Key, Value]) -> dict[Key, float] | None:
    """Convert the values to numbers. Returns None if a value is not a number."""
    try:
        numbers = {key: float(value) for key, value in values.items()}
    except (ValueError, OverflowError):
        return None
    return numbers if all(map(math.isfinite, numbers.values())) else None


def _bins(numbers: Mapping[Key, float], edges: Sequence[float]) -> list[Stratum]:
    data = list(numbers.values())
    quarters = np.quantile(data, np.arange(_QUANTILES) / _QUANTILES, method="higher")
    lows = list(edges) or sorted(set(quarters.tolist()))
    strata = []
    for low, high in pairwise([*lows, math.inf]):
        end = f"{_shown(max(data))}]" if math.isinf(high) and not edges else f"{_shown(high)})"
        queries = [key for key, value in numbers.items() if low <= value < high]
        strata.append(Stratum(f"[{_shown(low)}, {end}", queries))
    if not any(group.queries for group in strata):
        raise UsageError(
            f"the first of --bins is {_shown(lows[0])}, but the largest value of a query is "
            f"{_shown(max(data))}: give lower bins"
        )
    return [group for group in strata if group.queries]


def _shown(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.6g}" if value < 1e6 else f"{value:.0f}"


def score_groups(
    results: Iterable[ScoredRun], groups: Sequence[Stratum], requested: str
) -> ScoreTable:
    """Return a table of systems x groups for one measure: the mean over a group's queries (a sum for counts).

    Each query has the same weight, independent of its collection. The value is None if a system has no run
    on a collection of the group.
    """
    values: dict[str, dict[Key, float]] = {}
    for each in results:
        keyed = {(each.collection, q): value for q, value in each.by_query(requested).items()}
        values.setdefault(each.system, {}).update(keyed)
        measure = each.measures[requested]
    rows = {
        system: [
            aggregate(measure, (by_query[key] for key in group.queries))
            if all(key in by_query for key in group.queries)
            else None
            for group in groups
        ]
        for system, by_query in values.items()
    }
    return ScoreTable(requested, [group.name for group in groups], rows)
