"""Encoding: token rows through an encoder into the parts of a vectors folder."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import Shard
from lmkcli.errors import DataError
from lmkcli.progress import Report
from lmkcli.settings import EncodeSettings
from lmkcli.store.doctable import DocRow
from lmkcli.store.part_writer import ArrayTypes, PartWriter, Target
from lmkcli.store.tokens import TokenRow, estimate
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


class EncodedBatch(NamedTuple):
    """Some documents and their vectors."""

    rows: list[TokenRow]
    encoded: Encoded


def encode_source(source: Source, encode: Encode, report: Report) -> Iterator[EncodedBatch]:
    """All documents of a source, encoded as many at a time as the encoder sorts by length together."""
    buffer: list[TokenRow] = []
    done = read = 0
    for batch in source.batches:
        for row in batch:
            buffer.append(row)
            read += len(row.ids)
            if read - done >= encode.buffer_tokens:
                progress = _onwards(report, done, estimate(read, source.fraction()))
                yield EncodedBatch(buffer, encode(buffer, progress))
                buffer, done = [], read
    if buffer:
        yield EncodedBatch(buffer, encode(buffer, _onwards(report, done, read)))


def _onwards(report: Report, before: int, total: int | None) -> Report:
    """Reports the progress of one buffer as that of the whole."""
    return report._replace(
        progress=lambda done, _, unit: report.progress(before + done, total, unit)
    )


def write_vectors(
    batches: Iterable[EncodedBatch], writer: PartWriter, settings: EncodeSettings
) -> None:
    """Append encoded documents to the parts of a vectors folder.

    DataError for a vector that is not finite as it is stored, and, with `on_overflow` error, for a
    document that lost tokens.
    """
    for rows, encoded in batches:
        stored = encoded.vectors.vectors.astype(NUMPY[settings.store_dtype])
        _check_finite(encoded.vectors._replace(vectors=stored), rows, settings.store_dtype)
        if settings.on_overflow == "error":
            _check_whole(rows, encoded.kept)
        counts = encoded.vectors.counts.tolist()
        docs = [
            DocRow(row.doc, row.hash, len(row.ids), len(row.ids) - kept, count)
            for row, kept, count in zip(rows, encoded.kept, counts, strict=True)
        ]
        spans = {} if encoded.spans is None else {"spans": encoded.spans}
        writer.append(docs, {"vectors": stored, **spans})


def vectors_target(folder: Path, shard: Shard, encode: Encode, settings: EncodeSettings) -> Target:
    """Where the vectors of an encoder go, and as what they are stored."""
    arrays = part_arrays(settings.store_dtype, encode.dim, encode.spans)
    return Target(folder, shard, arrays, settings.store_text)


def part_arrays(store_dtype: str, dim: int, spans: bool) -> ArrayTypes:
    """The arrays of a part of vectors: dtype and width of each."""
    vectors = {"vectors": (NUMPY[store_dtype], (dim,))}
    return {**vectors, "spans": ("int32", (2,))} if spans else vectors


def _check_whole(rows: list[TokenRow], kept: list[int]) -> None:
    for row, left in zip(rows, kept, strict=True):
        lost = len(row.ids) - left
        if lost:
            raise DataError(
                f"document {row.doc.id} has {len(row.ids)} tokens and {lost} of them do not fit; "
                "raise --max-length or allow --on-overflow truncate"
            )


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
