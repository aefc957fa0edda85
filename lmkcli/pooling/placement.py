"""Placement: which token ids a model reads, and which positions become which vector.

This is the one arithmetic idea of the project (docs/poolers.md). A pooler arranges content tokens into an
input and marks positions; `segment_mean.pool` averages the states there. Plain NumPy, exact.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lmkcli.errors import UsageError

Ints = NDArray[np.int32]
SPLITTERS = ("sentence", "given")  # granularities that are cut before tokens are made
NOTHING: Ints = np.zeros(0, np.int32)
SHARED = -1  # the owner of a mark that stands for the document as a whole and for no chunk


class SpecialTokens(NamedTuple):
    """The special tokens around content, from the tokenizer's own template."""

    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    cls: int | None = None  # CLS, else BOS
    landmark: int | None = None  # SEP, else EOS: nothing is added to the vocabulary (LMK, §4)
    separator: int | None = None  # SEP, else PAD: between chunks that the collection gives
    cuts_suffix: bool = False  # whether a text that is too long loses its suffix (M2-BERT)
    mask: int | None = None  # what hides a token in pre-training


class Content(NamedTuple):
    """One text's tokens. `ends` are the exclusive ends of its chunks; the last is len(ids).

    There is always a chunk: an empty text is one empty chunk. `separator` stands between the chunks
    where the collection gave them and the pooler puts no token of its own there. `contexts` stand before
    the chunks, one for each, where each is an input of its own.
    """

    ids: Ints
    ends: Ints
    prompt: Ints
    separator: int | None = None
    contexts: Sequence[Ints] = ()


class Arrangement(NamedTuple):
    """One model input: ids, marked positions, the chunk that owns each mark, content tokens kept."""

    ids: Ints
    marks: Ints
    owners: Ints
    kept: int


class Pooler(Protocol):
    """Arranges content for one pooling method."""

    @property
    def chunked(self) -> bool:
        """Whether every chunk gets a token of its own."""

    @property
    def per(self) -> str:
        """What is marked: 'input' (one position), 'step', 'chunk', 'token', or 'model' for nothing."""

    def reserved(self, special: SpecialTokens) -> int:
        """Positions of an input that neither content, prompt nor chunks take."""

    def arrange(
        self, content: Content, special: SpecialTokens, limit: int, marked_from: int
    ) -> Arrangement:
        """An input of at most `limit` positions; positions before `marked_from` bear no mark."""

    def check(self, special: SpecialTokens) -> None:
        """UsageError when the tokenizer lacks a special token that this pooler needs."""


class Input(NamedTuple):
    """One model input: ids, marked positions, and the text's vector to which each mark belongs.

    Positions from `attended` on are not attended to (the expansion tokens of late-interaction queries).
    `positions` number the places of the ids where they are not 0, 1, 2 and so on.
    """

    ids: Ints
    marks: Ints
    groups: Ints
    attended: int
    positions: Ints | None = None


class Placement(NamedTuple):
    """The inputs of one text. Vectors are numbered over them, 0 … vectors - 1, in reading order.

    With unit doc each window makes one vector, and their mean is the text's. `covers` [vectors, 2]
    says which content tokens a vector stands for (unit chunk), `kept` how many tokens any stands for,
    and `context` how many tokens of contexts are in the inputs.
    """

    inputs: list[Input]
    vectors: int
    covers: Ints
    kept: int
    context: int = 0


class Expansion(NamedTuple):
    """Late-interaction queries are filled up to the limit with a token whose states are scored."""

    token: int
    attended: bool  # whether the other tokens see it


class Window(NamedTuple):
    """Chunks first … stop-1 are seen together; those before `fresh` were emitted by a window before."""

    first: int
    fresh: int
    stop: int


