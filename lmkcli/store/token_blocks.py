"""Blocks: the tokens of many texts, or of documents, in flat arrays.

Reading, tokenizing, placing and writing work on blocks, because an operation on arrays costs as much for a
thousand short texts as for one. The arrays are those of a part of a tokens folder (tokens.py).
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import Doc

Ints = NDArray[np.int32]
# Columns of `starts`: the first position in ids, the length of the prompt, the first position in spans and
# the first position in ends.
IDS, PROMPT, SPANS, ENDS = range(4)
_POSITIONS = [IDS, SPANS, ENDS]


class TextTokens(NamedTuple):
    """One text: content ids [n], their character spans [n, 2] in the text, and the ids of the prompt.

    `ends` are the exclusive token ends of the splitter's pieces; None without a splitter. The ids contain no
    separators of given chunks: placement adds them.
    """

    ids: Ints
    spans: Ints
    prompt: Ints
    ends: Ints | None

    def first(self, tokens: int) -> "TextTokens":
        """Return the text cut to its first `tokens` tokens."""
        if self.ends is None:
            return self._replace(ids=self.ids[:tokens], spans=self.spans[:tokens])
        ends = np.unique(np.minimum(self.ends, tokens))
        return TextTokens(self.ids[:tokens], self.spans[:tokens], self.prompt, ends)


class TokenizedText(Protocol):
    """The tokens of one text, as in `TextTokens`."""

    @property
    def ids(self) -> Ints: ...
    @property
    def spans(self) -> Ints: ...
    @property
    def prompt(self) -> Ints: ...
    @property
    def ends(self) -> Ints | None: ...


class TokenBlock(Sequence[TextTokens]):
    """The tokens of n texts; as a sequence, it contains the tokens of each text as views of the arrays.

    ids: for each text the ids of its prompt, then its content ids.
    spans: [content tokens, 2], the character spans of the content tokens.
    ends: the ends of the pieces of each text, which count its content tokens; None without a splitter.
    starts: [n + 1, 4], for each text its first position in ids, the length of its prompt, and its first
    positions in spans and ends. The last row contains the ends of the last text.
    """

    def __init__(
        self, ids: Ints, spans: Ints, ends: Ints | None, starts: NDArray[np.int64]
    ) -> None:
        self.ids, self.spans, self.ends, self.starts = ids, spans, ends, starts

    @classmethod
    def of(cls, texts: Sequence[TokenizedText]) -> "TokenBlock":
        """Return a block of texts that are separate; a block stays as it is."""
        if isinstance(texts, TokenBlock):
            return texts
        none = np.zeros(0, np.int32)
        pieces = [none if text.ends is None else text.ends for text in texts]
        split = not texts or texts[0].ends is not None
        sizes = [
            (len(text.prompt) + len(text.ids), 0, len(text.spans), len(ends))
            for text, ends in zip(texts, pieces, strict=True)
        ]
        starts = np.zeros((len(texts) + 1, 4), np.int64)
        np.cumsum(np.array(sizes, np.int64).reshape(-1, 4), axis=0, out=starts[1:])
        starts[:-1, PROMPT] = [len(text.prompt) for text in texts]
        return cls(
            np.concatenate([none, *(ids for text in texts for ids in (text.prompt, text.ids))]),
            np.concatenate([none.reshape(0, 2), *(text.spans.reshape(-1, 2) for text in texts)]),
            np.concatenate([none, *pieces]) if split else None,
            starts,
        )

    @classmethod
    def one(cls, ids: Ints, prompt: Ints, ends: Ints | None) -> "TokenBlock":
        """Return a block of one text, without spans."""
        both = np.concatenate([prompt, ids]) if len(prompt) else ids
        pieces = 0 if ends is None else len(ends)
        starts = np.array([[0, len(prompt), 0, 0], [len(both), 0, 0, pieces]])
        return cls(both, np.zeros((0, 2), np.int32), ends, starts)

    @classmethod
    def join(cls, blocks: Sequence["TokenBlock"]) -> "TokenBlock":
        """Return the texts of several blocks, at least one, as one block."""
        if len(blocks) == 1:
            return blocks[0]
        sizes = np.array([block.starts[-1] for block in blocks])
        before = np.cumsum(sizes, axis=0) - sizes
        starts = [block.starts[:-1] + shift for block, shift in zip(blocks, before, strict=True)]
        ends = [block.ends for block in blocks if block.ends is not None]
        return cls(
            np.concatenate([block.ids for block in blocks]),
            np.concatenate([block.spans for block in blocks]),
            np.concatenate(ends) if ends else None,
            np.concatenate([*starts, [sizes.sum(axis=0)]]),
        )

    def rows(self, first: int, stop: int) -> "TokenBlock":
        """Return the texts `first` to `stop` as views."""
        starts = self.starts[first : stop + 1].copy()
        starts[-1, PROMPT] = 0
        low, high = starts[0, _POSITIONS].tolist(), starts[-1, _POSITIONS].tolist()
        starts[:, _POSITIONS] -= low
        ends = None if self.ends is None else self.ends[low[2] : high[2]]
        return TokenBlock(self.ids[low[0] : high[0]], self.spans[low[1] : high[1]], ends, starts)

    def without_spans(self) -> "TokenBlock":
        """Return the same ids, without spans."""
        starts = self.starts.copy()
        starts[:, SPANS] = 0
        return TokenBlock(self.ids, np.zeros((0, 2), np.int32), self.ends, starts)

    @property
    def prompts(self) -> NDArray[np.int64]:
        """The length of the prompt of each text, [n]."""
        return self.starts[:-1, PROMPT]

    @property
    def first_ids(self) -> NDArray[np.int64]:
        """The first position of the content of each text in ids, [n]."""
        return self.starts[:-1, IDS] + self.prompts

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of content tokens of each text, [n]."""
        return np.diff(self.starts[:, IDS]) - self.prompts

    def characters(self, texts: NDArray[np.int64], tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        """Convert token ranges [n, 2] of texts [n] to character ranges in their contents, [n, 2].

        The range of an empty text is 0 to 0; another empty token range starts and ends at its place.
        """
        starts = self.starts[texts, SPANS]
        counts = self.starts[texts + 1, SPANS] - starts
        spans = self.spans if len(self.spans) else np.zeros((1, 2), np.int32)
        first, stop = tokens.astype(np.int64).T
        at = np.maximum(np.minimum(first, counts - 1), 0) + starts
        begins = spans[np.minimum(at, len(spans) - 1), 0]
        at = np.maximum(stop - 1, 0) + starts
        ends = np.where(stop > 0, spans[np.minimum(at, len(spans) - 1), 1], 0)
        begins = np.where(first < stop, begins, ends)
        found = np.stack([begins, np.maximum(begins, ends)], axis=1).astype(np.int32)
        found[counts == 0] = 0
        return found

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, number: int) -> TextTokens: ...
    @overload
    def __getitem__(self, number: slice) -> "TokenBlock": ...
    def __getitem__(self, number: int | slice) -> "TextTokens | TokenBlock":
        if isinstance(number, slice):
            first, stop, step = number.indices(len(self))
            if step != 1:
                raise ValueError("a block has no steps")
            return self.rows(first, max(first, stop))
        number = range(len(self))[number]
        return self._text(self.starts[number].tolist(), self.starts[number + 1].tolist())

    def __iter__(self) -> Iterator[TextTokens]:
        return (self._text(*each) for each in pairwise(self.starts.tolist()))

    def _text(self, start: list[int], stop: list[int]) -> TextTokens:
        content = start[IDS] + start[PROMPT]
        return TextTokens(
            self.ids[content : stop[IDS]],
            self.spans[start[SPANS] : stop[SPANS]],
            self.ids[start[IDS] : content],
            None if self.ends is None else self.ends[start[ENDS] : stop[ENDS]],
        )


