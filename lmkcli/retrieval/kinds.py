"""Index kinds: what every kind of the catalog must be able to do, and finding one by its name.

An approximate kind (FAISS) numbers vectors from zero and knows nothing of documents; a database
(Milvus) keeps what documents the vectors are of beside their numbers; a lexical kind (BM25) ranks
documents by their words. None encodes queries.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from lmkcli import catalog
from lmkcli.data.collection import Doc, Query
from lmkcli.data.run import Run
from lmkcli.errors import DataError, UnknownName
from lmkcli.progress import Progress
from lmkcli.settings import AnnSettings, Bm25Settings, Feedback, MilvusSettings
from lmkcli.store.ragged import Ragged


class Blocks(Protocol):
    """Vectors in float32 blocks, in row order; can be iterated again."""

    @property
    def rows(self) -> int: ...

    @property
    def dim(self) -> int: ...

    def __iter__(self) -> Iterator[Ragged]: ...


def check_finite(value: float) -> None:
    """DataError for a number that no vector without NaN or infinity in it can have made."""
    if not math.isfinite(value):
        raise DataError(
            "a stored vector holds values that are not finite, so nothing can be ranked; lmk verify "
            "names the part in which it is: delete that, and run its encode command again"
        )


class Matrix(Blocks, Protocol):
    """Rows of one vector or more: all in blocks of whole rows, in order, and any at once."""

    @property
    def total(self) -> int:
        """How many vectors there are."""

    @property
    def single(self) -> bool:
        """Whether each row has one vector."""

    def at(self, rows: NDArray[np.int64]) -> Ragged: ...


class Hits(NamedTuple):
    """Per query: rows and their float64 scores, unordered, the top k and all ties with it."""

    rows: list[NDArray[np.int64]]
    scores: list[NDArray[np.float64]]


class VectorSearch(Protocol):
    """Encoded queries to the rows of a Matrix that score best with them."""

    def search(self, queries: Ragged, k: int) -> Hits: ...


class Candidates(NamedTuple):
    """float32 scores [n, k], best first, and int64 vector rows [n, k], -1 where none is left."""

    scores: NDArray[np.float32]
    rows: NDArray[np.int64]


class Share(NamedTuple):
    """A shard's vectors, and the number of its first among all."""

    blocks: Blocks
    first: int


class Nearest(Protocol):
    """Something that finds vectors, which are numbered from zero.

    `rows` is how many numbers there are, `most` how many vectors can be fetched at once; `overfetch`
    how many times k to fetch for exact scoring; `divisible` whether a search of all is the best of
    searches among ranges of them.
    """

    rows: int
    most: int
    overfetch: int
    divisible: bool

    def candidates(
        self, queries: NDArray[np.float32], k: int, among: range | None = None
    ) -> Candidates:
        """The (approximately) k best vectors for each query vector [n, dim], of all or of a range."""


class AnnKind(Nearest, Protocol):
    """An approximate index in a folder; `note` is what is to be said of how it was opened, if anything."""

    note: str

    @staticmethod
    def memory(blocks: Blocks, settings: AnnSettings) -> int:
        """Bytes that building takes at its peak, roughly."""

    @staticmethod
    def check_buildable(blocks: Blocks, settings: AnnSettings) -> None:
        """UsageError or DataError for what `build` would refuse before any work."""

    @classmethod
    def build(
        cls, blocks: Blocks, folder: Path, settings: AnnSettings, progress: Progress
    ) -> dict[str, Any]:
        """Write the index of all vectors into `folder`; returns its facts, JSON values."""

    @classmethod
    def append(cls, blocks: Blocks, old: Path, folder: Path, progress: Progress) -> dict[str, Any]:
        """Write the index of folder `old` into `folder` with more vectors behind its own; facts.

        DataError when this index cannot grow.
        """

    @staticmethod
    def check_joinable(blocks: Blocks, settings: AnnSettings) -> None:
        """UsageError for settings by which an index cannot be made in shards."""

    @classmethod
    def train(cls, blocks: Blocks, path: Path, settings: AnnSettings) -> None:
        """Write to `path` what an index learns from all vectors, and holds before there are any."""

    @classmethod
    def build_shard(
        cls, share: Share, trained: Path, path: Path, settings: AnnSettings, progress: Progress
    ) -> None:
        """Write a shard to `path`, whole or not at all."""

    @classmethod
    def join(
        cls, trained: Path, shards: list[Path], folder: Path, settings: AnnSettings, apart: bool
    ) -> dict[str, Any]:
        """Write the index of all shards, in their order, into `folder`; returns its facts.

        `apart`: the files of the shards stay as they are.
        """

    @classmethod
    def open(cls, folder: Path, settings: AnnSettings, gpu: int | None = None) -> Self:
        """The index in `folder`, on the GPU of that number if it can be; DataError when it cannot be read."""


