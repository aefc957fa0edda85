"""Chunks and windows: pieces of a text, and the chunks that a model reads together.

    text 1:n chunk              the granularity: '64' tokens, the sentences, or the pieces of a splitter
    text 1:n window 1:n chunk   'full': all; 'chunk': each alone; '512': as many as fit into 512 positions

All functions work on many texts at once. A chunk is a range of content tokens; a text without tokens is one
empty chunk. Windows never cut a chunk. They can overlap:

    chunks      0     1     2     3     4     5
    window 0    [first = fresh = 0      ) stop = 3
    window 1                [first = 2, fresh = 3       ) stop = 6      chunk 2 is the overlap
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from lmkcli.spec.values import Granularity, Overlap, Window
from lmkcli.store.ragged import Longs, ranges
from lmkcli.store.token_blocks import Ints, TokenBlock


@dataclass(frozen=True)
class Chunks:
    """The chunks of n texts.

    ends: [all chunks], their exclusive ends, in content tokens of their text. counts: [n], at least 1.
    separated: whether the separator token is between the chunks. contexts: the ids of a context for each
    chunk, if each chunk is an input of its own.
    """

    ends: Longs
    counts: Longs
    separated: bool = False
    contexts: Sequence[Ints] = ()

    @cached_property
    def firsts(self) -> Longs:
        """The first chunk of each text, [n]."""
        return np.cumsum(self.counts) - self.counts

    @cached_property
    def starts(self) -> Longs:
        """The first content token of each chunk, [all chunks]."""
        starts = np.zeros_like(self.ends)
        starts[1:] = self.ends[:-1]
        starts[self.firsts] = 0
        return starts

    def of(self, texts: Longs) -> "Chunks":
        """Return the chunks of some texts, without contexts."""
        chosen = ranges(self.firsts[texts], self.counts[texts])
        return Chunks(self.ends[chosen], self.counts[texts], self.separated)


def cut_chunks(
    block: TokenBlock, gran: Granularity, taken: Longs | None, each_token: bool, separated: bool
) -> Chunks:
    """Cut all texts of a block into chunks.

    taken: [texts], how many tokens of the first chunk are the prompt, if it contains the prompt. each_token:
    whether texts without a granularity are cut at every token. separated: see `Chunks`; only with a splitter.
    """
    if gran.splitter and block.ends is not None:
        bounds = block.starts[:, 3]
        counts = np.diff(bounds)
        ends = block.ends.astype(np.int64)
        if not counts.all():  # a text without pieces is one empty chunk
            ends = np.insert(ends, bounds[:-1][counts == 0], 0)
            counts = np.maximum(counts, 1)
        return Chunks(ends, counts, separated)
    lengths = block.lengths
    if not gran.tokens and not each_token:
        return Chunks(lengths, np.ones_like(lengths))
    # With size 4 and a prompt P P in the first chunk:    P P a b | c d e f | g      ends 2 6 7
    size = gran.tokens or 1
    total = lengths if taken is None else lengths + taken
    counts = np.maximum(-(-total // size), 1)
    ends = ranges(np.ones_like(counts), counts) * size
    if taken is not None:
        ends -= np.repeat(taken, counts)
    return Chunks(np.minimum(ends, np.repeat(lengths, counts)), counts)


class Windows(NamedTuple):
    """Windows of n texts, in the order of the texts; all fields are [windows].

    The model reads the chunks first … stop - 1 of a text together, where chunks are numbered over all texts.
    The chunks before `fresh` are the overlap: their vectors come from an earlier window.
    """

    texts: Longs
    first: Longs
    fresh: Longs
    stop: Longs


def cut_windows(
    chunks: Chunks, window: Window, overlap: Overlap, capacities: Longs, extra: int
) -> Windows:
    """Cut the chunks of all texts into windows.

    capacities: [texts], how many positions of an input are for chunks. extra: how many positions each chunk
    takes besides its tokens.
    """
    firsts, texts = chunks.firsts, np.arange(len(chunks.counts))
    if window == "full":
        return Windows(texts, firsts, firsts, firsts + chunks.counts)
    if window == "chunk":
        every = np.arange(len(chunks.ends))
        return Windows(np.repeat(texts, chunks.counts), every, every, every + 1)
    tokens = np.concatenate([[0], np.cumsum(chunks.ends - chunks.starts)])
    positions = np.concatenate([[0], np.cumsum(chunks.ends - chunks.starts + extra)])
    found: list[tuple[int, ...]] = []
    for text, (first, count, capacity) in enumerate(
        zip(firsts.tolist(), chunks.counts.tolist(), capacities.tolist(), strict=True)
    ):
        before, tokens_before = (
            each[first : first + count + 1] - each[first] for each in (positions, tokens)
        )
        if window.even:
            cut = _even_windows(before, capacity)
        else:
            cut = _full_windows(before, tokens_before, capacity, overlap)
        found += [(text, *(first + chunk for chunk in each)) for each in cut]
    return Windows(*np.array(found, np.int64).reshape(-1, 4).T)


def _full_windows(
    before: Longs, tokens_before: Longs, capacity: int, overlap: Overlap
) -> Iterator[tuple[int, int, int]]:
    """Cut the chunks of one text into windows that are as full as possible: (first, fresh, stop).

    before: [chunks + 1], how many positions the chunks before each chunk take, and all of them. The chunks
    first … stop - 1 fit into an input if before[stop] - before[first] <= capacity. Each window therefore is
    found by binary search:

    - it starts in the overlap, but late enough that chunk `fresh` fits: the smallest `first` with
      before[fresh + 1] - before[first] <= capacity;
    - it ends at the largest `stop` with before[stop] - before[first] <= capacity.

    A chunk that is longer than the capacity is a window of its own, and is cut there.
    """
    count = len(before) - 1
    fresh = 0
    while fresh < count:
        first = fresh
        if overlap.chunks:
            first = max(0, fresh - overlap.chunks)
        elif overlap.tokens:
            first = int(np.searchsorted(tokens_before, tokens_before[fresh] - overlap.tokens))
        first = max(first, int(np.searchsorted(before, before[fresh + 1] - capacity)))
        first = min(first, fresh)
        stop = int(np.searchsorted(before, before[first] + capacity, side="right")) - 1
        stop = min(max(stop, fresh + 1), count)
        yield first, fresh, stop
        fresh = stop


def _even_windows(before: Longs, capacity: int) -> Iterator[tuple[int, int, int]]:
    """Cut the chunks of one text into as few windows as possible, about equally long.

    before: as of `_full_windows`. Windows that are filled one after another are as few as possible, from
    either end. Filled from the end, they show where each window must stop at least, so that the rest still
    fits. A window stops as near as possible to its share: the positions that are left, divided by the windows
    that are left.
    """
    stops = [len(before) - 1]  # of the last window, of the one before it, and so on
    while stops[-1] > 0:
        first = int(np.searchsorted(before, before[stops[-1]] - capacity))
        stops.append(min(first, stops[-1] - 1))
    first = 0
    for left in range(len(stops) - 1, 0, -1):
        share = before[first] + (before[-1] - before[first]) / left
        stop = int(np.searchsorted(before, share))
        if before[stop] - share > share - before[max(stop - 1, 0)]:
            stop -= 1
        longest = int(np.searchsorted(before, before[first] + capacity, side="right")) - 1
        stop = max(min(stop, longest), first + 1, stops[left - 1])
        yield first, first, stop
        first = stop
