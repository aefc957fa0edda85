"""Serve: answer searches over HTTP, with a page, or over MCP."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from lmkcli import catalog
from lmkcli.errors import UsageError
from lmkcli.plugins.documents.own_index import EncodeCall, OwnIndex, OwnIndexOptions, collection_at
from lmkcli.plugins.serve.limits import Limits, ServerTask
from lmkcli.progress import Report
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.spec.operation import Operation
from lmkcli.spec.settings import Flag
from lmkcli.system import network

TOKEN = "LMK_SERVE_TOKEN"


def _of_http(serve: "Serve") -> str:
    return "--mcp, which uses stdin and stdout" if serve.mcp else ""


@dataclass(frozen=True)
class Serve(Operation[None], OpenSettings, Limits):
    """Answer searches: a page for people, HTTP for programs, and MCP for agents.

    INDEX may also be documents: lmk makes its own index of them, and serves changes of the files.
    The models are loaded once. After `lmk update` the server loads the new files, without a failed request.
    A signal stops it when all running requests are answered.

    Only this machine can connect. Another --host needs a token, which an environment variable gives.
    """

    verb: ClassVar[str] = "serve"

    indexes: Annotated[
        list[Path],
        Flag(
            "Indexes, vectors folders (exact search) or documents; each index gets the name of its folder.",
            argument=True,
            metavar="INDEX…",
            role="artifact",
        ),
    ]
    host: Annotated[
        str,
        Flag(
            "Address to listen at; 0.0.0.0: all.",
            often=True,
            role="mode",
            suggest_for="--bind --address --listen",
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int, Flag("Port to listen at; 0: any free port.", min=0, max=65535, often=True, role="mode")
    ] = 8080
    rerank_model: Annotated[
        str | None,
        Flag(
            "A cross-encoder that requests can use as the reranker 'model'.",
            role="model",
            often=True,
            aliases="--reranker --cross-encoder",
        ),
    ] = None
    cors: Annotated[
        list[str] | None,
        Flag(
            "Another web site that may use this server from a browser, such as "
            "https://example.org; repeatable.",
            role="mode",
            often=True,
            ineffective=_of_http,
        ),
    ] = None
    mcp: Annotated[
        bool,
        Flag(
            "Serve one agent by MCP on stdin and stdout instead of HTTP.", role="mode", often=True
        ),
    ] = False

    def check(self) -> None:
        """Raise UsageError for another host without a token, and for a wrong web site."""
        if not self.indexes:
            raise UsageError("name at least one index")
        self.check_sizes()
        for origin in self.cors or []:
            scheme, separator, rest = origin.partition("://")
            if scheme not in ("http", "https") or not separator or not rest or "/" in rest:
                raise UsageError(f"--cors {origin}: write a web site such as https://example.org")

    def execute(self, report: Report) -> None:
        """Open the indexes and answer requests until a signal arrives, or stdin ends with --mcp."""
        token = os.environ.get(TOKEN, "")
        if not self.mcp and not token and not network.is_local(f"http://{_bracketed(self.host)}"):
            raise UsageError(
                f"--host {self.host}: other machines may connect only with a token; set the environment "
                f"variable {TOKEN} to a long random text"
            )
        interface = "mcp" if self.mcp else "http"
        serve: Callable[[ServerTask, Report], None] = catalog.SERVERS.load(interface)
        indexes, settings = self._opened(report)
        access = (self.host, self.port, token, self.cors or [])
        serve(ServerTask(indexes, settings, self.rerank_model, *access, self.part(Limits)), report)

    def _opened(self, report: Report) -> tuple[list[Path | OwnIndex], OpenSettings]:
        """Return all indexes, and how to open them. Documents get indexes in the cache."""
        settings, indexes = self.part(OpenSettings), list[Path | OwnIndex]()
        for path in self.indexes:
            if collection := collection_at(path):
                call = EncodeCall(self.trust_remote_code, self.device, self.offline)
                own = OwnIndex(collection, self.model, OwnIndexOptions(), call)
                own.refresh(report)
                indexes.append(own)
                settings = replace(settings, model="")  # the vectors record their model
            else:
                indexes.append(path)
        return indexes, settings


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
