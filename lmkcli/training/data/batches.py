"""Batches: the stream of training batches of one process, with model inputs and batch facts.

Batch facts are the groups, teacher scores and excluded pairs of the passages of a batch. Passages are
ordered by query, and the positive of each query comes first. Each process holds a contiguous share of the
batch, so concatenating the shares in process order restores the whole batch.

Batches of documents in chunks train late chunking (InSeNT, Conti et al. 2025, §4). A document is one input
of the model and gives one vector for each chunk that is not truncated.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from lmkcli.data.collection import CHUNK_BREAK, WHOLE, Shard
from lmkcli.errors import DataError
from lmkcli.pooling.placement import Placement
from lmkcli.store.ragged import ranges
from lmkcli.system.item_streams import prefetch
from lmkcli.training.data.contextual import ChunkQuery, Document, Documents, chunk_facts
from lmkcli.training.data.examples import Examples, Ints
from lmkcli.training.data.inputs import PlacedTexts, Skipping, TrainingSide
from lmkcli.training.data.sampling import (
    Drawing,
    Drawn,
    ExampleBatch,
    Sampled,
    Sampling,
    batches,
    seeded_rng,
)
from lmkcli.training.objectives.objective import BatchFacts


class TeacherTexts(NamedTuple):
    """Texts for the teacher, and the maximum number of tokens of each."""

    texts: list[str]
    tokens: list[int]


class TrainBatch(NamedTuple):
    """The part of a training step that one process runs.

    `facts` describe the whole batch and are the same in all processes. `query_texts` and `passage_texts`
    are the local texts for a teacher; without a teacher, they are empty.
    """

    step: int
    examples: list[str]  # ids of the local examples, for messages
    queries: PlacedTexts
    passages: PlacedTexts
    facts: BatchFacts
    query_texts: TeacherTexts = TeacherTexts([], [])
    passage_texts: TeacherTexts = TeacherTexts([], [])

    @property
    def tokens(self) -> int:
        """The number of positions that the model processes."""
        return self.queries.tokens + self.passages.tokens

    @property
    def cut(self) -> dict[str, int]:
        """How many queries and documents lost tokens, because they are too long."""
        return {"cut_queries": self.queries.cut, "cut_documents": self.passages.cut}

    @property
    def longest(self) -> int:
        """The number of positions of the longest input."""
        return max(len(one.ids) for one in (*self.queries.inputs, *self.passages.inputs))


class SourceSides(NamedTuple):
    """The settings for drawing and placing the texts of one source."""

    drawing: Drawing
    query: TrainingSide
    passage: TrainingSide
    name: str = ""


class MakeBatch(Protocol):
    """The interface that turns the examples of a batch into model inputs for one process."""

    @property
    def sides(self) -> Sequence[SourceSides]:
        """The settings of each source."""

    def __call__(self, batch: ExampleBatch) -> TrainBatch:
        """Return the inputs of this process and the facts of the whole batch."""


MakerType = TypeVar("MakerType", bound=Callable[[ExampleBatch], Any])


@dataclass(frozen=True)
class Feed(Generic[MakerType]):
    """The batches from step `start` to step `steps`. They depend only on data, settings and seed.

    `place` turns the example numbers of a batch into the inputs of this process.
    """

    examples: Sampled
    weights: Sequence[float]
    sampling: Sampling
    place: MakerType
    steps: int
    start: int = 0

    def __len__(self) -> int:
        """Return the number of steps of the whole training, including those before `start`."""
        return self.steps

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches; a background thread prepares them ahead."""
        return prefetch(self.batches(), 2)

    def batches(self) -> Iterator[Any]:
        """Iterate over the batches and prepare each one on request."""
        sampled = batches(self.examples, self.weights, self.sampling, self.start)
        return (self.place(batch) for batch in islice(sampled, max(0, self.steps - self.start)))


