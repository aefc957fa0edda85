"""Encoding: token rows through an encoder into the parts of a vectors folder."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import Shard
from lmkcli.errors import DataError, Stopped
from lmkcli.store import parts
from lmkcli.store.doctable import DocRow
from lmkcli.store.part_writer import Builder, finish, seen_ids
from lmkcli.store.tokens import Report, TokenRow, estimate
from lmkcli.store.vectors import NUMPY, Ragged


class Encoded(NamedTuple):
    """Vectors of some documents, the content tokens that each kept, and where chunks lie.

    `spans` [vectors, 2] are characters in each document's content (unit chunk), else None.
    """

    vectors: Ragged
    kept: list[int]
    spans: NDArray[np.int32] | None = None


class Encode(Protocol):
    """What turns token rows into vectors (encoder.py)."""

    dim: int

    @property
    def spans(self) -> bool:
        """Whether vectors stand for chunks, which lie somewhere in the text."""

    @property
    def buffer_tokens(self) -> int:
        """Content tokens that are sorted by length together."""

    def __call__(self, rows: list[TokenRow], report: Report) -> Encoded:
        """The vectors of the rows, in their order."""


class Source(NamedTuple):
    """Batches of token rows of one shard, and how much of the shard has been read."""

    batches: Iterable[list[TokenRow]]
    fraction: "Fraction"


class Fraction(Protocol):
    """The share of the shard that has been read; None when the end cannot be known."""

    def __call__(self) -> float | None: ...


class Target(NamedTuple):
    """Where vectors go: a claimed folder, the shard, and how they are stored."""

    folder: Path
    shard: Shard
    store_dtype: str
    on_overflow: str
    first: int | None = None  # where an update begins; None continues after what is there

    def done(self) -> list[parts.PartSlice]:
        """The parts of the shard that are there already; none belong to an update."""
        if self.first is not None:
            return []
        return parts.cover(parts.list_parts(self.folder), self.shard)

    def resume_row(self) -> int:
        """The first row of the shard that is not there yet."""
        return parts.covered_rows(self.done()) if self.first is None else self.first


def write_vectors(source: Source, encode: Encode, target: Target, report: Report) -> None:
    """Encode one shard from `target.resume_row()` on, and say that it is complete."""
    rows = append_vectors(source, encode, target, report)
    finish(target.folder, target.shard, rows)


def append_vectors(source: Source, encode: Encode, target: Target, report: Report) -> int:
    """Encode documents into parts from `target.resume_row()` on; returns the row after the last.

    Every published part is whole.
    """
    job = _Job(encode, target, report)
    read = 0
    buffer: list[TokenRow] = []
    try:
        for batch in source.batches:
            for row in batch:
                buffer.append(row)
                read += len(row.ids)
                if read - job.tokens >= encode.buffer_tokens:
                    job.total = estimate(read, source.fraction())
                    job.encode(buffer)
                    buffer = []
        job.total = read
        job.encode(buffer)
        return job.finish()
    finally:
        job.builder.abandon()


class _Job:
    """The state of one shard's encoding: the growing part, ids seen, tokens done."""

    def __init__(self, encode: Encode, target: Target, report: Report) -> None:
        self._encode, self._target, self._report = encode, target, report
        self._seen = seen_ids(target.folder, target.done())
        self._row = target.resume_row()
        self.tokens = 0
        self.total: int | None = None
        self.builder = self._new()

    def _new(self) -> Builder:
        arrays = part_arrays(self._target.store_dtype, self._encode.dim, self._encode.spans)
        return Builder(
            self._target.folder, self._target.shard, self._row, arrays, self._report.store_text
        )

    def encode(self, rows: list[TokenRow]) -> None:
        """Encode a buffer; publish when it is time, or when a signal asks to stop."""
        if not rows:
            return
        self._seen.add((row.doc.id for row in rows), "this collection")
        before = self.tokens
        progress = self._report.progress
        inner = self._report._replace(
            progress=lambda done, _, unit: progress(before + done, self.total, unit)
        )
        try:
            made = self._encode(rows, inner)
        except Stopped:
            self._publish()
            raise
        self._append(rows, made)
        self.tokens += sum(len(row.ids) for row in rows)
        if self.builder.full or self._report.stopping():
            self._publish()
            self._report.check_stop()
            self.builder = self._new()

    def _append(self, rows: list[TokenRow], made: Encoded) -> None:
        stored = made.vectors.vectors.astype(NUMPY[self._target.store_dtype])
        _check_finite(made.vectors._replace(vectors=stored), rows, self._target.store_dtype)
        counts = made.vectors.counts.tolist()
        for row, kept, count in zip(rows, made.kept, counts, strict=True):
            lost = len(row.ids) - kept
            if lost and self._target.on_overflow == "error":
                raise DataError(
                    f"document {row.doc.id} has {len(row.ids)} tokens and {lost} of them do not fit; "
                    "raise --max-length or allow --on-overflow truncate"
                )
            self.builder.add_doc(DocRow(row.doc, row.hash, len(row.ids), lost, count))
        self.builder.add_array("vectors", stored)
        if made.spans is not None:
            self.builder.add_array("spans", made.spans)

    def _publish(self) -> None:
        if not self.builder.empty:
            self._row = self.builder.publish()

    def finish(self) -> int:
        """Publish the last part; returns the row after it."""
        self._publish()
        return self._row


def part_arrays(store_dtype: str, dim: int, spans: bool) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The arrays of a part of vectors: dtype and width of each."""
    arrays: dict[str, tuple[str, tuple[int, ...]]] = {"vectors": (NUMPY[store_dtype], (dim,))}
    return arrays | ({"spans": ("int32", (2,))} if spans else {})


def _check_finite(stored: Ragged, rows: list[TokenRow], dtype: str) -> None:
    bad = np.flatnonzero(~np.isfinite(stored.vectors).all(axis=1))
    if len(bad):
        number = int(np.searchsorted(stored.starts, bad[0], side="right")) - 1
        advice = (
            "try --store-dtype fp32, then --dtype fp32" if dtype == "fp16" else "try --dtype fp32"
        )
        raise DataError(
            f"the vector of document {rows[number].doc.id} has values that are not finite; {advice}"
        )
