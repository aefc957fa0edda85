"""Feeding: the stream of training batches of one process, with inputs and batch facts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import WHOLE, Shard
from lmkcli.pooling.placement import Placement
from lmkcli.system.streams import ahead
from lmkcli.training.batch_facts import facts
from lmkcli.training.chance import seeded_rng
from lmkcli.training.drawing import Drawing, Drawn
from lmkcli.training.examples import Examples
from lmkcli.training.objective import BatchFacts
from lmkcli.training.placing import Placed, TrainingSide
from lmkcli.training.sampling import Batch, Sampled, Sampling, batches
from lmkcli.training.skipping import Skipping


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
    queries: Placed
    passages: Placed
    facts: BatchFacts
    query_texts: TeacherTexts = TeacherTexts([], [])
    passage_texts: TeacherTexts = TeacherTexts([], [])

    @property
    def tokens(self) -> int:
        """The number of positions that the model processes."""
        return self.queries.tokens + self.passages.tokens

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


class Place(Protocol):
    """The interface that turns the examples of a batch into model inputs for one process."""

    @property
    def sides(self) -> Sequence[SourceSides]:
        """The settings of each source."""

    def __call__(self, batch: Batch) -> TrainBatch:
        """Return the inputs of this process and the facts of the whole batch."""


PlaceType = TypeVar("PlaceType", bound=Callable[[Batch], Any])


@dataclass(frozen=True)
class Feed(Generic[PlaceType]):
    """The batches from step `start` to step `steps`. They depend only on data, settings and seed.

    `place` turns the example numbers of a batch into the inputs of this process.
    """

    examples: Sampled
    weights: Sequence[float]
    sampling: Sampling
    place: PlaceType
    steps: int
    start: int = 0

    def __len__(self) -> int:
        """Return the number of steps of the whole training, including those before `start`."""
        return self.steps

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches; a background thread prepares them ahead."""
        return ahead(self.batches(), 2)

    def batches(self) -> Iterator[Any]:
        """Iterate over the batches and prepare each one on request."""
        sampled = batches(self.examples, self.weights, self.sampling, self.start)
        return (self.place(batch) for batch in islice(sampled, max(0, self.steps - self.start)))


@dataclass(frozen=True)
class Pairs:
    """Places queries and their passages.

    Process `shard.number` of `shard.count` tokenizes and places only its slice of the batch.
    """

    examples: Examples
    sides: Sequence[SourceSides]  # one for each source
    seed: int
    skipping: Skipping = field(default_factory=Skipping)
    shard: Shard = WHOLE
    has_teacher: bool = False  # whether the batch needs the texts for a teacher

    def __call__(self, batch: Batch) -> TrainBatch:
        """Return this process's slice of the batch.

        Passages, granularities and gaps are drawn for the whole batch, so that they do not depend on the
        number of processes.
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
        placed, grans = self._placements(passages, draws["passage"])
        gaps = self._uniform("positions", batch.step, 3 * total).reshape(-1, 3)
        return TrainBatch(
            batch.step,
            [self._label(one.example) for one in local],
            Placed.of(*self._placements(queries, draws["query"])),
            Placed.of([self.skipping(p, gaps[before + i]) for i, p in enumerate(placed)], grans),
            facts(self.examples, drawn),
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
    ) -> tuple[list[Placement], list[str]]:
        """Place the texts of one side with the settings of their sources.

        `uniform` [texts] selects the granularity of each text. Returns placements and granularities.
        """
        sources = self.examples.sources[texts.examples]
        placements: dict[int, Placement] = {}
        grans: dict[int, str] = {}
        for source in dict.fromkeys(sources.tolist()):
            side: TrainingSide = getattr(self.sides[source], texts.side)
            rows = np.flatnonzero(sources == source).tolist()
            draws = [int(uniform[row] * len(side.placers)) for row in rows]
            prompts = [self._prompt(texts, row) for row in rows]
            words = [self.examples.text(texts.rows[row]) for row in rows]
            placements |= zip(rows, side.placements(words, prompts, draws), strict=True)
            grans |= {row: side.placers[draw].gran for row, draw in zip(rows, draws, strict=True)}
        every = range(len(texts.rows))
        return [placements[row] for row in every], [grans[row] for row in every]

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
