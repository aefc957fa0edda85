"""The interface of all objects that `lmk search` can search: indexes, vectors and runs."""

from typing import Any, NamedTuple, Protocol

from lmkcli.data.collection import Doc, Query
from lmkcli.data.run import Run
from lmkcli.retrieval.settings import OpenSettings
from lmkcli.spec.operation import options


class IndexInfo(NamedTuple):
    """The path, kind, digest and search settings of an index, for the manifest of a run.

    `notes` are messages for the user, for instance that the vectors were updated after the index was built.
    """

    path: str
    kind: str
    digest: str
    search: dict[str, Any]
    notes: tuple[str, ...] = ()


class Passage(NamedTuple):
    """One chunk of a document.

    chunk: its number, from zero.
    chunks: the number of chunks of the document.
    begin, end: its range of characters in the content of the document.
    text: its text; empty if no text is stored.
    heading: the headings above it; empty if there are none, None if they are unknown.
    """

    chunk: int
    chunks: int
    begin: int
    end: int
    text: str
    heading: str | None = None


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


def _settings(*parts: str) -> tuple[str, ...]:
    """The fields of OpenSettings that these parts of a search use."""
    fields = options(OpenSettings)
    return tuple(field.name for field in fields if {*parts} & {*field.flag.only.split()})


QUERIES = _settings("queries")  # encoding of queries
DATABASE = _settings("database")  # vectors in a database
SEARCH = _settings("index", "database")  # an index over vectors
SEVERAL = _settings("several")  # several vectors per document
DENSE = (*SEARCH, *SEVERAL, *QUERIES)
LEXICAL = _settings("feedback")  # query expansion by feedback
