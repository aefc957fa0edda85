"""Writing vectors: encoded documents become rows and arrays of the parts of a vectors folder."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from lmkcli.data.collection import Shard
from lmkcli.encoding.contexts import NO_CONTEXTS
from lmkcli.encoding.encoder import Encode, EncodedBatch
from lmkcli.errors import DataError
from lmkcli.settings import EncodeSettings
from lmkcli.store.doctable import DocRow
from lmkcli.store.part_writer import ArrayTypes, PartWriter, Target
from lmkcli.store.tokens import TokenRow
from lmkcli.store.vectors import NUMPY, Ragged


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
        contexts = encoded.contexts or [NO_CONTEXTS] * len(rows)
        docs = [
            DocRow(row.doc, row.hash, len(row.ids), len(row.ids) - kept, count, *context)
            for row, kept, count, context in zip(rows, encoded.kept, counts, contexts, strict=True)
        ]
        spans = {} if encoded.spans is None else {"spans": encoded.spans}
        writer.append(docs, {"vectors": stored, **spans})


def vectors_target(folder: Path, shard: Shard, encode: Encode, settings: EncodeSettings) -> Target:
    """Where the vectors of an encoder go, and as what they are stored."""
    arrays = part_arrays(settings.store_dtype, encode.dim, encode.spans)
    return Target(folder, shard, arrays, settings.store_text, encode.contexts)


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
