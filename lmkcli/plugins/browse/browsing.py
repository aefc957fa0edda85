"""The data of the page of `lmk browse`: scores of queries, rankings of several runs, and their evidence.

`collect` makes a Browsed from scored runs. The measures are those of `lmk eval`, computed by the same code.
The size of the data has a limit: many queries are sampled, and texts are cut around their evidence.
"""

import random
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import NamedTuple

import msgspec
import regex

from lmkcli.data.collection import Collection, Doc, Qrel, Query, divided
from lmkcli.data.run import Ranking, Run, read_run
from lmkcli.errors import DataError
from lmkcli.evaluation.breakdown import (
    Key,
    Value,
    mean_lengths,
    possible_ids,
    relevant_documents,
    strata,
    words,
)
from lmkcli.evaluation.compare import compare
from lmkcli.evaluation.coverage import without_self
from lmkcli.evaluation.results import ScoredRun, best_values
from lmkcli.plugins.browse.evidence import Passages
from lmkcli.retrieval.index import Passage
from lmkcli.text.formatting import counted

DEPTH = 20  # documents of each ranking
QUERIES = 1000  # queries of a page; fewer for many runs
HITS = 100_000  # hits of a page: 1,000 queries of five runs with 20 hits each
PAGE_BYTES = 20_000_000
_REST = 500_000  # bytes for the code of the page, and the notes
_SEED = 0  # of the sample of queries
_QUERY = 1000  # characters of a query; longer ones are cut
_NAME = 300  # characters of a title
_MISSED = 20  # relevant documents of a query that no run has among its first hits
_EXCERPTS = (2000, 1400, 1000, 700, 500, 350, 240, 160, 110, 80, 60, 40, 0)  # characters of a text
_WHOLE = 240  # characters of a text that the page shows without a click
_LEAST = 60  # characters of one of several excerpts
_WORD = regex.compile(r"[\w\p{M}\p{N}]+")
# Characters that could change the surrounding text, or that JSON in UTF-8 cannot contain; one for one.
_UNSAFE = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_QUARTERS = (0.0, 25.0, 50.0, 75.0)
PLACE = "place"  # the property that passages provide


class ShownPassage(NamedTuple):
    """The chunk that decided: its number from zero, the number of chunks, and its range of characters."""

    chunk: int
    chunks: int
    begin: int
    end: int


class Excerpt(NamedTuple):
    """A piece of a document's content: the range of characters, and the text."""

    begin: int
    end: int
    text: str


class ShownHit(NamedTuple):
    """The place of a document in the ranking of one run."""

    run: int
    """Number of the run, from zero."""
    rank: int
    """From 1, in the whole run."""
    score: float
    passage: ShownPassage | None


class ShownDocument(NamedTuple):
    """One document for one query."""

    id: str
    title: str
    grade: int | None
    """None for documents without a judgement."""
    hits: list[ShownHit]
    """One for each run that contains the document."""
    chars: int | None
    """Length of the content; None if the text is unknown."""
    excerpts: list[Excerpt]


class ShownQuery(NamedTuple):
    """One query. `values`, `first` and `hits` have a value for each run."""

    id: str
    text: str
    chars: int
    """Length of the whole text."""
    values: list[list[float]]
    """One list per run, with a value for each measure."""
    first: list[int | None]
    """Rank of the first relevant document."""
    hits: list[int]
    """Number of documents."""
    relevant: int
    """Number of relevant documents in the judgements."""
    groups: list[int | None]
    """Number of the query's group, for each property."""


@dataclass(frozen=True)
class ShownRun:
    """One run: its name, its path, and its values of all measures over all judged queries.

    `best` tells which of these values are the highest of all runs.
    """

    name: str
    path: str
    values: list[float]
    best: list[bool]
    answered: int


class PairComparison(NamedTuple):
    """Two runs compared by one measure, over all judged queries."""

    baseline: int
    """Number of the run, from zero."""
    run: int
    measure: int
    difference: float
    """Mean of the run minus mean of the baseline."""
    interval: tuple[float, float]
    """95 % bootstrap interval of the difference."""
    p: float
    """Two-sided p-value of the paired randomisation test."""


@dataclass(frozen=True)
class Property:
    """A property of queries, with the names of the groups of queries."""

    name: str
    groups: list[str]


