"""Placement: which token ids a model reads, and which positions become which vector.

A model maps a sequence of n token ids to n states, [n, dim]. A vector is the mean of some of these states. A
pooling method therefore determines two things before the model runs:

- the input: content tokens and special tokens, `ids` [n];
- the marks: positions of the input that are averaged, `marks` [m], and the number of the vector that each
  mark contributes to, `groups` [m].

After the model, `segment_mean.pool` averages: vector v is the mean of states[marks[groups == v]]. No other
code distinguishes the methods (docs/poolers.md). For example, `lmk` with chunks of two tokens and unit chunk
places the content a b c d e as follows, where S is the landmark:

    ids     CLS  a  b  S  c  d  S  e  S      n = 9
    marks              3        6     8      the positions of the landmarks
    groups             0        1     2      a vector for each chunk; unit doc has the groups 0 0 0

`Placer.place` builds the inputs of one text:

1. Cut the content into chunks (`Placer.content`), and the chunks into windows: ranges of whole chunks that
   fit into one input.
2. Let the pooler arrange each window as one input. The pooler also returns the chunk that owns each mark.
3. Select the marks that count, and number their vectors over all windows, depending on the unit.

This is exact integer arithmetic in NumPy; nothing here imports torch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lmkcli.errors import UsageError
from lmkcli.spec.values import FULL, NO_OVERLAP, Granularity, Overlap, Window

Ints = NDArray[np.int32]
NOTHING: Ints = np.zeros(0, np.int32)
SHARED = -1  # the owner of a mark that belongs to the whole input and to no chunk


class SpecialTokens(NamedTuple):
    """The special tokens around content, from the template of the tokenizer."""

    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    cls: int | None = None  # CLS, else BOS
    landmark: int | None = None  # SEP, else EOS: the vocabulary is unchanged (LMK, §4)
    separator: int | None = None  # SEP, else PAD: between the chunks of a collection
    cuts_suffix: bool = False  # whether truncation also removes the suffix (M2-BERT)
    mask: int | None = None  # replaces hidden tokens in pre-training


class Content(NamedTuple):
    """The tokens of one text.

    ids: [tokens]. ends: [chunks], the exclusive ends of the chunks. The last one is len(ids). An empty text
    is one empty chunk. prompt: the ids of the prompt. separator: a token between the chunks, if the
    collection gives them and the pooler adds no token to them. contexts: the ids of a context for each chunk,
    if each chunk is an input of its own.
    """

    ids: Ints
    ends: Ints
    prompt: Ints
    separator: int | None = None
    contexts: Sequence[Ints] = ()


class Arrangement(NamedTuple):
    """One model input, as a pooler arranges it.

    ids: [n].
    marks: [m], ascending positions.
    owners: [m], the number of the chunk that each mark belongs to, or SHARED.
    kept: how many content tokens are in the input.
    """

    ids: Ints
    marks: Ints
    owners: Ints
    kept: int


Reduction = Literal["mean", "max", "sum"]


class Expanding(NamedTuple):
    """The pooling of a sparse vector over the vocabulary, from the logits of marked positions.

    reduction: 'max' or 'sum' over the positions, and by default over the windows of a text. logarithms: how
    often the weight of a term is log(1 + weight), starting from relu(logit).
    """

    reduction: Reduction
    logarithms: int = 1


@dataclass(frozen=True)
class PoolerTraits:
    """Facts about a pooler that other modules use. All properties are off by default.

    sentence_mode: the name of the same pooling in sentence-transformers, such as 'cls_token'. An exported
    folder then needs no code of lmk.
    token_head: whether the states pass through the learned head of the model folder before pooling.
    appends_eos: whether a decoder that declares no pooling gets an EOS token at the end of its inputs.
    marks_separator: whether the separator token is marked, so that it cannot join texts in pre-training.
    expanding: if the vectors are sparse, over the vocabulary of a masked-language model, how they are pooled.
    """

    sentence_mode: str = ""
    token_head: bool = False
    appends_eos: bool = False
    marks_separator: bool = False
    expanding: Expanding | None = None


class Pooler(Protocol):
    """The layout of one pooling method.

    Its class can have an attribute `traits` (`PoolerTraits`), a method `for_training()` that returns the
    pooler that training uses instead, and a method `arrange_block` that arranges many inputs at once
    (block_placement.py). A pooler 'NAME@PARAMETER' is created with the
    value of its parameter. By default that is a whole number of at least 1. For other parameters the class
    has a static method `parse_parameter(text)` that returns the value, or raises ValueError with a hint.
    """

    @property
    def chunked(self) -> bool:
        """Whether every chunk gets a token of its own."""

    @property
    def per(self) -> str:
        """The marks: 'input' (one position), 'step', 'chunk', 'token', or 'model' (no positions)."""

    def reserved(self, special: SpecialTokens) -> int:
        """Return how many positions of an input contain neither content, prompt nor tokens of chunks."""

    def arrange(
        self, content: Content, special: SpecialTokens, limit: int, marked_from: int
    ) -> Arrangement:
        """Return an input of at most `limit` positions without marks before position `marked_from`."""

    def check(self, special: SpecialTokens) -> None:
        """Raise UsageError if the tokenizer lacks a special token that this pooler needs."""


def training_pooler(pooler: Pooler) -> Pooler:
    """Return the variant of a pooler for training: the result of `for_training()`, if it has this method."""
    variant: Callable[[], Pooler] | None = getattr(pooler, "for_training", None)
    return variant() if variant else pooler


def traits_of(pooler: Pooler) -> PoolerTraits:
    """Return the traits of a pooler.

    A subclass does not inherit traits, because it usually has other marks. For example, a subclass of `Cls`
    that marks two positions is not the pooling 'cls_token'.
    """
    traits: PoolerTraits = vars(type(pooler)).get("traits", PoolerTraits())
    return traits


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
    covers: [vectors, 2], the range of content tokens that each vector represents (unit doc and chunk).
    kept: how many content tokens are represented. context: how many tokens of contexts the inputs contain.
    """

    inputs: list[Input]
    vectors: int
    covers: Ints
    kept: int
    context: int = 0


