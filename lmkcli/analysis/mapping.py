"""Vectors in two dimensions, and the chunks of a document against each other."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lmkcli import catalog
from lmkcli.data.collection import open_collection
from lmkcli.errors import DataError, UsageError
from lmkcli.store.vectors import Vectors

Floats = NDArray[np.float32]


class Map(NamedTuple):
    """Places [vectors, 2] of the vectors of some documents, and a value of each to colour it by."""

    places: Floats
    docs: list[str]
    chunks: list[int]
    values: list[str] | list[float]
    axes: tuple[str, str]


class Similarity(NamedTuple):
    """Cosines of a document's vectors [n, n], and the characters that each stands for."""

    cosines: Floats
    spans: list[tuple[int, int]]


class Project(Protocol):
    """What a row of the catalog's MAPS is."""

    def __call__(self, vectors: Floats) -> tuple[Floats, tuple[str, str]]:
        """[vectors, dim] -> places [vectors, 2], and what the two axes are."""


def make_map(vectors: Vectors, wanted: int, method: str, by: str) -> Map:
    """The vectors of `wanted` documents, evenly spread over the folder, coloured by a field.

    `by` is chunk, doc, empty, or a field of the collection's records. DataError for fewer than three
    vectors, or values that cannot be read.
    """
    rows = np.unique(np.linspace(0, vectors.rows - 1, min(wanted, vectors.rows)).astype(np.int64))
    ragged = vectors.at(rows)
    if len(ragged.vectors) < 3:
        raise DataError(f"{vectors.folder} has {len(ragged.vectors)} vectors; a map needs three")
    ids = vectors.ids(rows)
    docs = [name for name, n in zip(ids, ragged.counts, strict=True) for _ in range(n)]
    chunks = [number for n in ragged.counts for number in range(n)]
    project: Project = catalog.load(catalog.MAPS, method, "map")
    places, axes = project(ragged.vectors.astype(np.float32))
    return Map(places, docs, chunks, _values(vectors, by, docs, chunks), axes)


def _values(
    vectors: Vectors, by: str, docs: list[str], chunks: list[int]
) -> list[str] | list[float]:
    if by == "doc":
        return docs
    if by == "chunk":
        return [float(number) for number in chunks]
    if not by:
        return [""] * len(docs)
    found = _field(vectors, by)
    values = [found.get(name, "") for name in docs]
    if not any(values):
        raise DataError(f"no document of the map has the field '{by}'; use another one for --by")
    try:
        return [float(value) for value in values]
    except ValueError:
        return values


def _field(vectors: Vectors, by: str) -> dict[str, str]:
    """Document id -> a field of its record, from the collection that was encoded."""
    source = vectors.manifest.execution.get("source", {}).get("name", "")
    if not source:
        raise UsageError(f"--by {by}: these vectors name no collection; use chunk or doc")
    return {doc.id: doc.text for doc in open_collection(source, by).docs()}


def pca(vectors: Floats) -> tuple[Floats, tuple[str, str]]:
    """The two directions of most variance, signs fixed; axes say how much of it each has."""
    centred = vectors - vectors.mean(0)
    variances, directions = np.linalg.eigh((centred.T @ centred).astype(np.float64))
    chosen = directions[:, [-1, -2]]
    chosen = chosen * np.sign(chosen[np.abs(chosen).argmax(0), [0, 1]])
    shares = np.maximum(variances[[-1, -2]], 0) / max(float(variances.sum()), 1e-12)
    first, second = (
        f"component {i + 1} ({share:.0%} of variance)" for i, share in enumerate(shares)
    )
    return (centred @ chosen).astype(np.float32), (first, second)


def similarity(vectors: Vectors, doc: str) -> Similarity:
    """The cosines between all chunks of one document; DataError when it is not there, or has one alone."""
    row = vectors.rows_of([doc]).get(doc)
    if row is None:
        raise DataError(
            f"{vectors.folder} has no document '{doc}'; lmk show prints where it is from"
        )
    found = vectors.at(np.array([row])).vectors
    if len(found) < 2:
        raise DataError(
            f"document {doc} has {len(found)} vectors: nothing to compare; encode with --unit chunk"
        )
    unit = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
    spans = vectors.spans(row).tolist() if vectors.recipe.doc.unit == "chunk" else []
    return Similarity(unit @ unit.T, [(begin, end) for begin, end in spans])