@dataclass(frozen=True)
class Overview:
    """Everything that the list of queries shows."""

    collection: str
    measures: list[str]
    runs: list[ShownRun]
    properties: list[Property]
    queries: list[ShownQuery]
    judged: int
    """Number of judged queries; more than `queries` if they are a sample."""
    depth: int
    rel: int
    """The lowest relevant grade."""
    notes: list[str]
    comparisons: list[PairComparison]
    """For each pair of runs and each measure; empty for fewer than two judged queries."""


@dataclass(frozen=True)
class Browsed:
    """The data of a page: the overview, and for each query the JSON of its ShownDocuments."""

    overview: Overview
    details: list[bytes]
    documents: int
    """Number of different documents."""
    excerpt: int
    """Number of characters that the page shows of a text, at most."""


@dataclass(frozen=True)
class Rankings:
    """The sampled queries with the rankings of each run, as scored."""

    queries: list[Query]
    runs: list[Mapping[str, Ranking]]
    depth: int

    def first(self, run: int, query_id: str) -> list[str]:
        """Return the first documents of a query."""
        ranking = self.runs[run].get(query_id)
        return ranking.doc_ids[: self.depth] if ranking else []

    def firsts(self, run: int) -> dict[str, list[str]]:
        """Query id -> the first documents."""
        return {query.id: self.first(run, query.id) for query in self.queries}


