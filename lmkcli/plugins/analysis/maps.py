"""Maps: vectors in two dimensions, and the similarity of the chunks of a document."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lmkcli import catalog
from lmkcli.data.collection import open_collection
from lmkcli.errors import DataError
from lmkcli.text.formatting import shell_line
from lmkcli.vectors.stored import DenseVectors

Floats = NDArray[np.float32]


class Map(NamedTuple):
    """The positions [vectors, 2] of the vectors of some documents, and a value for each colour."""

    places: Floats
    docs: list[str]
    chunks: list[int]
    values: list[str] | list[float]
    axes: tuple[str, str]


class Similarity(NamedTuple):
    """The cosines [n, n] of the vectors of a document, and the span of characters of each vector."""

    cosines: Floats
    spans: list[tuple[int, int]]


class Project(Protocol):
    """A row of the catalog's MAPS."""

    def __call__(self, vectors: Floats) -> tuple[Floats, tuple[str, str]]:
        """[vectors, dim] -> positions [vectors, 2], and the labels of the two axes."""


def make_map(vectors: DenseVectors, wanted: int, method: str, by: str) -> Map:
    """Return a map of the vectors of `wanted` documents, spread evenly over the folder, coloured by a field.

    `by` is chunk, doc, empty, or a field of the collection's records. DataError for fewer than three
    vectors and for unreadable values.
    """
    rows = np.unique(np.linspace(0, vectors.rows - 1, min(wanted, vectors.rows)).astype(np.int64))
    ragged = vectors.at(rows)
    if len(ragged.vectors) < 3:
        raise DataError(f"{vectors.folder} has {len(ragged.vectors)} vectors; a map needs three")
    ids = vectors.ids(rows)
    docs = [name for name, n in zip(ids, ragged.counts, strict=True) for _ in range(n)]
    chunks = [number for n in ragged.counts for number in range(n)]
    project: Project = catalog.PROJECTIONS.load(method)
    places, axes = project(ragged.vectors.astype(np.float32))
    values: list[str] | list[float] = [""] * len(docs)
    if by == "doc":
        values = docs
    elif by == "chunk":
        values = [float(number) for number in chunks]
    elif by:
        values = _field(vectors, by, docs)
    return Map(places, docs, chunks, values, axes)


def _field(vectors: DenseVectors, by: str, docs: list[str]) -> list[str] | list[float]:
    """Return a field of the records of documents, from the encoded collection; numbers if all are numbers."""
    source = vectors.manifest.execution.source.name
    fields = {doc.id: doc.text for doc in open_collection(source, by).docs()}
    values = [fields.get(name, "") for name in docs]
    if not any(values):
        raise DataError(f"no document of the map has the field '{by}'; use another one for --by")
    try:
        return [float(value) for value in values]
    except ValueError:
        return values


def pca(vectors: Floats) -> tuple[Floats, tuple[str, str]]:
    """Project on the two directions of largest variance; the labels contain the share of each.

    The directions are the eigenvectors of the scatter matrix [dim, dim] of the centred vectors. Their
    signs are arbitrary, so the sign is chosen that makes the largest component positive.
    """
    centred = vectors - vectors.mean(0)
    variances, directions = np.linalg.eigh((centred.T @ centred).astype(np.float64))
    chosen = directions[:, [-1, -2]]
    chosen = chosen * np.sign(chosen[np.abs(chosen).argmax(0), [0, 1]])
    shares = np.maximum(variances[[-1, -2]], 0) / max(float(variances.sum()), 1e-12)
    first, second = (
        f"component {i + 1} ({share:.0%} of variance)" for i, share in enumerate(shares)
    )
    return (centred @ chosen).astype(np.float32), (first, second)


def similarity(vectors: DenseVectors, doc: str) -> Similarity:
    """Return the cosines between all chunks of a document; DataError if it is missing or has one vector."""
    row = vectors.rows_of([doc]).get(doc)
    if row is None:
        raise DataError(
            f"{vectors.folder} has no document '{doc}'; "
            f"{shell_line('lmk', 'show', str(vectors.folder))} prints its collection"
        )
    found = vectors.at(np.array([row])).vectors
    if len(found) < 2:
        raise DataError(
            f"document {doc} has {len(found)} vectors: nothing to compare; encode with --unit chunk"
        )
    unit = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
    spans = vectors.spans(row).tolist() if vectors.recipe.doc.unit == "chunk" else []
    return Similarity(unit @ unit.T, [(start, end) for start, end in spans])
