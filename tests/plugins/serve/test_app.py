"""The REST interface: the same answers as `lmk search`, and 4xx for everything that is wrong."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lmkcli.data.collection import open_collection
from lmkcli.plugins.serve.guard import Access, Guard
from lmkcli.plugins.serve.limits import Limits
from lmkcli.plugins.serve.metrics import Metrics
from tests import levels
from tests.conftest import Lmk
from tests.plugins.serve.conftest import ROOT, Start

QUESTION = "rivers carry water"


@pytest.mark.parametrize("index", ["chunks", "docs", "bm25"])
def test_a_search_gives_the_hits_of_lmk_search(
    client: Any, lmk: Lmk, indexes: Path, index: str
) -> None:
    local = lmk("search", indexes / index, "-q", QUESTION, "-k", 5, "--json").json
    request = {"query": [QUESTION, "bakers"], "index": index, "k": 5}
    first, second = client.post("/v1/search", json=request).json()["results"]
    assert [hit["id"] for hit in first["hits"]] == [hit["id"] for hit in local]
    for hit, wanted in zip(first["hits"], local, strict=True):
        assert (hit["rank"], hit["title"]) == (wanted["rank"], wanted["title"])
        assert hit["score"] == pytest.approx(wanted["score"], abs=1e-3)
        if index == "chunks":
            assert hit["passage"]["text"] == wanted["passage"]
        else:
            assert hit["text"] == wanted["text"]
    assert second["query"] == "bakers"
    run = client.post("/v1/search", json=request | {"output": "run"}).json()["results"][0]
    assert run["ids"] == [hit["id"] for hit in local]


def test_indexes_are_fused_and_reranked_as_lmk_search_does(
    client: Any, lmk: Lmk, indexes: Path
) -> None:
    words = [indexes / "docs", "--with", indexes / "bm25", "--fuse", "linear:0.3,0.7"]
    local = lmk("search", *words, "-q", QUESTION, "--json").json
    request = {"query": QUESTION, "index": ["docs", "bm25"], "fuse": "linear:0.3,0.7"}
    hits = client.post("/v1/search", json=request).json()["results"][0]["hits"]
    assert [hit["id"] for hit in hits] == [hit["id"] for hit in local]
    again = [indexes / "bm25", "--rerank", indexes / "docs", "--rerank-depth", 20]
    local = lmk("search", *again, "-q", QUESTION, "--json").json
    request = {"query": QUESTION, "index": "bm25", "rerank": "docs", "rerank_depth": 20}
    hits = client.post("/v1/search", json=request).json()["results"][0]["hits"]
    assert [hit["id"] for hit in hits] == [hit["id"] for hit in local]


def test_a_cross_encoder_reranks_as_lmk_search_does(
    lmk: Lmk, indexes: Path, beir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from starlette.testclient import TestClient

    from lmkcli.plugins.serve.app import make_app
    from lmkcli.plugins.serve.service import SearchService
    from tests.models.test_crossencoder import by_hand, save

    monkeypatch.setattr("lmkcli.models.crossencoder.native_dtype", lambda device: "fp32")
    model, bm25 = save(tmp_path / "cross", 1), indexes / "bm25"
    app: Any = make_app(SearchService([indexes / "docs", bm25], rerank_model=str(model)))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert client.get("/v1/indexes").json()["rerankers"] == ["docs", "model"]
        request = {"query": QUESTION, "index": "bm25", "rerank": "model", "rerank_depth": 8, "k": 5}
        hits = client.post("/v1/search", json=request).json()["results"][0]["hits"]
        texts = {doc.id: doc.content for doc in open_collection(str(beir)).docs()}
        scores = by_hand(model, QUESTION, [texts[hit["id"]] for hit in hits])
        assert [hit["score"] for hit in hits] == pytest.approx(scores, abs=1e-4)
        words = ["-q", QUESTION, "--rerank-model", model, "--rerank-depth", 8, "-k", 5, "--json"]
        assert [hit["id"] for hit in hits] == [
            hit["id"] for hit in lmk("search", bm25, *words).json
        ]
        words += ["--interpolate", 0.5]
        mixed = client.post("/v1/search", json=request | {"interpolate": 0.5}).json()
        assert [hit["id"] for hit in mixed["results"][0]["hits"]] == [
            hit["id"] for hit in lmk("search", bm25, *words).json
        ]
        fused = request | {"index": ["docs", "bm25"], "output": "run"}
        assert len(client.post("/v1/search", json=fused).json()["results"][0]["ids"]) == 5
        assert client.post("/v1/search", json=request | {"k": 9}).status_code == 400


def test_a_prefix_of_ids_filters_the_whole_ranking(client: Any) -> None:
    everything = client.post(
        "/v1/search", json={"query": QUESTION, "index": "docs", "k": 60, "output": "run"}
    ).json()["results"][0]["ids"]
    request = {"query": QUESTION, "index": "docs", "k": 3, "id_prefix": "s-", "output": "run"}
    result = client.post("/v1/search", json=request).json()["results"][0]
    assert result["ids"] == [name for name in everything if name.startswith("s-")][:3]
    assert result["complete"]


def test_a_document_has_its_chunks_with_scores(client: Any, beir: Path) -> None:
    texts = {doc.id: doc for doc in open_collection(str(beir)).docs()}
    best = client.post("/v1/search", json={"query": QUESTION, "index": "chunks"}).json()
    hit = best["results"][0]["hits"][0]
    url = f"/v1/documents/{hit['id']}?index=chunks&query={QUESTION}"
    found = client.get(url).json()
    doc = texts[hit["id"]]
    assert (found["title"], found["text"]) == (doc.title, doc.text)
    assert doc.content[found["text_begin"] :] == doc.text
    chunks = found["chunks"]
    assert len(chunks) == hit["passage"]["chunks"]
    top = max(chunks, key=lambda chunk: chunk["score"])
    assert (top["begin"], top["end"]) == (hit["passage"]["begin"], hit["passage"]["end"])
    assert top["score"] == pytest.approx(hit["score"], abs=1e-2)
    assert "chunks" not in client.get(f"/v1/documents/{hit['id']}?index=bm25&query=x").json()


def test_contributions_of_landmarks_sum_to_the_score(
    lmk: Lmk, beir: Path, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    from starlette.testclient import TestClient

    from lmkcli.plugins.serve.app import make_app
    from lmkcli.plugins.serve.service import SearchService

    recipe = ["--pool", "lmk", "--gran", 4, "--dtype", "fp32", "--store-dtype", "fp32"]
    recipe += ["--doc-prompt", "text: "]  # so the two sides differ
    lmk("encode", beir, "-m", tiny_model("bert"), *recipe, "-o", tmp_path / "whole")
    service = SearchService([tmp_path / "whole"])
    app: Any = make_app(service)
    several = 0
    with TestClient(app, base_url="http://127.0.0.1") as client:
        answer = client.post("/v1/search", json={"query": QUESTION, "k": 60}).json()
        hits = answer["results"][0]["hits"]
        for hit in hits:
            asked = {"query": QUESTION, "contributions": "true"}
            found = client.get(f"/v1/documents/{hit['id']}", params=asked).json()
            content = f"{found['title']} {found['text']}".strip()
            parts = found["contributions"]
            several += len(parts) > 3
            assert sum(part["score"] for part in parts) == pytest.approx(hit["score"], abs=1e-4)
            assert all(content[part["begin"] : part["end"]].strip() for part in parts)
            assert (parts[0]["begin"], parts[-1]["end"]) == (0, len(content))
        assert several > 20
        for some in ({"query": QUESTION}, {"contributions": "true"}):
            assert (
                "contributions"
                not in client.get(f"/v1/documents/{hits[0]['id']}", params=some).json()
            )
    vectors, encoders = service.indexes.served["whole"].vectors, service.indexes.encoders
    assert vectors is not None
    query, document = (encoders.of(vectors, side) for side in (True, False))
    assert query is not document
    assert query.model is document.model  # loaded once


def test_the_server_describes_itself_without_paths(client: Any, indexes: Path) -> None:
    listed = client.get("/v1/indexes")
    assert [each["name"] for each in listed.json()["indexes"]] == ["chunks", "docs", "bm25"]
    assert [each["documents"] for each in listed.json()["indexes"]] == [60, 60, 60]
    assert listed.json()["rerankers"] == ["chunks", "docs"]
    schema = client.get("/openapi.json").json()
    assert {"/v1/search", "/v1/indexes", "/v1/documents/{id}", "/v1/embeddings"} <= set(
        schema["paths"]
    )
    measured = client.get("/metrics").text
    assert 'lmk_requests_total{route="/v1/indexes",status="200"}' in measured
    for answer in (listed.text, measured, client.get("/healthz").text):
        assert str(indexes.parent) not in answer


DEEP = "[" * 100_000 + "]" * 100_000
HOSTILE: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "unknown index": ("POST", "/v1/search", {"json": {"query": "a", "index": "../bm25"}}, 404),
    "unknown field": ("POST", "/v1/search", {"json": {"query": "a", "path": "/etc"}}, 422),
    "no query": ("POST", "/v1/search", {"json": {"k": 3}}, 422),
    "k as text": ("POST", "/v1/search", {"json": {"query": "a", "k": "3"}}, 422),
    "large k": ("POST", "/v1/search", {"json": {"query": "a", "k": 10**30}}, 422),
    "long query": ("POST", "/v1/search", {"json": {"query": "a" * 100_001}}, 422),
    "many queries": ("POST", "/v1/search", {"json": {"query": ["a"] * 257}}, 422),
    "many texts": ("POST", "/v1/search", {"json": {"query": ["a"] * 256, "k": 17}}, 400),
    "many passages": (
        "POST",
        "/v1/search",
        {"json": {"query": ["a"] * 256, "k": 17, "text": "none"}},
        400,
    ),
    "many documents for a reranker": (
        "POST",
        "/v1/search",
        {
            "json": {
                "query": ["a"] * 256,
                "k": 5,
                "output": "run",
                "rerank": "docs",
                "rerank_depth": 17,
            }
        },
        400,
    ),
    "large body": ("POST", "/v1/search", {"content": b" " * (1 << 20) + b"{}"}, 413),
    "surrogate": (
        "POST",
        "/v1/search",
        {"content": b'{"query": "\\ud800"}', "headers": {"content-type": "application/json"}},
        422,
    ),
    "depth": (
        "POST",
        "/v1/search",
        {"content": DEEP, "headers": {"content-type": "application/json"}},
        400,
    ),
    "not UTF-8": (
        "POST",
        "/v1/search",
        {"content": b'{"query": "\xff"}', "headers": {"content-type": "application/json"}},
        400,
    ),
    "not a number": (
        "POST",
        "/v1/search",
        {
            "content": b'{"query": "a", "rerank": "docs", "interpolate": NaN}',
            "headers": {"content-type": "application/json"},
        },
        422,
    ),
    "form": ("POST", "/v1/search", {"data": {"query": "a"}}, 422),
    "weights": (
        "POST",
        "/v1/search",
        {"json": {"query": "a", "index": ["docs", "bm25"], "fuse": "linear:1,2,3"}},
        400,
    ),
    "unknown reranker": ("POST", "/v1/search", {"json": {"query": "a", "rerank": "bm25"}}, 404),
    "twice": ("POST", "/v1/search", {"json": {"query": "a", "index": ["docs", "docs"]}}, 400),
    "path": ("GET", "/v1/documents/..%2f..%2fetc%2fpasswd", {}, 404),
    "zero byte": ("GET", "/v1/documents/%00?index=chunks&query=%00", {}, 404),
    "file": ("GET", "/..%2f__init__.py", {}, 404),
    "parameter": ("GET", "/v1/search?q=a&wher=type%3Dmd", {}, 400),
    "method": ("DELETE", "/v1/search", {}, 405),
    "other host": ("GET", "/v1/indexes", {"headers": {"host": "evil.example"}}, 403),
    **{
        f"origin {origin}": (
            "POST",
            "/v1/search",
            {"json": {"query": "a"}, "headers": {"origin": origin}},
            403,
        )
        for origin in ("http://[x", "null", "http://[::1", "//")
    },
    "many lists": (
        "POST",
        "/v1/embeddings",
        {"json": {"model": "docs", "input": [[]] * 9000}},
        400,
    ),
    "many values": ("POST", "/mcp", {"json": {"params": [1] * 9000}}, 400),
    "brackets in many strings": (
        "POST",
        "/v1/search",
        {"json": {"query": "[" * 20_000, "index": ["docs"] * 17}},
        422,
    ),
    "stream": ("GET", "/mcp", {"headers": {"accept": "text/event-stream"}}, 405),
    "other site": (
        "POST",
        "/v1/search",
        {"json": {"query": "a"}, "headers": {"origin": "https://evil.example"}},
        403,
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_wrong_request_is_refused(client: Any, indexes: Path, name: str) -> None:
    method, path, rest, status = HOSTILE[name]
    answer = client.request(method, path, **rest)
    assert answer.status_code == status, answer.text
    assert len(answer.json()["error"]["message"]) <= 1000
    assert str(indexes.parent) not in answer.text


def test_a_head_has_a_limit_also_if_it_arrives_at_once(client: Any) -> None:
    for size, status in ((60_000, 200), (66_000, 400)):
        assert client.get("/healthz", headers={"x-a": "a" * size}).status_code == status
    headers = {"x-a": "a" * 30_000}
    assert client.get(f"/healthz?{'a' * 40_000}", headers=headers).status_code == 400


def test_errors_of_libraries_have_the_same_form(client: Any) -> None:
    for given, status in (("bytes=9-1", 400), ("bytes=999999999-", 416)):
        answer = client.get("/page.css", headers={"range": given})
        assert answer.status_code == status
        assert answer.json()["error"]["message"]
        assert answer.headers["content-length"] == str(len(answer.content))
    assert client.get("/page.css", headers={"range": "bytes=0-3"}).status_code == 206


@pytest.mark.parametrize("ends", [True, False])
def test_an_error_in_pieces_has_the_same_form(monkeypatch: pytest.MonkeyPatch, ends: bool) -> None:
    """Also one that never ends: it is ended when the time is over."""
    monkeypatch.setattr("lmkcli.plugins.serve.guard._GRACE", 0)
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 404, "headers": headers})
        await send({"type": "http.response.body", "body": b"not ", "more_body": True})
        if ends:
            await send({"type": "http.response.body", "body": b"here"})
        else:
            await asyncio.sleep(60)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "raw_path": b"/", "query_string": b""}
    scope["headers"] = [(b"host", b"127.0.0.1")]
    limits = Limits(body_seconds=0.1, answer_seconds=0.1)
    asyncio.run(Guard(app, Access(), limits, Metrics(lambda: 0))(scope, receive, send))
    start, body = sent
    message = json.loads(body["body"])["error"]["message"]
    assert message == ("not here" if ends else "not ")
    assert dict(start["headers"])[b"content-length"] == str(len(body["body"])).encode()


def test_strange_queries_are_answered(client: Any) -> None:
    queries = [
        "\0",
        "<script>alert(1)</script>",
        "\u202eabc",
        "\U0001f468\u200d",
        "a " * 50_000,
    ]
    for index in ("chunks", "bm25"):
        answer = client.post("/v1/search", json={"query": queries, "index": index})
        assert answer.status_code == 200
        assert len(answer.json()["results"]) == len(queries)
        for query in (" ", ["tea", "\t"]):  # as `lmk search -q` does
            answer = client.post("/v1/search", json={"query": query, "index": index})
            assert answer.status_code == 400
            assert "query is empty" in answer.json()["error"]["message"]


def test_the_page_and_its_headers(client: Any) -> None:
    for path, kind in (
        ("/", "text/html"),
        ("/page.css", "text/css"),
        ("/page.js", "text/javascript"),
    ):
        answer = client.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kind)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "http://" not in answer.text
        assert "https://" not in answer.text


def test_a_token_is_required_everywhere_but_on_the_page(indexes: Path) -> None:
    from starlette.testclient import TestClient

    from lmkcli.plugins.serve.app import make_app
    from lmkcli.plugins.serve.service import SearchService

    access = Access("s3cret", ("https://friend.example",))
    app: Any = make_app(SearchService([indexes / "bm25"]), access)
    with TestClient(app, base_url="http://search.example") as client:
        assert client.get("/").status_code == client.get("/healthz").status_code == 200
        for path in ("/v1/indexes", "/metrics", "/mcp", "/v1/documents/x"):
            for given in ("", "Bearer", "Bearer s3cre", "Bearer s3cretx", "Basic s3cret"):
                answer = client.get(path, headers={"authorization": given})
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"] == "Bearer"
        right = {"authorization": "Bearer s3cret"}
        assert client.get("/v1/indexes", headers=right).status_code == 200
        request = {
            "json": {"query": "water"},
            "headers": right | {"origin": "https://friend.example"},
        }
        answer = client.post("/v1/search", **request)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://friend.example"


def test_another_host_needs_a_token(lmk: Lmk, indexes: Path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        assert "LMK_SERVE_TOKEN" in lmk("serve", indexes / "bm25", "--host", host, code=2).err
    assert "choose another --port" in _taken(lmk, indexes)
    lmk("serve", indexes / "bm25", "--cors", "*", code=2)
    lmk("serve", indexes / "nowhere", "--port", 0, code=3)


def _taken(lmk: Lmk, indexes: Path) -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        return str(lmk("serve", indexes / "bm25", "--port", taken.getsockname()[1], code=2).err)


def test_an_update_is_loaded_and_the_models_stay(
    lmk: Lmk, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    from lmkcli.plugins.serve.service import SearchService
    from lmkcli.plugins.serve.work import SearchWork

    docs, vectors, bm25 = tmp_path / "d.jsonl", tmp_path / "vectors", tmp_path / "bm25"
    docs.write_text('{"_id": "one", "text": "rivers carry water"}\n')
    lmk("encode", docs, "-m", tiny_model("bert"), "-o", vectors)
    lmk("index", docs, "--kind", "bm25", "-o", bm25)
    service = SearchService([vectors, bm25])
    before = service.indexes
    assert not service.refresh()
    with open(docs, "a", encoding="utf-8") as file:
        file.write('{"_id": "two", "text": "copper conducts electricity"}\n')
    lmk("update", docs, vectors, bm25)
    for name in ("vectors", "bm25"):  # requests that run already have the old files
        (found,) = SearchWork(service_plan(name), 5).run(before, ["copper rivers"])
        assert [each.doc.text for each in found.documents if each.doc] == ["rivers carry water"]
    assert service.refresh()
    assert not service.refresh()
    for name in ("vectors", "bm25"):
        (found,) = SearchWork(service_plan(name), 5).run(service.indexes, ["copper rivers"])
        assert {each.id for each in found.documents} == {"one", "two"}
    assert service.indexes.encoders is before.encoders


def service_plan(name: str) -> Any:
    from lmkcli.plugins.serve.indexes import SearchPlan

    return SearchPlan((name,))


@pytest.mark.slow
def test_a_slow_body_is_refused_and_a_signal_finishes_running_requests(
    start: Start, indexes: Path
) -> None:
    server = start(indexes / "bm25")
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 60) as slow:
        slow.sendall(b"POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{")
        assert b" 408 " in slow.recv(1000)
    with socket.create_connection((host, int(port)), 60) as running:
        body = json.dumps({"query": "rivers"}).encode()
        head = (
            "POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        running.sendall(head.encode() + body[:5])
        server.process.terminate()
        running.sendall(body[5:])
        answer = b""
        while piece := running.recv(65536):
            answer += piece
    assert b" 200 " in answer.splitlines()[0]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["results"]
    assert server.process.wait(300) == 75
    assert not list(Path(os.environ["XDG_RUNTIME_DIR"]).rglob("serve-*.json"))
    assert start(indexes / "bm25").stop(2) == 75


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopping_server_prints_what_it_still_does(
    start: Start, indexes: Path, number: signal.Signals
) -> None:
    server = start(indexes / "bm25")
    assert server.stop(number) == 75
    assert server.log.read_text("utf-8").splitlines()[-2:] == [
        f"{number.name}: stopping; answering the running requests",
        "the server has stopped; all running requests were answered",
    ]


@pytest.mark.slow
def test_the_flag_of_the_cross_encoder(start: Start, indexes: Path, tmp_path: Path) -> None:
    from tests.models.test_crossencoder import save

    server = start(indexes / "bm25", "--rerank-model", save(tmp_path / "cross", 1))
    hits = []
    for more in ({}, {"rerank": "model", "rerank_depth": 5}):
        body = json.dumps({"query": QUESTION, "k": 5, "output": "run"} | more).encode()
        request = urllib.request.Request(
            f"{server.url}/v1/search", body, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            hits.append(json.load(answer)["results"][0])
    assert set(hits[0]["ids"]) == set(hits[1]["ids"])
    assert hits[0]["scores"] != hits[1]["scores"]


def test_brackets_in_a_query_are_text(client: Any) -> None:
    request = {"query": "[" * 20_000 + '"\\]' * 5, "index": "bm25"}
    assert client.post("/v1/search", json=request).status_code == 200


@pytest.mark.slow
def test_idle_connections_and_unread_answers_neither_end_a_server_nor_hold_its_stop(
    start: Start, indexes: Path
) -> None:
    server = start(indexes / "bm25", files=1024)
    host, _, port = server.url.removeprefix("http://").partition(":")
    place = (host, int(port))
    body = json.dumps({"query": ["rivers"] * 64, "k": 60, "text": "full"}).encode()
    head = (
        "POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with ExitStack() as stack:
        for number in range(1300):
            client = stack.enter_context(socket.create_connection(place, 300))
            if number % 2:
                client.sendall(b"POST /v1/sea")
        with urllib.request.urlopen(f"{server.url}/healthz", timeout=300) as answer:
            assert answer.status == 200
        for _ in range(10):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(place)
            client.sendall(5 * (head.encode() + body))  # the answers fit into no buffer
        with urllib.request.urlopen(f"{server.url}/healthz", timeout=300) as answer:
            assert answer.status == 200
        assert server.process.poll() is None
        assert server.stop() == 75
    log = server.log.read_text("utf-8")
    assert "Traceback" not in log


def _handles(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler of a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", levels.sample("stops during a start", range(12), 3))
def test_a_signal_ends_the_start(indexes: Path, seconds: int, own_runtime_folder: Path) -> None:
    line = [sys.executable, "-m", "lmkcli.cli.main", "serve", str(indexes / "chunks"), "--port=0"]
    process = subprocess.Popen(line, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while not _handles(process.pid, signal.SIGTERM):  # earlier, Python itself dies from it
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(seconds / 3)
    process.terminate()
    _, log = process.communicate(timeout=600)
    assert process.returncode == 75, log
    assert "Traceback" not in log
    assert not list(own_runtime_folder.rglob("serve-*.json"))


def test_a_question_does_not_wait_for_large_requests_of_other_clients(client: Any) -> None:
    """Each of these bodies is answered in at least ten pieces, and a question between two of them."""
    long = f"{QUESTION} " * 5000
    large = [
        ("/v1/search", {"query": [long[:95_000]] * 10, "index": "docs"}),
        ("/v1/embeddings", {"model": "docs", "input": [long[:400]] * 500}),
    ]
    for path, body in large:
        batches = _batches(client)
        with ThreadPoolExecutor(1) as pool:
            hostile = pool.submit(client.post, path, json=body)
            while _batches(client) == batches:
                time.sleep(0.01)
            for index in ("docs", "bm25"):
                answer = client.post("/v1/search", json={"query": QUESTION, "index": index})
                assert answer.json()["results"][0]["hits"]
            assert not hostile.done()
            answer = hostile.result()
            assert answer.status_code == 200
            found = answer.json()["data" if "input" in body else "results"]
            assert len(found) == len(body.get("input", body.get("query", [])))


def _batches(client: Any) -> float:
    """The number of batches so far."""
    text = client.get("/metrics").text
    return float(re.search(r"lmk_batch_items_count (\S+)", text)[1])  # type: ignore[index]
