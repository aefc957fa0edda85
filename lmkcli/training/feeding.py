"""Feeding: batch after batch of placed texts, with what is known of them, for one process."""

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
from lmkcli.training.chance import dice
from lmkcli.training.drawing import Drawing, Drawn
from lmkcli.training.examples import Examples
from lmkcli.training.objective import BatchFacts
from lmkcli.training.placing import Placed, TrainingSide
from lmkcli.training.sampling import Batch, Sampled, Sampling, batches
from lmkcli.training.skipping import Skipping


class Reading(NamedTuple):
    """Texts, and how many tokens of each are read at most."""

    texts: list[str]
    tokens: list[int]


class TrainBatch(NamedTuple):
    """What one process runs of a step, and the facts of the whole batch, which are the same for all.

    `asked` and `told` are its queries and passages as texts, where a teacher reads them.
    """

    step: int
    examples: list[str]  # the ids of its own, for messages
    queries: Placed
    passages: Placed
    facts: BatchFacts
    asked: Reading = Reading([], [])
    told: Reading = Reading([], [])

    @property
    def tokens(self) -> int:
        """Positions that go through the model."""
        return self.queries.tokens + self.passages.tokens

    @property
    def longest(self) -> int:
        """Positions of the longest input."""
        return max(len(one.ids) for one in (*self.queries.inputs, *self.passages.inputs))


class SourceSides(NamedTuple):
    """How the texts of one source are drawn and placed."""

    drawing: Drawing
    query: TrainingSide
    passage: TrainingSide
    name: str = ""


class Place(Protocol):
    """Makes the examples of a batch into model inputs, for one process."""

    @property
    def sides(self) -> Sequence[SourceSides]:
        """How the texts of each source are placed."""

    def __call__(self, batch: Batch) -> TrainBatch:
        """The inputs of this process, and the facts of the whole batch."""


Making = TypeVar("Making", bound=Callable[[Batch], Any])


@dataclass(frozen=True)
class Feed(Generic[Making]):
    """Makes batches from `start` to `steps`: a function of data, settings and seed alone.

    `place` makes the numbers of a batch into what a step of this process runs.
    """

    examples: Sampled
    weights: Sequence[float]
    sampling: Sampling
    place: Making
    steps: int
    start: int = 0

    def __len__(self) -> int:
        """Steps of the whole training, those before `start` included."""
        return self.steps

    def __iter__(self) -> Iterator[Any]:
        """The batches, made ahead in the background."""
        return ahead(self.batches(), 2)

    def batches(self) -> Iterator[Any]:
        """The batches, each made when it is asked for."""
        sampled = batches(self.examples, self.weights, self.sampling, self.start)
        return (self.place(batch) for batch in islice(sampled, max(0, self.steps - self.start)))


@dataclass(frozen=True)
class Pairs:
    """Places queries and their passages.

    Process `shard.number` of `shard.count` gets its slice; text that others run is not even tokenized.
    """

    examples: Examples
    sides: Sequence[SourceSides]  # one for each source
    seed: int
    skipping: Skipping = field(default_factory=Skipping)
    shard: Shard = WHOLE
    taught: bool = False  # whether a teacher reads the texts

    def __call__(self, batch: Batch) -> TrainBatch:
        """Its slice of the batch; granularities, gaps and passages are drawn for the whole of it."""
        drawn = [self._drawn(*pair) for pair in zip(batch.examples, batch.epochs, strict=True)]
        rows = self.shard.rows(len(drawn))
        mine = drawn[rows.start : rows.stop]
        before = sum(len(one.passages) for one in drawn[: rows.start])
        total = sum(len(one.passages) for one in drawn)
        owners = [one.example for one in mine for _ in one.passages]
        queries = _Texts([one.query for one in mine], [one.example for one in mine], "query")
        passages = _Texts([row for one in mine for row in one.passages], owners, "passage")
        chances = {
            "query": self._chances("query granularity", batch.step, len(drawn))[rows.start :],
            "passage": self._chances("passage granularity", batch.step, total)[before:],
        }
        placed, grans = self._placements(passages, chances["passage"])
        gaps = self._chances("positions", batch.step, 3 * total).reshape(-1, 3)
        return TrainBatch(
            batch.step,
            [self._named(one.example) for one in mine],
            Placed.of(*self._placements(queries, chances["query"])),
            Placed.of([self.skipping(p, gaps[before + i]) for i, p in enumerate(placed)], grans),
            facts(self.examples, drawn),
            *((self._reading(queries), self._reading(passages)) if self.taught else ()),
        )

    def _reading(self, texts: "_Texts") -> Reading:
        sources = self.examples.sources[texts.examples].tolist()
        limits = [getattr(self.sides[source], texts.side).reads for source in sources]
        return Reading([self.examples.text(row) for row in texts.rows], limits)

    def _named(self, example: int) -> str:
        """The source of an example and its id, for messages."""
        source = self.sides[int(self.examples.sources[example])].name
        return f"{source} {self.examples.ids[example].as_py()}".strip()

    def _drawn(self, example: np.int64, epoch: np.int64) -> Drawn:
        drawing = self.sides[int(self.examples.sources[example])].drawing
        return drawing.draw(self.examples, int(example), int(epoch), self.seed)

    def _chances(self, purpose: str, step: int, count: int) -> NDArray[np.float64]:
        """Numbers of [0, 1) for the texts of the whole batch, whoever runs them."""
        return dice(self.seed, purpose, step).random(count)

    def _placements(
        self, texts: "_Texts", chances: NDArray[np.float64]
    ) -> tuple[list[Placement], list[str]]:
        """The texts of one side, each placed as its source says."""
        sources = self.examples.sources[texts.examples]
        placements: dict[int, Placement] = {}
        grans: dict[int, str] = {}
        for source in dict.fromkeys(sources.tolist()):
            side: TrainingSide = getattr(self.sides[source], texts.side)
            rows = np.flatnonzero(sources == source).tolist()
            draws = [int(chances[row] * len(side.placers)) for row in rows]
            prompts = [self._prompt(texts, row) for row in rows]
            words = [self.examples.text(texts.rows[row]) for row in rows]
            placements |= zip(rows, side.placements(words, prompts, draws), strict=True)
            grans |= {row: side.placers[draw].gran for row, draw in zip(rows, draws, strict=True)}
        every = range(len(texts.rows))
        return [placements[row] for row in every], [grans[row] for row in every]

    def _prompt(self, texts: "_Texts", row: int) -> str | None:
        """An example's own prompt, which is for its query."""
        if texts.side != "query":
            return None
        prompt: str | None = self.examples.prompts[texts.examples[row]].as_py()
        return prompt


class _Texts(NamedTuple):
    """Rows of texts, the example that each belongs to, and the side that they are on."""

    rows: list[int]
    examples: list[int]
    side: Literal["query", "passage"]
