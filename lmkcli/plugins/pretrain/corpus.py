"""The corpus of pre-training: token ids of all texts, either separate or joined and cut into blocks.

A collection is tokenized once and kept in memory (4 bytes per token). A tokens folder stays on disk and is
memory-mapped.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import WHOLE
from lmkcli.encoding import jobs
from lmkcli.encoding.token_stream import token_stream
from lmkcli.errors import DataError
from lmkcli.models.tokenizer import Tokenizer
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.store.token_blocks import ENDS, IDS, PROMPT, DocBlock, Ints, TokenBlock, TokenRow
from lmkcli.store.tokens import Tokens
from lmkcli.training.data.examples import Keys
from lmkcli.training.data.sources import Source

Longs = NDArray[np.int64]


class Text(NamedTuple):
    """The tokens of one text. `ends` are the chunk ends of a splitter, or None."""

    ids: Ints
    prompt: Ints
    ends: Ints | None


@dataclass(frozen=True)
class TokenStore:
    """The tokens of n texts in arrays, in memory or memory-mapped.

    ids: [tokens], the token ids of all texts; the prompt of a text comes first.
    ends: [chunks], the chunk ends of all texts; empty without a splitter.
    starts: [n + 1, 3], for each text its start in `ids`, its start in `ends`, and the length of its prompt.
    """

    ids: Ints
    ends: Ints
    starts: Longs

    def text(self, row: int) -> Text:
        """Return one text."""
        (first, end, prompt), (last, stop, _) = self.starts[row : row + 2].tolist()
        ids = np.asarray(self.ids[first:last])
        ends = np.asarray(self.ends[end:stop]) if len(self.ends) else None
        return Text(ids[prompt:], ids[:prompt], ends)

    @property
    def lengths(self) -> Longs:
        """The number of tokens of each text without its prompt, [n]."""
        return np.diff(self.starts[:, 0]) - self.starts[:-1, 2]


@dataclass(frozen=True)
class Corpus:
    """The training data of pre-training: n numbered texts or blocks of one or more sources.

    If `blocks` of a source is not 0, its texts are joined and cut into blocks of this many tokens. The token
    `separator`, unless None, follows each text.
    """

    stores: Sequence[TokenStore]
    origins: Sequence[int]  # the source of each store
    names: Sequence[str]  # the names of the sources
    blocks: Sequence[int] = ()  # of each source; empty: none has blocks
    separator: int | None = None
    empty: int = field(
        default=0, compare=False
    )  # number of texts without tokens; they are left out

    def __len__(self) -> int:
        """Return the number of texts or blocks."""
        return len(self.sources)

    def __getitem__(self, number: int) -> Text:
        """Return one text or block."""
        source, place = self._place(number)
        if self.block_of(source):
            return self._block(source, place)
        return self._text(int(np.searchsorted(self._owners, source)) + place)

    def block_of(self, source: int) -> int:
        """Return the size of the blocks of a source; 0 if its texts stay separate."""
        return self.blocks[source] if self.blocks else 0

    def _place(self, number: int) -> tuple[int, int]:
        """Return the source of a text or block, and its number in the source."""
        source = int(self.sources[number])
        return source, number - int(np.searchsorted(self.sources, source))

    def keys(self, numbers: Longs) -> Keys:
        """Return a distinct key for each text, because any texts may share a batch."""
        return Keys(numbers, np.arange(len(numbers)))

    def name(self, number: int) -> str:
        """Return the name of a text or block, for messages."""
        source, place = self._place(number)
        kind = "block" if self.block_of(source) else "text"
        return f"{self.names[source]} {kind} {place}"

    @cached_property
    def lengths(self) -> Longs:
        """The number of tokens of each text or block, [n]."""
        parts = [self._lengths_of(source) for source in range(len(self.names))]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def _lengths_of(self, source: int) -> Longs:
        if not (block := self.block_of(source)):
            return np.asarray(self._lengths[self._owners == source])
        tokens = self._streams[source]
        return np.minimum(block, tokens - np.arange(0, tokens, block))

    @cached_property
    def sources(self) -> Longs:
        """The source of each text or block, [n], ascending."""
        texts = np.bincount(self._owners, minlength=len(self.names)).tolist()
        counts = [
            -(-self._streams[source] // block)
            if (block := self.block_of(source))
            else texts[source]
            for source in range(len(self.names))
        ]
        return np.repeat(np.arange(len(counts)), counts)

    @property
    def tokens(self) -> int:
        """The number of tokens of all texts, without prompts."""
        return int(self._lengths.sum())

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of all training data, in their order; computing it reads every token."""
        sizes = {self.block_of(source) for source in range(len(self.names))}
        blocks = sizes.pop() if len(sizes) == 1 else tuple(self.blocks)
        sha256 = hashlib.sha256(repr((blocks, self.separator)).encode())
        for store, origin in zip(self.stores, self.origins, strict=True):
            sha256.update(str(origin).encode())
            for array in (store.starts - store.starts[:1] * [1, 1, 0], store.ids, store.ends):
                sha256.update(np.ascontiguousarray(array).data)
        return sha256.hexdigest()

    @cached_property
    def _places(self) -> tuple[Longs, Longs]:
        """The store, and the row in the store, of each text with tokens; two arrays [texts]."""
        rows = [np.flatnonzero(store.lengths) for store in self.stores]
        stores = np.repeat(np.arange(len(rows)), [len(each) for each in rows])
        return stores, np.concatenate([np.zeros(0, np.int64), *rows])

    @cached_property
    def _owners(self) -> Longs:
        return np.array(self.origins, np.int64)[self._places[0]]

    @cached_property
    def _lengths(self) -> Longs:
        parts = [store.lengths[store.lengths > 0] for store in self.stores]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def _text(self, number: int) -> Text:
        store, row = (int(each[number]) for each in self._places)
        return self.stores[store].text(row)

    @cached_property
    def _bounds(self) -> list[Longs]:
        """For each source, the offsets of its texts in its joined tokens, [texts + 1]."""
        between = self.separator is not None
        each = [self._lengths[self._owners == source] for source in range(len(self.names))]
        return [np.concatenate([[0], np.cumsum(lengths + between)]) for lengths in each]

    @cached_property
    def _streams(self) -> list[int]:
        """The number of joined tokens of each source; no separator follows the last text."""
        between = self.separator is not None
        return [max(0, int(bounds[-1]) - between) for bounds in self._bounds]

    def _block(self, source: int, number: int) -> Text:
        """Return block `number` of a source: tokens number * block … of its joined texts."""
        block, bounds = self.block_of(source), self._bounds[source]
        start = number * block
        stop = min(start + block, self._streams[source])
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
    """Read the texts of all sources. Collections are tokenized now; tokens folders are mapped.

    Raises Mismatch if tokens come from another tokenizer, and DataError if a source has no text.
    """
    stores: list[TokenStore] = []
    origins: list[int] = []
    for number, source in enumerate(sources):
        opened = jobs.plan(source.name, options, EncodeSettings(), WHOLE, offline).source
        added = (
            _mapped(opened)
            if isinstance(opened, Tokens)
            else [_in_memory(token_stream(opened, tokenizer, WHOLE, 0).batches)]
        )
        stores += added
        origins += [number] * len(added)
        if not any(store.lengths.any() for store in added):
            raise DataError(f"{source.name}: it contains no text; give a source with texts")
    empty = sum(int((store.lengths == 0).sum()) for store in stores)
    return Corpus(stores, origins, [source.name for source in sources], empty=empty)


def in_blocks(
    corpus: Corpus, size: int, separator: int | None, chosen: Sequence[bool] | None = None
) -> Corpus:
    """Return the same texts; those of the chosen sources are joined and cut into blocks of `size` tokens.

    By default, all sources are chosen.
    """
    blocks = [size if one else 0 for one in chosen or [True] * len(corpus.names)]
    return replace(corpus, blocks=blocks, separator=separator)


def _mapped(tokens: Tokens) -> list[TokenStore]:
    return [TokenStore(*arrays) for arrays in tokens.arrays()]


def _in_memory(batches: Iterable[Sequence[TokenRow]]) -> TokenStore:
    """Collect the tokens of documents in memory, without their spans."""
    blocks = (DocBlock.of(batch).tokens.without_spans() for batch in batches)
    block = TokenBlock.join([TokenBlock.of([]), *blocks])
    ends = np.zeros(0, np.int32) if block.ends is None else block.ends
    return TokenStore(block.ids, ends, block.starts[:, [IDS, ENDS, PROMPT]])
