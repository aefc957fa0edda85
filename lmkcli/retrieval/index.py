"""Index: what `lmk search` can search, whatever is behind it."""

from typing import Any, NamedTuple, Protocol

from lmkcli.data.collection import Doc, Query
from lmkcli.data.run import Run
from lmkcli.settings import OpenSettings
from lmkcli.spec.operation import options


class IndexInfo(NamedTuple):
    """Where an index is, its kind and digest, and how it is searched, for a run's manifest.

    `notes` are what its user should know, such as that its vectors were updated since.
    """

    path: str
    kind: str
    digest: str
    search: dict[str, Any]
    notes: tuple[str, ...] = ()


class Passage(NamedTuple):
    """Chunk number `chunk` (from zero) of `chunks`: characters begin to end of the document's content.

    `text` is empty where no text is stored.
    """

    chunk: int
    chunks: int
    begin: int
    end: int
    text: str


class Index(Protocol):
    """Rankings for queries, and the texts behind ids for showing them."""

    @property
    def info(self) -> IndexInfo:
        """Where it is and what it is."""

    def search(self, queries: list[Query], k: int) -> Run:
        """k documents a query (fewer only when the collection has no more), best first."""

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """The documents behind some ids, as far as their text was stored."""

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """The best chunk of each document, where there are vectors of chunks; else nothing."""


def _settings(*parts: str) -> tuple[str, ...]:
    """The fields of OpenSettings that these parts of a search use."""
    found = options(OpenSettings)
    return tuple(each.name for each in found if {*parts} & {*each.flag.only.split()})


QUERIES = _settings("queries")  # the encoder of the queries
DATABASE = _settings("database")  # the vectors of an index that a database keeps
SEARCH = _settings("index", "database")  # an index of vectors
SEVERAL = _settings("several")  # several vectors of a document
DENSE = (*SEARCH, *SEVERAL, *QUERIES)
LEXICAL = _settings("feedback")  # expansion of the query by feedback