class Expansion(NamedTuple):
    """The token that fills late-interaction queries up to the limit. Its states are scored too."""

    token: int
    attended: bool  # whether the other tokens attend to it


class ChunkWindow(NamedTuple):
    """The model reads the chunks first … stop - 1 together.

    The chunks before `fresh` are the overlap: their vectors come from an earlier window.
    """

    first: int
    fresh: int
    stop: int


@dataclass(frozen=True)
class Placer:
    """Places texts for one side of a recipe: pool x unit x window (docs/long-documents.md)."""

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

    def content(self, ids: Ints, prompt: Ints, ends: Ints | None) -> Content:
        """Cut ids [tokens] into chunks of the granularity.

        `ends` are the chunk ends from a splitter, or None.
        """
        if self.gran.splitter and ends is not None:
            separates = self.gran == "given" and not self.pooler.chunked
            ends = ends if len(ends) else np.zeros(1, np.int32)
            return Content(ids, ends, prompt, self.special.separator if separates else None)
        if self.gran.tokens:
            taken = len(prompt) if self.prompt_in_chunks else 0
            self.check_prompt(taken)
            ends = chunk_ends(taken + len(ids), self.gran.tokens) - np.int32(taken)
            return Content(ids, ends, prompt)
        # without a granularity, windows can be cut at every token; else the text is one chunk
        size = 1 if self.window.positions else len(ids)
        return Content(ids, chunk_ends(len(ids), size), prompt)

    def check_prompt(self, taken: int) -> None:
        """Raise UsageError if a prompt of `taken` tokens is longer than the chunk that contains it."""
        if taken > self.gran.tokens:
            raise UsageError(
                f"the prompt has {taken} tokens, and in this model it is a part of the first chunk of "
                f"{self.gran} tokens; shorten the prompt, or raise --gran"
            )

    def place(self, content: Content) -> Placement:
        """Return the model inputs of one text, with the vector number of each mark."""
        inputs: list[Input] = []
        covers: list[tuple[int, int]] = []
        kept = vectors = context_tokens = 0
        for window in self.windows(content):
            context = self._context(content, window)
            context_tokens += len(context)
            arranged = self._arrange(content, window, context)
            attended = len(arranged.ids)
            if self.expansion is not None:
                arranged = _expand(arranged, self.expansion.token, self.limit)
                attended = len(arranged.ids) if self.expansion.attended else attended
            marks, groups, ranges, represented = self._group(content, window, arranged)
            inputs.append(Input(arranged.ids, arranged.marks[marks], groups + vectors, attended))
            covers += ranges
            kept += represented
            vectors += int(groups[-1]) + 1 if len(groups) else 0
        if not vectors:  # every token is skipped: use all positions of the first input
            arranged = self._arrange(content, ChunkWindow(0, 0, len(content.ends)), NOTHING)
            groups = np.zeros(len(arranged.marks), np.int32)
            inputs = [Input(arranged.ids, arranged.marks, groups, len(arranged.ids))]
            return Placement(inputs, 1, np.array([[0, arranged.kept]], np.int32), arranged.kept)
        ranges_array = np.array(covers, np.int32).reshape(-1, 2)
        return Placement(inputs, vectors, ranges_array, kept, context_tokens)

    def windows(self, content: Content) -> Iterator[ChunkWindow]:
        """Cut the chunks of a text into windows.

        With `--window N`, `before[i]` is the number of positions that the chunks 0 … i - 1 take. The chunks
        first … stop - 1 fit into an input if before[stop] - before[first] <= capacity. Each window therefore
        is found by binary search:

        - it starts in the overlap, but late enough that chunk `fresh` fits: the smallest `first` with
          before[fresh + 1] - before[first] <= capacity;
        - it ends at the largest `stop` with before[stop] - before[first] <= capacity.

        A chunk that is longer than the capacity is a window of its own, and the pooler cuts it.

        With `--window even:N`, see `even_windows`.
        """
        count = len(content.ends)
        if self.window == "full":
            yield ChunkWindow(0, 0, count)
            return
        if self.window == "chunk":
            yield from (ChunkWindow(number, number, number + 1) for number in range(count))
            return
        extra = int(self.pooler.chunked or content.separator is not None)  # a token for each chunk
        before = np.concatenate([[0], np.cumsum(np.diff(content.ends, prepend=0) + extra)])
        tokens_before = np.concatenate([[0], content.ends])
        capacity = self.limit - self.pooler.reserved(self.special) - len(content.prompt)
        capacity += content.separator is not None  # none follows the last chunk
        if self.window.even:
            yield from even_windows(before, capacity)
            return
        fresh = 0
        while fresh < count:
            first = fresh
            if self.overlap.chunks:
                first = max(0, fresh - self.overlap.chunks)
            elif self.overlap.tokens:
                kept = tokens_before[fresh] - self.overlap.tokens
                first = int(np.searchsorted(tokens_before, kept))
            first = max(first, int(np.searchsorted(before, before[fresh + 1] - capacity)))
            first = min(first, fresh)
            stop = int(np.searchsorted(before, before[first] + capacity, side="right")) - 1
            stop = min(max(stop, fresh + 1), count)
            yield ChunkWindow(first, fresh, stop)
            fresh = stop

    def _context(self, content: Content, window: ChunkWindow) -> Ints:
        """Return the context of the only chunk of a window, cut to the positions that the chunk leaves."""
        if not content.contexts:
            return NOTHING
        tokens = int(np.diff(content.ends, prepend=0)[window.first])
        taken = self.pooler.reserved(self.special) + int(self.pooler.chunked) + len(content.prompt)
        return content.contexts[window.first][: max(self.limit - taken - tokens, 0)]

    def _arrange(self, content: Content, window: ChunkWindow, context: Ints) -> Arrangement:
        """Return the input of a window, with a context before its content; `kept` excludes the context."""
        start = int(content.ends[window.first - 1]) if window.first else 0
        ends = content.ends[window.first : window.stop] - start
        part = content._replace(ids=content.ids[start : start + int(ends[-1])], ends=ends)
        if len(context):
            part = part._replace(ids=np.concatenate([context, part.ids]), ends=ends + len(context))
        marked_from = 0
        if len(content.prompt) and not self.include_prompt:
            marked_from = len(self.special.prefix) + len(content.prompt)
        arranged = self.pooler.arrange(part, self.special, self.limit, marked_from)
        if not len(arranged.ids) and self.pooler.per != "model":
            # an empty text without special tokens: add a token, because pooling needs one state
            filler = self.special.landmark if self.special.cls is None else self.special.cls
            zero = np.zeros(1, np.int32)
            return Arrangement(np.array([filler or 0], np.int32), zero, zero, 0)
        return arranged._replace(kept=max(arranged.kept - len(context), 0))

    def _group(
        self, content: Content, window: ChunkWindow, arranged: Arrangement
    ) -> tuple[NDArray[np.intp], Ints, list[tuple[int, int]], int]:
        """Select the marks of a window that count, and number its vectors from 0.

        Returns the indices of these marks [m], their groups [m], the token ranges of the vectors, and how
        many content tokens the vectors represent. Marks in the overlap do not count again. With unit doc
        they do count, because every mark of a window enters its vector.
        """
        tokens_before = np.concatenate([[0], content.ends])
        start, fresh = int(tokens_before[window.first]), int(tokens_before[window.fresh])
        represented = max(start + arranged.kept - fresh, 0)
        every = np.arange(len(arranged.marks))
        if self.unit == "doc" and self.apart and self.pooler.chunked:
            stop = start + arranged.kept
            chunks = np.where(arranged.owners == SHARED, SHARED, arranged.owners + window.first)
            numbers, groups = np.unique(chunks, return_inverse=True)
            order = np.argsort(groups, kind="stable")
            whole = (start, stop)
            covers = [
                whole
                if n == SHARED
                else (int(tokens_before[n]), min(int(tokens_before[n + 1]), stop))
                for n in numbers
            ]
            return order, groups[order].astype(np.int32), covers, represented
        if self.unit == "doc":
            one_vector = np.zeros(len(every), np.int32)
            return every, one_vector, [(fresh, fresh + represented)], represented
        owners = arranged.owners
        single = window.stop - window.first == 1
        if self.window == "chunk" or (single and (owners == SHARED).all()):
            owners = np.zeros(len(every), np.int32)  # the only chunk owns the whole input
        chunks = np.where(owners == SHARED, SHARED, owners + window.first)
        if self.unit == "token":
            counts = (chunks == SHARED) | (chunks >= window.fresh)
            if self.skip:
                marked = arranged.ids[arranged.marks].tolist()
                counts &= np.array([token not in self.skip for token in marked], bool)
            kept = np.flatnonzero(counts)
            return kept, np.arange(len(kept), dtype=np.int32), [], represented
        kept = np.flatnonzero(chunks >= window.fresh)
        numbers, groups = np.unique(chunks[kept], return_inverse=True)
        stop = start + arranged.kept
        covers = [(int(tokens_before[n]), min(int(tokens_before[n + 1]), stop)) for n in numbers]
        return kept, groups.astype(np.int32), covers, sum(end - begin for begin, end in covers)


