"""Sampling: which examples make up which batch.

The batches follow from the data, the settings and one seed. They do not depend on how many processes
there are, each of which takes its slice of every batch; and whoever resumes at a step has them made
again up to there, without reading a text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Literal, NamedTuple, Protocol

import numpy as np

from lmkcli.data.collection import Shard
from lmkcli.errors import DataError, UsageError
from lmkcli.training.chance import dice
from lmkcli.training.examples import Ints, Keys
from lmkcli.training.settings import LoopSettings

BLOCK = 32  # at most so many batches are sorted by length together, and at most an epoch's
WAITING = 16  # so many batches' worth of examples may wait for a batch that they fit into


class Batch(NamedTuple):
    """One step of training: numbers of examples, and in which epoch of its source each of them is."""

    step: int
    examples: Ints
    epochs: Ints

    def slice(self, shard: Shard) -> "Batch":
        """What one process takes of it: its share, in the batch's own order."""
        rows = shard.rows(len(self.examples))
        mine = slice(rows.start, rows.stop)
        return Batch(self.step, self.examples[mine], self.epochs[mine])


@dataclass(frozen=True)
class Sampling:
    """How examples are mixed into batches.

    A source's share is its weight times its size to the power 1 / `temperature`: by size at 1, by the
    weights alone at infinity.
    """

    batch_size: int = 64
    batches: Literal["source", "mixed"] = "source"  # all of one source, or of any
    temperature: float = 1.0
    like_length: bool = True  # texts of similar length share a batch
    seed: int = 0

    @classmethod
    def of(cls, settings: LoopSettings) -> "Sampling":
        """As a training's settings say."""
        return cls(
            settings.batch_size,
            settings.batches,
            settings.sampling_temperature,
            settings.like_length,
            settings.seed,
        )

    def __post_init__(self) -> None:
        if self.batch_size < 1 or not self.temperature > 0 or self.seed < 0:
            raise UsageError(
                "--batch-size must be at least 1, the sampling temperature above 0, and --seed not "
                "negative"
            )


class Sampled(Protocol):
    """What is sampled: Examples, or Documents in chunks."""

    @property
    def sources(self) -> Ints:
        """[n]: the number of the source of each example."""

    @property
    def lengths(self) -> Ints:
        """[n]: how long each is, in characters."""

    def __len__(self) -> int:
        """n."""

    def keys(self, numbers: Ints) -> Keys:
        """What no two of these examples may share in a batch."""


class _Stream(Protocol):
    """Examples without end."""

    def take(self, count: int) -> Ints:
        """The next ones: [count, 2], the number of each and in which epoch of its source it is."""


def batches(
    examples: Sampled, weights: Sequence[float], sampling: Sampling, start: int = 0
) -> Iterator[Batch]:
    """The batches from step `start` on, without end; `weights` has one number for each source.

    No two examples of a batch share a key: a query or a positive. DataError when a source cannot fill
    a batch with such.
    """
    return islice(_batches(examples, weights, sampling), start, None)


def shares(examples: Sampled, weights: Sequence[float], temperature: float) -> list[float]:
    """The share of the examples seen that each source has; they sum to 1.

    DataError for a source without examples, UsageError when all weights are 0.
    """
    sizes = np.bincount(examples.sources, minlength=len(weights)).astype(np.float64)
    if not sizes.all():
        raise DataError(f"source {int(np.argmin(sizes)) + 1} of {len(sizes)} has no examples")
    weighted = np.array(weights) * (sizes / sizes.sum()) ** (1 / temperature)
    if not weighted.sum() > 0 or weighted.min() < 0:
        raise UsageError("weights of sources must not be negative, and not all 0")
    scaled: list[float] = (weighted / weighted.sum()).tolist()
    return scaled


def _batches(examples: Sampled, weights: Sequence[float], sampling: Sampling) -> Iterator[Batch]:
    turns = _Turns(shares(examples, weights, sampling.temperature), sampling.seed)
    numbers = [np.flatnonzero(examples.sources == source) for source in range(len(weights))]
    sources: list[_Stream] = [
        _Epochs(each, source, sampling.seed) for source, each in enumerate(numbers)
    ]
    mixed = sampling.batches == "mixed"
    least = len(examples) if mixed else min(map(len, numbers))
    if sampling.batch_size > least:
        raise DataError(
            f"--batch-size {sampling.batch_size}: a batch has no example twice, and "
            f"{'there are' if mixed else 'a source has'} {least}; make that {least} or less"
        )
    lanes = [_lane(_Mixed(sources, turns), examples, 0, sampling)] if mixed else []
    lanes = lanes or [_lane(each, examples, i, sampling) for i, each in enumerate(sources)]
    for step in count():
        lane = 0 if mixed else int(turns.take(1)[0])
        chosen, epochs = next(lanes[lane]).T
        yield Batch(step, chosen, epochs)


def _lane(stream: _Stream, examples: Sampled, number: int, sampling: Sampling) -> Iterator[Ints]:
    """Batches out of one stream, each as an array [batch size, 2]."""
    if sampling.like_length:
        stream = _LikeLength(stream, examples, number, sampling)
    return _unlike(stream, examples, sampling.batch_size)