@dataclass(frozen=True)
class Placer:
    """Places texts for one side of a recipe: pool x unit x window (docs/long-documents.md)."""

    pooler: Pooler
    special: SpecialTokens
    limit: int
    gran: str
    include_prompt: bool
    unit: str = "doc"
    window: str = "full"
    overlap: int | str = 0  # tokens, or chunks: '10c'
    skip: frozenset[int] = frozenset()  # unit token: ids whose states are no vectors
    expansion: Expansion | None = None  # unit token: what queries are filled up with

    def __post_init__(self) -> None:
        self.pooler.check(self.special)
        specials = len(self.special.prefix) + len(self.special.suffix)
        if self.limit <= specials:
            flag = "--window" if self.window.isdigit() else "--max-length"
            raise UsageError(f"{flag} {self.limit} leaves no room beside {specials} special tokens")

    def content(self, ids: Ints, prompt: Ints, ends: Ints | None) -> Content:
        """Chunk ends from the granularity; `ends` are given where the splitter made them."""
        given = self.gran == "given" and not self.pooler.chunked
        separator = self.special.separator if given else None
        if self.gran in SPLITTERS and ends is not None:
            return Content(ids, ends if len(ends) else np.zeros(1, np.int32), prompt, separator)
        if self.gran.isdigit():
            return Content(ids, chunk_ends(len(ids), int(self.gran)), prompt)
        one = 1 if self.window.isdigit() else len(ids)  # windows may be cut at any token
        return Content(ids, chunk_ends(len(ids), one), prompt)

    def place(self, content: Content) -> Placement:
        """The model inputs of one text, and which marks become which vector."""
        inputs: list[Input] = []
        covers: list[tuple[int, int]] = []
        kept = vectors = context = 0
        for window in self._windows(content):
            before = self._before(content, window)
            context += len(before)
            arranged = self._arranged(content, window, before)
            attended = len(arranged.ids)
            if self.expansion is not None:
                arranged = _expanded(arranged, self.expansion.token, self.limit)
                attended = len(arranged.ids) if self.expansion.attended else attended
            marks, groups, mine, seen = self._grouped(content, window, arranged)
            inputs.append(Input(arranged.ids, arranged.marks[marks], groups + vectors, attended))
            covers += mine
            kept += seen
            vectors += int(groups[-1]) + 1 if len(groups) else 0
        if not vectors:  # nothing that one may stand for was marked: the first input as a whole
            arranged = self._arranged(content, Window(0, 0, len(content.ends)), NOTHING)
            one = np.zeros(len(arranged.marks), np.int32)
            inputs = [Input(arranged.ids, arranged.marks, one, len(arranged.ids))]
            return Placement(inputs, 1, np.array([[0, arranged.kept]], np.int32), arranged.kept)
        return Placement(inputs, vectors, np.array(covers, np.int32).reshape(-1, 2), kept, context)

    def _windows(self, content: Content) -> Iterator[Window]:
        count = len(content.ends)
        if self.window == "full":
            yield Window(0, 0, count)
        elif self.window == "chunk":
            yield from (Window(i, i, i + 1) for i in range(count))
        else:
            yield from self._filled(content)

    def _filled(self, content: Content) -> Iterator[Window]:
        """Windows that are filled with whole chunks, after the last ones of the window before again."""
        per_chunk = int(self.pooler.chunked or content.separator is not None)
        sizes = np.diff(content.ends, prepend=0) + per_chunk
        # taken[i]: positions of the chunks before chunk i
        taken = np.concatenate([[0], np.cumsum(sizes)])
        tokens = np.concatenate([[0], content.ends])
        room = self.limit - self.pooler.reserved(self.special) - len(content.prompt)
        room += content.separator is not None  # none follows the last chunk
        fresh, count = 0, len(sizes)
        while fresh < count:
            first = self._first_again(tokens, fresh)
            # what is seen again leaves room for one chunk more, or is left out
            first = max(first, int(np.searchsorted(taken, taken[fresh + 1] - room)))
            first = min(first, fresh)
            stop = int(np.searchsorted(taken, taken[first] + room, side="right")) - 1
            stop = min(max(stop, fresh + 1), count)
            yield Window(first, fresh, stop)
            fresh = stop

    def _first_again(self, tokens: NDArray[np.int64], fresh: int) -> int:
        """The first chunk that a window sees whose own begin with `fresh`; chunk i begins at tokens[i]."""
        if isinstance(self.overlap, str):
            return max(0, fresh - int(self.overlap.removesuffix("c")))
        return int(np.searchsorted(tokens, tokens[fresh] - self.overlap))

    def _before(self, content: Content, window: Window) -> Ints:
        """The context of a chunk that is an input of its own, cut to the room that the chunk leaves."""
        if not content.contexts:
            return NOTHING
        tokens = int(np.diff(content.ends, prepend=0)[window.first])
        taken = self.pooler.reserved(self.special) + int(self.pooler.chunked) + len(content.prompt)
        return content.contexts[window.first][: max(self.limit - taken - tokens, 0)]

    def _arranged(self, content: Content, window: Window, before: Ints) -> Arrangement:
        """The input of a window, after the tokens of a context, which are not counted among those kept."""
        start = int(content.ends[window.first - 1]) if window.first else 0
        ends = content.ends[window.first : window.stop] - start
        part = content._replace(ids=content.ids[start : start + int(ends[-1])], ends=ends)
        if len(before):
            part = part._replace(ids=np.concatenate([before, part.ids]), ends=ends + len(before))
        hidden = 0
        if len(content.prompt) and not self.include_prompt:
            hidden = len(self.special.prefix) + len(content.prompt)
        arranged = self.pooler.arrange(part, self.special, self.limit, hidden)
        if (
            not len(arranged.ids) and self.pooler.per != "model"
        ):  # an empty text without special tokens
            filler = self.special.landmark if self.special.cls is None else self.special.cls
            one = np.zeros(1, np.int32)
            return Arrangement(np.array([filler or 0], np.int32), one, one, 0)
        return arranged._replace(kept=max(arranged.kept - len(before), 0))

    def _grouped(
        self, content: Content, window: Window, arranged: Arrangement
    ) -> tuple[NDArray[np.intp], Ints, list[tuple[int, int]], int]:
        """Which marks count, the vector of each from 0 on, the tokens of each vector, tokens kept."""
        tokens = np.concatenate([[0], content.ends])
        begin, fresh = int(tokens[window.first]), int(tokens[window.fresh])
        seen = max(begin + arranged.kept - fresh, 0)
        every = np.arange(len(arranged.marks))
        if self.unit == "doc":
            return every, np.zeros(len(every), np.int32), [(fresh, fresh + seen)], seen
        owners = arranged.owners
        alone = window.stop - window.first == 1
        if self.window == "chunk" or (alone and (owners == SHARED).all()):
            owners = np.zeros(len(every), np.int32)  # the only chunk owns the whole input
        chunks = np.where(owners == SHARED, SHARED, owners + window.first)
        if self.unit == "token":
            fit = (chunks == SHARED) | (chunks >= window.fresh)
            kept = np.flatnonzero(fit & self._scored(arranged))
            return kept, np.arange(len(kept), dtype=np.int32), [], seen
        kept = np.flatnonzero(chunks >= window.fresh)
        numbers, groups = np.unique(chunks[kept], return_inverse=True)
        stop = begin + arranged.kept
        covers = [(int(tokens[n]), min(int(tokens[n + 1]), stop)) for n in numbers]
        return kept, groups.astype(np.int32), covers, sum(b - a for a, b in covers)

    def _scored(self, arranged: Arrangement) -> NDArray[np.bool_]:
        if not self.skip:
            return np.ones(len(arranged.marks), bool)
        return np.array(
            [int(token) not in self.skip for token in arranged.ids[arranged.marks]], bool
        )