class StoredVector(NamedTuple):
    """A vector with its number, what it is of, and its text where there is one.

    Vector `chunk` (from zero) of document `id`; `span` is where it lies in the document's content, for
    unit chunk.
    """

    number: int
    vector: NDArray[np.float32]
    id: str
    chunk: int
    span: tuple[int, int] | None
    title: str
    text: str


class Mark(NamedTuple):
    """What a database says of a collection of lmk's, in its own properties.

    `made` is a digest of how its vectors are made and indexed; `holds` that of the vectors it holds, empty
    until they are all there; `becomes` that of those it is being brought to.
    """

    made: str
    holds: str
    becomes: str


class DatabaseKind(Nearest, Protocol):
    """A collection of a database, which need not be there yet; DataError wherever it cannot be asked."""

    @classmethod
    def connect(cls, settings: MilvusSettings, token: str) -> Self:
        """The collection that the settings name; `uri` is absolute."""

    def mark(self) -> Mark | None:
        """None where there is no such collection; DataError where lmk did not make it."""

    def create(self, dim: int, mark: Mark) -> None:
        """Make the collection, without vectors."""

    def drop(self) -> None:
        """Remove the collection, if lmk made it."""

    def write_mark(self, mark: Mark) -> None:
        """Replace what it says of itself."""

    def count(self, first: int = 0) -> int:
        """How many vectors have a number of `first` or above."""

    def write(
        self, vectors: Iterable[StoredVector], first: int, progress: Callable[[int], None]
    ) -> None:
        """Write vectors, numbered from `first` without a gap, and leave out what an earlier life wrote.

        `progress` is told how many are there.
        """

    def delete(self, numbers: NDArray[np.int64]) -> None:
        """Remove some vectors; numbers that are gone already are passed over."""

    def delete_from(self, first: int) -> None:
        """Remove the vectors whose number is `first` or above."""

    def open(self, rows: int, ef_search: int) -> None:
        """Get ready to search the numbers below `rows`."""


class LexicalKind(Protocol):
    """An index of the words of documents."""

    @staticmethod
    def analysis(settings: Bm25Settings) -> dict[str, Any]:
        """Everything that decides terms, JSON values; UsageError for settings that cannot be."""

    @classmethod
    def build(
        cls, docs: Iterable[Doc], folder: Path, settings: Bm25Settings, progress: Progress
    ) -> dict[str, Any]:
        """Write the index of some documents into `folder`; returns its facts, JSON values."""

    @classmethod
    def open(cls, folder: Path, settings: Bm25Settings, feedback: Feedback | None = None) -> Self:
        """The index in `folder`, whose queries grow by `feedback` if there is any.

        DataError or Mismatch when it cannot be searched here, or not with feedback.
        """

    def search(self, queries: list[Query], k: int) -> Run:
        """The k best documents of each query; those that share no term with it are not returned."""


def family_of(kind: str) -> str:
    """The catalog row of an index kind; a FAISS factory string belongs to that of hnsw."""
    if kind in catalog.INDEXES:
        return kind
    if kind.isidentifier() and kind.islower():
        raise UnknownName("index kind", kind, catalog.INDEXES, "(or a FAISS factory string)")
    return "hnsw"


def ann_kind(family: str) -> type[AnnKind]:
    """The approximate kind of this name; MissingExtra where FAISS is not installed."""
    kind: type[AnnKind] = catalog.load(catalog.INDEXES, family, "index kind")
    return kind


def database_kind(family: str) -> type[DatabaseKind]:
    """The database of this name; MissingExtra where its client is not installed."""
    kind: type[DatabaseKind] = catalog.load(catalog.INDEXES, family, "index kind")
    return kind


def lexical_kind(family: str) -> type[LexicalKind]:
    """The lexical kind of this name; MissingExtra where what it needs is not installed."""
    kind: type[LexicalKind] = catalog.load(catalog.INDEXES, family, "index kind")
    return kind