class _Turns:
    """Numbers of sources, each as often as its share says."""

    def __init__(self, parts: Sequence[float], seed: int) -> None:
        self._chance = dice(seed, "sources")
        self._ends = np.cumsum(parts)

    def take(self, count: int) -> Ints:
        places = self._chance.random(count) * self._ends[-1]
        taken: Ints = np.searchsorted(self._ends, places, "right")
        return taken


class _Epochs:
    """The examples of a source in an order of chance, and again in another one, and so on."""

    def __init__(self, numbers: Ints, source: int, seed: int) -> None:
        self._numbers, self._source, self._seed = numbers, source, seed
        self._epoch, self._left = -1, numbers[:0]

    def take(self, count: int) -> Ints:
        parts = [np.empty((0, 2), np.int64)]
        while count:
            if not len(self._left):
                self._epoch += 1
                chance = dice(self._seed, "order", self._source, self._epoch)
                self._left = chance.permutation(self._numbers)
            part, self._left = self._left[:count], self._left[count:]
            parts.append(np.stack([part, np.full(len(part), self._epoch)], axis=1))
            count -= len(part)
        return np.concatenate(parts)


class _Mixed:
    """Examples of several sources, which take turns."""

    def __init__(self, sources: Sequence[_Stream], turns: _Turns) -> None:
        self._sources, self._turns = sources, turns

    def take(self, count: int) -> Ints:
        turns = self._turns.take(count)
        taken = np.empty((count, 2), np.int64)
        for number, source in enumerate(self._sources):
            taken[turns == number] = source.take(int((turns == number).sum()))
        return taken


class _LikeLength:
    """The same examples, block by block sorted by length; runs as long as a batch are shuffled again."""

    def __init__(self, stream: _Stream, examples: Sampled, lane: int, sampling: Sampling) -> None:
        self._stream, self._lane, self._sampling = stream, lane, sampling
        self._examples = examples
        mixed = sampling.batches == "mixed"
        epoch = len(examples) if mixed else int((examples.sources == lane).sum())
        self._batches = min(BLOCK, max(1, epoch // sampling.batch_size))
        self._block, self._left = 0, np.empty((0, 2), np.int64)

    def take(self, count: int) -> Ints:
        while len(self._left) < count:
            self._left = np.concatenate([self._left, self._next()])
        taken, self._left = self._left[:count], self._left[count:]
        return taken

    def _next(self) -> Ints:
        size = self._sampling.batch_size
        items = self._stream.take(self._batches * size)
        lengths = self._examples.lengths[items[:, 0]]
        # Passages of one text, and so of one length, must not all come to lie in one batch.
        items = items[np.lexsort((lengths, _turn(self._examples.keys(items[:, 0]), len(items))))]
        chance = dice(self._sampling.seed, "lengths", self._lane, self._block)
        self._block += 1
        shuffled: Ints = items.reshape(-1, size, 2)[chance.permutation(self._batches)]
        return shuffled.reshape(-1, 2)


def _turn(keys: Keys, items: int) -> Ints:
    """[items]: how many items before each have a key of it, at most, so that equals are apart."""
    order = np.lexsort((keys.owners, keys.values))
    values = keys.values[order]
    begins = np.flatnonzero(np.diff(values, prepend=values[0] - 1))
    turns = np.arange(len(values)) - np.repeat(begins, np.diff(begins, append=len(values)))
    latest = np.zeros(items, np.int64)
    np.maximum.at(latest, keys.owners[order], turns)
    return latest


def _unlike(stream: _Stream, examples: Sampled, size: int) -> Iterator[Ints]:
    """Batches in which no text is a query or a positive of two examples; what does not fit waits."""
    waiting = np.empty((0, 2), np.int64)
    while True:
        items = np.concatenate([waiting, stream.take(max(0, size - len(waiting)))])
        waiting = items[size:]
        batch = items[:size]
        keys = examples.keys(batch[:, 0]).values
        if len(np.unique(keys)) < len(keys):
            batch, waiting = _fitting(items, stream, examples, size)
        yield batch


def _fitting(items: Ints, stream: _Stream, examples: Sampled, size: int) -> tuple[Ints, Ints]:
    """A batch of `items` and what follows in the stream, in order; and those that wait for another.

    An example that waits already is not waited for again.
    """
    batch: list[Ints] = []
    waiting: dict[int, Ints] = {}
    taken: set[int] = set()
    passed = 0
    while len(batch) < size:
        if not len(items):
            items = stream.take(size - len(batch))
        for item, texts in _with_texts(items, examples):
            if len(batch) < size and taken.isdisjoint(texts):
                taken.update(texts)
                batch.append(item)
            else:
                waiting.setdefault(int(item[0]), item)
        passed += len(items)
        items = items[:0]
        if passed > 3 * (len(examples) + WAITING * size):
            raise DataError(
                f"only {len(batch)} examples of a source differ in query and positives, too few for "
                f"--batch-size {size}; make that {len(batch)} or less, or add examples"
            )
    rest = list(waiting.values())[: WAITING * size]
    return np.array(batch), np.array(rest, np.int64).reshape(-1, 2)


def _with_texts(items: Ints, examples: Sampled) -> Iterator[tuple[Ints, list[int]]]:
    """Each item, and its keys."""
    texts: list[list[int]] = [[] for _ in items]
    keys = examples.keys(items[:, 0])
    for value, owner in zip(keys.values.tolist(), keys.owners.tolist(), strict=True):
        texts[owner].append(value)
    return zip(items, texts, strict=True)
