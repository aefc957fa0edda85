"""Settings of Milvus: the collection, its index, and the server of a search."""

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from lmkcli.errors import UsageError
from lmkcli.retrieval.vectors.hnsw import HnswSearchSettings, HnswSettings
from lmkcli.spec.settings import Flag


def parse_uri(text: str) -> str:
    """Return the address of a Milvus. Raises UsageError for other texts and for addresses with a password."""
    parts = urlsplit(text)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(
            "--uri takes only an address, http://host:19530 or http://host:19530/DATABASE; put a token or "
            "user:password into the environment variable LMK_MILVUS_TOKEN"
        )
    is_file = "://" not in text and text.endswith(".db")
    if text and not is_file and parts.scheme not in ("http", "https"):
        raise UsageError(
            f"--uri {text!r} is not an address of Milvus; write a file such as ./milvus.db, or "
            "http://host:19530"
        )
    return text


@dataclass(frozen=True, kw_only=True)
class MilvusSettings(HnswSettings):
    """The collection in Milvus that stores the vectors, and its index."""

    panel: ClassVar[str] = "Milvus"
    uri: Annotated[
        str,
        Flag(
            "milvus: a file such as ./milvus.db, or http://host:19530.",
            parse=parse_uri,
            often=True,
            role="address",
            only="database",
        ),
    ] = ""
    collection: Annotated[
        str, Flag("milvus: name of the collection.", metavar="NAME", only="database")
    ] = ""
    index_type: Annotated[
        Literal["AUTOINDEX", "HNSW", "FLAT"],
        Flag("milvus: index type in Milvus; FLAT compares every vector.", only="database"),
    ] = "AUTOINDEX"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.collection and not re.fullmatch(r"[A-Za-z_]\w{0,254}", self.collection, re.ASCII):
            raise UsageError(
                f"--collection {self.collection!r}: Milvus allows letters, digits and underscores, no "
                "digit first, 255 at most"
            )

    def without_graph(self) -> str:
        """Return the index type of the collection, unless it is a graph."""
        graph = not self.uri or self.index_type == "HNSW"
        return "" if graph else f"--index-type {self.index_type}"


@dataclass(frozen=True, kw_only=True)
class MilvusSearchSettings(HnswSearchSettings):
    """The server of a search."""

    panel: ClassVar[str] = "Index settings"
    uri: Annotated[
        str,
        Flag(
            "milvus: server; required if it is on another machine.",
            parse=parse_uri,
            role="address",
            only="database",
        ),
    ] = ""
