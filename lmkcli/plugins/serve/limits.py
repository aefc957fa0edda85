"""The task of a server, and its limits."""

import os
import re
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

from lmkcli.errors import UsageError
from lmkcli.plugins.documents.own_index import OwnIndex
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.spec.settings import Flag, Settings

MAX_QUERIES = 256  # queries of a request
MAX_CHARACTERS = 100_000  # characters of a query
MAX_DOCUMENT_QUERY = 4000  # characters of a query in an address; each has up to 12 characters there
MAX_K = 1000
MAX_HITS = 4096  # hits with texts or passages, or documents that a reranker reads, of a request
MAX_MARKED = 20_000  # characters of the texts of a query in which its words are marked
MAX_READ = 200_000  # characters of a text in which a snippet, or the words of a query, are found
MAX_INPUTS = 2048  # texts of a request for embeddings
MAX_TOKENS = 8192  # tokens of such a text, if it is given as tokens
MAX_DEPTH = 32  # levels of a JSON body
MAX_KEYS = 1024  # keys of the objects of a JSON body; each unknown key becomes an error message
MAX_BRACKETS = 8192  # lists and objects of a JSON body; a request for embeddings has 2,050
MAX_VALUES = (
    8192  # values in the lists of a JSON body, except a request for embeddings, which has tokens
)
HEAD_BYTES = 1 << 16  # bytes of a request line and its headers
FEW_CONNECTIONS = 16
# Files that are open for moments: a page, the files of an update, and connections that asyncio has accepted
# and the server does not count yet (a few times BACKLOG).
SPARE_FILES = 320
BACKLOG = 64  # connections that asyncio accepts at once
# Strings, and commas outside of strings. A string without an end reaches to the end.
_COMMAS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|,', re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Limits(Settings):
    """Limits of a server. A request beyond them gets an error of the class 4xx, or 503 with Retry-After."""

    panel: ClassVar[str] = "Limits"
    connections: Annotated[
        int,
        Flag(
            "Open connections; the one that keeps the server waiting longest makes way for a new one.",
            min=FEW_CONNECTIONS,
            role="mode",
            suggest_for="--limit-concurrency --max-connections --workers",
        ),
    ] = 1000
    waiting: Annotated[int, Flag("Requests in the queue.", min=1, role="mode")] = 256
    answer_seconds: Annotated[
        float,
        Flag(
            "Seconds from a request to its answer.",
            min=0.1,
            role="mode",
            suggest_for="--timeout",
        ),
    ] = 30.0
    head_seconds: Annotated[
        float, Flag("Seconds in which a client sends the head of a request.", min=0.1, role="mode")
    ] = 10.0
    body_seconds: Annotated[
        float, Flag("Seconds in which a client sends the body of a request.", min=0.1, role="mode")
    ] = 10.0
    read_seconds: Annotated[
        float, Flag("Seconds for a client to read an answer.", min=0.1, role="mode")
    ] = 30.0
    idle_seconds: Annotated[
        int,
        Flag(
            "Seconds that a connection stays open between two requests.",
            min=1,
            role="mode",
            suggest_for="--timeout-keep-alive --keep-alive",
        ),
    ] = 5
    stop_seconds: Annotated[
        float,
        Flag("Seconds in which a stopping server answers running requests.", min=0.1, role="mode"),
    ] = 5.0
    body_bytes: Annotated[
        int,
        Flag("Bytes of the body of a request.", min=1000, role="mode", suggest_for="--max-body"),
    ] = 1 << 20
    characters: Annotated[
        int,
        Flag("Characters of all texts in the answer to a search.", min=1000, role="mode"),
    ] = 32_000_000
    held_bytes: Annotated[
        int,
        Flag("Bytes of bodies and unread answers of all clients together.", min=1000, role="mode"),
    ] = 32 << 20

    def check_sizes(self) -> None:
        """Raise UsageError if the largest body would be refused."""
        if self.held_bytes < self.body_bytes:
            raise UsageError("--held-bytes must be at least --body-bytes")


class ServerTask(NamedTuple):
    """The task of `lmk serve`: indexes with their settings, and the address, access and limits of HTTP.

    An index is a folder, or documents with their index in the cache, which the server keeps up to date.

    origins: other web sites that may use the server from a browser. Port 0 means any free port.
    """

    indexes: Sequence[Path | OwnIndex]
    settings: OpenSettings
    rerank_model: str | None = None
    host: str = "127.0.0.1"
    port: int = 0
    token: str = ""
    origins: Sequence[str] = ()
    limits: Limits = Limits()


def has_more_values(json: bytes, most: int) -> bool:
    """Return whether JSON has too many values: short ones become objects of twenty times their bytes."""
    if json.count(b",") <= most:
        return False
    commas = 0
    for found in _COMMAS.finditer(json):
        commas += json[found.start()] == ord(",")
        if commas > most:
            return True
    return False


def possible_connections(wanted: int) -> int:
    """Return how many connections fit into the files that this process may open, at most `wanted`.

    The files that are open now are counted twice, because an update opens new ones before it closes them.
    If necessary, the limit of open files is raised as far as the system allows. Raises UsageError if only a
    few connections fit.
    """
    used = 2 * len(os.listdir("/proc/self/fd")) + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < used + wanted:
        soft = used + wanted if hard == resource.RLIM_INFINITY else min(used + wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft < used + FEW_CONNECTIONS:
        raise UsageError(
            f"this process may open {soft:,} files, but the server needs {used + FEW_CONNECTIONS:,}; "
            "raise the limit with ulimit -n"
        )
    return min(wanted, soft - used)