@dataclass(frozen=True)
class PairBatches:
    """Places queries and their passages.

    Process `shard.number` of `shard.count` tokenizes and places only its share of the batch.
    """

    examples: Examples
    sides: Sequence[SourceSides]  # one for each source
    seed: int
    skipping: Skipping = field(default_factory=Skipping)
    shard: Shard = WHOLE
    has_teacher: bool = False  # whether the batch needs the texts for a teacher

    def __call__(self, batch: ExampleBatch) -> TrainBatch:
        """Return this process's share of the batch.

        Passages, granularities and gaps are drawn for the whole batch, so they do not depend on the number
        of processes.
        """
        drawn = [self._drawn(*pair) for pair in zip(batch.examples, batch.epochs, strict=True)]
        rows = self.shard.rows(len(drawn))
        local = drawn[rows.start : rows.stop]
        before = sum(len(one.passages) for one in drawn[: rows.start])
        total = sum(len(one.passages) for one in drawn)
        owners = [one.example for one in local for _ in one.passages]
        queries = _Texts([one.query for one in local], [one.example for one in local], "query")
        passages = _Texts([row for one in local for row in one.passages], owners, "passage")
        draws = {
            "query": self._uniform("query granularity", batch.step, len(drawn))[rows.start :],
            "passage": self._uniform("passage granularity", batch.step, total)[before:],
        }
        placed, grans, cut = self._placements(passages, draws["passage"])
        gaps = self._uniform("positions", batch.step, 3 * total).reshape(-1, 3)
        return TrainBatch(
            batch.step,
            [self._label(one.example) for one in local],
            PlacedTexts.of(*self._placements(queries, draws["query"])),
            PlacedTexts.of(
                [self.skipping(p, gaps[before + i]) for i, p in enumerate(placed)], grans, cut
            ),
            pair_facts(self.examples, drawn),
            *(
                (self._teacher_texts(queries), self._teacher_texts(passages))
                if self.has_teacher
                else ()
            ),
        )

    def _teacher_texts(self, texts: "_Texts") -> TeacherTexts:
        sources = self.examples.sources[texts.examples].tolist()
        limits = [getattr(self.sides[source], texts.side).reads for source in sources]
        return TeacherTexts([self.examples.text(row) for row in texts.rows], limits)

    def _label(self, example: int) -> str:
        """Return the source and the id of an example, for messages."""
        source = self.sides[int(self.examples.sources[example])].name
        return f"{source} {self.examples.ids[example].as_py()}".strip()

    def _drawn(self, example: np.int64, epoch: np.int64) -> Drawn:
        drawing = self.sides[int(self.examples.sources[example])].drawing
        return drawing.draw(self.examples, int(example), int(epoch), self.seed)

    def _uniform(self, purpose: str, step: int, count: int) -> NDArray[np.float64]:
        """Draw `count` uniform numbers of [0, 1) for the texts of the whole batch."""
        return seeded_rng(self.seed, purpose, step).random(count)

    def _placements(
        self, texts: "_Texts", uniform: NDArray[np.float64]
    ) -> tuple[list[Placement], list[str], int]:
        """Place the texts of one side with the settings of their sources.

        `uniform` [texts] selects the granularity of each text. Returns placements, granularities, and the
        number of texts that lost tokens.
        """
        sources = self.examples.sources[texts.examples]
        placements: dict[int, Placement] = {}
        grans: dict[int, str] = {}
        cut = 0
        for source in dict.fromkeys(sources.tolist()):
            side: TrainingSide = getattr(self.sides[source], texts.side)
            rows = np.flatnonzero(sources == source).tolist()
            draws = [int(uniform[row] * len(side.placers)) for row in rows]
            prompts = [self._prompt(texts, row) for row in rows]
            words = [self.examples.text(texts.rows[row]) for row in rows]
            placed, cut_here = side.placements(words, prompts, draws)
            placements |= zip(rows, placed, strict=True)
            cut += cut_here
            grans |= {row: side.placers[draw].gran for row, draw in zip(rows, draws, strict=True)}
        every = range(len(texts.rows))
        return [placements[row] for row in every], [grans[row] for row in every], cut

    def _prompt(self, texts: "_Texts", row: int) -> str | None:
        """Return the prompt of an example's query; None selects the prompt of the source or model."""
        if texts.side != "query":
            return None
        prompt: str | None = self.examples.prompts[texts.examples[row]].as_py()
        return prompt


class _Texts(NamedTuple):
    """The rows of some texts, the example of each, and their side."""

    rows: list[int]
    examples: list[int]
    side: Literal["query", "passage"]


def pair_facts(examples: Examples, drawn: Sequence[Drawn]) -> BatchFacts:
    """Return the groups, teacher scores and excluded pairs of a whole batch.

    A pair of a query and a passage of another query is excluded in these cases:
    - The passage's text answers this query too.
    - The passage's text is also among this query's own passages.
    - The passage's text occurs earlier in the batch.
    """
    counts = np.array([len(each.passages) for each in drawn])
    present = np.arange(counts.max()) < counts[:, None]
    groups = np.full(present.shape, -1)
    groups[present] = np.arange(counts.sum())
    teacher = np.full(present.shape, np.nan, np.float32)
    teacher[present] = np.concatenate([each.scores for each in drawn])
    excluded = _excluded(examples, drawn)
    owners = np.repeat(np.arange(len(drawn)), counts)
    excluded[owners, np.arange(len(owners))] = False
    return BatchFacts(
        torch.from_numpy(groups),
        torch.from_numpy(teacher) if examples.scored else None,
        torch.from_numpy(excluded),
    )


