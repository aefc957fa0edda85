"""Verifying: a sample of stored documents is encoded again and compared with its vectors."""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lmkcli import manifest
from lmkcli.errors import DataError
from lmkcli.progress import Report
from lmkcli.settings import ModelSettings
from lmkcli.store.summary import check_part
from lmkcli.store.tokens import TokenRow
from lmkcli.store.vectors import Vectors

TOLERANCE = {"fp32": 0.99999, "bf16": 0.999, "fp16": 0.999}


class Verified(NamedTuple):
    """How near the vectors came: the least cosine, whose it was, and the largest difference."""

    documents: int
    cosine: float
    worst: str
    difference: float
    tolerance: float


def verify(folder: Path, sample: int, settings: ModelSettings) -> Verified:
    """Encode up to `sample` documents again in the dtype in which they were made.

    Before that, every part is held against the digest that it was published with.
    """
    vectors = Vectors(folder)
    manifest.check_whole(folder, vectors.manifest)
    if not vectors.manifest.execution["store_text"]:
        raise DataError(
            f"{folder} holds no texts (--no-store-text, or an import without them): there is nothing "
            "to encode again"
        )
    if not vectors.rows:
        raise DataError(f"{folder} has no documents to verify")
    for number, piece in enumerate(vectors.slices):
        vectors.arrays(number)  # an array that is of another shape or type is named itself
        check_part(folder, piece.name)
    rows = np.unique(np.linspace(0, vectors.rows - 1, min(sample, vectors.rows)).astype(np.int64))
    docs = vectors.docs(rows)
    storage, dim = vectors.storage, vectors.dim
    tolerance = TOLERANCE[vectors.manifest.execution["dtype"]] - storage.slack
    # here, since it brings torch: what is refused above is refused at once
    from lmkcli.encoding.recorded import open_recorded

    encoder = open_recorded(vectors, False, settings)
    tokens = encoder.tokenizer([doc.content for doc in docs])
    token_rows = [TokenRow(doc, b"", *fields) for doc, fields in zip(docs, tokens, strict=True)]
    again, stored = encoder(token_rows, Report()).vectors, vectors.at(rows)
    differing = np.flatnonzero(again.counts != stored.counts)
    if len(differing):
        return Verified(len(rows), 0.0, docs[differing[0]].id, math.inf, tolerance)
    coded = storage.decoded(storage.coded(again.vectors), dim)
    new, old = (vectors.astype(np.float64) for vectors in (coded, stored.vectors))
    norms = np.linalg.norm(new, axis=1) * np.linalg.norm(old, axis=1)
    cosines = (new * old).sum(axis=1) / np.maximum(norms, 1e-300)
    worst = int(cosines.argmin())
    return Verified(
        len(rows),
        float(cosines[worst]),
        docs[int(np.searchsorted(stored.starts, worst, side="right")) - 1].id,
        float(np.abs(new - old).max()),
        tolerance,
    )
