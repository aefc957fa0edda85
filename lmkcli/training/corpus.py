"""The corpus of pre-training: token ids of all texts, whole or joined and cut into blocks.

A collection is tokenized once and held in memory, four bytes a token; a tokens folder stays on disk and is
mapped.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import WHOLE
from lmkcli.encoding import planning
from lmkcli.errors import DataError
from lmkcli.models.tokenizer import Tokenizer
from lmkcli.pooling.placement import Ints
from lmkcli.recipe import RecipeOptions
from lmkcli.settings import EncodeSettings
from lmkcli.store.tokens import TokenRow, Tokens, token_stream
from lmkcli.training.examples import Keys
from lmkcli.training.sources import Source

Longs = NDArray[np.int64]


class Text(NamedTuple):
    """Tokens of one text; `ends` as a splitter made them, None without one."""

    ids: Ints
    prompt: Ints
    ends: Ints | None


@dataclass(frozen=True)
class Shelf:
    """Tokens of n texts in arrays, in memory or mapped.

    `starts` [n + 1, 3] say where each text begins in `ids` (prompt first) and in `ends`, and how long its
    prompt is.
    """

    ids: Ints
    ends: Ints
    starts: Longs

    def text(self, row: int) -> Text:
        """One of them."""
        (first, end, prompt), (last, stop, _) = self.starts[row : row + 2].tolist()
        ids = np.asarray(self.ids[first:last])
        ends = np.asarray(self.ends[end:stop]) if len(self.ends) else None
        return Text(ids[prompt:], ids[:prompt], ends)

    @property
    def lengths(self) -> Longs:
        """[n]: tokens of each text, without its prompt."""
        return np.diff(self.starts[:, 0]) - self.starts[:-1, 2]


@dataclass(frozen=True)
class Corpus:
    """What is learned from: numbered texts, each of a source.

    With `block` texts of a source are joined, with `separator` between them where it is not None, and cut
    into blocks of so many tokens.
    """

    shelves: Sequence[Shelf]
    origins: Sequence[int]  # the source of each shelf
    names: Sequence[str]  # of the sources
    block: int = 0
    separator: int | None = None
    empty: int = field(default=0, compare=False)  # texts without tokens, which are left out

    def __len__(self) -> int:
        """How many texts, or blocks, there are."""
        return len(self.sources)

    def __getitem__(self, number: int) -> Text:
        """One text, or block."""
        if not self.block:
            return self._text(number)
        source = int(self.sources[number])
        return self._block(source, number - int(np.searchsorted(self.sources, source)))

    def keys(self, numbers: Longs) -> Keys:
        """Texts share nothing with each other."""
        return Keys(numbers, np.arange(len(numbers)))

    def name(self, number: int) -> str:
        """What messages call it."""
        what = "block" if self.block else "text"
        source = int(self.sources[number])
        return f"{self.names[source]} {what} {number - int(np.searchsorted(self.sources, source))}"

    @cached_property
    def lengths(self) -> Longs:
        """[n]: tokens of each."""
        if not self.block:
            return self._lengths
        parts = [np.minimum(self.block, n - np.arange(0, n, self.block)) for n in self._streams]
        return np.concatenate(parts)

    @cached_property
    def sources(self) -> Longs:
        """[n]: the source of each, in order."""
        if not self.block:
            return self._owners
        counts = [-(-n // self.block) for n in self._streams]
        return np.repeat(np.arange(len(counts)), counts)

    @property
    def tokens(self) -> int:
        """Of all texts, without prompts."""
        return int(self._lengths.sum())

    @cached_property
    def digest(self) -> str:
        """SHA-256 of everything that is learned from, in its order; reads every token."""
        sha256 = hashlib.sha256(repr((self.block, self.separator)).encode())
        for shelf, origin in zip(self.shelves, self.origins, strict=True):
            sha256.update(str(origin).encode())
            for array in (shelf.starts - shelf.starts[:1] * [1, 1, 0], shelf.ids, shelf.ends):
                sha256.update(np.ascontiguousarray(array).data)
        return sha256.hexdigest()

    @cached_property
    def _places(self) -> tuple[Longs, Longs]:
        """The shelf, and the row on it, of each text that has tokens; sources come in order."""
        rows = [np.flatnonzero(shelf.lengths) for shelf in self.shelves]
        shelves = np.repeat(np.arange(len(rows)), [len(each) for each in rows])
        return shelves, np.concatenate([np.zeros(0, np.int64), *rows])

    @cached_property
    def _owners(self) -> Longs:
        return np.array(self.origins, np.int64)[self._places[0]]

    @cached_property
    def _lengths(self) -> Longs:
        parts = [shelf.lengths[shelf.lengths > 0] for shelf in self.shelves]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def _text(self, number: int) -> Text:
        shelf, row = (int(each[number]) for each in self._places)
        return self.shelves[shelf].text(row)

    @cached_property
    def _bounds(self) -> list[Longs]:
        """Of each source, where its texts begin among its joined tokens, and where the last ends."""
        between = self.separator is not None
        each = [self._lengths[self._owners == source] for source in range(len(self.names))]
        return [np.concatenate([[0], np.cumsum(lengths + between)]) for lengths in each]

    @cached_property
    def _streams(self) -> list[int]:
        """Tokens of each source, joined; none follows the last text."""
        between = self.separator is not None
        return [max(0, int(bounds[-1]) - between) for bounds in self._bounds]

    def _block(self, source: int, number: int) -> Text:
        bounds, start = self._bounds[source], number * self.block
        stop = min(start + self.block, self._streams[source])
        first = int(np.searchsorted(self._owners, source))
        row = int(np.searchsorted(bounds, start, "right")) - 1
        pieces: list[Ints] = []
        while bounds[row] < stop:
            text = self._text(first + row)
            ids = (
                text.ids
                if self.separator is None
                else np.append(text.ids, np.int32(self.separator))
            )
            pieces.append(ids[max(0, start - int(bounds[row])) : stop - int(bounds[row])])
            row += 1
        return Text(np.concatenate(pieces).astype(np.int32), text.prompt, None)


def read_corpus(
    sources: Sequence[Source], options: RecipeOptions, tokenizer: Tokenizer, offline: bool = False
) -> Corpus:
    """The texts of all sources: collections, tokenized now, and tokens folders.

    Mismatch for tokens of another tokenizer, DataError where there is no text.
    """
    shelves: list[Shelf] = []
    origins: list[int] = []
    for number, source in enumerate(sources):
        given = planning.plan(source.name, options, EncodeSettings(), "0/1", offline).source
        added = (
            _mapped(given)
            if isinstance(given, Tokens)
            else [_held(token_stream(given, tokenizer, WHOLE, 0).batches)]
        )
        shelves += added
        origins += [number] * len(added)
        if not any(shelf.lengths.any() for shelf in added):
            raise DataError(f"{source.name}: there is no text in it to learn from")
    empty = sum(int((shelf.lengths == 0).sum()) for shelf in shelves)
    return Corpus(shelves, origins, [source.name for source in sources], empty=empty)


def in_blocks(corpus: Corpus, size: int, separator: int | None) -> Corpus:
    """The same texts, joined and cut."""
    return replace(corpus, block=size, separator=separator)


def _mapped(tokens: Tokens) -> list[Shelf]:
    return [Shelf(*arrays) for arrays in tokens.arrays()]


def _held(batches: Iterable[list[TokenRow]]) -> Shelf:
    """Token rows, gathered in memory."""
    ids: list[Ints] = []
    ends: list[Ints] = []
    sizes: list[tuple[int, int, int]] = []
    for row in _rows(batches):
        own = np.zeros(0, np.int32) if row.ends is None else row.ends
        ids.append(np.concatenate([row.prompt, row.ids]).astype(np.int32))
        ends.append(own)
        sizes.append((len(ids[-1]), len(own), len(row.prompt)))
    starts: Any = np.zeros((len(sizes) + 1, 3), np.int64)
    table = np.array(sizes, np.int64).reshape(-1, 3)
    starts[1:, :2] = np.cumsum(table[:, :2], axis=0)
    starts[:-1, 2] = table[:, 2]
    none = np.zeros(0, np.int32)
    return Shelf(np.concatenate([none, *ids]), np.concatenate([none, *ends]), starts)


def _rows(batches: Iterable[list[TokenRow]]) -> Iterator[TokenRow]:
    for batch in batches:
        yield from batch