def read_rankings(
    results: Sequence[ScoredRun], texts: Mapping[str, str], depth: int, sample: int | None
) -> Rankings:
    """Read the runs again, for a sample of the judged queries in their order.

    `texts` has the texts of the queries. Without `sample`, there are at most 1,000 queries, and fewer if the
    runs would have more than 100,000 hits. The sample depends only on the ids and the number of the queries.
    """
    judged = list(results[0].by_query(next(iter(results[0].measures))))
    most = sample or max(1, min(QUERIES, HITS // (depth * len(results))))
    kept = set(judged)
    if len(judged) > most:
        kept = set(random.Random(_SEED).sample(sorted(judged), most))
    queries = [Query(name, texts.get(name, "")) for name in judged if name in kept]
    runs: list[Mapping[str, Ranking]] = []
    for each in results:
        run = read_run(each.run)
        run = Run({name: run.rankings[name] for name in run.rankings if name in kept}, run.tag)
        runs.append((without_self(run) if each.scores.coverage.self_dropped else run).rankings)
    return Rankings(queries, runs, depth)


@dataclass(frozen=True)
class Sources:
    """Texts and passages of the page, in addition to runs and judgements."""

    docs: Iterable[Doc]
    """The documents of `wanted`, in any order."""
    passages: Sequence[Passages]
    """For each run."""
    collection: Collection | None
    notes: Sequence[str]


def wanted(rankings: Rankings, qrels: Sequence[Qrel], rel: int) -> dict[str, None]:
    """Return the ids of all documents of a page, and of those that contain a judged chunk."""
    grades = grades_of(qrels)
    names: dict[str, None] = {}
    for query in rankings.queries:
        names |= dict.fromkeys(_documents(rankings, query.id, grades.get(query.id, {}), rel))
        for doc_id, grade in grades.get(query.id, {}).items():
            if grade >= rel:
                names |= dict.fromkeys(possible_ids(doc_id))
    return names


def grades_of(qrels: Iterable[Qrel]) -> dict[str, dict[str, int]]:
    """Query id -> document id -> grade."""
    grades: dict[str, dict[str, int]] = {}
    for query_id, doc_id, grade in qrels:
        grades.setdefault(query_id, {})[doc_id] = grade
    return grades


def _documents(rankings: Rankings, query_id: str, grades: Mapping[str, int], rel: int) -> list[str]:
    """Return the first hits of all runs, and the first relevant documents that are not among them."""
    names: dict[str, None] = {}
    for run in range(len(rankings.runs)):
        names |= dict.fromkeys(rankings.first(run, query_id))
    missed = [name for name, grade in grades.items() if grade >= rel and name not in names]
    return [*names, *missed[:_MISSED]]


def collect(
    results: Sequence[ScoredRun],
    rankings: Rankings,
    qrels: Sequence[Qrel],
    rel: int,
    sources: Sources,
) -> Browsed:
    """Collect the data of a page. The texts are as long as the size of the page allows."""
    grades = grades_of(qrels)
    shown: dict[str, dict[str, ShownDocument]] = {}
    needed_by: dict[str, list[Query]] = {}
    for query in rankings.queries:
        shown[query.id] = _without_texts(rankings, query.id, grades, rel, sources.passages)
        for name in shown[query.id]:
            needed_by.setdefault(name, []).append(query)
    words_of: dict[str, int] = {}
    relevant = {
        name
        for doc_ids in relevant_documents(qrels, rel).values()
        for doc_id in doc_ids
        for name in possible_ids(doc_id)
    }
    terms = {query.id: _terms(query.text) for query in rankings.queries}
    for doc in sources.docs:
        content = doc.content
        if doc.id in relevant:
            words_of[doc.id] = words(content)
        for query in needed_by.get(doc.id, ()):
            of_query = shown[query.id]
            of_query[doc.id] = _with_text(of_query[doc.id], doc, terms[query.id])
    overview = _overview(results, rankings, grades, rel, sources)
    properties, groups = _properties(rankings, qrels, rel, words_of, shown, sources.collection)
    queries = [
        each._replace(groups=of_query)
        for each, of_query in zip(overview.queries, groups, strict=True)
    ]
    notes = [*overview.notes, *_missing_texts(shown, sources.collection)]
    overview = replace(overview, properties=properties, queries=queries, notes=notes)
    room = PAGE_BYTES - _REST - len(msgspec.json.encode(overview))
    documents = [list(shown[query.id].values()) for query in rankings.queries]
    size, details = _fitting(documents, room)
    return Browsed(
        overview, details, len({each.id for of_query in documents for each in of_query}), size
    )


def _missing_texts(
    shown: Mapping[str, Mapping[str, ShownDocument]], collection: Collection | None
) -> Iterator[str]:
    """Yield a note about hits without a text: a run of another collection, or of passages with ids of their
    own.
    """
    hits = {
        each.id: each.chars
        for of_query in shown.values()
        for each in of_query.values()
        if each.hits
    }
    missing = [name for name, chars in hits.items() if chars is None]
    if missing and collection is not None:
        yield (
            f"{collection.name} has no text of {len(missing):,} of the {counted(len(hits), 'document')} that "
            f"the runs found, such as {missing[0]!r}; name the collection that was searched with --collection"
        )


def _without_texts(
    rankings: Rankings,
    query_id: str,
    grades: Mapping[str, Mapping[str, int]],
    rel: int,
    passages: Sequence[Passages],
) -> dict[str, ShownDocument]:
    of_query = grades.get(query_id, {})
    positions: list[dict[str, int]] = []
    for run in rankings.runs:
        ranking = run.get(query_id)
        doc_ids = ranking.doc_ids if ranking else []
        positions.append({name: place for place, name in enumerate(doc_ids)})
    documents = {}
    for name in _documents(rankings, query_id, of_query, rel):
        places = [of_run.get(name) for of_run in positions]
        documents[name] = ShownDocument(
            clean(name),
            "",
            of_query.get(name),
            [
                ShownHit(
                    run,
                    place + 1,
                    _rounded(rankings.runs[run][query_id].scores[place]),
                    _shown_passage(passages[run].get((query_id, name))),
                )
                for run, place in enumerate(places)
                if place is not None
            ],
            None,
            [],
        )
    return documents


def _shown_passage(passage: Passage | None) -> ShownPassage | None:
    return ShownPassage(*passage[:4]) if passage else None


def _rounded(score: float) -> float:
    """Return a score with seven digits, as many as float32 has. JSON has no infinite numbers."""
    return float(f"{max(-3.4e38, min(3.4e38, float(score))):.7g}")


def clean(text: str) -> str:
    """Return a text of the same length, without control characters; chunks are separated by new lines."""
    return _UNSAFE.sub("\ufffd", text.replace("\f", "\n").replace("\r", "\n"))


def _terms(query: str) -> frozenset[str]:
    return frozenset(word for word in _WORD.findall(query[:_QUERY].lower()) if len(word) > 2)


def _with_text(shown: ShownDocument, doc: Doc, terms: frozenset[str]) -> ShownDocument:
    content = doc.content
    places = _places(shown, len(content))
    around = [] if places else [_around(content, terms)]
    windows = _windows(places or [(around[0], around[0])], _EXCERPTS[0], len(content))
    excerpts = [
        part
        for begin, end in windows
        for part in _divided(Excerpt(begin, end, clean(content[begin:end])), around)
    ]
    title = doc.title if len(doc.title) <= _NAME else f"{doc.title[:_NAME]}…"
    return shown._replace(title=clean(title), chars=len(content), excerpts=excerpts)


def _places(shown: ShownDocument, length: int) -> list[tuple[int, int]]:
    """Return the ranges of characters of the passages, without repetitions."""
    passages = filter(None, (hit.passage for hit in shown.hits))
    return sorted({(p.begin, min(p.end, length)) for p in passages if p.begin < min(p.end, length)})


def _around(content: str, terms: frozenset[str], size: int = _WHOLE) -> int:
    """Return the place in a text with most of the query's words within `size` characters after it."""
    places = [m.start() for m in _WORD.finditer(content) if m.group().lower() in terms]
    best, most = 0, 0
    for number, place in enumerate(places):
        count = bisect_left(places, place + size) - number
        if count > most:
            best, most = place, count
    return best


def _windows(places: Sequence[tuple[int, int]], size: int, length: int) -> list[tuple[int, int]]:
    """Ranges of `size` characters in total around some ranges of a text, in order and without overlaps."""
    distinct = sorted(set(places))
    each = max(size // len(distinct), min(size, _LEAST))
    windows: list[tuple[int, int]] = []
    for begin, end in distinct:
        spare = max(0, each - (end - begin))
        first = max(0, min(begin - spare // 4, length - each))
        last = min(length, first + each)
        if windows and first <= windows[-1][1]:
            windows[-1] = (windows[-1][0], max(last, windows[-1][1]))
        else:
            windows.append((first, last))
    return windows


def _fitting(documents: Sequence[Sequence[ShownDocument]], room: int) -> tuple[int, list[bytes]]:
    """Return the longest excerpts that fit into `room` bytes: their length in characters, and the JSON."""
    count = sum(map(len, documents)) or 1
    for size in _EXCERPTS:
        texts = sum(
            min(size, sum(len(each.text) for each in shown.excerpts))
            for of_query in documents
            for shown in of_query
        )
        if texts + 40 * count > room and size:
            continue  # one byte per character is the least
        encoder = msgspec.json.Encoder()
        details = [
            encoder.encode([_shortened(shown, size) for shown in of_query])
            for of_query in documents
        ]
        if sum(map(len, details)) <= room or not size:
            return size, details
    raise AssertionError("the last size is 0")


def _shortened(shown: ShownDocument, size: int) -> ShownDocument:
    """Return the document with excerpts of `size` characters in total, divided at the
    ends of its passages.
    """
    excerpts = shown.excerpts
    if not size or not excerpts or shown.chars is None:
        return shown._replace(excerpts=[])
    places = _places(shown, shown.chars)
    if size < _EXCERPTS[0]:
        around = excerpts[-1].begin  # without a passage, the text is divided there
        windows = _windows(places or [(around, around)], size, shown.chars)
        excerpts = [part for window in windows for part in _cut(excerpts, window)]
        if size <= _WHOLE:
            excerpts = list(_joined(excerpts))
    ends = sorted({place for pair in places for place in pair})
    return shown._replace(excerpts=[part for each in excerpts for part in _divided(each, ends)])


def _cut(excerpts: Sequence[Excerpt], window: tuple[int, int]) -> Iterator[Excerpt]:
    for begin, end, text in excerpts:
        first, last = max(begin, window[0]), min(end, window[1])
        if first < last:
            yield Excerpt(first, last, text[first - begin : last - begin])


def _joined(excerpts: Iterable[Excerpt]) -> Iterator[Excerpt]:
    """Yield the excerpts, with neighbours as one: the page shows short ones from their start."""
    last: Excerpt | None = None
    for each in excerpts:
        if last and last.end == each.begin:
            last = Excerpt(last.begin, each.end, last.text + each.text)
            continue
        if last:
            yield last
        last = each
    if last:
        yield last


def _divided(excerpt: Excerpt, ends: Sequence[int]) -> Iterator[Excerpt]:
    begin, end, text = excerpt
    edges = [begin, *(each for each in ends if begin < each < end), end]
    for first, last in pairwise(edges):
        yield Excerpt(first, last, text[first - begin : last - begin])


def _title(collection: str) -> str:
    """Return the name of a collection for people: of a path, the last name, with its split."""
    name = divided(collection)[0].removeprefix("folder:")
    return name.rstrip("/").rpartition("/")[2] if name.startswith("/") else collection


def _comparisons(results: Sequence[ScoredRun]) -> list[PairComparison]:
    """Compare each pair of runs by each measure, later with earlier ones."""
    names = list(results[0].measures)
    found = []
    for (first, baseline), (second, run) in combinations(enumerate(results), 2):
        for number, name in enumerate(names):
            values = baseline.by_query(name), run.by_query(name)
            if len(values[0]) < 2 or values[0].keys() != values[1].keys():
                continue
            result = compare(*values)
            found.append(
                PairComparison(
                    first, second, number, result.difference, result.interval, result.randomisation
                )
            )
    return found


def _overview(
    results: Sequence[ScoredRun],
    rankings: Rankings,
    grades: Mapping[str, Mapping[str, int]],
    rel: int,
    sources: Sources,
) -> Overview:
    requested = list(results[0].measures)
    values = [[each.by_query(name) for name in requested] for each in results]
    means = {name: [each.value(name) for each in results] for name in requested}
    best = {name: best_values(of_runs, name) for name, of_runs in means.items()}
    queries = []
    for query in rankings.queries:
        of_query = grades.get(query.id, {})
        found = [run.get(query.id) for run in rankings.runs]
        firsts = [
            next(
                (
                    rank
                    for rank, name in enumerate(ranking.doc_ids, 1)
                    if of_query.get(name, -1) >= rel
                ),
                None,
            )
            if ranking
            else None
            for ranking in found
        ]
        queries.append(
            ShownQuery(
                clean(query.id),
                clean(query.text[:_QUERY]),
                len(query.text),
                [[measure[query.id] for measure in of_run] for of_run in values],
                firsts,
                [len(ranking.doc_ids) if ranking else 0 for ranking in found],
                sum(grade >= rel for grade in of_query.values()),
                [],
            )
        )
    return Overview(
        collection=clean(_title(results[0].collection)),
        measures=[str(results[0].measures[name]) for name in requested],
        runs=[
            ShownRun(
                clean(each.system),
                clean(str(each.run)),
                [means[name][number] for name in requested],
                [best[name][number] for name in requested],
                each.scores.coverage.answered,
            )
            for number, each in enumerate(results)
        ],
        properties=[],
        queries=queries,
        judged=results[0].scores.coverage.judged,
        depth=rankings.depth,
        rel=rel,
        notes=[clean(note) for note in sources.notes],
        comparisons=_comparisons(results),
    )


def _properties(  # noqa: PLR0913 - the sources of the properties
    rankings: Rankings,
    qrels: Sequence[Qrel],
    rel: int,
    words_of: Mapping[str, int],
    shown: Mapping[str, Mapping[str, ShownDocument]],
    collection: Collection | None,
) -> tuple[list[Property], list[list[int | None]]]:
    """Return the properties of the queries, and for each query the numbers of its groups."""
    kept = {query.id for query in rankings.queries}
    values: dict[str, Mapping[str, Value]] = {
        "length": mean_lengths(qrels, rel, words_of),
        "query-length": {q.id: float(words(q.text)) for q in rankings.queries if q.text},
    }
    for name in ("position", "language"):
        try:
            values[name] = collection.query_metadata(name) if collection else {}
        except DataError:  # a collection without queries
            values[name] = {}
    places: dict[str, Value] = {}
    for query_id, documents in shown.items():
        for each in sorted(documents.values(), key=_best_rank):
            passage = next(filter(None, (hit.passage for hit in each.hits)), None)
            relevant = each.grade is not None and each.grade >= rel
            if relevant and passage and passage.chunks > 1 and each.chars:
                places[query_id] = 50.0 * (passage.begin + passage.end) / each.chars
                break
    values[PLACE] = places
    properties: list[Property] = []
    groups: list[list[int | None]] = [[] for _ in rankings.queries]
    for name, by_query in values.items():
        keyed: dict[Key, Value] = {("", q): value for q, value in by_query.items() if q in kept}
        found = strata(keyed, _QUARTERS if name == PLACE else ()) if keyed else []
        if len(found) < 2:  # nothing to choose
            continue
        properties.append(Property(name, [clean(group.name) for group in found]))
        number = {q: place for place, group in enumerate(found) for _, q in group.queries}
        for query, of_query in zip(rankings.queries, groups, strict=True):
            of_query.append(number.get(query.id))
    return properties, groups


def _best_rank(shown: ShownDocument) -> int:
    return min((hit.rank for hit in shown.hits), default=1 << 31)
