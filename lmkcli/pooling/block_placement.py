"""Placement of many texts at once, with the same result as `Placer.place` for each of them.

`Placer.place` defines the placement of one text in about twenty operations of NumPy, and each takes a
microsecond. Here the same operations run on flat arrays of a whole block of texts. A number is computed for
every window, chunk, token or mark of the block, and `ranges` and `repeat` map between these levels:

    text  1:n  window  1:n  chunk  1:n  token           window  1:n  mark

A pooler takes part with a method `arrange_block(windows, special, limit) -> ArrangedBlock`. Without it,
`arrange` is called for each window. Blocks with a rare text (an input without tokens, a text without vectors,
expansion tokens) are placed text by text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.pooling.placement import (
    NOTHING,
    SHARED,
    Arrangement,
    Content,
    Input,
    Ints,
    Placement,
    Placer,
    Pooler,
    SpecialTokens,
)
from lmkcli.store.ragged import ranges
from lmkcli.store.token_blocks import TokenBlock

Longs = NDArray[np.int64]


class PlacedBlock(NamedTuple):
    """The inputs of n texts. The groups of marks are vector numbers, counted over all texts.

    inputs: the model inputs, in the order of the texts. texts: [inputs], the text of each input.
    vectors: [n], how many vectors each text has; with unit doc, each window has one.
    covers: [all vectors, 2], the range of content tokens of each vector (unit doc and chunk).
    kept: [n], how many content tokens of each text are represented.
    """

    inputs: list[Input]
    texts: Longs
    vectors: Longs
    covers: Ints
    kept: Longs

    @classmethod
    def of(cls, placements: Sequence[Placement]) -> "PlacedBlock":
        """Combine the placements of separate texts."""
        vectors = np.array([placement.vectors for placement in placements], np.int64)
        firsts = np.cumsum(vectors) - vectors
        inputs = [
            one._replace(groups=one.groups + first)
            for placement, first in zip(placements, firsts, strict=True)
            for one in placement.inputs
        ]
        counts = [len(placement.inputs) for placement in placements]
        covers = [placement.covers for placement in placements]
        return cls(
            inputs,
            np.repeat(np.arange(len(placements)), counts),
            vectors,
            np.concatenate([NOTHING.reshape(0, 2), *covers]),
            np.array([placement.kept for placement in placements], np.int64),
        )


@dataclass(frozen=True)
class WindowBlock:
    """The contents of many windows, as `Content` for one.

    ids: the ids of all texts; window i has the content ids[starts[i] : starts[i] + lengths[i]] and the
    prompt ids[prompt_starts[i] : prompt_starts[i] + prompts[i]].
    ends: [all chunks], the exclusive ends of the chunks, counted from the start of their window.
    chunks: [windows], the number of chunks. marked_from: [windows], the first position that has a mark.
    separator: the token between the chunks, if there is one.
    """

    ids: Ints
    starts: Longs
    lengths: Longs
    prompt_starts: Longs
    prompts: Longs
    ends: Longs
    chunks: Longs
    marked_from: Longs
    separator: int | None

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def chunk_windows(self) -> Longs:
        """The window of each chunk, [all chunks]."""
        return np.repeat(np.arange(len(self)), self.chunks)

    @cached_property
    def chunk_numbers(self) -> Longs:
        """The number of each chunk in its window, [all chunks]."""
        return ranges(np.zeros_like(self.chunks), self.chunks)

    @cached_property
    def chunk_starts(self) -> Longs:
        """The first token of each chunk, counted from the start of its window, [all chunks]."""
        starts = np.concatenate([[0], self.ends[:-1]])
        starts[self.chunk_numbers == 0] = 0
        return starts

    @cached_property
    def token_windows(self) -> Longs:
        """The window of each content token, [all tokens]."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @cached_property
    def token_numbers(self) -> Longs:
        """The number of each content token in its window, [all tokens]."""
        return ranges(np.zeros_like(self.lengths), self.lengths)

    @cached_property
    def token_chunks(self) -> Longs:
        """The number of the chunk of each content token in its window, [all tokens]."""
        return np.repeat(self.chunk_numbers, self.ends - self.chunk_starts)

    @cached_property
    def content(self) -> Ints:
        """The content ids of all windows, [all tokens]."""
        return self.ids[ranges(self.starts, self.lengths)]

    def window(self, number: int) -> Content:
        """Return the content of one window."""
        start, prompt = int(self.starts[number]), int(self.prompt_starts[number])
        last = int(self.chunks[: number + 1].sum())
        return Content(
            self.ids[start : start + int(self.lengths[number])],
            self.ends[last - int(self.chunks[number]) : last].astype(np.int32),
            self.ids[prompt : prompt + int(self.prompts[number])],
            self.separator,
        )


