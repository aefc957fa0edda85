"""Views: the vectors of a folder under other rows, for search alone.

`Flat` has a row for every vector, which is what an index numbers and what a run of chunks ranks.
`Aggregated` has a row for every document and one vector in each: a sum of dot products is the dot
product with a sum.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import Shard
from lmkcli.errors import UnknownName, UsageError
from lmkcli.store.ragged import Ragged
from lmkcli.store.vectors import Vectors

Floats = NDArray[np.floating]
AGGREGATES = ("max", "sum", "avg", "first")


class Flat:
    """Every vector on its own, in the order of the documents."""

    single = True

    def __init__(self, vectors: Vectors) -> None:
        self._vectors = vectors
        self.rows = self.total = vectors.total
        self.dim = vectors.dim

    def __iter__(self) -> Iterator[Ragged]:
        """All vectors in blocks of bounded size."""
        return (Ragged.single(block.vectors) for block in self._vectors)

    def at(self, rows: NDArray[np.int64]) -> Ragged:
        """The vectors of some rows."""
        docs, numbers = self.owners(rows)
        unique, inverse = np.unique(docs, return_inverse=True)
        of = self._vectors.at(unique)
        return Ragged.single(of.vectors[of.starts[inverse] + numbers])

    def owners(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The document of each vector, as a row of the folder, and the vector's number in it."""
        starts = self._vectors.starts
        docs = np.searchsorted(starts, rows, side="right") - 1
        return docs, rows - starts[docs]

    def ids(self, rows: NDArray[np.int64]) -> list[str]:
        """`doc#number` of some vectors; numbers count from zero."""
        docs, numbers = self.owners(rows)
        names = self._vectors.ids(docs)
        return [f"{name}#{number}" for name, number in zip(names, numbers.tolist(), strict=True)]


def flat(vectors: Vectors) -> "Vectors | Flat":
    """A row for every vector: the folder itself where each document has one."""
    return vectors if vectors.single else Flat(vectors)


class Aggregated:
    """One vector a document, in float64: the sum, the mean or the first of its own."""

    single = True

    def __init__(self, vectors: Vectors, how: str) -> None:
        self._vectors, self._how = vectors, how
        self.rows = self.total = vectors.rows
        self.dim = vectors.dim

    def __iter__(self) -> Iterator[Ragged]:
        """All documents in blocks of bounded size."""
        return (Ragged.single(self._reduced(block)) for block in self._vectors)

    def at(self, rows: NDArray[np.int64]) -> Ragged:
        """The vectors of some documents."""
        return Ragged.single(self._reduced(self._vectors.at(rows)))

    def ids(self, rows: NDArray[np.int64]) -> list[str]:
        """As the folder."""
        return self._vectors.ids(rows)

    def _reduced(self, of: Ragged) -> Floats:
        if self._how == "first" or not len(of.counts):
            return of.vectors[of.starts[:-1]].astype(np.float64)
        sums = np.add.reduceat(of.vectors, of.starts[:-1], axis=0, dtype=np.float64)
        return sums / of.counts[:, None] if self._how == "avg" else sums


class RankedUnits:
    """What is ranked of a vectors folder: its documents, or with level 'chunk' their chunks.

    UsageError for a level or an aggregate that means nothing to these vectors; both may be empty.
    `identity` is what a run records of it.
    """

    def __init__(self, vectors: Vectors, level: str = "", aggregate: str = "") -> None:
        _check(vectors, level, aggregate)
        self._asked = (level, aggregate)
        self.vectors, self.level, self._aggregate = vectors, level or "doc", aggregate or "max"
        self.matrix: Vectors | Flat | Aggregated = vectors
        if level == "chunk":
            self.matrix = Flat(vectors)
        elif self._aggregate != "max":
            self.matrix = Aggregated(vectors, self._aggregate)
        self.identity: dict[str, str] = {}
        if not vectors.single:
            how = {"level": "chunk"} if level == "chunk" else {"aggregate": self._aggregate}
            self.identity = how

    def share(self, shard: Shard) -> tuple["RankedUnits", int]:
        """What is ranked of one shard's documents, and the number of its first row here."""
        rows = shard.rows(self.vectors.rows)
        first = int(self.vectors.starts[rows.start]) if self.level == "chunk" else rows.start
        return RankedUnits(self.vectors.share(rows), *self._asked), first

    def check(self, queries: Ragged) -> None:
        """UsageError when queries have several vectors where one is needed."""
        if self._aggregate != "max" and (queries.counts > 1).any():
            raise UsageError(
                f"--aggregate {self._aggregate}: these queries have several vectors each, and their "
                "scores are sums of maxima; drop it"
            )


def _check(vectors: Vectors, level: str, aggregate: str) -> None:
    unit = vectors.recipe.doc.unit
    if aggregate and aggregate not in AGGREGATES:
        raise UnknownName("aggregate", aggregate, AGGREGATES)
    if (aggregate or level) and vectors.single:
        raise UsageError(
            f"{vectors.folder} holds one vector for each document, so that --aggregate and --level "
            "have no effect; drop it, or encode with --unit chunk"
        )
    if level == "chunk" and unit != "chunk":
        raise UsageError(f"--level chunk: {vectors.folder} holds vectors of unit {unit}, not chunk")
    if level == "chunk" and aggregate:
        raise UsageError("--level chunk ranks chunks one by one; drop --aggregate")
