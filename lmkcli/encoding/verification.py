"""Verification of vectors: encode a sample of stored documents again, and compare the vectors."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.artifact.artifact import Artifact
from lmkcli.artifact.kinds import VectorsManifest
from lmkcli.data.collection import Doc
from lmkcli.errors import DataError
from lmkcli.progress import Report
from lmkcli.spec.settings import ModelSettings
from lmkcli.store.part_reader import check_part
from lmkcli.store.sparse import SparseRagged, SparseVectors, open_stored
from lmkcli.store.tokens import TokenRow
from lmkcli.store.vectors import Ragged

if TYPE_CHECKING:
    from lmkcli.models.tokenizer import Tokenizer

TOLERANCE = {"fp32": 0.99999, "bf16": 0.999, "fp16": 0.999}  # the least cosine, by dtype


class Verification(NamedTuple):
    """The number of compared documents, the least cosine and its document, and the largest difference."""

    documents: int
    cosine: float
    worst: str
    difference: float
    tolerance: float


def verify(
    opened: Path | Artifact[VectorsManifest], sample: int, settings: ModelSettings
) -> Verification:
    """Encode up to `sample` documents again in the dtype of the folder.

    Also compares the manifest and every part with their recorded digests. Raises DataError if one of them
    differs, or if the folder has no texts or documents.
    """
    vectors = open_stored(opened)
    folder = vectors.folder
    if not vectors.manifest.execution.store_text:
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
    tolerance = TOLERANCE[vectors.manifest.execution.dtype]
    # here, because it imports torch, and the errors above do not need it
    from lmkcli.encoding.encoder import open_recorded, open_recorded_sparse

    again: Ragged | SparseRagged
    stored: Ragged | SparseRagged
    if isinstance(vectors, SparseVectors):
        sparse_encoder = open_recorded_sparse(vectors, settings)
        again = sparse_encoder(_tokenized(docs, sparse_encoder.tokenizer), Report()).vectors
        stored = vectors.at(rows)
    else:
        tolerance -= vectors.storage.slack
        encoder = open_recorded(vectors, False, settings)
        again = encoder(_tokenized(docs, encoder.tokenizer), Report()).vectors
        coded = vectors.storage.coded(again.vectors)
        again = again._replace(vectors=vectors.storage.decoded(coded, vectors.dim))
        stored = vectors.at(rows)
    vectors.artifact.check_unchanged()  # after the more specific errors
    differing = np.flatnonzero(again.counts != stored.counts)
    if len(differing):
        return Verification(len(rows), 0.0, docs[differing[0]].id, math.inf, tolerance)
    new, old = _dense(again), _dense(stored)
    norms = np.linalg.norm(new, axis=1) * np.linalg.norm(old, axis=1)
    cosines = (new * old).sum(axis=1) / np.maximum(norms, 1e-300)
    cosines[(norms == 0) & (new == old).all(axis=1)] = 1.0  # both are without terms
    worst = int(cosines.argmin())
    return Verification(
        len(rows),
        float(cosines[worst]),
        docs[int(np.searchsorted(stored.starts, worst, side="right")) - 1].id,
        float(np.abs(new - old).max()),
        tolerance,
    )


def _tokenized(docs: list[Doc], tokenizer: "Tokenizer") -> list[TokenRow]:
    tokens = tokenizer([doc.content for doc in docs])
    return [TokenRow(doc, b"", *fields) for doc, fields in zip(docs, tokens, strict=True)]


def _dense(texts: Ragged | SparseRagged) -> NDArray[np.float64]:
    """Return all vectors, [vectors, dim]."""
    if isinstance(texts, Ragged):
        return texts.vectors.astype(np.float64)
    return texts.dense()
