"""Tokens: ragged rows of content token ids with document ids, memory-mapped; no special tokens."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lmkcli import manifest
from lmkcli.data.collection import Collection, Doc, Shard
from lmkcli.data.digest import doc_hash
from lmkcli.errors import DataError
from lmkcli.progress import Report
from lmkcli.store import parts
from lmkcli.store.arrays import ArrayTypes, open_array
from lmkcli.store.doctable import DocRow
from lmkcli.store.part_writer import PartWriter
from lmkcli.store.summary import Counts, doc_table, sum_counts
from lmkcli.system.streams import ahead, batched

BATCH_CHARACTERS = 1 << 19  # per tokenizer call: enough for all cores, small beside the text itself
ARRAYS: ArrayTypes = {
    "ids": ("int32", ()),  # prompt ids, then content ids, row after row
    "offsets": ("int32", (2,)),  # of the content tokens alone, in title + space + text
    "starts": ("int64", (4,)),  # where row i begins in ids, its prompt length, offsets, ends
    "ends": ("int32", ()),  # token ends of the splitter's pieces; empty without a splitter
}


class TokenRow(NamedTuple):
    """One document and its tokens, on the way to the model or to disk."""

    doc: Doc
    hash: bytes
    ids: NDArray[np.int32]
    spans: NDArray[np.int32]
    prompt: NDArray[np.int32]
    ends: NDArray[np.int32] | None

    def characters(self, ranges: NDArray[np.int32]) -> NDArray[np.int32]:
        """Where ranges [n, 2] of its tokens lie in the document's content, [n, 2]; one may be empty."""
        if not len(self.spans):
            return np.zeros_like(ranges)
        begins = self.spans[np.minimum(ranges[:, 0], len(self.spans) - 1), 0]
        ends = np.where(ranges[:, 1] > 0, self.spans[np.maximum(ranges[:, 1] - 1, 0), 1], 0)
        begins = np.where(ranges[:, 0] < ranges[:, 1], begins, ends)
        return np.stack([begins, np.maximum(begins, ends)], axis=1).astype(np.int32)


class Tokenize(Protocol):
    """What turns texts into tokens (models/tokenizer.py)."""

    def __call__(self, texts: list[str]) -> list[Any]: ...


def tokenized(docs: Iterable[Doc], tokenize: Tokenize, skip: int = 0) -> Iterator[list[TokenRow]]:
    """Batches of token rows in source order, after `skip` documents that are done already."""
    rest = (doc for number, doc in enumerate(docs) if number >= skip)
    for batch in batched(rest, lambda doc: len(doc.text) + len(doc.title) + 64, BATCH_CHARACTERS):
        encodings = tokenize([doc.content for doc in batch])
        yield [
            TokenRow(doc, doc_hash(doc), *tokens)
            for doc, tokens in zip(batch, encodings, strict=True)
        ]


class TokenStream(NamedTuple):
    """Batches of token rows of one shard, and the share of it that has been read (None: unknown)."""

    batches: Iterable[list[TokenRow]]
    fraction: Callable[[], float | None]


def token_stream(
    given: "Collection | Tokens", tokenize: Tokenize, shard: Shard, skip: int
) -> TokenStream:
    """Token rows of one shard from `skip` on: tokenized on the fly in the background, or read."""
    if isinstance(given, Tokens):
        rows = shard.rows(given.docs)
        return TokenStream(ahead(given.rows(rows.start + skip, rows.stop), 2), lambda: None)
    docs = given.docs(shard)
    return TokenStream(ahead(tokenized(docs, tokenize, skip), 2), lambda: docs.fraction)


def write_tokens(stream: TokenStream, writer: PartWriter, report: Report) -> None:
    """Append the documents of a stream to the parts of a tokens folder."""
    count = 0
    for batch in stream.batches:
        count += sum(len(row.ids) for row in batch)
        report.progress(count, estimate(count, stream.fraction()), "tokens")
        writer.append(_doc_rows(batch), _arrays(batch, writer))


def _doc_rows(batch: list[TokenRow]) -> list[DocRow]:
    return [DocRow(row.doc, row.hash, len(row.ids), 0, 0) for row in batch]


def _arrays(batch: list[TokenRow], writer: PartWriter) -> dict[str, NDArray[Any]]:
    """The arrays of a part from a batch; its starts count from where the part's other arrays end."""
    none = np.zeros(0, np.int32)
    ends = [none if row.ends is None else row.ends for row in batch]
    sizes = np.array(
        [
            (len(r.prompt) + len(r.ids), len(r.spans), len(e))
            for r, e in zip(batch, ends, strict=True)
        ]
    )
    before = np.array([writer.array_rows(stem) for stem in ("ids", "offsets", "ends")])
    firsts = before + np.cumsum(sizes, axis=0) - sizes
    prompts = np.array([len(row.prompt) for row in batch])
    return {
        "starts": np.column_stack([firsts[:, 0], prompts, firsts[:, 1:]]),
        "ids": np.concatenate([ids for row in batch for ids in (row.prompt, row.ids)]),
        "offsets": np.concatenate([row.spans for row in batch]),
        "ends": np.concatenate(ends),
    }