class TokenRow(NamedTuple):
    """One document and its tokens.

    hash: the content hash of the document. ids: [tokens], the content ids.
    spans: [tokens, 2], the characters of each token in the document's content. prompt: the ids of the prompt.
    ends: [chunks], the ends of the pieces that a splitter made, else None.
    """

    doc: Doc
    hash: bytes
    ids: Ints
    spans: Ints
    prompt: Ints
    ends: Ints | None

    def characters(self, ranges: Ints) -> Ints:
        """Convert token ranges [n, 2], which can be empty, to character ranges in the content, [n, 2]."""
        return TokenBlock.of([self]).characters(np.zeros(len(ranges), np.int64), ranges)


class DocBlock(Sequence[TokenRow]):
    """Documents [n], their content hashes [n], and their tokens. As a sequence it contains token rows."""

    def __init__(self, docs: list[Doc], hashes: list[bytes], tokens: TokenBlock) -> None:
        self.docs, self.hashes, self.tokens = docs, hashes, tokens

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle columns, which are read twice as fast as documents."""
        return _block_of, (tuple(zip(*self.docs, strict=True)), self.hashes, self.tokens)

    @classmethod
    def of(cls, rows: Sequence[TokenRow]) -> "DocBlock":
        """Return a block of separate rows; a block stays as it is."""
        if isinstance(rows, DocBlock):
            return rows
        return cls([row.doc for row in rows], [row.hash for row in rows], TokenBlock.of(rows))

    @classmethod
    def join(cls, blocks: Sequence["DocBlock"]) -> "DocBlock":
        """Return the documents of several blocks, at least one, as one block."""
        if len(blocks) == 1:
            return blocks[0]
        docs = [doc for block in blocks for doc in block.docs]
        hashes = [each for block in blocks for each in block.hashes]
        return cls(docs, hashes, TokenBlock.join([block.tokens for block in blocks]))

    def rows(self, first: int, stop: int) -> "DocBlock":
        """Return the documents `first` to `stop`."""
        tokens = self.tokens.rows(first, stop)
        return DocBlock(self.docs[first:stop], self.hashes[first:stop], tokens)

    def __len__(self) -> int:
        return len(self.docs)

    @overload
    def __getitem__(self, number: int) -> TokenRow: ...
    @overload
    def __getitem__(self, number: slice) -> "DocBlock": ...
    def __getitem__(self, number: int | slice) -> "TokenRow | DocBlock":
        if isinstance(number, slice):
            return DocBlock(self.docs[number], self.hashes[number], self.tokens[number])
        return TokenRow(self.docs[number], self.hashes[number], *self.tokens[number])

    def __iter__(self) -> Iterator[TokenRow]:
        every = zip(self.docs, self.hashes, self.tokens, strict=True)
        return (TokenRow(doc, digest, *tokens) for doc, digest, tokens in every)


def _block_of(columns: tuple[Any, ...], hashes: list[bytes], block: TokenBlock) -> DocBlock:
    """Return the block that was pickled as columns of its documents."""
    return DocBlock([*map(Doc, *columns)] if columns else [], hashes, block)
