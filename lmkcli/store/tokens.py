"""Tokens: content token ids of documents, without special tokens.

A row is a document. A part stores the rows of all documents one after another in flat arrays, and `starts`
contains the first position of each row in each array. For n documents:

    starts   [n, 4]        first position in ids, length of the prompt, first position in offsets and in ends
    ids      [all ids]     for each row the ids of the prompt, then the content ids
    offsets  [content, 2]  character ranges of the content tokens in title + space + text
    ends     [chunks]      exclusive token ends of the pieces of a splitter; empty without a splitter

The row ends where the next row starts.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import TokensManifest
from lmkcli.errors import DataError
from lmkcli.store import parts
from lmkcli.store.part_reader import Counts, doc_table, open_array, sum_counts
from lmkcli.store.part_writer import PartWriter
from lmkcli.store.parts import ArrayTypes
from lmkcli.store.token_blocks import ENDS, IDS, PROMPT, SPANS, DocBlock, Ints, TokenBlock
from lmkcli.system.item_streams import batched

BATCH_CHARACTERS = 1 << 19  # in a block of documents: enough work for all cores in little memory
ARRAYS: ArrayTypes = {
    "ids": ("int32", ()),
    "offsets": ("int32", (2,)),
    "starts": ("int64", (4,)),
    "ends": ("int32", ()),
}


def arrays_of(block: TokenBlock, writer: PartWriter) -> dict[str, NDArray[Any]]:
    """Return the arrays of a block; `starts` continue after the rows that the growing part already has."""
    starts = block.starts[:-1].copy()
    for column, stem in ((IDS, "ids"), (SPANS, "offsets"), (ENDS, "ends")):
        starts[:, column] += writer.array_rows(stem)
    ends = np.zeros(0, np.int32) if block.ends is None else block.ends
    return {"starts": starts, "ids": block.ids, "offsets": block.spans, "ends": ends}


class TokenArrays(NamedTuple):
    """The tokens of n documents in flat arrays.

    starts: [n + 1, 3], for each document its first position in `ids` (its prompt comes first), its first
    position in `ends`, and the length of its prompt. The last row contains the ends of the last document.
    """

    ids: NDArray[np.int32]
    ends: NDArray[np.int32]
    starts: NDArray[np.int64]


class Tokens:
    """A tokens folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = manifest.read(folder, TokensManifest)
        shards = self.manifest.execution.shards
        self.state = parts.read_state(folder, shards)

    def counts(self) -> Counts:
        """Return the counts of documents and tokens, summed over the parts."""
        return sum_counts(self.folder, self.state.slices)

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of content tokens of every document, [docs]."""
        tables = (
            doc_table(self.folder, piece.name).column("tokens")[piece.skip :]
            for piece in self.state.slices
        )
        return np.concatenate([np.zeros(0, np.int64), *tables])

    @property
    def has_text(self) -> bool:
        """Whether the texts of the documents are stored."""
        return all(doc_table(self.folder, piece.name).has_text for piece in self.state.slices)

    @property
    def docs(self) -> int:
        """The number of documents."""
        return sum(piece.rows for piece in self.state.slices)

    def rows(self, start: int, stop: int) -> Iterator[DocBlock]:
        """Yield the rows `start` to `stop` in blocks; ids and spans are views of memory maps."""
        first = 0
        for piece in self.state.slices:
            inside = range(
                max(start - first, 0) + piece.skip, min(stop - first, piece.rows) + piece.skip
            )
            if inside:
                yield from self._part_rows(piece, inside)
            first += piece.rows

    def arrays(self) -> Iterator[TokenArrays]:
        """Yield the arrays of each part, memory-mapped."""
        for piece in self.state.slices:
            mapped = self._arrays(piece)
            rows = mapped["starts"][piece.skip : piece.skip + piece.rows, [0, 3, 1]]
            stop = piece.skip + piece.rows
            last = [len(mapped["ids"]), len(mapped["ends"]), 0]
            if stop < len(mapped["starts"]):
                last = [int(mapped["starts"][stop, 0]), int(mapped["starts"][stop, 3]), 0]
            yield TokenArrays(mapped["ids"], mapped["ends"], np.concatenate([rows, [last]]))

    def _arrays(self, piece: parts.PartSlice) -> dict[str, NDArray[Any]]:
        arrays = {
            stem: open_array(
                self._part(piece) / f"{stem}.npy",
                dtype,
                width,
                piece.name.stop - piece.name.start if stem == "starts" else None,
            )
            for stem, (dtype, width) in ARRAYS.items()
        }
        if not _is_consistent(arrays):
            raise DataError(
                f"{self._part(piece)}: starts.npy does not match the other arrays; "
                f"delete this part and {parts.MAKE_AGAIN}"
            )
        return arrays

    def _part_rows(self, piece: parts.PartSlice, rows: range) -> Iterator[DocBlock]:
        arrays = self._arrays(piece)
        tokens = _block(arrays).rows(rows.start, rows.stop)
        table = doc_table(self.folder, piece.name)
        hashes = table.hashes()[rows.start : rows.stop]
        docs = islice(table.docs(), rows.start, rows.stop)
        first = 0
        pairs = zip(docs, tokens.lengths.tolist(), strict=True)
        # without stored texts, the tokens bound a block
        for batch in batched(
            pairs, lambda each: max(len(each[0].text), each[1]) + 64, BATCH_CHARACTERS
        ):
            stop = first + len(batch)
            block = tokens.rows(first, stop)
            yield DocBlock([doc for doc, _ in batch], hashes[first:stop], block)
            first = stop

    def _part(self, piece: parts.PartSlice) -> Path:
        return self.folder / parts.PARTS / str(piece.name)


def _is_consistent(arrays: dict[str, NDArray[Any]]) -> bool:
    """Return whether the starts and ends are ascending and within the arrays, and no id is negative."""
    starts = arrays["starts"]
    ends = [len(arrays[stem]) for stem in ("ids", "offsets", "ends")]
    bounds = np.concatenate([starts[:, [IDS, SPANS, ENDS]], [ends]])
    lengths, ids = np.diff(bounds, axis=0, prepend=0), arrays["ids"]
    prompts, (tokens, _, chunks) = starts[:, PROMPT], lengths[1:].T
    return bool(
        (lengths >= 0).all()
        and not lengths[0].any()
        and (prompts >= 0).all()
        and (prompts <= tokens).all()
        and ids.min(initial=0) >= 0
        and _ends_fit(arrays["ends"], chunks, tokens - prompts)
    )


def _ends_fit(ends: Ints, chunks: NDArray[np.int64], tokens: NDArray[np.int64]) -> bool:
    """Return whether the ends of the chunks of each text are ascending, and within its tokens."""
    texts = np.repeat(np.arange(len(chunks)), chunks)
    is_first = np.diff(texts, prepend=-1) > 0
    steps = np.where(is_first, ends, np.diff(ends, prepend=ends[:1]))
    return bool((steps >= 0).all() and (ends <= tokens[texts]).all())


def _block(arrays: dict[str, NDArray[Any]]) -> TokenBlock:
    """Return the texts of a part; the arrays are views of its memory maps."""
    last = np.zeros((1, 4), np.int64)
    last[0, [IDS, SPANS, ENDS]] = [len(arrays[stem]) for stem in ("ids", "offsets", "ends")]
    ids, spans, ends = (np.asarray(arrays[stem]) for stem in ("ids", "offsets", "ends"))
    return TokenBlock(ids, spans, ends, np.concatenate([arrays["starts"], last]))
