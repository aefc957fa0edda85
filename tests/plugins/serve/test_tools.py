"""The tools for agents, used by the client of the package mcp: in this process, over HTTP and over stdio."""

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from lmkcli.data.collection import open_collection
from tests.plugins.serve.conftest import ROOT, Start


async def answer(client: Any, name: str, values: dict[str, Any]) -> dict[str, Any]:
    """Call a tool, and return the JSON of its only block of text. Nothing is sent twice."""
    result = await client.call_tool(name, values)
    assert not result.is_error
    assert result.structured_content is None
    (block,) = result.content
    value: dict[str, Any] = json.loads(block.text)
    texts = [hit.get("passage", hit)["text"] for hit in value.get("hits", [])]
    texts += [value["text"]] if "text" in value else []
    sent = json.dumps(result.model_dump(mode="json"), ensure_ascii=False)
    assert texts
    for text in texts:
        quoted = json.dumps(json.dumps(text, ensure_ascii=False), ensure_ascii=False)[1:-1]
        assert sent.count(quoted) == texts.count(text)
    return value


async def use(client: Any, beir: Path) -> None:
    """Search, read the first document, and make mistakes."""
    tools = (await client.list_tools()).tools
    assert {tool.name for tool in tools} == {"search", "get_document"}
    assert all(tool.output_schema is None for tool in tools)
    hits = (await answer(client, "search", {"query": "rivers carry water", "k": 3}))["hits"]
    assert len(hits) == 3
    texts = {doc.id: doc for doc in open_collection(str(beir)).docs()}
    first = hits[0]["id"]
    read = await answer(client, "get_document", {"id": first})
    assert read["text"] == texts[first].text
    tail = await answer(client, "get_document", {"id": first, "begin": 3})
    assert tail["text"] == texts[first].text[3:]
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