def even_windows(before: NDArray[np.int64], capacity: int) -> Iterator[ChunkWindow]:
    """Cut chunks into as few windows as possible, about equally long.

    before: [chunks + 1], the number of positions before each chunk, and in total. Windows that are filled one
    after another are as few as possible, from either end. Filled from the end, they show where each window
    must stop at least, so that the rest still fits. A window stops as near as possible to its share: the
    positions that are left, divided by the windows that are left.
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
        yield ChunkWindow(first, first, stop)
        first = stop


def _expand(arranged: Arrangement, token: int, limit: int) -> Arrangement:
    """Fill an input up to the limit with a token; all filled positions are marked."""
    filling = np.full(limit - len(arranged.ids), token, np.int32)
    positions = np.arange(len(arranged.ids), limit, dtype=np.int32)
    return Arrangement(
        np.concatenate([arranged.ids, filling]),
        np.concatenate([arranged.marks, positions]),
        np.concatenate([arranged.owners, np.full(len(positions), SHARED, np.int32)]),
        arranged.kept,
    )


def chunk_ends(length: int, size: int) -> Ints:
    """Return the exclusive ends of chunks of `size` tokens, [chunks]; the last chunk can be shorter.

    A text of length 0 is one empty chunk.
    """
    if length == 0:
        return np.zeros(1, np.int32)
    ends = np.arange(size, length + size, size, dtype=np.int32)
    ends[-1] = length
    return ends


def plain(content: Content, special: SpecialTokens, limit: int) -> tuple[Ints, int]:
    """Return the ids of prefix + prompt + content + suffix, and how many content tokens they keep.

    A text that is too long loses the end of its content; with `cuts_suffix` it loses its suffix as well.
    """
    size = limit - len(special.prefix) - (0 if special.cuts_suffix else len(special.suffix))
    prompt = content.prompt[:size]
    body = separated(content)[: size - len(prompt)]
    between = 0 if content.separator is None else int((separators(content) < len(body)).sum())
    ids = np.concatenate(
        [np.array(special.prefix, np.int32), prompt, body, np.array(special.suffix, np.int32)]
    ).astype(np.int32, copy=False)
    return ids[:limit], len(body) - between


def separated(content: Content) -> Ints:
    """Return the ids of the content, with its separator between the chunks if it has one."""
    if content.separator is None:
        return content.ids
    return np.insert(content.ids, content.ends[:-1], np.int32(content.separator))


def separators(content: Content) -> Ints:
    """Return the positions of the separators in `separated(content)`."""
    if content.separator is None:
        return np.zeros(0, np.int32)
    earlier = np.arange(len(content.ends) - 1, dtype=np.int32)
    return (content.ends[:-1] + earlier).astype(np.int32, copy=False)
