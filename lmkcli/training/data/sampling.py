"""Sampling: assign examples to batches, and choose the passages of each example.

The batches depend only on the data, the settings and one seed. They do not depend on the number of
processes; each process takes its share of every batch. A resumed training samples the earlier batches
again and skips them, without reading any text. A draw of passages depends only on the seed, the epoch and
the example, so it is the same in every process and after every resume.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import Shard
from lmkcli.errors import DataError, UsageError
from lmkcli.training.data.examples import Examples, Ints, Keys
from lmkcli.training.train_settings import LoopSettings

BLOCK = 32  # batches that are sorted by length together, at most (and at most one epoch)
WAITING = 16  # batches' worth of examples that may wait for a batch without a conflicting key


class ExampleBatch(NamedTuple):
    """The examples of one training step: their numbers, and the epoch of each within its source."""

    step: int
    examples: Ints
    epochs: Ints

    def slice(self, shard: Shard) -> "ExampleBatch":
        """Return the share of one process, in the order of the batch."""
        rows = shard.rows(len(self.examples))
        local = slice(rows.start, rows.stop)
        return ExampleBatch(self.step, self.examples[local], self.epochs[local])


@dataclass(frozen=True)
class Sampling:
    """The settings of sampling.

    The share of a source is proportional to weight x size ** (1 / temperature). At temperature 1, shares are
    proportional to sizes times weights; at infinity, to the weights only.
    """

    batch_size: int = 64
    batches: Literal["source", "mixed"] = "source"  # one source per batch, or mixed sources
    temperature: float = 1.0
    like_length: bool = True  # put texts of similar length into one batch
    seed: int = 0

    @classmethod
    def of(cls, settings: LoopSettings) -> "Sampling":
        """Read the sampling settings from the settings of a training."""
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
                "--batch-size must be at least 1, --sampling-temperature above 0, and --seed at least 0"
            )


class Sampled(Protocol):
    """The interface of sampled data: Examples, Documents in chunks, or a Corpus."""

    @property
    def sources(self) -> Ints:
        """The number of the source of each example, [n]."""

    @property
    def lengths(self) -> Ints:
        """The length of each example, in characters or tokens, [n]."""

    def __len__(self) -> int:
        """Return the number of examples n."""

    def keys(self, numbers: Ints) -> Keys:
        """Return the keys of examples; two examples of a batch must not share a key."""


class _Stream(Protocol):
    """An endless stream of examples."""

    def take(self, count: int) -> Ints:
        """Return the next examples, [count, 2]: the number of each, and its epoch within its source."""


def batches(
    examples: Sampled, weights: Sequence[float], sampling: Sampling, start: int = 0
) -> Iterator[ExampleBatch]:
    """Yield batches from step `start` on, without end. `weights` has one number for each source.

    Two examples of a batch never share a key, such as a query or a positive. Raises DataError if a source
    has too few examples with distinct keys to fill a batch.
    """
    return islice(_batches(examples, weights, sampling), start, None)


def shares(examples: Sampled, weights: Sequence[float], temperature: float) -> list[float]:
    """Return the share of each source among the sampled examples; the shares sum to 1.

    Raises DataError if a source has no examples, and UsageError if all weights are 0 or one is negative.
    """
    sizes = np.bincount(examples.sources, minlength=len(weights)).astype(np.float64)
    if not sizes.all():
        raise DataError(
            f"source {int(np.argmin(sizes)) + 1} of {len(sizes)} has no examples; drop it"
        )
    weighted = np.array(weights) * (sizes / sizes.sum()) ** (1 / temperature)
    if not weighted.sum() > 0 or weighted.min() < 0:
        raise UsageError("weights of sources must be at least 0, and one must be above 0")
    scaled: list[float] = (weighted / weighted.sum()).tolist()
    return scaled


def _batches(
    examples: Sampled, weights: Sequence[float], sampling: Sampling
) -> Iterator[ExampleBatch]:
    turns = _Turns(shares(examples, weights, sampling.temperature), sampling.seed)
    numbers = [np.flatnonzero(examples.sources == source) for source in range(len(weights))]
    sources: list[_Stream] = [
        _Epochs(each, source, sampling.seed) for source, each in enumerate(numbers)
    ]
    mixed = sampling.batches == "mixed"
    least = len(examples) if mixed else min(map(len, numbers))
    if sampling.batch_size > least:
        raise DataError(
            f"--batch-size {sampling.batch_size}: the examples of a batch must be distinct, but "
            f"{'the sources have' if mixed else 'a source has'} only {least}; use {least} or less"
        )
    lanes = [_lane(_Mixed(sources, turns), examples, 0, sampling)] if mixed else []
    lanes = lanes or [_lane(each, examples, i, sampling) for i, each in enumerate(sources)]
    for step in count():
        lane = 0 if mixed else int(turns.take(1)[0])
        chosen, epochs = next(lanes[lane]).T
        yield ExampleBatch(step, chosen, epochs)


def _lane(stream: _Stream, examples: Sampled, number: int, sampling: Sampling) -> Iterator[Ints]:
    """Yield the batches of one stream, each as an array [batch size, 2]."""
    if sampling.like_length:
        stream = _LikeLength(stream, examples, number, sampling)
    return _distinct(stream, examples, sampling.batch_size)


class _Turns:
    """A random stream of source numbers. The frequency of a source is its share."""

    def __init__(self, parts: Sequence[float], seed: int) -> None:
        self._rng = seeded_rng(seed, "sources")
        self._ends = np.cumsum(parts)

    def take(self, count: int) -> Ints:
        places = self._rng.random(count) * self._ends[-1]
        taken: Ints = np.searchsorted(self._ends, places, "right")
        return taken


class _Epochs:
    """The examples of a source in epochs; each epoch is a new random permutation."""

    def __init__(self, numbers: Ints, source: int, seed: int) -> None:
        self._numbers, self._source, self._seed = numbers, source, seed
        self._epoch, self._left = -1, numbers[:0]

    def take(self, count: int) -> Ints:
        parts = [np.empty((0, 2), np.int64)]
        while count:
            if not len(self._left):
                self._epoch += 1
                rng = seeded_rng(self._seed, "order", self._source, self._epoch)
                self._left = rng.permutation(self._numbers)
            part, self._left = self._left[:count], self._left[count:]
            parts.append(np.stack([part, np.full(len(part), self._epoch)], axis=1))
            count -= len(part)
        return np.concatenate(parts)


class _Mixed:
    """Examples of several sources; a random source gives each next example."""

    def __init__(self, sources: Sequence[_Stream], turns: _Turns) -> None:
        self._sources, self._turns = sources, turns

    def take(self, count: int) -> Ints:
        turns = self._turns.take(count)
        taken = np.empty((count, 2), np.int64)
        for number, source in enumerate(self._sources):
            taken[turns == number] = source.take(int((turns == number).sum()))
        return taken


class _LikeLength:
    """The examples of another stream, sorted by length within blocks of batches.

    Each block is sorted, cut into batches, and the batches are shuffled. So lengths are similar within a
    batch, and random between batches.
    """

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
        # Items with the same positive have the same length, and sorting by length alone would put them
        # into one batch, which must not repeat a key. Sort by occurrence first to separate them.
        occurrences = _occurrences(self._examples.keys(items[:, 0]), len(items))
        items = items[np.lexsort((lengths, occurrences))]
        rng = seeded_rng(self._sampling.seed, "lengths", self._lane, self._block)
        self._block += 1
        shuffled: Ints = items.reshape(-1, size, 2)[rng.permutation(self._batches)]
        return shuffled.reshape(-1, 2)


def _occurrences(keys: Keys, items: int) -> Ints:
    """Return how often a key of each item occurs in earlier items (the maximum over its keys), [items]."""
    order = np.lexsort((keys.owners, keys.values))
    values = keys.values[order]
    starts = np.flatnonzero(np.diff(values, prepend=values[0] - 1))
    earlier = np.arange(len(values)) - np.repeat(starts, np.diff(starts, append=len(values)))
    most = np.zeros(items, np.int64)
    np.maximum.at(most, keys.owners[order], earlier)
    return most


def _distinct(stream: _Stream, examples: Sampled, size: int) -> Iterator[Ints]:
    """Yield batches without repeated keys. Conflicting examples wait for a later batch."""
    waiting = np.empty((0, 2), np.int64)
    while True:
        items = np.concatenate([waiting, stream.take(max(0, size - len(waiting)))])
        waiting = items[size:]
        batch = items[:size]
        keys = examples.keys(batch[:, 0]).values
        if len(np.unique(keys)) < len(keys):
            batch, waiting = _without_conflicts(items, stream, examples, size)
        yield batch


def _without_conflicts(
    items: Ints, stream: _Stream, examples: Sampled, size: int
) -> tuple[Ints, Ints]:
    """Fill a batch from `items` and then from the stream, in order, without repeated keys.

    Returns the batch and the examples that wait for a later batch. An example waits at most once.
    """
    batch: list[Ints] = []
    waiting: dict[int, Ints] = {}
    taken: set[int] = set()
    tried = 0
    while len(batch) < size:
        if not len(items):
            items = stream.take(size - len(batch))
        for item, keys in _with_keys(items, examples):
            if len(batch) < size and taken.isdisjoint(keys):
                taken.update(keys)
                batch.append(item)
            else:
                waiting.setdefault(int(item[0]), item)
        tried += len(items)
        items = items[:0]
        if tried > 3 * (len(examples) + WAITING * size):
            raise DataError(
                f"only {len(batch)} examples of a source differ in query and positives, too few for "
                f"--batch-size {size}; use {len(batch)} or less, or add examples"
            )
    rest = list(waiting.values())[: WAITING * size]
    return np.array(batch), np.array(rest, np.int64).reshape(-1, 2)


def _with_keys(items: Ints, examples: Sampled) -> Iterator[tuple[Ints, list[int]]]:
    """Yield each item with its keys."""
    by_item: list[list[int]] = [[] for _ in items]
    keys = examples.keys(items[:, 0])
    for value, owner in zip(keys.values.tolist(), keys.owners.tolist(), strict=True):
        by_item[owner].append(value)
    return zip(items, by_item, strict=True)


def seeded_rng(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """Return a generator for one purpose, such as (7, 'negatives', epoch, example).

    Its numbers depend only on the arguments, not on the use of other generators.
    """
    return np.random.Generator(np.random.PCG64((seed, zlib.crc32(purpose.encode()), *numbers)))


class Drawn(NamedTuple):
    """The query and the passages of one example, the positive first, as rows of the examples' texts."""

    example: int
    query: int
    passages: Ints
    scores: NDArray[np.float32]


