"""Examples: queries with positive passages, negative passages and teacher scores.

`Example` is a single example. `Examples` holds all examples in arrays and stores each distinct text once.
"""

import hashlib
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lmkcli.store.ragged import ranges

Ints = NDArray[np.int64]


class ScoredText(NamedTuple):
    """A text, and its teacher score for the query; NaN means no score."""

    text: str
    score: float = math.nan


class Example(NamedTuple):
    """One query with its passages. `prompt` precedes the query; None selects the source's or model's."""

    id: str
    query: str
    positives: tuple[ScoredText, ...]
    negatives: tuple[ScoredText, ...] = ()
    prompt: str | None = None


class Keys(NamedTuple):
    """Keys of some examples: the example at place owners[i] has the key values[i]."""

    values: Ints
    owners: Ints


@dataclass
class Tally:
    """Counts from reading examples, for a report to the user: nothing is dropped silently."""

    read: int = 0
    empty_examples: int = 0  # no query or no positive; dropped
    repeated_examples: int = 0  # same query and positives as an earlier example; dropped
    empty_passages: int = 0  # dropped
    repeated_passages: int = 0  # same text earlier in the example; dropped
    positives_among_negatives: int = 0  # in any example of the query; dropped from the negatives
    queries_without_chunk: int = 0  # empty query, or missing chunk; dropped
    positives_not_in_collection: int = 0  # judged relevant, but missing from the collection
    queries_not_in_run: int = 0
    queries_without_negatives: int = 0
    queries_without_threshold: int = 0  # no positive has a score, so no candidate is dropped
    positives_in_run: int = 0  # dropped from the negatives
    unjudged_candidates: int = 0  # no score in the judge's run; dropped
    false_negatives: int = 0  # dropped because of their score
    unscored_passages: int = 0  # no score in the teacher's run

    def found(self) -> dict[str, int]:
        """Return the counts that are not zero, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: count for name, count in values.items() if count}


def cleaned(examples: Iterable[Example], tally: Tally) -> Iterator[Example]:
    """Yield the usable examples without empty and repeated texts.

    Negatives that are also positives are dropped. `tally` counts everything that is dropped.
    """
    seen = set()
    for example in examples:
        tally.read += 1
        positives = _distinct(example.positives, tally)
        key = hash((example.query, *sorted(positives)))
        if not positives or not example.query.strip():
            tally.empty_examples += 1
        elif key in seen:
            tally.repeated_examples += 1
        else:
            seen.add(key)
            negatives = _distinct(example.negatives, tally)
            for text in negatives.keys() & positives.keys():
                tally.positives_among_negatives += 1
                del negatives[text]
            yield example._replace(
                positives=tuple(positives.values()), negatives=tuple(negatives.values())
            )


def _distinct(passages: Sequence[ScoredText], tally: Tally) -> dict[str, ScoredText]:
    """Return the non-empty passages by text, in their order; the first of equal texts is kept."""
    by_text: dict[str, ScoredText] = {}
    for passage in passages:
        if not passage.text or passage.text.isspace():
            tally.empty_passages += 1
        elif passage.text in by_text:
            tally.repeated_passages += 1
        else:
            by_text[passage.text] = passage
    return by_text


@dataclass(frozen=True)
class Examples:
    """n examples of one or more sources over m distinct texts, in arrays.

    texts: [m] strings.
    queries: [n], the row of each query in `texts`.
    passages: [total], rows of `texts`. Example i has the entries starts[i]:starts[i+1]. Its first
        positives[i] passages are the positives.
    starts: [n + 1]; positives: [n].
    scores: [total] float32, the teacher scores of the passages; NaN means no score.
    sources: [n], the number of the source.
    ids, prompts: [n] strings.
    """

    texts: pa.LargeStringArray
    queries: Ints
    passages: Ints
    starts: Ints
    positives: Ints
    scores: NDArray[np.float32]
    sources: Ints
    ids: pa.StringArray
    prompts: pa.StringArray

    @classmethod
    def gather(cls, sources: Iterable[Iterable[Example]]) -> "Examples":
        """Collect the examples of all sources, in the order of the sources."""
        builder = _Builder()
        for number, examples in enumerate(sources):
            for example in examples:
                builder.add(number, example)
        return builder.build()

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.queries)

    def __getitem__(self, number: int) -> Example:
        """Return one example with its texts."""
        first, last = int(self.starts[number]), int(self.starts[number + 1])
        passages = [
            ScoredText(self.text(row), float(score))
            for row, score in zip(self.passages[first:last], self.scores[first:last], strict=True)
        ]
        count = int(self.positives[number])
        return Example(
            self.ids[number].as_py(),
            self.text(self.queries[number]),
            tuple(passages[:count]),
            tuple(passages[count:]),
            self.prompts[number].as_py(),
        )

    def text(self, row: int | np.int64) -> str:
        """Return one text."""
        text: str = self.texts[int(row)].as_py()
        return text

    def keys(self, numbers: Ints) -> "Keys":
        """Return the texts that two examples of a batch must not share: queries and positives."""
        counts = self.positives[numbers]
        rows = ranges(self.starts[numbers], counts)
        places = np.arange(len(numbers))
        return Keys(
            np.concatenate([self.queries[numbers], self.passages[rows]]),
            np.concatenate([places, np.repeat(places, counts)]),
        )

    def answers(self, query: int) -> Ints:
        """Return the rows of all positives of a query text, over all examples with that text."""
        first, last = np.searchsorted(self._answers[0], [query, query + 1])
        rows: Ints = self._answers[1][first:last]
        return rows

    def without_answers(self) -> tuple["Examples", Ints]:
        """Return the examples without negatives that are positives of the same query in any example.

        Also returns the source of each dropped negative.
        """
        counts = np.diff(self.starts)
        owners = np.repeat(np.arange(len(self)), counts)
        pairs = self.queries[owners] * len(self.texts) + self.passages  # one number for each pair
        dropped = ~self._positive & np.isin(pairs, pairs[self._positive])
        kept = ~dropped
        lengths = np.bincount(owners[kept], minlength=len(self))
        rest = replace(
            self,
            passages=self.passages[kept],
            scores=self.scores[kept],
            starts=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
        )
        return rest, self.sources[owners[dropped]]

    @cached_property
    def _positive(self) -> NDArray[np.bool_]:
        """The mask of positives, [total] bool."""
        counts = np.diff(self.starts)
        place = np.arange(len(self.passages)) - np.repeat(self.starts[:-1], counts)
        positive: NDArray[np.bool_] = place < np.repeat(self.positives, counts)
        return positive

    @cached_property
    def _answers(self) -> tuple[Ints, Ints]:
        """The (query row, passage row) pairs of all positives, as two arrays sorted by query row."""
        queries = np.repeat(self.queries, self.positives)
        order = np.argsort(queries, kind="stable")
        return queries[order], self.passages[self._positive][order]

    @cached_property
    def lengths(self) -> Ints:
        """The number of characters of each example's longest positive, [n]."""
        each = pc.utf8_length(self.texts).to_numpy(zero_copy_only=False)[self.passages]
        longest: Ints = np.maximum.reduceat(np.where(self._positive, each, 0), self.starts[:-1])
        return longest.astype(np.int64)

    @cached_property
    def scored(self) -> bool:
        """Whether any passage has a teacher score."""
        return bool((~np.isnan(self.scores)).any())

    @property
    def digest(self) -> str:
        """The SHA-256 of all texts, ids, prompts and arrays, in their order."""
        sha256 = hashlib.sha256()
        for strings in (self.texts, self.ids, self.prompts):
            sha256.update(repr(pc.count(strings, mode="only_null").as_py()).encode())
            for buffer in strings.buffers():
                sha256.update(buffer or b"")
        arrays = (self.queries, self.passages, self.starts, self.positives, self.sources)
        for each in (*arrays, self.scores):
            sha256.update(np.ascontiguousarray(each).data)
        return sha256.hexdigest()