class ArrangedBlock(NamedTuple):
    """Many model inputs, as a pooler arranges them; as `Arrangement` for one.

    ids: [all positions]. lengths: [inputs]. marks, owners: [all marks]; positions count in their input.
    counts: [inputs], the number of marks. kept: [inputs], how many content tokens are in each input.
    """

    ids: Ints
    lengths: Longs
    marks: Longs
    owners: Longs
    counts: Longs
    kept: Longs

    @classmethod
    def of(cls, arranged: Sequence[Arrangement]) -> "ArrangedBlock":
        """Combine separate inputs."""
        return cls(
            np.concatenate([NOTHING, *(one.ids for one in arranged)]),
            np.array([len(one.ids) for one in arranged], np.int64),
            np.concatenate([NOTHING, *(one.marks for one in arranged)]).astype(np.int64),
            np.concatenate([NOTHING, *(one.owners for one in arranged)]).astype(np.int64),
            np.array([len(one.marks) for one in arranged], np.int64),
            np.array([one.kept for one in arranged], np.int64),
        )


BlockArranger = Callable[[WindowBlock, SpecialTokens, int], ArrangedBlock]


def block_arranger(pooler: Pooler) -> BlockArranger | None:
    """Return the method `arrange_block` of a pooler, unless its class changes only `arrange`."""
    for kind in type(pooler).__mro__:
        if "arrange" in vars(kind):
            arranger: BlockArranger | None = getattr(pooler, "arrange_block", None)
            return arranger if "arrange_block" in vars(kind) else None
    return None


def place_block(placer: Placer, block: TokenBlock) -> PlacedBlock:
    """Return the model inputs of all texts of a block."""
    single = placer.expansion is not None or placer.apart or not len(block)
    placed = None if single else _placed(placer, block)
    if placed is not None:
        return placed
    contents = (placer.content(text.ids, text.prompt, text.ends) for text in block)
    return PlacedBlock.of([placer.place(content) for content in contents])


@dataclass(frozen=True)
class _Chunks:
    """The chunks of all texts: their exclusive ends in content tokens, and how many each text has."""

    ends: Longs
    counts: Longs
    separator: int | None = None

    @cached_property
    def firsts(self) -> Longs:
        """The first chunk of each text."""
        return np.cumsum(self.counts) - self.counts

    @cached_property
    def starts(self) -> Longs:
        """The first content token of each chunk."""
        starts = np.concatenate([[0], self.ends[:-1]])
        starts[self.firsts] = 0
        return starts


class _Windows(NamedTuple):
    """The text of each window, and its chunks first … stop - 1, counted over all texts (`ChunkWindow`)."""

    texts: Longs
    first: Longs
    fresh: Longs
    stop: Longs


def _placed(placer: Placer, block: TokenBlock) -> PlacedBlock | None:
    """Return the inputs of a block, or None if it contains a rare text."""
    chunks = _chunks(placer, block)
    windows = _windows(placer, block, chunks)
    start, ends = chunks.starts[windows.first], chunks.ends[windows.stop - 1]
    of_windows = windows.stop - windows.first
    selected = ranges(windows.first, of_windows)
    texts = windows.texts
    prompts = block.prompts[texts]
    marked_from = np.zeros_like(prompts)
    if not placer.include_prompt:
        marked_from = np.where(prompts > 0, len(placer.special.prefix) + prompts, 0)
    contents = WindowBlock(
        block.ids,
        block.first_ids[texts] + start,
        ends - start,
        block.starts[texts, 0],
        prompts,
        chunks.ends[selected] - np.repeat(start, of_windows),
        of_windows,
        marked_from,
        chunks.separator,
    )
    arrange = block_arranger(placer.pooler)
    if arrange is None:
        each = (contents.window(number) for number in range(len(contents)))
        arranged = ArrangedBlock.of(
            [
                placer.pooler.arrange(one, placer.special, placer.limit, marks_from)
                for one, marks_from in zip(each, marked_from.tolist(), strict=True)
            ]
        )
    else:
        arranged = arrange(contents, placer.special, placer.limit)
    if placer.pooler.per != "model" and not arranged.lengths.all():
        return None
    return _grouped(placer, len(block), chunks, windows, arranged)


