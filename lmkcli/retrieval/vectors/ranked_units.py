"""The ranked units of a search: documents, vectors or aggregated documents of a vectors folder.

`Flat` has a row for every vector: an index numbers these rows, and a run of chunks ranks them. `Aggregated`
has one vector per document: the sum of dot products with several vectors is the dot product with their sum.
`NumberedPart` records the vectors that an index numbers.
"""

from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lmkcli.catalog import CODECS
from lmkcli.data.collection import Shard
from lmkcli.errors import UnknownName, UsageError
from lmkcli.retrieval.index_folder import NumberedJson, VectorsState
from lmkcli.retrieval.vectors.vector_search import RowMatrix
from lmkcli.store.parts import PartSlice
from lmkcli.store.ragged import ranges
from lmkcli.vectors.codec import Codec
from lmkcli.vectors.rows import AnyRows, Ragged, RowsOut
from lmkcli.vectors.stored import DenseVectors, StoredBlock, Vectors, chunk_starts

Floats = NDArray[np.floating]
AGGREGATES = ("max", "sum", "avg", "first")


class Flat(Generic[AnyRows]):
    """A row for every vector, in the order of the documents. Document i has the rows from `starts[i]` on."""

    single = True

    def __init__(self, vectors: Vectors[AnyRows]) -> None:
        self._vectors = vectors
        self.rows = self.total = vectors.total
        self.dim = vectors.dim
        self.starts = vectors.starts

    def __iter__(self) -> Iterator[AnyRows]:
        """Return all vectors in blocks of bounded size."""
        return (block.apart() for block in self._vectors)

    @property
    def codec(self) -> Codec[AnyRows]:
        """The codec of the stored vectors."""
        return self._vectors.codec

    def stored_blocks(self, most: int) -> Iterator[StoredBlock]:
        """Yield all vectors as they are stored, in blocks of at most `most`."""
        for arrays, counts in self._vectors.stored_blocks(most):
            yield StoredBlock(arrays, np.ones(int(counts.sum()), np.int64))

    def at(self, rows: NDArray[np.int64]) -> AnyRows:
        """Return the vectors of some rows."""
        docs, numbers = self.owners(rows)
        unique, inverse = np.unique(docs, return_inverse=True)
        found = self._vectors.at(unique)
        return found.apart().take(found.starts[inverse] + numbers)

    def owners(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the document of each vector, as a row of the folder, and the vector's number in it."""
        docs = np.searchsorted(self.starts, rows, side="right") - 1
        return docs, rows - self.starts[docs]

    def ids(self, rows: NDArray[np.int64]) -> list[str]:
        """Return ids `doc#number` of some vectors; numbers count from zero."""
        return _numbered_ids(self._vectors, *self.owners(rows))


class ChunkRows:
    """A row for every chunk, in the order of the documents; each has the vectors of its tokens.

    Document i has the rows from `starts[i]` on.
    """

    single = False

    def __init__(self, vectors: DenseVectors) -> None:
        self._vectors = vectors
        self.total, self.dim = vectors.total, vectors.dim
        spans = [chunk_starts(part) for part in vectors.live_spans()]
        first = np.concatenate([np.zeros(0, bool), *spans])
        first[vectors.starts[:-1][np.diff(vectors.starts) > 0]] = True
        # [rows + 1]: row i has the vectors firsts[i] … firsts[i + 1] - 1
        self._firsts = np.append(np.flatnonzero(first), self.total)
        self.rows = len(self._firsts) - 1
        self.starts = np.searchsorted(self._firsts, vectors.starts)

    def __iter__(self) -> Iterator[Ragged]:
        """Yield all chunks in blocks of whole documents."""
        row = vector = 0
        for block in self._vectors:
            vector += len(block.vectors)
            stop = int(np.searchsorted(self._firsts, vector))
            yield Ragged.of(block.vectors, np.diff(self._firsts[row : stop + 1]))
            row = stop

    def at(self, rows: NDArray[np.int64]) -> Ragged:
        """Return the vectors of some chunks."""
        docs, _ = self.owners(rows)
        unique, inverse = np.unique(docs, return_inverse=True)
        found = self._vectors.at(unique)
        places = found.starts[inverse] + self._firsts[rows] - self._vectors.starts[docs]
        counts = self._firsts[rows + 1] - self._firsts[rows]
        return Ragged.of(found.vectors[ranges(places, counts)], counts)

    def owners(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the document of each chunk, as a row of the folder, and the chunk's number in it."""
        docs = np.searchsorted(self.starts, rows, side="right") - 1
        return docs, rows - self.starts[docs]

    def ids(self, rows: NDArray[np.int64]) -> list[str]:
        """Return ids `doc#number` of some chunks; numbers count from zero."""
        return _numbered_ids(self._vectors, *self.owners(rows))


def _numbered_ids(
    vectors: Vectors[Any], docs: NDArray[np.int64], numbers: NDArray[np.int64]
) -> list[str]:
    names = vectors.ids(docs)
    return [f"{name}#{number}" for name, number in zip(names, numbers.tolist(), strict=True)]


def flat(vectors: DenseVectors) -> "DenseVectors | Flat[Ragged]":
    """Return a row for every vector: the folder itself if each document has one vector."""
    return vectors if vectors.single else Flat(vectors)


class Aggregated:
    """One float64 vector per document: the sum, the mean or the first of its vectors."""

    single = True

    def __init__(self, vectors: DenseVectors, aggregate: str) -> None:
        self._vectors, self._aggregate = vectors, aggregate
        self.rows = self.total = vectors.rows
        self.dim = vectors.dim

    def __iter__(self) -> Iterator[Ragged]:
        """Return all documents in blocks of bounded size."""
        return (Ragged.single(self._reduced(block)) for block in self._vectors)

    def at(self, rows: NDArray[np.int64]) -> Ragged:
        """Return the vectors of some documents."""
        return Ragged.single(self._reduced(self._vectors.at(rows)))

    def ids(self, rows: NDArray[np.int64]) -> list[str]:
        """Return document ids."""
        return self._vectors.ids(rows)

    def _reduced(self, block: Ragged) -> Floats:
        """[documents, dim] of [vectors, dim]; the vectors of document i start at `starts[i]`."""
        starts = block.starts[:-1]
        if self._aggregate == "first" or not len(block.counts):
            return block.vectors[starts].astype(np.float64)
        sums = np.add.reduceat(block.vectors, starts, axis=0, dtype=np.float64)
        return sums / block.counts[:, None] if self._aggregate == "avg" else sums


class UnitMatrix(RowMatrix[RowsOut], Protocol[RowsOut]):
    """Rows with ids."""

    def ids(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the ids of some rows, of documents or of chunks."""


class RankedUnits(Generic[AnyRows]):
    """The ranked units of a vectors folder: documents, or their chunks with level 'chunk'.

    `level` and `aggregate` may be empty. Raises UsageError if one of them has no effect on these vectors.
    `identity` is recorded in the manifest of a run.
    """

    def __init__(self, vectors: Vectors[AnyRows], level: str = "", aggregate: str = "") -> None:
        _check(vectors, level, aggregate)
        self._settings = (level, aggregate)
        self.vectors, self.level, self._aggregate = vectors, level or "doc", aggregate or "max"
        self.matrix: UnitMatrix[Any] = vectors
        if level == "chunk":
            by_token = vectors.recipe.doc.unit == "token"
            self.matrix = ChunkRows(vectors) if by_token else Flat(vectors)  # type: ignore[arg-type]
        elif self._aggregate != "max":  # only dense vectors have such aggregates
            self.matrix = Aggregated(vectors, self._aggregate)  # type: ignore[arg-type]
        self.identity: dict[str, str] = {}
        if not vectors.single:
            by_chunk = {"level": "chunk"}
            self.identity = by_chunk if level == "chunk" else {"aggregate": self._aggregate}

    def share(self, shard: Shard) -> tuple["RankedUnits[AnyRows]", int]:
        """Return the ranked units of one shard's documents, and the number of its first row."""
        rows = shard.rows(self.vectors.rows)
        matrix, first = self.matrix, rows.start
        if isinstance(matrix, Flat | ChunkRows):
            first = int(matrix.starts[rows.start])
        return RankedUnits(self.vectors.share(rows), *self._settings), first

    def check(self, queries: AnyRows) -> None:
        """Raise UsageError if queries have several vectors, but the aggregate needs one."""
        if self._aggregate != "max" and (queries.counts > 1).any():
            raise UsageError(
                f"--aggregate {self._aggregate}: these queries have several vectors each, so scores are "
                "sums of maxima; drop it"
            )


def _check(vectors: Vectors[Any], level: str, aggregate: str) -> None:
    unit = vectors.recipe.doc.unit
    if aggregate and aggregate not in AGGREGATES:
        raise UnknownName("aggregate", aggregate, AGGREGATES)
    if (aggregate or level) and vectors.single:
        raise UsageError(
            f"{vectors.folder} holds one vector for each document, so that --aggregate and --level "
            "have no effect; drop them, or encode with --unit chunk"
        )
    row = CODECS[vectors.codec_name]
    if aggregate and aggregate not in row.aggregates:
        raise UsageError(
            f"--aggregate {aggregate}: the score of a document with several {row.rows} vectors is their "
            f"{' or '.join(row.aggregates)}; drop it"
        )
    if level == "chunk" and not vectors.recipe.doc.by_chunk:
        raise UsageError(
            f"--level chunk: {vectors.folder} holds vectors of unit {unit} without chunks; encode with "
            "--unit chunk, or with --unit token --gran given"
        )
    if level == "chunk" and aggregate:
        raise UsageError("--level chunk ranks chunks one by one; drop --aggregate")


class NumberedPart(NamedTuple):
    """A part that an index numbers: the rows that were live at that time, and how many vectors they have."""

    piece: PartSlice
    vectors: int

    def as_json(self) -> NumberedJson:
        """Return [name, ranges of deleted rows, vectors]."""
        return (*self.piece.as_json(), self.vectors)

    @classmethod
    def from_json(cls, item: NumberedJson) -> "NumberedPart":
        """Read the output of `as_json`."""
        return cls(PartSlice.from_json(item[:2]), item[2])


def number_docs(vectors: Vectors[Any]) -> list[NumberedPart]:
    """Number the documents of a folder in its own order, whatever number of vectors they have."""
    return [NumberedPart(piece, piece.rows) for piece in vectors.slices]


def number(vectors: Vectors[Any]) -> list[NumberedPart]:
    """Number all vectors of a folder in its own order."""
    return [NumberedPart(*pair) for pair in zip(vectors.slices, vectors.part_totals(), strict=True)]


def read_numbering(of: VectorsState) -> list[NumberedPart]:
    """Return the parts with vectors in an index that was built from them."""
    return [NumberedPart.from_json(item) for item in of.numbering]


def still_live(numbered: list[NumberedPart], now: list[PartSlice]) -> NDArray[np.bool_]:
    """Return whether each document that an index numbers is still live in the slices `now`."""
    current = {piece.name: piece for piece in now}
    masks = [
        current[piece.name].live[piece.live]
        if piece.name in current
        else np.zeros(piece.rows, bool)
        for piece, _ in numbered
    ]
    return np.concatenate([np.zeros(0, np.bool_), *masks])
