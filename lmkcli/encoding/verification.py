"""Verification of vectors: encode a sample of stored documents again, and compare the vectors."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lmkcli.artifact.artifact import Artifact
from lmkcli.artifact.kinds import VectorsManifest
from lmkcli.data.collection import Doc
from lmkcli.errors import DataError
from lmkcli.progress import Report
from lmkcli.spec.settings import ModelSettings
from lmkcli.store.part_reader import check_part
from lmkcli.store.token_blocks import TokenRow
from lmkcli.vectors.codec import recoded
from lmkcli.vectors.stored import Vectors

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
    vectors: Vectors[Any] = Vectors(opened)
    folder = vectors.folder
    if not vectors.manifest.execution.store_text:
        raise DataError(
            f"{folder} contains no texts to encode again (--no-store-text, or an import without texts)"
        )
    if not vectors.rows:
        raise DataError(f"{folder} has no documents to verify")
    for number, piece in enumerate(vectors.slices):
        vectors.coded(number)  # names an array of a wrong shape or type
        check_part(folder, piece.name)
    rows = np.unique(np.linspace(0, vectors.rows - 1, min(sample, vectors.rows)).astype(np.int64))
    docs = vectors.docs(rows)
    tolerance = TOLERANCE[vectors.manifest.execution.dtype]
    # here, because it imports torch, and the errors above do not need it
    from lmkcli.encoding.encoder import open_recorded

    encoder = open_recorded(vectors, settings)
    encoded = encoder(_tokenized(docs, encoder.tokenizer), Report()).vectors
    again = recoded(vectors.codec, encoded, vectors.dim)
    tolerance -= vectors.codec.slack
    stored = vectors.at(rows)
    vectors.artifact.check_unchanged()  # after the more specific errors
    differing = np.flatnonzero(again.counts != stored.counts)
    if len(differing):
        return Verification(len(rows), 0.0, docs[differing[0]].id, math.inf, tolerance)
    new, old = again.matrix(), stored.matrix()
    norms = np.linalg.norm(new, axis=1) * np.linalg.norm(old, axis=1)
    cosines = (new * old).sum(axis=1) / np.maximum(norms, 1e-300)
    cosines[(norms == 0) & (new == old).all(axis=1)] = 1.0  # both are zero
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
