"""The interface of all objects that `lmk search` can search: indexes, vectors and runs.

`Index` is required. The other protocols are optional: an index of any package that has their methods can be
searched in shards (`Divisible`), served (`Served`, `Embedding`, `ScoresChunks`) and browsed (`FindsChunks`).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from lmkcli.data.collection import Doc, Query
from lmkcli.data.metadata import MetadataFilter
from lmkcli.data.run import Ranking, Run
from lmkcli.progress import Progress, silent
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.spec.option import options
from lmkcli.text.query_words import QueryWords

if TYPE_CHECKING:  # these import NumPy and torch
    from lmkcli.encoding.encoder import Encoder
    from lmkcli.encoding.representation import QueryEncoder
    from lmkcli.retrieval.vectors.vector_search import Division
    from lmkcli.vectors.stored import DenseVectors


class IndexInfo(NamedTuple):
    """The path, kind, digest and search settings of an index, for the manifest of a run.

    `notes` are messages for the user, for instance that the vectors were updated after the index was built.
    `meaning` is what a score is, for people, such as 'cosine similarity'.
    """

    path: str
    kind: str
    digest: str
    search: dict[str, Any]
    notes: tuple[str, ...] = ()
    meaning: str = ""


class Passage(NamedTuple):
    """One chunk of a document.

    chunk: its number, from zero.
    chunks: the number of chunks of the document.
    begin, end: its range of characters in the content of the document.
    text: its text; empty if no text is stored.
    heading: the headings above it; empty if there are none, None if they are unknown.
    path: of the file that contains it, below the folder of the collection; empty if there is none.
    page: its page in a PDF file, from 1.
    lines: its first and last line in a text file, from 1.
    """

    chunk: int
    chunks: int
    begin: int
    end: int
    text: str
    heading: str | None = None
    path: str = ""
    page: int | None = None
    lines: tuple[int, int] | None = None


@runtime_checkable
class Filters(Protocol):
    """An index of documents with metadata."""

    def filter(self, where: Sequence[str]) -> MetadataFilter:
        """Return conditions such as 'type=pdf' on the documents of the index.

        Raises UsageError for a condition that cannot be read.
        """


@runtime_checkable
class WeighsWords(Protocol):
    """An index that knows how rare words are."""

    def query_words(self, question: str) -> QueryWords:
        """Return the words of a question, weighted by their inverse document frequency in the index."""


def query_words(index: object, question: str) -> QueryWords:
    """Return the words of a question that matter; without weights if the index does not know any."""
    return index.query_words(question) if isinstance(index, WeighsWords) else QueryWords(question)


@runtime_checkable
class BoundsScores(Protocol):
    """An index whose scores have a known range."""

    def greatest_score(self, query: Query) -> float | None:
        """Return the greatest score that a document could have for a query; None if there is none."""


@runtime_checkable
class Judges(Protocol):
    """An index that knows whether its best hits are a good match."""

    def is_answered(self, query: Query, ranking: Ranking) -> bool | None:
        """Return whether the best hit of a ranking probably answers the query; None if that is unknown."""


class Index(Protocol):
    """Searches queries, and finds the texts of hits."""

    @property
    def info(self) -> IndexInfo:
        """Path, kind, digest and search settings."""

    def search(self, queries: list[Query], k: int) -> Run:
        """Rank k documents for each query, best first; fewer only if the collection has fewer."""

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """Return documents by id. Their text is empty if it was not stored."""

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """Return the best chunk of each document; nothing if the index has no chunks."""


@runtime_checkable
class KnowsUnits(Protocol):
    """An index that knows which documents or chunks it can return."""

    def unfindable(self, ids: Sequence[str]) -> list[str]:
        """Return those ids, in order, that no search returns: unknown ones, and those without a vector."""


def unfindable(index: object, ids: Sequence[str]) -> list[str]:
    """Return the ids that an index cannot return; nothing if the index does not know that."""
    return index.unfindable(ids) if isinstance(index, KnowsUnits) else []


class ScoredChunk(NamedTuple):
    """A chunk of a document: its range of characters in the content, and its score for a query.

    If the document has one vector, the score is what the chunk contributes to the score of the document.
    """

    begin: int
    end: int
    score: float


@runtime_checkable
class Divisible(Index, Protocol):
    """An index that may be searched in shards."""

    def division(self) -> "Division[Any] | None":
        """Return how a search is divided among tasks; None if this index is searched whole."""


@runtime_checkable
class Served(Index, Protocol):
    """An index that a server keeps open, and describes.

    unit: what one entry represents: doc, chunk or token.
    documents: the number of documents; None if it is unknown.
    dimensions: of its vectors; None without dense vectors.
    """

    @property
    def unit(self) -> str: ...

    @property
    def documents(self) -> int | None: ...

    @property
    def dimensions(self) -> int | None: ...

    def open_files(self, text_bytes: int = 0) -> None:
        """Open all files now. Then the object needs no names, which an update may remove.

        Up to `text_bytes` bytes of the stored texts stay in memory.
        """


@runtime_checkable
class Samples(Protocol):
    """An index that shows what its collection is about."""

    def sample(self, count: int) -> list[Doc]:
        """Return some stored documents, spread over the collection."""


@runtime_checkable
class Embedding(Index, Protocol):
    """An index over vectors, whose model may also encode other texts.

    dense: the vectors, with their recipe; None if they are not dense.
    """

    @property
    def dense(self) -> "DenseVectors | None": ...

    def use_encoder(self, encoder: "QueryEncoder[Any]") -> None:
        """Use a loaded encoder of the query side of the same recipe."""


@runtime_checkable
class ScoresChunks(Index, Protocol):
    """An index that shows how the chunks of a document match a query."""

    def existing(self, ids: Sequence[str]) -> list[str]:
        """Return those ids that `texts` accepts. Chunks have ids such as `doc#12`."""

    def chunk_scores(self, query: Query, name: str) -> list[ScoredChunk]:
        """Return all chunks of a document with their scores for a query; nothing without chunks."""

    def contributions(self, query: Query, doc: Doc, encoder: "Encoder[Any]") -> list[ScoredChunk]:
        """Return what each chunk of a document contributes to its score; nothing if that is unknown."""


@runtime_checkable
class FindsChunks(Index, Protocol):
    """An index that finds the best chunks for many queries faster than `passages` does."""

    def best_chunks(
        self,
        queries: Sequence[Query],
        ids: Mapping[str, list[str]],
        progress: Progress = silent,
    ) -> dict[tuple[str, str], Passage]:
        """Return (query id, document id) -> the best chunk, for the documents `ids` of each query."""


def _fields(*parts: str) -> tuple[str, ...]:
    """Return the fields of OpenSettings that these parts of a search use."""
    fields = options(OpenSettings)
    return tuple(field.name for field in fields if {*parts} & {*field.flag.only.split()})


QUERY_FIELDS = _fields("queries")  # encoding of queries
DATABASE_FIELDS = _fields("database")  # vectors in a database
SEARCH_FIELDS = _fields("index", "database")  # an index over vectors
SEVERAL_FIELDS = _fields("several")  # several vectors per document
DENSE_FIELDS = (*SEARCH_FIELDS, *SEVERAL_FIELDS, *QUERY_FIELDS)
FEEDBACK_FIELDS = _fields("feedback")  # query expansion by feedback
