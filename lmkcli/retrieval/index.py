"""Index: what `lmk search` can search, whatever is behind it."""

from typing import Any, NamedTuple, Protocol

from lmkcli.data.collection import Doc, Query
from lmkcli.data.run import Run


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


# The fields of OpenSettings that each part of a search uses.
QUERIES = ("model", "dtype", "trust_remote_code")  # the encoding of queries
DATABASE = ("uri",)  # the vectors of an index that a database keeps
SEARCH = ("vectors", "ef_search", "nprobe", *DATABASE)  # an index of vectors
SEVERAL = ("aggregate", "level")  # several vectors of a document
DENSE = (*SEARCH, *SEVERAL, *QUERIES)
LEXICAL = (
    "rm3",
    "rm3_terms",
    "rm3_docs",
    "rm3_weight",
    "rocchio",
)  # expanding the query by feedback
