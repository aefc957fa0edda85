"""Interfaces of vector search: rows of vectors, exact search, approximate candidates, and divisions."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from lmkcli.catalog import CODECS, load
from lmkcli.data.collection import Query, Shard
from lmkcli.data.run import Run
from lmkcli.errors import DataError
from lmkcli.vectors.rows import AnyRows, Ragged, RowsIn, RowsOut

if TYPE_CHECKING:
    from lmkcli.retrieval.open_settings import OpenSettings
    from lmkcli.retrieval.vectors.muvera import FixedDimensional  # imports torch


class Blocks(Protocol):
    """Dense vectors in float32 blocks, in row order; can be iterated again."""

    @property
    def rows(self) -> int: ...

    @property
    def dim(self) -> int: ...

    def __iter__(self) -> Iterator[Ragged]: ...


@runtime_checkable
class Computed(Blocks, Protocol):
    """Vectors that are computed when they are read, so that reading only some of them saves time."""

    def compute(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the vectors of some rows, [rows, dim]."""


class RowMatrix(Protocol[RowsOut]):
    """Rows of one or more vectors, read in order in blocks of whole rows, or by row number."""

    @property
    def rows(self) -> int:
        """The number of rows."""

    @property
    def dim(self) -> int:
        """The number of dimensions of a vector."""

    @property
    def total(self) -> int:
        """The number of vectors."""

    @property
    def single(self) -> bool:
        """Whether each row has exactly one vector."""

    def __iter__(self) -> Iterator[RowsOut]: ...

    def at(self, rows: NDArray[np.int64]) -> RowsOut: ...


Matrix = RowMatrix[Ragged]


class RowHits(NamedTuple):
    """For each query, the best k rows and all ties with the last, in any order, with float64 scores."""

    rows: list[NDArray[np.int64]]
    scores: list[NDArray[np.float64]]


class RowSearch(Protocol[RowsIn]):
    """Finds the rows of a RowMatrix with the best scores for encoded queries."""

    def search(self, queries: RowsIn, k: int) -> RowHits: ...


VectorSearch = RowSearch[Ragged]
PairScorer = Callable[[AnyRows, Sequence[NDArray[np.int64]]], list[NDArray[np.float64]]]


class Scoring(Protocol[RowsIn]):
    """The exact scores of one kind of vectors (`CodecRow.scoring`)."""

    def search(self, matrix: RowMatrix[Any], settings: "OpenSettings") -> RowSearch[RowsIn]:
        """Return exact search over all rows of a matrix."""

    def scorer(self, matrix: RowMatrix[Any]) -> PairScorer[RowsIn]:
        """Return a function that scores each query with its own rows, in float64."""


def scoring_of(codec: str) -> Scoring[Any]:
    """Return how the vectors of a codec are scored exactly."""
    row = CODECS[codec]
    scoring: Scoring[Any] = load(row, f"codec '{row.name}'", row.scoring)
    return scoring


class Candidates(NamedTuple):
    """float32 scores [n, k], best first, and int64 vector numbers [n, k], padded with -1."""

    scores: NDArray[np.float32]
    rows: NDArray[np.int64]


class Nearest(Protocol):
    """Approximate search over vectors that are numbered from zero.

    rows: the size of the number range. most: the maximum number of vectors per search. overfetch: fetch k
    times this factor, so that exact rescoring finds the best k. divisible: whether searching ranges of
    numbers finds the same vectors as searching all numbers.
    """

    rows: int
    most: int
    overfetch: int
    divisible: bool

    def candidates(
        self, queries: NDArray[np.float32], k: int, among: range | None = None
    ) -> Candidates:
        """Return the approximately best k vectors of each query vector [n, dim], of all or of a range."""


class PieceLayout(NamedTuple):
    """The layout of a piece: number of lists, range of rows, and whether lists have equal lengths."""

    lists: int
    rows: range
    equal_lengths: bool = False


class Division(Protocol[AnyRows]):
    """Divides a search among tasks, and joins their results."""

    @property
    def rows(self) -> int:
        """The number of ranked documents or chunks."""

    def encode(self, queries: list[Query], path: Path) -> None:
        """Encode queries, and write their vectors into a file with the array `cut` (sharding.mask_of)."""

    def read(self, path: Path, queries: int) -> AnyRows:
        """Read the vectors of queries. Raises DataError for impossible values."""

    def layout(self, queries: AnyRows) -> PieceLayout:
        """Return the layout of a piece for these queries."""

    def lists(self, queries: AnyRows, part: slice) -> slice:
        """Return the range of lists in a piece that belong to some of the queries."""

    def shard_search(self, shard: Shard) -> Callable[[AnyRows, int], RowHits]:
        """Return the search of one shard. Its rows are numbered as in the undivided search."""

    def join(self, queries: AnyRows, k: int, shard_hits: Iterator[RowHits]) -> RowHits:
        """Join the hits of all shards to the hits of an undivided search."""

    def ranked(self, queries: list[Query], hits: RowHits, k: int) -> Run:
        """Rank the k best hits of each query, ties by document id."""


class OpenedEngine(NamedTuple):
    """The approximate search of an engine, a note for the user (may be empty), and the encoding of documents
    and queries if the index contains encodings instead of vectors."""

    nearest: Nearest
    note: str = ""
    encoding: "FixedDimensional | None" = None


def check_finite(value: float) -> None:
    """Raise DataError if `value`, a maximum or sum over vectors, is NaN or infinite."""
    if not math.isfinite(value):
        raise DataError(
            "a stored vector contains values that are not finite, so documents cannot be ranked; run lmk "
            "verify to find the damaged part, delete it, and run its encode command again"
        )
