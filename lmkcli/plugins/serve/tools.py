"""The tools of a server for agents, by the Model Context Protocol (MCP): search and get_document."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import Field
from starlette.routing import BaseRoute, Route

from lmkcli import __version__
from lmkcli.errors import LmkError
from lmkcli.plugins.serve import schema
from lmkcli.plugins.serve.answers import Answers, NotFound, json_bytes
from lmkcli.plugins.serve.batching import Busy
from lmkcli.plugins.serve.limits import MAX_CHARACTERS, ServerTask
from lmkcli.plugins.serve.service import SearchService
from lmkcli.plugins.serve.work import BadRequest
from lmkcli.progress import Report

PATH = "/mcp"
_LONGEST = 100_000  # characters of a document in one answer
_MOST = 50  # hits
IndexName = Annotated[
    str | None, Field(description="Name of an index; default: all indexes, fused by their ranks.")
]


def make_tools(answers: Answers) -> MCPServer[Any]:
    """Return the MCP server of a service."""
    indexes = answers.service.indexes
    names = ", ".join(indexes.main)
    if indexes.note:
        names += "; they have different documents, so name one with `index`"
    server: MCPServer[Any] = MCPServer(
        "lmk",
        version=__version__,
        instructions=f"Searches document collections. The indexes are: {names}.",
        log_level="WARNING",
    )

    # Every client reads the content of an answer. With an output schema, an answer must have the same value
    # a second time, as structured content, and agents would read each text twice.
    @server.tool(structured_output=False)
    async def search(
        query: Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS)],
        k: Annotated[int, Field(ge=1, le=_MOST, description="Number of documents.")] = 10,
        index: IndexName = None,
        id_prefix: Annotated[
            str, Field(max_length=200, description="Only documents with such an id.")
        ] = "",
        where: Annotated[
            str | Annotated[list[str], Field(max_length=20)],
            Field(
                description="Conditions: type=pdf, path=mail/**, date>=2026-03, or a field of records.",
            ),
        ] = [],  # noqa: B006 - the default of the tool's schema
    ) -> str:
        """Find the documents that answer a question best: id, title, score, and the best passage."""
        _check_named(index, answers)
        given = [index] if index else answers.service.indexes.main
        request = schema.SearchRequest(
            query=query, index=given, k=k, id_prefix=id_prefix, where=where
        )
        with _shown():
            result = json.loads((await answers.search(request))[0])
        for hit in result["hits"]:
            # get_document counts the characters of the text alone, without the title before it
            lead = len(hit["title"]) + 1 if hit.get("title") else 0
            if "characters" in hit:
                hit["characters"] = max(hit["characters"] - lead, 0)
            if "passage" in hit:
                hit.pop("text", None)  # the passage has the text
                for end in ("begin", "end"):
                    hit["passage"][end] = max(hit["passage"][end] - lead, 0)
        shown = {key: result[key] for key in ("answered", "meaning", "hits")}
        return json_bytes(shown).decode("utf-8")

    @server.tool(structured_output=False)
    async def get_document(
        id: Annotated[str, Field(description="The id of a hit.")],  # noqa: A002 - the tool's name
        index: Annotated[
            str | None, Field(description="The index of the hit; default: the first one.")
        ] = None,
        begin: Annotated[int, Field(ge=0, description="First character of a long text.")] = 0,
    ) -> str:
        """Return the title and the text of a document. Read a long text in several calls with `begin`."""
        _check_named(index, answers)
        with _shown():
            found = await answers.document(id, index, "")
        text = found["text"]
        piece = text[begin : begin + _LONGEST]
        shown = {"id": found["id"], "title": found["title"], "text": piece}
        shown |= {"begin": begin, "characters": len(text)}
        return json_bytes(shown).decode("utf-8")

    for tool in server._tool_manager.list_tools():
        model = tool.fn_metadata.arg_model
        model.model_config["extra"] = "forbid"  # an unknown argument, such as a filter, is an error
        model.model_rebuild(force=True)
        tool.parameters["additionalProperties"] = False
    return server


def _check_named(index: str | None, answers: Answers) -> None:
    """Raise ToolError if the same id may be several documents, and no index is named."""
    current = answers.service.indexes
    if index is None and current.note:
        raise ToolError(
            f"the indexes have different documents; name one with `index`: {', '.join(current.main)}"
        )


class _shown:  # noqa: N801 - a context, used like a function
    """Show errors of a request to the agent, without paths of this machine."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, BadRequest | NotFound | Busy):
            raise ToolError(str(error)) from error
        if isinstance(error, LmkError):
            raise ToolError("the index cannot answer now; try again") from error


def mcp_routes(
    answers: Answers,
) -> tuple[list[BaseRoute], Callable[[], AbstractAsyncContextManager[None]]]:
    """Return the routes of MCP over HTTP, and the context in which they work.

    The guard of the whole server checks hosts, origins and the token.
    """
    server = make_tools(answers)
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        stateless_http=True,
        max_request_body_size=answers.service.limits.body_bytes,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )

    @asynccontextmanager
    async def sessions() -> AsyncIterator[None]:
        async with server.session_manager.run():
            yield

    routes = list(app.routes)
    for route in routes:
        if isinstance(route, Route):  # a stream of a GET request would stay open without an event
            route.methods = {"POST"}
    return routes, sessions


def serve_stdio(task: ServerTask, report: Report) -> None:
    """Answer an agent on stdin and stdout until stdin ends."""
    service = SearchService(
        task.indexes, task.settings, task.rerank_model, task.limits, note=report.note
    )

    async def run() -> None:
        async with service:
            await make_tools(Answers(service)).run_stdio_async()

    asyncio.run(run())