def _chunks(placer: Placer, block: TokenBlock) -> _Chunks:
    """Cut all texts into chunks, as `Placer.content` does."""
    lengths, gran = block.lengths, placer.gran
    if gran.splitter and block.ends is not None:
        bounds = block.starts[:, 3]
        counts = np.diff(bounds)
        ends = np.insert(block.ends.astype(np.int64), bounds[:-1][counts == 0], 0)
        separates = gran == "given" and not placer.pooler.chunked
        separator = placer.special.separator if separates else None
        return _Chunks(ends, np.maximum(counts, 1), separator)
    taken = np.zeros_like(lengths)
    if gran.tokens:
        taken = block.prompts if placer.prompt_in_chunks else taken
        placer.check_prompt(int(taken.max()))
        sizes = np.full_like(lengths, gran.tokens)
    elif placer.window.positions:
        sizes = np.ones_like(lengths)
    else:
        sizes = np.maximum(lengths, 1)
    counts = np.maximum(-(-(taken + lengths) // sizes), 1)
    ends = ranges(np.ones_like(counts), counts) * np.repeat(sizes, counts)
    ends = np.minimum(ends - np.repeat(taken, counts), np.repeat(lengths, counts))
    return _Chunks(ends, counts)


def _windows(placer: Placer, block: TokenBlock, chunks: _Chunks) -> _Windows:
    """Cut the chunks of all texts into windows."""
    firsts, texts = chunks.firsts, np.arange(len(block))
    if placer.window == "full":
        return _Windows(texts, firsts, firsts, firsts + chunks.counts)
    if placer.window == "chunk":
        every = np.arange(len(chunks.ends))
        return _Windows(np.repeat(texts, chunks.counts), every, every, every + 1)
    found: list[tuple[int, ...]] = []
    for text, (start, count) in enumerate(
        zip(firsts.tolist(), chunks.counts.tolist(), strict=True)
    ):
        prompt = block[text].prompt
        ends = chunks.ends[start : start + count].astype(np.int32)
        each = placer.windows(Content(NOTHING, ends, prompt, chunks.separator))
        found += [(text, *(start + chunk for chunk in window)) for window in each]
    return _Windows(*np.array(found, np.int64).T)


def _grouped(
    placer: Placer, count: int, chunks: _Chunks, windows: _Windows, arranged: ArrangedBlock
) -> PlacedBlock | None:
    """Select the marks that count, and number the vectors of `count` texts (`Placer._group`).

    Returns None if a text has no vectors.
    """
    texts = windows.texts
    start = chunks.starts[windows.first]
    fresh = chunks.starts[windows.fresh]
    represented = np.maximum(start + arranged.kept - fresh, 0)
    of_marks = np.repeat(np.arange(len(texts)), arranged.counts)
    marks, counts = arranged.marks, arranged.counts
    if placer.unit == "doc":
        if not counts.all():
            return None
        groups = of_marks
        vectors = np.bincount(texts, minlength=count)
        covers = np.stack([fresh, fresh + represented], axis=1)
    else:
        owners = _owners(placer, windows, arranged, of_marks)
        if placer.unit == "token":
            counted = (owners == SHARED) | (owners >= windows.fresh[of_marks])
            if placer.skip:
                firsts = np.cumsum(arranged.lengths) - arranged.lengths
                marked = arranged.ids[marks + firsts[of_marks]]
                counted &= ~np.isin(marked, np.array(sorted(placer.skip)))
        else:
            counted = owners >= windows.fresh[of_marks]
        marks, of_marks, owners = marks[counted], of_marks[counted], owners[counted]
        counts = np.bincount(of_marks, minlength=len(texts))
        if placer.unit == "token":
            groups = np.arange(len(marks))
            vectors = np.bincount(texts[of_marks], minlength=count)
            covers = np.zeros((0, 2), np.int64)
        else:
            numbers, at, groups = np.unique(owners, return_index=True, return_inverse=True)
            mine = of_marks[at]  # the window of each vector
            vectors = np.bincount(texts[mine], minlength=count)
            stop = (start + arranged.kept)[mine]
            covers = np.stack([chunks.starts[numbers], np.minimum(chunks.ends[numbers], stop)], 1)
            represented = np.zeros_like(represented)
            np.add.at(represented, mine, covers[:, 1] - covers[:, 0])
    if not vectors.all():
        return None
    kept = np.zeros(count, np.int64)
    np.add.at(kept, texts, represented)
    inputs = _inputs(arranged, marks.astype(np.int32), groups.astype(np.int32), counts)
    return PlacedBlock(inputs, texts, vectors, covers.astype(np.int32), kept)


def _owners(placer: Placer, windows: _Windows, arranged: ArrangedBlock, of_marks: Longs) -> Longs:
    """Return the chunk of each mark, counted over all texts, or SHARED."""
    owners = arranged.owners
    if placer.window == "chunk":
        return windows.first[of_marks]
    whole = windows.stop - windows.first == 1  # the only chunk owns the whole input …
    whole[of_marks[owners != SHARED]] = False  # … unless the pooler says more
    owned = (owners != SHARED) | whole[of_marks]
    return np.where(owned, np.maximum(owners, 0) + windows.first[of_marks], SHARED)


def _inputs(arranged: ArrangedBlock, marks: Ints, groups: Ints, counts: Longs) -> list[Input]:
    """Return the inputs as views of flat arrays."""
    bounds = np.concatenate([[0], np.cumsum(arranged.lengths)]).tolist()
    mark_bounds = np.concatenate([[0], np.cumsum(counts)]).tolist()
    ids = arranged.ids
    return [
        Input(ids[a:b], marks[c:d], groups[c:d], b - a)
        for (a, b), (c, d) in zip(pairwise(bounds), pairwise(mark_bounds), strict=True)
    ]


class PlainBlock(NamedTuple):
    """Many inputs in the usual layout (`placement.plain`): ids, lengths and kept of an ArrangedBlock."""

    ids: Ints
    lengths: Longs
    kept: Longs


def plain_block(windows: WindowBlock, special: SpecialTokens, limit: int) -> PlainBlock:
    """Return prefix + prompt + content + suffix of each window, as `placement.plain` does for one."""
    lead = len(special.prefix)
    size = limit - lead - (0 if special.cuts_suffix else len(special.suffix))
    prompts = np.minimum(windows.prompts, size)
    separated = windows.lengths
    if windows.separator is not None:
        separated = separated + windows.chunks - 1
    bodies = np.minimum(separated, size - prompts)
    ends = lead + prompts + bodies
    lengths = np.minimum(ends + len(special.suffix), limit)
    starts = np.cumsum(lengths) - lengths
    ids = np.empty(int(lengths.sum()), np.int32)
    for position, token in enumerate(special.prefix):
        ids[starts + position] = token
    if prompts.any():
        ids[ranges(starts + lead, prompts)] = windows.ids[ranges(windows.prompt_starts, prompts)]
    kept = bodies
    if windows.separator is None:
        ids[ranges(starts + lead + prompts, bodies)] = windows.ids[ranges(windows.starts, bodies)]
    else:
        first = starts + lead + prompts
        places, of = windows.token_numbers + windows.token_chunks, windows.token_windows
        seen = places < bodies[of]
        ids[(first[of] + places)[seen]] = windows.content[seen]
        places, of = separator_places(windows), windows.chunk_windows
        seen = (windows.chunk_numbers < windows.chunks[of] - 1) & (places < bodies[of])
        ids[(first[of] + places)[seen]] = windows.separator
        kept = bodies - np.bincount(of[seen], minlength=len(windows))
    for position, token in enumerate(special.suffix):
        inside = ends + position < lengths
        ids[(starts + ends + position)[inside]] = token
    return PlainBlock(ids, lengths, kept)


def separator_places(windows: WindowBlock) -> Longs:
    """Return the place of a token after each chunk, in contents with such tokens, [all chunks]."""
    return windows.ends + windows.chunk_numbers