def _excluded(examples: Examples, drawn: Sequence[Drawn]) -> NDArray[np.bool_]:
    """Return the pairs with a passage text that answers the query or is repeated, [Q, N] bool.

    Pairs of a query and its own passages may be True here; the caller clears them. The N text numbers are
    sorted once, so a binary search finds the texts of each query.
    """
    columns = np.concatenate(
        [each.passages for each in drawn]
    )  # [N]: the text number of each passage
    order = np.argsort(columns, kind="stable")
    ordered = columns[order]
    repeated = np.zeros(len(columns), bool)
    repeated[order[1:]] = ordered[1:] == ordered[:-1]
    excluded = np.tile(repeated, (len(drawn), 1))
    answers = [np.append(each.passages, examples.answers(each.query)) for each in drawn]
    rows = np.concatenate(answers)
    starts = np.searchsorted(ordered, rows, "left")
    counts = np.searchsorted(ordered, rows, "right") - starts
    queries = np.repeat(np.arange(len(drawn)), [len(each) for each in answers])
    excluded[np.repeat(queries, counts), order[ranges(starts, counts)]] = True
    return excluded


@dataclass(frozen=True)
class ChunkBatches:
    """Places documents and the queries that their chunks answer.

    Every process places the whole batch, because truncation changes the batch facts. It runs only its share.
    """

    documents: Documents
    sides: Sequence[SourceSides]  # one for each source
    shard: Shard = WHOLE

    def __call__(self, batch: ExampleBatch) -> TrainBatch:
        """Return this process's share. Raises DataError if every gold chunk of the batch is truncated."""
        placed = [self._placed(int(number)) for number in batch.examples]
        kept = [each.document for each in placed]
        if not any(document.queries for document in kept):
            raise DataError(
                f"step {batch.step}: every chunk that answers a query is truncated; raise --max-length"
            )
        rows = self.shard.rows(len(placed))
        local = slice(rows.start, rows.stop)
        sources = self.documents.sources[batch.examples][local]
        asked = [
            self._queries(document, self.sides[source].query)
            for document, source in zip(kept[local], sources, strict=True)
        ]
        queries = [placement for placements, _ in asked for placement in placements]
        return TrainBatch(
            batch.step,
            [document.id for document in kept[local]],
            PlacedTexts.of(queries, [""] * len(queries), sum(cut for _, cut in asked)),
            _by_chunk(placed[local]),
            chunk_facts(kept),
        )

    def _placed(self, number: int) -> "_PlacedDocument":
        """Return the document with only the chunks that have a vector, and its inputs."""
        document, side = self.documents[number], self.sides[self.documents.sources[number]].passage
        nonempty = np.flatnonzero([bool(chunk.strip()) for chunk in document.chunks])
        text = CHUNK_BREAK.join(document.chunks[i] for i in nonempty)
        placement, numbers, is_cut = side.place_chunk_text(text)
        chunks, counts = np.unique(numbers, return_counts=True)
        return _PlacedDocument(_selected(document, nonempty[chunks]), placement, counts, is_cut)

    def _queries(self, document: Document, side: TrainingSide) -> tuple[list[Placement], int]:
        texts = [each.query for each in document.queries]
        return side.placements(texts, [None] * len(texts), [0] * len(texts)) if texts else ([], 0)


def _selected(document: Document, numbers: Ints) -> Document:
    """Return the document with only the chunks `numbers`, and the queries that they answer."""
    places = {int(number): place for place, number in enumerate(numbers)}
    queries = [
        ChunkQuery(each.query, places[each.chunk])
        for each in document.queries
        if each.chunk in places
    ]
    chunks = tuple(document.chunks[int(number)] for number in numbers)
    return Document(document.id, chunks, tuple(queries))


class _PlacedDocument(NamedTuple):
    """A document with its inputs.

    vectors: the number of vectors of each of its chunks: one, or one for each token. is_cut: whether the
    document lost tokens.
    """

    document: Document
    placement: Placement
    vectors: Ints
    is_cut: bool


def _by_chunk(placed: Sequence[_PlacedDocument]) -> PlacedTexts:
    """Combine documents; count every chunk as one text."""
    cut = sum(each.is_cut for each in placed)
    texts = PlacedTexts.of([each.placement for each in placed], [""] * len(placed), cut)
    counts = np.concatenate([np.zeros(0, np.int64), *(each.vectors for each in placed)])
    return texts._replace(counts=torch.from_numpy(counts), grans=["given"] * len(counts))
