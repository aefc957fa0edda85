"""Placement: which token ids a model reads, and which positions become which vector.

A model maps a sequence of n token ids to n states, [n, dim]. A vector is the mean of some of these states. A
pooling method therefore determines two things before the model runs:

- the input: content tokens and special tokens, `ids` [n];
- the marks: positions of the input that are averaged, `marks` [m], and the number of the vector that each
  mark contributes to, `groups` [m].

After the model, `reductions.pool` averages: vector v is the mean of states[marks[groups == v]]. No other
code distinguishes the methods (docs/pooling.md). For example, `lmk` with chunks of two tokens and unit chunk
places the content a b c d e as follows, where S is the landmark:

    ids     CLS  a  b  S  c  d  S  e  S      n = 9
    marks              3        6     8      the positions of the landmarks
    groups             0        1     2      a vector for each chunk; unit doc has the groups 0 0 0

`Placer.place` builds the inputs of all texts of a block at once:

1. Cut the texts into chunks, and the chunks into windows (chunks.py).
2. Lay out each window as one input, as the row of the pooler says (table.py, layout.py). The layout also has
   the chunk that owns each mark.
3. Select the marks that count, and number their vectors over all windows, depending on the unit.

This is exact integer arithmetic in NumPy; nothing here imports torch. The operations run on flat arrays of a
whole block, because each takes a microsecond or two, for one text as for a thousand short ones. A number is
computed for every window, chunk, token or mark of the block; `ranges` and `repeat` map between these levels:

    text  1:n  window  1:n  chunk  1:n  token           window  1:n  mark
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.errors import UsageError
from lmkcli.pooling.chunks import Chunks, Windows, cut_chunks, cut_windows
from lmkcli.pooling.layout import SHARED, Contents, InputLayout, lay_out
from lmkcli.pooling.table import Pooler, SpecialTokens
from lmkcli.spec.values import FULL, NO_OVERLAP, Granularity, Overlap, Window
from lmkcli.store.ragged import Longs, interleave, ranges
from lmkcli.store.token_blocks import IDS, PROMPT, Ints, TokenBlock

NOTHING: Ints = np.zeros(0, np.int32)


class Input(NamedTuple):
    """One model input: ids [n], marks [m], and groups [m], the vector number of each mark.

    The model does not attend to positions from `attended` on (the expansion tokens of late-interaction
    queries). positions: [n], the position numbers of the ids, if they are not 0, 1, 2 and so on.
    """

    ids: Ints
    marks: Ints
    groups: Ints
    attended: int
    positions: Ints | None = None


class Placement(NamedTuple):
    """The inputs of one text. Its vectors are numbered 0 … vectors - 1 over all inputs, in reading order.

    With unit doc every window makes one vector, and their mean is the vector of the text.
    covers: [vectors, 2], the range of content tokens that each vector represents (unit doc and chunk); with
    unit token and given chunks, the range of the chunk that the token belongs to.
    kept: how many content tokens are represented. context: how many tokens of contexts the inputs contain.
    chunks_lost: how many chunks with tokens have no vector, because the text was cut (`by_chunk`).
    """

    inputs: list[Input]
    vectors: int
    covers: Ints
    kept: int
    context: int = 0
    chunks_lost: int = 0


class PlacedBlock(NamedTuple):
    """The inputs of n texts. The groups of marks are vector numbers, counted over all texts.

    inputs: the model inputs, in the order of the texts. texts: [inputs], the text of each input.
    vectors, covers, kept, context, chunks_lost: as in `Placement`; covers is [all vectors, 2], others [n].
    """

    inputs: list[Input]
    texts: Longs
    vectors: Longs
    covers: Ints
    kept: Longs
    context: Longs
    chunks_lost: Longs

    @classmethod
    def of(cls, placements: Sequence[Placement]) -> "PlacedBlock":
        """Combine the placements of separate texts."""
        vectors = np.array([placement.vectors for placement in placements], np.int64)
        firsts = np.cumsum(vectors) - vectors
        inputs = [
            one._replace(groups=one.groups + np.int32(first))
            for placement, first in zip(placements, firsts, strict=True)
            for one in placement.inputs
        ]
        counts = [len(placement.inputs) for placement in placements]
        return cls(
            inputs,
            np.repeat(np.arange(len(placements)), counts),
            vectors,
            np.concatenate([NOTHING.reshape(0, 2), *(one.covers for one in placements)]),
            np.array([placement.kept for placement in placements], np.int64),
            np.array([placement.context for placement in placements], np.int64),
            np.array([placement.chunks_lost for placement in placements], np.int64),
        )

    def split(self) -> list[Placement]:
        """Return the placement of each text."""
        bounds = [0, *np.cumsum(self.vectors).tolist()]
        of_texts = np.searchsorted(self.texts, np.arange(len(self.vectors) + 1)).tolist()
        each = zip(
            pairwise(of_texts),
            pairwise(bounds),
            self.kept.tolist(),
            self.context.tolist(),
            self.chunks_lost.tolist(),
            strict=True,
        )
        return [
            Placement(
                [one._replace(groups=one.groups - np.int32(a)) for one in self.inputs[first:stop]],
                b - a,
                self.covers[a:b],
                kept,
                context,
                lost,
            )
            for (first, stop), (a, b), kept, context, lost in each
        ]


class Expansion(NamedTuple):
    """The token that fills late-interaction queries up to the limit. Its states are scored too."""

    token: int
    attended: bool  # whether the other tokens attend to it


@dataclass(frozen=True)
class Placer:
    """Places texts for one side of a recipe: pool x unit x window (docs/choosing.md)."""

    pooler: Pooler
    special: SpecialTokens
    limit: int  # positions of an input
    gran: Granularity
    include_prompt: bool
    unit: str = "doc"
    window: Window = FULL
    overlap: Overlap = NO_OVERLAP
    skip: frozenset[int] = frozenset()  # unit token: the states of these ids are no vectors
    expansion: Expansion | None = None  # unit token: fills up queries
    # whether the first chunk of a granularity in tokens contains the prompt (LandmarkTransformer)
    prompt_in_chunks: bool = False
    # unit doc: each chunk of a window (or the window, if the pooler does not mark chunks) has a vector of its
    # own, so that its share of the text's vector is known
    apart: bool = False

    def __post_init__(self) -> None:
        for name, kind in (("gran", Granularity), ("window", Window), ("overlap", Overlap)):
            object.__setattr__(self, name, kind(getattr(self, name)))
        self.pooler.check(self.special)
        specials = len(self.special.prefix) + len(self.special.suffix)
        if self.limit <= specials:
            given = (
                f"--window {self.window}" if self.window.positions else f"--max-length {self.limit}"
            )
            raise UsageError(f"{given} is too small: the special tokens take {specials} positions")

    @property
    def by_chunk(self) -> bool:
        """Whether each vector belongs to a chunk (`EncoderConfig.by_chunk`)."""
        return self.unit == "chunk" or (self.unit == "token" and self.gran == "given")

    def place_text(self, ids: Ints, prompt: Ints = NOTHING, ends: Ints | None = None) -> Placement:
        """Return the model inputs of one text: ids [tokens], and the chunk ends of a splitter, or None."""
        return self.place(TokenBlock.one(ids, prompt, ends)).split()[0]

    def place(self, block: TokenBlock, chunks: Chunks | None = None) -> PlacedBlock:
        """Return the model inputs of all texts of a block, by default with chunks of the granularity."""
        if self.special.cuts_start and chunks is None:
            block = self._without_starts(block)
        chunks = self.chunks(block) if chunks is None else chunks
        windows = self.windows(block, chunks)
        contents = self._contents(block, chunks, windows)
        # with --window chunk, the only chunk of an input owns all of it; else only vectors of chunks and
        # overlaps need the chunks of positions
        owned = (self.by_chunk and self.window != "chunk") or bool(self.overlap)
        layout = lay_out(self.pooler, self.special, self.limit, contents, owned)
        attended = layout.lengths
        if self.expansion is not None:
            layout = _expanded(layout, self.expansion.token, self.limit)
            attended = layout.lengths if self.expansion.attended else attended
        placed = self._numbered(contents, layout, attended)
        return placed if placed.vectors.all() else self._completed(block, chunks, placed)

    def _without_starts(self, block: TokenBlock) -> TokenBlock:
        """Drop the first tokens of texts that are too long, of the prompt first.

        A text in chunks or windows, or with inserted tokens, keeps its start. A prompt without marks hides as
        many tokens as before, as in sentence-transformers.
        """
        if self.pooler.inserted(self.special) or self.window != FULL or block.ends is not None:
            return block
        prefix, suffix = self.pooler.around(self.special)
        totals = block.prompts + block.lengths
        dropped = np.maximum(totals - (self.limit - len(prefix) - len(suffix)), 0)
        starts = np.zeros_like(block.starts)
        starts[1:, IDS] = np.cumsum(totals - dropped)
        left = block.prompts - dropped if self.include_prompt else block.prompts
        starts[:-1, PROMPT] = np.clip(left, 0, totals - dropped)
        ids = block.ids[ranges(block.starts[:-1, IDS] + dropped, totals - dropped)]
        return TokenBlock(ids, NOTHING.reshape(0, 2), None, starts)

    def chunks(self, block: TokenBlock) -> Chunks:
        """Cut the texts of a block into chunks of the granularity."""
        taken = None
        if self.prompt_in_chunks and self.gran.tokens:
            taken = block.prompts
            self._check_prompt(int(taken.max(initial=0)))
        return cut_chunks(
            block,
            self.gran,
            taken,
            # without a granularity, windows can be cut at every token; else the text is one chunk
            each_token=self.window.positions > 0,
            # landmarks replace the separators between given chunks
            separated=self.gran == "given"
            and not self.pooler.chunked
            and self.special.separator is not None,
        )

    def _check_prompt(self, taken: int) -> None:
        """Raise UsageError if a prompt of `taken` tokens is longer than the chunk that contains it."""
        if taken > self.gran.tokens:
            raise UsageError(
                f"the prompt has {taken} tokens, and in this model it is a part of the first chunk of "
                f"{self.gran} tokens; shorten the prompt, or raise --gran"
            )

    def windows(self, block: TokenBlock, chunks: Chunks) -> Windows:
        """Cut the chunks of the texts of a block into windows."""
        capacity = self.limit - self.pooler.reserved(self.special)
        capacity += chunks.separated  # no separator follows the last chunk
        extra = len(self.pooler.inserted(self.special)) + chunks.separated
        return cut_windows(chunks, self.window, self.overlap, capacity - block.prompts, extra)

    def _contents(self, block: TokenBlock, chunks: Chunks, windows: Windows) -> Contents:
        """Return the contents of all windows, each with its prompt and its context."""
        none = np.zeros_like(windows.texts)
        contents = Contents(block, chunks, windows, self.include_prompt, NOTHING, none)
        if not chunks.contexts:
            return contents
        # each window is a chunk, and its context takes the positions that the chunk leaves
        taken = self.pooler.reserved(self.special) + len(self.pooler.inserted(self.special))
        free = np.maximum(self.limit - taken - contents.prompts - contents.lengths, 0).tolist()
        cut = [context[:room] for context, room in zip(chunks.contexts, free, strict=True)]
        lengths = np.array([len(context) for context in cut], np.int64)
        return replace(contents, context_ids=np.concatenate([NOTHING, *cut]), contexts=lengths)

    def _numbered(self, contents: Contents, layout: InputLayout, attended: Longs) -> PlacedBlock:
        """Select the marks that count, and number the vectors.

        Marks are ordered by window, and by chunk in a window. So a vector is a run of marks. It ends where
        the window changes (unit doc), or the window or the chunk (unit chunk), or after each mark (token).
        Marks in the overlap do not count again. With unit doc they do count, because every mark of a window
        enters its vector.
        """
        chunks, windows, texts = contents.chunks, contents.windows, contents.windows.texts
        marks, counts = layout.marks, layout.counts
        start, fresh = contents.first_tokens, chunks.starts[windows.fresh]
        stop = start + layout.kept
        represented = np.maximum(stop - fresh, 0)
        of_marks = np.repeat(np.arange(len(texts)), counts)
        if self.unit == "doc" and not (self.apart and self.pooler.chunked):
            groups, of_vectors = of_marks, np.arange(len(texts))
            covers = _pairs(fresh, fresh + represented)
        else:
            owners = self._owners(windows, layout, of_marks)
            counted = self._counted(windows, layout, owners, of_marks)
            if not counted.all():
                marks, of_marks, owners = marks[counted], of_marks[counted], owners[counted]
                counts = np.bincount(of_marks, minlength=len(texts))
            begins = np.ones(len(marks), bool)
            if self.unit != "token":
                begins[1:] = (of_marks[1:] != of_marks[:-1]) | (owners[1:] != owners[:-1])
            groups, of_vectors, chunk = np.cumsum(begins) - 1, of_marks[begins], owners[begins]
            covers = _pairs(NOTHING, NOTHING)
            if self.unit != "token" or self.by_chunk:
                # SHARED is also the last chunk, whose numbers are replaced
                whole, until = chunk == SHARED, stop[of_vectors]
                covers = _pairs(
                    np.where(whole, start[of_vectors], chunks.starts[chunk]),
                    np.where(whole, until, np.minimum(chunks.ends[chunk], until)),
                )
                if self.unit == "chunk":
                    covered = covers[:, 1] - covers[:, 0]
                    represented = _sums(of_vectors, covered, len(texts))
        n = len(chunks.counts)
        chunks_lost = np.zeros(n, np.int64)
        if self.by_chunk:
            lost = chunks.ends > chunks.starts
            lost[chunk] = False
            chunks_lost = np.bincount(np.repeat(np.arange(n), chunks.counts)[lost], minlength=n)
        return PlacedBlock(
            _inputs(layout, marks.astype(np.int32), groups.astype(np.int32), counts, attended),
            texts,
            np.bincount(texts[of_vectors], minlength=n),
            covers,
            _sums(texts, represented, n),
            _sums(texts, contents.contexts, n),
            chunks_lost,
        )

    def _owners(self, windows: Windows, layout: InputLayout, of_marks: Longs) -> Longs:
        """Return the chunk of each mark, counted over all texts, or SHARED."""
        first = windows.first[of_marks]
        owned = layout.owners != SHARED
        if self.unit != "doc":
            if self.window == "chunk":
                return first
            alone = windows.stop - windows.first == 1  # the only chunk owns the whole input …
            alone[of_marks[owned]] = False  # … unless some of its positions belong to no chunk
            owned = owned | alone[of_marks]
        return np.where(owned, np.maximum(layout.owners, 0) + first, SHARED)

    def _counted(
        self, windows: Windows, layout: InputLayout, owners: Longs, of_marks: Longs
    ) -> NDArray[np.bool_]:
        """Return which marks are in a vector."""
        if self.unit == "doc":
            return np.ones(len(owners), bool)
        counted = owners >= windows.fresh[of_marks]
        if self.unit == "chunk":
            return counted
        if not self.by_chunk:
            counted |= owners == SHARED
        if self.skip:
            starts = np.cumsum(layout.lengths) - layout.lengths
            marked = layout.ids[layout.marks + starts[of_marks]]
            skipped = counted & np.isin(marked, np.array(sorted(self.skip)))
            counted &= ~skipped
            if (
                self.by_chunk
            ):  # a chunk of skipped tokens only keeps them: it must be found by its number
                counted |= skipped & ~np.isin(owners, owners[counted])
        return counted

    def _completed(self, block: TokenBlock, chunks: Chunks, placed: PlacedBlock) -> PlacedBlock:
        """Give one vector to texts without a vector: the mean of all marks of the whole text.

        That happens if every token is skipped, or if no chunk has a mark.
        """
        bare = np.flatnonzero(placed.vectors == 0)
        whole = replace(self, unit="doc", window=FULL, overlap=NO_OVERLAP, expansion=None)
        texts = TokenBlock.of([block[number] for number in bare.tolist()])
        placements = placed.split()
        for number, one in zip(bare, whole.place(texts, chunks.of(bare)).split(), strict=True):
            covers = one.covers if self.by_chunk else one.covers[:0]
            lost = placements[number].chunks_lost
            placements[number] = one._replace(covers=covers, chunks_lost=lost)
        return PlacedBlock.of(placements)


def _inputs(
    layout: InputLayout, marks: Ints, groups: Ints, counts: Longs, attended: Longs
) -> list[Input]:
    """Return the inputs as views of flat arrays."""
    bounds = [0, *np.cumsum(layout.lengths).tolist()]
    mark_bounds = [0, *np.cumsum(counts).tolist()]
    each = zip(pairwise(bounds), pairwise(mark_bounds), attended.tolist(), strict=True)
    return [
        Input(layout.ids[a:b], marks[c:d], groups[c:d], until) for (a, b), (c, d), until in each
    ]


def _pairs(begins: NDArray[np.integer[Any]], ends: NDArray[np.integer[Any]]) -> Ints:
    """Return ranges of tokens, [n, 2]."""
    pairs = np.empty((len(begins), 2), np.int32)
    pairs[:, 0], pairs[:, 1] = begins, ends
    return pairs


def _sums(groups: Longs, values: NDArray[np.integer[Any]], count: int) -> Longs:
    """Return the sum of the values of each group, [count]."""
    return np.bincount(groups, values, count).astype(np.int64)  # exact: less than 2^53 tokens


def _expanded(layout: InputLayout, token: int, limit: int) -> InputLayout:
    """Fill all inputs up to the limit with a token; all filled positions are marked."""
    lengths = layout.lengths
    added = limit - lengths
    count = int(added.sum())
    return layout._replace(
        ids=interleave(layout.ids, lengths, np.full(count, token, np.int32), added),
        lengths=lengths + added,
        marks=interleave(layout.marks, layout.counts, ranges(lengths, added), added),
        counts=layout.counts + added,
        owners=interleave(layout.owners, layout.counts, np.full(count, SHARED), added),
    )
