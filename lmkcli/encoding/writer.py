"""Writing vectors: encoded documents become rows and arrays of the parts of a vectors folder."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import Shard
from lmkcli.encoding.contexts import NO_CONTEXTS
from lmkcli.encoding.encoder import Encode, EncodedBatch
from lmkcli.errors import DataError
from lmkcli.settings import EncodeSettings
from lmkcli.store.arrays import ArrayTypes
from lmkcli.store.codes import STORAGES
from lmkcli.store.doctable import DocRow
from lmkcli.store.part_writer import PartWriter, Target
from lmkcli.store.tokens import TokenRow


def write_vectors(
    batches: Iterable[EncodedBatch], writer: PartWriter, settings: EncodeSettings
) -> None:
    """Append encoded documents to the parts of a vectors folder.

    DataError for a vector that is not finite as it is stored, and, with `on_overflow` error, for a
    document that lost tokens.
    """
    for rows, encoded in batches:
        stored = STORAGES[settings.store_dtype].coded(encoded.vectors.vectors)
        _check_finite(stored, encoded.vectors.starts, rows, settings.store_dtype)
        if settings.on_overflow == "error":
            _check_whole(rows, encoded.kept)
        counts = encoded.vectors.counts.tolist()
        contexts = encoded.contexts or [NO_CONTEXTS] * len(rows)
        docs = [
            DocRow(row.doc, row.hash, len(row.ids), len(row.ids) - kept, count, *context)
            for row, kept, count, context in zip(rows, encoded.kept, counts, contexts, strict=True)
        ]
        spans = {} if encoded.spans is None else {"spans": encoded.spans}
        writer.append(docs, {**stored, **spans})


def vectors_target(folder: Path, shard: Shard, encode: Encode, settings: EncodeSettings) -> Target:
    """Where the vectors of an encoder go, and as what they are stored."""
    arrays = part_arrays(settings.store_dtype, encode.dim, encode.spans)
    return Target(folder, shard, arrays, settings.store_text, encode.contexts)


def part_arrays(store_dtype: str, dim: int, spans: bool) -> ArrayTypes:
    """The arrays of a part of vectors: dtype and width of each."""
    vectors = STORAGES[store_dtype].arrays(dim)
    return {**vectors, "spans": ("int32", (2,))} if spans else vectors


def _check_whole(rows: list[TokenRow], kept: list[int]) -> None:
    for row, left in zip(rows, kept, strict=True):
        lost = len(row.ids) - left
        if lost:
            raise DataError(
                f"document {row.doc.id} has {len(row.ids)} tokens and {lost} of them do not fit; "
                "raise --max-length or allow --on-overflow truncate"
            )


def _check_finite(
    stored: dict[str, NDArray[Any]], starts: NDArray[np.int64], rows: list[TokenRow], dtype: str
) -> None:
    finite = [np.isfinite(each).reshape(len(each), -1).all(axis=1) for each in stored.values()]
    bad = np.flatnonzero(~np.all(finite, axis=0))
    if len(bad):
        number = int(np.searchsorted(starts, bad[0], side="right")) - 1
        advice = (
            "try --store-dtype fp32, then --dtype fp32" if dtype == "fp16" else "try --dtype fp32"
        )
        raise DataError(
            f"the vector of document {rows[number].doc.id} has values that are not finite; {advice}"
        )
