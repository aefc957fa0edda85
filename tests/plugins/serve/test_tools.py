"""The tools for agents, used by the client of the package mcp: in this process, over HTTP and over stdio."""

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from lmkcli.data.collection import open_collection
from tests import tiny
from tests.conftest import Lmk
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
    for hit in hits:
        whole = await answer(client, "get_document", {"id": hit["id"]})
        assert hit["characters"] == whole["characters"]
        if "passage" in hit and hit["passage"]["begin"]:
            begin, end = hit["passage"]["begin"], hit["passage"]["end"]
            assert whole["text"][begin:end] == hit["passage"]["text"]
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
        ("search", {"query": "rivers", "filter": "type=pdf"}),
        ("get_document", {"id": first, "page": 2}),
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


def test_an_agent_names_one_of_the_indexes_of_different_files(lmk: Lmk, tmp_path: Path) -> None:
    """The same id is another document there."""
    from mcp.client.client import Client

    from lmkcli.plugins.serve.answers import Answers
    from lmkcli.plugins.serve.service import SearchService
    from lmkcli.plugins.serve.tools import make_tools

    texts = {"one": "The boiler is serviced.", "two": "Bicycles are parked here."}
    for name, text in texts.items():
        tiny.write_jsonl(tmp_path / f"{name}.jsonl", [{"_id": "readme", "text": text}])
        lmk("index", tmp_path / f"{name}.jsonl", "--kind", "bm25", "-o", tmp_path / name)
    notes: list[str] = []

    async def run() -> None:
        async with (
            SearchService([tmp_path / "one", tmp_path / "two"], note=notes.append) as service,
            Client(make_tools(Answers(service))) as client,
        ):
            for name, values in (
                ("search", {"query": "parked"}),
                ("get_document", {"id": "readme"}),
            ):
                refused = await client.call_tool(name, values)
                assert refused.is_error
                assert "one, two" in refused.content[0].text
            hits = (await answer(client, "search", {"query": "parked", "index": "two"}))["hits"]
            assert [hit["text"] for hit in hits] == [texts["two"]]
            read = await answer(client, "get_document", {"id": "readme", "index": "two"})
            assert read["text"] == texts["two"]

    anyio.run(run)
    assert "different files" in notes[0]


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
