"""The task of a server, and its limits."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lmkcli.retrieval.settings import OpenSettings


class ServerTask(NamedTuple):
    """The task of `lmk serve`: indexes with their settings, and the address and access of HTTP.

    origins: other web sites that may use the server from a browser. Port 0 means any free port.
    """

    indexes: Sequence[Path]
    settings: OpenSettings
    rerank_model: str | None = None
    host: str = "127.0.0.1"
    port: int = 0
    token: str = ""
    origins: Sequence[str] = ()


@dataclass(frozen=True)
class Limits:
    """Limits of a server. Requests beyond them get an answer of the class 4xx, or 503 with Retry-After."""

    waiting: int = 256  # requests in the queue
    seconds: float = 30  # from the arrival of a request to its answer
    body_bytes: int = 1 << 20
    body_seconds: float = 10  # from the first to the last byte of a body
    connections: int = 1000
    poll: float = 1.0  # seconds between two looks for updates


MAX_QUERIES = 256  # queries of a request
MAX_CHARACTERS = 100_000  # characters of a query
MAX_DOCUMENT_QUERY = 4000  # characters of a query in an address, which has at most 64 KiB
MAX_K = 1000
MAX_INPUTS = 2048  # texts of a request for embeddings
MAX_TOKENS = 8192  # tokens of such a text, if it is given as tokens
