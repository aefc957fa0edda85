"""Verification of vectors: encode a sample of stored documents again, and compare the vectors."""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lmkcli.errors import DataError
from lmkcli.progress import Report
from lmkcli.spec import manifest
from lmkcli.spec.settings import ModelSettings
from lmkcli.store.part_reader import check_part
from lmkcli.store.tokens import TokenRow
from lmkcli.store.vectors import Vectors

TOLERANCE = {"fp32": 0.99999, "bf16": 0.999, "fp16": 0.999}  # the least cosine, by dtype


class Verification(NamedTuple):
    """The number of compared documents, the least cosine and its document, and the largest difference."""

    documents: int
    cosine: float
    worst: str
    difference: float
    tolerance: float


def verify(folder: Path, sample: int, settings: ModelSettings) -> Verification:
    """Encode up to `sample` documents again in the dtype of the folder.

    First compares every part with its recorded digest. Raises DataError if a part differs, or if the folder
    has no texts or documents.
    """
    vectors = Vectors(folder)
    manifest.check_whole(folder, vectors.manifest)
    if not vectors.manifest.execution["store_text"]:
        raise DataError(
            f"{folder} contains no texts to encode again (--no-store-text, or an import without texts)"
        )
    if not vectors.rows:
        raise DataError(f"{folder} has no documents to verify")
    for number, piece in enumerate(vectors.slices):
        vectors.arrays(number)  # names an array of a wrong shape or type
        check_part(folder, piece.name)
    rows = np.unique(np.linspace(0, vectors.rows - 1, min(sample, vectors.rows)).astype(np.int64))
    docs = vectors.docs(rows)
    storage, dim = vectors.storage, vectors.dim
    tolerance = TOLERANCE[vectors.manifest.execution["dtype"]] - storage.slack
    # here, because it imports torch, and the errors above do not need it
    from lmkcli.encoding.encoder import open_recorded

    encoder = open_recorded(vectors, False, settings)
    tokens = encoder.tokenizer([doc.content for doc in docs])
    token_rows = [TokenRow(doc, b"", *fields) for doc, fields in zip(docs, tokens, strict=True)]
    again, stored = encoder(token_rows, Report()).vectors, vectors.at(rows)
    differing = np.flatnonzero(again.counts != stored.counts)
    if len(differing):
        return Verification(len(rows), 0.0, docs[differing[0]].id, math.inf, tolerance)
    coded = storage.decoded(storage.coded(again.vectors), dim)
    new, old = (vectors.astype(np.float64) for vectors in (coded, stored.vectors))
    norms = np.linalg.norm(new, axis=1) * np.linalg.norm(old, axis=1)
    cosines = (new * old).sum(axis=1) / np.maximum(norms, 1e-300)
    worst = int(cosines.argmin())
    return Verification(
        len(rows),
        float(cosines[worst]),
        docs[int(np.searchsorted(stored.starts, worst, side="right")) - 1].id,
        float(np.abs(new - old).max()),
        tolerance,
    )
