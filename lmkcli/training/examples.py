"""Examples: queries with passages that answer them, passages that do not, and a teacher's scores.

`Example` is one of them; `Examples` are all, each text held once, however many queries it is a
negative of.
"""

import hashlib
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lmkcli.store.ragged import ranges

Ints = NDArray[np.int64]


class Passage(NamedTuple):
    """A text, and what a teacher gives it for the query; NaN where the teacher was not asked."""

    text: str
    score: float = math.nan


class Example(NamedTuple):
    """One query. `prompt` comes before it; None leaves that to the source or the model."""

    id: str
    query: str
    positives: tuple[Passage, ...]
    negatives: tuple[Passage, ...] = ()
    prompt: str | None = None


class Keys(NamedTuple):
    """Numbers of things that examples have: example owners[i] of those asked about has values[i]."""

    values: Ints
    owners: Ints


@dataclass
class Tally:
    """What was found while examples were read, to be shown: nothing is left out in silence."""

    read: int = 0
    empty_examples: int = 0  # without a query or without a positive: left out
    repeated_examples: int = 0  # the same query and positives as one before: left out
    empty_passages: int = 0  # left out
    repeated_passages: int = 0  # twice in one example: once left out
    positives_among_negatives: int = 0  # left out of the negatives
    queries_without_chunk: int = 0  # empty, or the document has no such chunk: left out
    positives_not_in_collection: int = 0  # judged relevant, but there is no such document
    queries_not_in_run: int = 0
    queries_without_negatives: int = 0
    queries_without_threshold: int = 0  # no positive has a score, so none drops a candidate
    positives_in_run: int = 0  # left out of the negatives
    unjudged_candidates: int = 0  # the judge's run does not score them: left out
    false_negatives: int = 0  # left out for their score
    unscored_passages: int = 0  # the teacher's run does not score them

    def found(self) -> dict[str, int]:
        """What is not zero, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: count for name, count in values.items() if count}


def cleaned(examples: Iterable[Example], tally: Tally) -> Iterator[Example]:
    """The examples that can be learned from, without what is empty or there already.

    A negative that is among the positives goes. Everything left out is counted in `tally`.
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
            others = _distinct(example.negatives, tally)
            for text in others.keys() & positives.keys():
                tally.positives_among_negatives += 1
                del others[text]
            yield example._replace(
                positives=tuple(positives.values()), negatives=tuple(others.values())
            )


def _distinct(passages: Sequence[Passage], tally: Tally) -> dict[str, Passage]:
    """By text, in their order; of equal ones the first, and none that is empty."""
    by_text: dict[str, Passage] = {}
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
    """n examples of one or more sources over m different texts, in arrays.

    texts: [m] strings; queries: [n], the row of each query's text; passages: [total], rows, those of
    example i at starts[i]:starts[i+1], its `positives[i]` positives first; scores: [total] float32,
    NaN where there is none; sources: [n], the number of the source; ids, prompts: [n] strings.
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
        """The examples of the sources, one source after the other."""
        gathering = _Gathering()
        for number, examples in enumerate(sources):
            for example in examples:
                gathering.add(number, example)
        return gathering.done()

    def __len__(self) -> int:
        """How many there are."""
        return len(self.queries)

    def __getitem__(self, number: int) -> Example:
        """One example, with its texts."""
        first, last = int(self.starts[number]), int(self.starts[number + 1])
        passages = [
            Passage(self.text(row), float(score))
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
        """One text."""
        text: str = self.texts[int(row)].as_py()
        return text

    def keys(self, numbers: Ints) -> "Keys":
        """The texts that examples of a batch should not share: their queries and positives."""
        counts = self.positives[numbers]
        rows = ranges(self.starts[numbers], counts)
        places = np.arange(len(numbers))
        return Keys(
            np.concatenate([self.queries[numbers], self.passages[rows]]),
            np.concatenate([places, np.repeat(places, counts)]),
        )

    def answers(self, query: int) -> Ints:
        """The texts of all positives that a query's text has, in any example."""
        first, last = np.searchsorted(self._answers[0], [query, query + 1])
        rows: Ints = self._answers[1][first:last]
        return rows

    @cached_property
    def _positive(self) -> NDArray[np.bool_]:
        """[total]: which passages are positives."""
        counts = np.diff(self.starts)
        place = np.arange(len(self.passages)) - np.repeat(self.starts[:-1], counts)
        positive: NDArray[np.bool_] = place < np.repeat(self.positives, counts)
        return positive

    @cached_property
    def _answers(self) -> tuple[Ints, Ints]:
        """The text of the query and of the passage for each positive, by query."""
        asked = np.repeat(self.queries, self.positives)
        order = np.argsort(asked, kind="stable")
        return asked[order], self.passages[self._positive][order]

    @cached_property
    def lengths(self) -> Ints:
        """[n]: characters of each example's longest positive."""
        each = pc.utf8_length(self.texts).to_numpy(zero_copy_only=False)[self.passages]
        longest: Ints = np.maximum.reduceat(np.where(self._positive, each, 0), self.starts[:-1])
        return longest.astype(np.int64)

    @cached_property
    def scored(self) -> bool:
        """Whether any passage has a teacher's score."""
        return bool((~np.isnan(self.scores)).any())

    @property
    def digest(self) -> str:
        """SHA-256 of everything that decides what is learned, in its order."""
        sha256 = hashlib.sha256()
        for strings in (self.texts, self.ids, self.prompts):
            sha256.update(repr(pc.count(strings, mode="only_null").as_py()).encode())
            for buffer in strings.buffers():
                sha256.update(buffer or b"")
        arrays = (self.queries, self.passages, self.starts, self.positives, self.sources)
        for each in (*arrays, self.scores):
            sha256.update(np.ascontiguousarray(each).data)
        return sha256.hexdigest()


class _Gathering:
    """Examples as they come in, until they are packed."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._ids: list[str] = []
        self._prompts: list[str | None] = []
        self._queries, self._passages = array("q"), array("q")
        self._positives, self._counts, self._sources = array("q"), array("q"), array("q")
        self._scores = array("f")

    def add(self, source: int, example: Example) -> None:
        """Take one in."""
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

    def done(self) -> Examples:
        """All of them, packed."""
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