def _expanded(arranged: Arrangement, token: int, limit: int) -> Arrangement:
    filling = np.full(limit - len(arranged.ids), token, np.int32)
    places = np.arange(len(arranged.ids), limit, dtype=np.int32)
    return Arrangement(
        np.concatenate([arranged.ids, filling]),
        np.concatenate([arranged.marks, places]),
        np.concatenate([arranged.owners, np.full(len(places), SHARED, np.int32)]),
        arranged.kept,
    )


def chunk_ends(length: int, size: int) -> Ints:
    """Exclusive ends of chunks of `size` tokens; the last may be shorter. One empty chunk for length 0."""
    if length == 0:
        return np.zeros(1, np.int32)
    ends = np.arange(size, length + size, size, dtype=np.int32)
    ends[-1] = length
    return ends


def plain(content: Content, special: SpecialTokens, limit: int) -> tuple[Ints, int]:
    """prefix + prompt + content + suffix, cut before the suffix or with it; and the content tokens kept."""
    room = limit - len(special.prefix) - (0 if special.cuts_suffix else len(special.suffix))
    prompt = content.prompt[:room]
    body = separated(content)[: room - len(prompt)]
    between = 0 if content.separator is None else int((separators(content) < len(body)).sum())
    ids = np.concatenate(
        [np.array(special.prefix, np.int32), prompt, body, np.array(special.suffix, np.int32)]
    ).astype(np.int32, copy=False)
    return ids[:limit], len(body) - between


def separated(content: Content) -> Ints:
    """The content's ids, with its separator between the chunks where it has one."""
    if content.separator is None:
        return content.ids
    return np.insert(content.ids, content.ends[:-1], np.int32(content.separator))


def separators(content: Content) -> Ints:
    """Where the separators stand in `separated(content)`."""
    if content.separator is None:
        return np.zeros(0, np.int32)
    before = np.arange(len(content.ends) - 1, dtype=np.int32)
    return (content.ends[:-1] + before).astype(np.int32, copy=False)
