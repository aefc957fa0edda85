"""Tokens: ragged rows of content token ids with document ids, memory-mapped; no special tokens."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lmkcli import manifest
from lmkcli.data.collection import Doc, DocStream, Shard, doc_hash
from lmkcli.errors import Stopped
from lmkcli.progress import Note, Progress, mute, silent
from lmkcli.store import parts
from lmkcli.store.doctable import DocRow, DocTable
from lmkcli.store.part_writer import Builder, Counts, finish, part_summary, seen_ids
from lmkcli.system.streams import ahead, batched

BATCH_CHARACTERS = 1 << 19  # per tokenizer call: enough for all cores, small beside the text itself
ARRAYS: dict[str, tuple[str, tuple[int, ...]]] = {
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


class Tokenize(Protocol):
    """What turns texts into tokens (models/tokenizer.py)."""

    def __call__(self, texts: list[str]) -> list[Any]: ...


def tokenized(docs: Iterable[Doc], tokenize: Tokenize, skip: int = 0) -> Iterator[list[TokenRow]]:
    """Batches of token rows in source order, after `skip` documents that are done already."""
    rest = (doc for number, doc in enumerate(docs) if number >= skip)
    for batch in batched(rest, lambda doc: len(doc.text) + len(doc.title) + 64, BATCH_CHARACTERS):
        made = tokenize([doc.content for doc in batch])
        yield [
            TokenRow(doc, doc_hash(doc), *tokens) for doc, tokens in zip(batch, made, strict=True)
        ]


def write_tokens(
    folder: Path, shard: Shard, docs: DocStream, tokenize: Tokenize, report: "Report"
) -> None:
    """Tokenize one shard into `folder` (claimed already), continuing after the parts that are there."""
    done = parts.cover(parts.list_parts(folder), shard)
    row = parts.covered_rows(done)
    seen = seen_ids(folder, done)
    builder = Builder(folder, shard, row, ARRAYS, report.store_text)
    count = 0
    try:
        for batch in ahead(tokenized(docs, tokenize, row), 2):
            seen.add((r.doc.id for r in batch), "this collection")
            _append(builder, batch)
            count += sum(len(r.ids) for r in batch)
            report.progress(count, estimate(count, docs.fraction), "tokens")
            if builder.full or report.stopping():
                row = builder.publish()
                builder = Builder(folder, shard, row, ARRAYS, report.store_text)
                report.check_stop()
        row = row if builder.empty else builder.publish()
    finally:
        builder.abandon()
    finish(folder, shard, row)


def _append(builder: Builder, batch: list[TokenRow]) -> None:
    for row in batch:
        builder.add_doc(DocRow(row.doc, row.hash, len(row.ids), 0, 0))
    none = np.zeros(0, np.int32)
    ends = [none if row.ends is None else row.ends for row in batch]
    sizes = np.array(
        [
            (len(r.prompt) + len(r.ids), len(r.spans), len(e))
            for r, e in zip(batch, ends, strict=True)
        ]
    )
    before = np.array([builder.rows(stem) for stem in ("ids", "offsets", "ends")])
    firsts = before + np.cumsum(sizes, axis=0) - sizes
    prompts = np.array([len(row.prompt) for row in batch])
    builder.add_array("starts", np.column_stack([firsts[:, 0], prompts, firsts[:, 1:]]))
    builder.add_array("ids", np.concatenate([x for row in batch for x in (row.prompt, row.ids)]))
    builder.add_array("offsets", np.concatenate([row.spans for row in batch]))
    builder.add_array("ends", np.concatenate(ends))


def estimate(tokens: int, fraction: float | None) -> int | None:
    """The tokens of the whole, from those in the share that has been read; None when unknown."""
    return int(tokens / fraction) if fraction else None


class Report(NamedTuple):
    """How a long job is told to stop, reports, and whether it keeps the texts."""

    progress: Progress = silent
    stopping: Callable[[], bool] = lambda: False
    store_text: bool = True
    note: Note = mute

    def check_stop(self) -> None:
        """Stopped when a signal asked for it; everything that was published stays."""
        if self.stopping():
            raise Stopped(
                "stopped early; every part written is whole. Run the same command again to continue"
            )


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
            DocTable(self._part(piece) / "docs.parquet").column("tokens")[piece.skip :]
            for piece in self.state.slices
        )
        return np.concatenate([np.zeros(0, np.int64), *tables])

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

    def _part_rows(self, piece: parts.PartSlice, rows: range) -> Iterator[list[TokenRow]]:
        arrays = {
            stem: np.load(self._part(piece) / f"{stem}.npy", mmap_mode="r") for stem in ARRAYS
        }
        table = DocTable(self._part(piece) / "docs.parquet")
        hashes = table.hashes()
        wanted = ((i, doc) for i, doc in enumerate(table.docs()) if i in rows)
        for batch in batched(wanted, lambda item: len(item[1].text) + 64, BATCH_CHARACTERS):
            yield [_row(arrays, i, doc, hashes[i]) for i, doc in batch]

    def _part(self, piece: parts.PartSlice) -> Path:
        return self.folder / parts.PARTS / str(piece.name)


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


def sum_counts(folder: Path, slices: list[parts.PartSlice]) -> Counts:
    """Counts of the rows that count; parts of which some rows do not are counted by row."""
    total = Counts()
    for piece in slices:
        summary = part_summary(folder, piece.name)
        if not piece.dead:
            for name in vars(total):
                setattr(total, name, getattr(total, name) + summary[name])
            continue
        table = DocTable(folder / parts.PARTS / str(piece.name) / "docs.parquet")
        columns = (
            table.column(name)[piece.alive].tolist() for name in ("tokens", "lost", "vectors")
        )
        for tokens, lost, vectors in zip(*columns, strict=True):
            total.add(DocRow(Doc("", ""), b"", tokens, lost, vectors))
    return total