def estimate(tokens: int, fraction: float | None) -> int | None:
    """The tokens of the whole, from those in the share that has been read; None when unknown."""
    return int(tokens / fraction) if fraction else None


class TokenArrays(NamedTuple):
    """Tokens of n documents, side by side. `starts` [n + 1, 3]: where each begins in `ids`, its prompt
    first, and in `ends`, and the length of its prompt; the last row says where all end."""

    ids: NDArray[np.int32]
    ends: NDArray[np.int32]
    starts: NDArray[np.int64]


class Tokens:
    """A Tokens folder, read back as the rows that were written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = manifest.read(folder, "tokens")
        shards = int(self.manifest.execution["shards"])
        self.state = parts.state(folder, shards)

    def counts(self) -> Counts:
        """What is in it, summed over the parts."""
        return sum_counts(self.folder, self.state.slices)

    def lengths(self) -> NDArray[np.int64]:
        """Content tokens of every document."""
        tables = (
            doc_table(self.folder, piece.name).column("tokens")[piece.skip :]
            for piece in self.state.slices
        )
        return np.concatenate([np.zeros(0, np.int64), *tables])

    @property
    def has_text(self) -> bool:
        """Whether the documents' texts are stored."""
        return all(doc_table(self.folder, piece.name).has_text for piece in self.state.slices)

    @property
    def docs(self) -> int:
        """How many documents there are."""
        return sum(piece.rows for piece in self.state.slices)

    def rows(self, start: int, stop: int) -> Iterator[list[TokenRow]]:
        """Token rows `start` to `stop` in batches; ids and offsets are views of the memory maps."""
        first = 0
        for piece in self.state.slices:
            inside = range(
                max(start - first, 0) + piece.skip, min(stop - first, piece.rows) + piece.skip
            )
            if inside:
                yield from self._part_rows(piece, inside)
            first += piece.rows

    def arrays(self) -> Iterator["TokenArrays"]:
        """The arrays of each part, mapped."""
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
        if not _fits(arrays):
            raise DataError(
                f"{self._part(piece)}: starts.npy does not fit the other arrays; "
                "delete this part and run the same command again"
            )
        return arrays

    def _part_rows(self, piece: parts.PartSlice, rows: range) -> Iterator[list[TokenRow]]:
        arrays = self._arrays(piece)
        table = doc_table(self.folder, piece.name)
        hashes = table.hashes()
        wanted = ((i, doc) for i, doc in enumerate(table.docs()) if i in rows)
        for batch in batched(wanted, lambda item: len(item[1].text) + 64, BATCH_CHARACTERS):
            yield [_row(arrays, i, doc, hashes[i]) for i, doc in batch]

    def _part(self, piece: parts.PartSlice) -> Path:
        return self.folder / parts.PARTS / str(piece.name)


def _fits(arrays: dict[str, NDArray[Any]]) -> bool:
    """Whether every row begins within the arrays, none before the one above it, and no id is negative."""
    starts = arrays["starts"]
    ends = [len(arrays[stem]) for stem in ("ids", "offsets", "ends")]
    bounds = np.concatenate([starts[:, [0, 2, 3]], [ends]])
    lengths, ids = np.diff(bounds, axis=0, prepend=0), arrays["ids"]
    prompts = starts[:, 1]
    return bool(
        (lengths >= 0).all()
        and (prompts >= 0).all()
        and (prompts <= lengths[1:, 0]).all()
        and ids.min(initial=0) >= 0
    )


def _row(arrays: dict[str, NDArray[Any]], number: int, doc: Doc, digest: bytes) -> TokenRow:
    starts = arrays["starts"]
    first, prompt, span, end = starts[number]
    last = number + 1 == len(starts)
    stops = (
        (len(arrays["ids"]), 0, len(arrays["offsets"]), len(arrays["ends"]))
        if last
        else starts[number + 1]
    )
    ids = np.asarray(arrays["ids"][first : stops[0]])
    return TokenRow(
        doc,
        digest,
        ids[prompt:],
        np.asarray(arrays["offsets"][span : stops[2]]),
        ids[:prompt],
        np.asarray(arrays["ends"][end : stops[3]]),
    )
