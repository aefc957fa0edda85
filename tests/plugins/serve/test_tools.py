"""The tools for agents, used by the client of the package mcp: in this process, over HTTP and over stdio."""

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from lmkcli.data.collection import open_collection
from tests.plugins.serve.conftest import ROOT, Start


async def use(client: Any, beir: Path) -> None:
    """Search, read the first document, and make mistakes."""
    tools = (await client.list_tools()).tools
    assert {tool.name for tool in tools} == {"search", "get_document"}
    found = await client.call_tool("search", {"query": "rivers carry water", "k": 3})
    assert not found.is_error
    hits = found.structured_content["hits"]
    assert len(hits) == 3
    texts = {doc.id: doc for doc in open_collection(str(beir)).docs()}
    first = hits[0]["id"]
    read = await client.call_tool("get_document", {"id": first})
    assert read.structured_content["text"] == texts[first].text
    tail = await client.call_tool("get_document", {"id": first, "begin": 3})
    assert tail.structured_content["text"] == texts[first].text[3:]
    for name, values in (
        ("get_document", {"id": "nothing"}),
        ("search", {"query": "x", "index": "nowhere"}),
        ("search", {"query": "x", "k": 10_000}),
    ):
        assert (await client.call_tool(name, values)).is_error


def test_an_agent_searches_and_reads(indexes: Path, beir: Path) -> None:
    from mcp.client.client import Client

    from lmkcli.plugins.serve.answers import Answers
    from lmkcli.plugins.serve.service import SearchService
    from lmkcli.plugins.serve.tools import make_tools

    async def run() -> None:
        async with (
            SearchService([indexes / "bm25", indexes / "chunks"]) as service,
            Client(make_tools(Answers(service))) as client,
        ):
            await use(client, beir)

    anyio.run(run)


@pytest.mark.slow
def test_an_agent_uses_http_and_stdio(start: Start, indexes: Path, beir: Path) -> None:
    from mcp.client.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    server = start(indexes / "bm25")

    async def over_http() -> None:
        async with Client(f"{server.url}/mcp") as client:
            await use(client, beir)

    async def over_stdio() -> None:
        words = ["-m", "lmkcli.cli.main", "serve", str(indexes / "bm25"), "--mcp"]
        parameters = StdioServerParameters(command=sys.executable, args=words, cwd=ROOT)
        async with Client(stdio_client(parameters)) as client:
            await use(client, beir)

    anyio.run(over_http)
    anyio.run(over_stdio)