class _Builder:
    """Collects examples one by one and builds the arrays of `Examples`."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._ids: list[str] = []
        self._prompts: list[str | None] = []
        self._queries, self._passages = array("q"), array("q")
        self._positives, self._counts, self._sources = array("q"), array("q"), array("q")
        self._scores = array("f")

    def add(self, source: int, example: Example) -> None:
        """Add one example."""
        self._ids.append(example.id)
        self._prompts.append(example.prompt)
        self._sources.append(source)
        self._queries.append(self._row(example.query))
        self._positives.append(len(example.positives))
        self._counts.append(len(example.positives) + len(example.negatives))
        passages = (*example.positives, *example.negatives)
        self._passages.extend([self._row(passage.text) for passage in passages])
        self._scores.extend([passage.score for passage in passages])

    def _row(self, text: str) -> int:
        return self._rows.setdefault(text, len(self._rows))

    def build(self) -> Examples:
        """Return all added examples."""
        ends = np.cumsum(np.array(self._counts, np.int64))
        return Examples(
            pa.array(list(self._rows), pa.large_string()),
            np.array(self._queries, np.int64),
            np.array(self._passages, np.int64),
            np.concatenate([np.zeros(1, np.int64), ends]),
            np.array(self._positives, np.int64),
            np.array(self._scores, np.float32),
            np.array(self._sources, np.int64),
            pa.array(self._ids, pa.string()),
            pa.array(self._prompts, pa.string()),
        )