@dataclass(frozen=True)
class Drawing:
    """The settings of drawing passages. Each epoch draws again.

    An example with too few negatives gives all that it has. `positive` is 'random' or 'first' of the
    example's positives. If it is 'best', 1 + `negatives` of all passages of the example are drawn, and the
    one with the highest teacher score is the positive (TITE, Schlatt et al. 2025, §4.1).
    """

    negatives: int = 7
    replace: bool = (
        False  # draw with replacement: every example with a negative gives the full number
    )
    positive: Literal["random", "first", "best"] = "random"

    def draw(self, examples: Examples, number: int, epoch: int, seed: int) -> Drawn:
        """Draw the passages of one example in one epoch.

        Raises DataError if the best passage is wanted, and no drawn passage has a score.
        """
        rng = seeded_rng(seed, "passages", epoch, number)
        first = int(examples.starts[number])
        positives = int(examples.positives[number])
        negatives = int(examples.starts[number + 1]) - first - positives
        if self.positive == "best":
            count = min(1 + self.negatives, positives + negatives)
            places = first + rng.choice(positives + negatives, count, replace=False)
            return Drawn(number, int(examples.queries[number]), *_best_first(examples, places))
        positive = int(rng.integers(positives)) if self.positive == "random" else 0
        count = self.negatives if self.replace and negatives else min(self.negatives, negatives)
        chosen = rng.choice(max(negatives, 1), count, self.replace)
        places = first + np.concatenate([[positive], positives + chosen])
        query = int(examples.queries[number])
        return Drawn(number, query, examples.passages[places], examples.scores[places])


def _best_first(examples: Examples, places: Ints) -> tuple[Ints, NDArray[np.float32]]:
    """Return the passages at some places and their scores, the best one first."""
    scores = examples.scores[places]
    if np.isnan(scores).all():
        raise DataError(
            "positive=best needs teacher scores, but an example has none; add scores (teacher=RUN, or "
            "pos_scores and neg_scores), or drop positive=best"
        )
    best = int(np.nanargmax(scores))
    order = np.r_[best, np.delete(np.arange(len(places)), best)]
    return examples.passages[places][order], scores[order]
