"""Placement: which token ids a model reads, and which positions become which vector.

This is the one arithmetic idea of the project (DESIGN §2.1). A pooler arranges content tokens into an
input and marks positions; `pooling.pool` averages the states there. Plain NumPy, exact.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lmkcli.errors import UsageError

Ints = NDArray[np.int32]
SHARED = -1  # the owner of a mark that stands for the document as a whole and for no chunk


class Layout(NamedTuple):
    """The special tokens around content, from the tokenizer's own template."""

    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    cls: int | None = None  # CLS, else BOS
    landmark: int | None = None  # SEP, else EOS (specs: no new vocabulary)


class Content(NamedTuple):
    """One text's tokens. `ends` are the exclusive ends of its chunks; the last is len(ids)."""

    ids: Ints
    ends: Ints
    prompt: Ints


class Arrangement(NamedTuple):
    """One model input: ids, marked positions, the chunk that owns each mark, content tokens kept."""

    ids: Ints
    marks: Ints
    owners: Ints
    kept: int


class Pooler(Protocol):
    """Arranges content for one pooling method."""

    chunked: bool  # whether the layout depends on the chunks

    def arrange(
        self, content: Content, layout: Layout, limit: int, marked_from: int
    ) -> Arrangement:
        """An input of at most `limit` positions; positions before `marked_from` bear no mark."""

    def check(self, layout: Layout) -> None:
        """UsageError when the tokenizer lacks a special token that this pooler needs."""


class Placement(NamedTuple):
    """One model input and the number of the vector to which each of its marks belongs."""

    input_ids: Ints
    marks: Ints
    groups: Ints
    kept: int


@dataclass(frozen=True)
class Placer:
    """Places texts for one side of a recipe."""

    pooler: Pooler
    layout: Layout
    limit: int
    gran: str
    include_prompt: bool

    def __post_init__(self) -> None:
        self.pooler.check(self.layout)
        specials = len(self.layout.prefix) + len(self.layout.suffix)
        if self.limit <= specials:
            raise UsageError(
                f"--max-length {self.limit} leaves no room beside {specials} special tokens"
            )

    def content(self, ids: Ints, prompt: Ints, ends: Ints | None) -> Content:
        """Chunk ends from the granularity; `ends` are given where the splitter made them."""
        if self.gran == "sentence" and ends is not None:
            return Content(ids, ends, prompt)
        size = int(self.gran) if self.gran.isdigit() else len(ids)
        return Content(ids, chunk_ends(len(ids), size), prompt)

    def place(self, content: Content) -> Placement:
        """The model input for one text (unit doc, window full: one vector)."""
        hidden = 0
        if len(content.prompt) and not self.include_prompt:
            hidden = len(self.layout.prefix) + len(content.prompt)
        made = self.pooler.arrange(content, self.layout, self.limit, hidden)
        return Placement(made.ids, made.marks, np.zeros(len(made.marks), np.int32), made.kept)


def chunk_ends(length: int, size: int) -> Ints:
    """Exclusive ends of chunks of `size` tokens; the last chunk may be shorter. Empty for length 0."""
    if length == 0:
        return np.zeros(0, np.int32)
    ends = np.arange(size, length + size, size, dtype=np.int32)
    ends[-1] = length
    return ends


def plain(content: Content, layout: Layout, limit: int) -> tuple[Ints, int]:
    """prefix + prompt + content + suffix, cut before the suffix; and the content tokens kept."""
    room = limit - len(layout.prefix) - len(layout.suffix)
    prompt = content.prompt[:room]
    body = content.ids[: room - len(prompt)]
    ids = np.concatenate(
        [np.array(layout.prefix, np.int32), prompt, body, np.array(layout.suffix, np.int32)]
    ).astype(np.int32, copy=False)
    return ids, len(body)
