"""Answers that no lmk server gives: each is one message and exit code 3, and no run is written."""

import io
import json
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lmkcli
from lmkcli.plugins.serve import client, runtime
from lmkcli.plugins.serve.client import Bounds
from tests.conftest import Lmk
from tests.plugins.serve.test_client import address

LISTED: dict[str, Any] = {
    "version": lmkcli.__version__,
    "indexes": [{"name": "i", "kind": "bm25", "digest": "d", "search": {}}],
}
HIT = {"id": "a", "score": 2.0, "title": "t", "text": "x"}
PASSAGE = {"chunk": 0, "chunks": 1, "begin": 0, "end": 1, "text": "x"}


class Stranger(socketserver.ThreadingTCPServer):
    """A server that sends the bytes `listed` and `found`, or calls them with the socket."""

    daemon_threads = True
    allow_reuse_address = True
    listed: Any = b""
    found: Any = b""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(socketserver.StreamRequestHandler):
    """Answers each request of a connection."""

    def handle(self) -> None:
        server: Any = self.server
        while line := self.rfile.readline():
            length = 0
            while (head := self.rfile.readline()).strip():
                if head.lower().startswith(b"content-length:"):
                    length = int(head.partition(b":")[2])
            self.rfile.read(length)
            answer = server.listed if b"/v1/indexes" in line else server.found
            try:
                if callable(answer):
                    answer(self.connection)
                    return
                self.connection.sendall(answer)
            except OSError:
                return


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    """A server of the test."""
    with Stranger() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        server.listed = http(LISTED)
        yield server
        server.shutdown()


def http(value: Any, status: str = "200 OK", **headers: str) -> bytes:
    """An answer with JSON, or with some bytes."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    lines = {"content-length": str(len(body)), **headers}
    head = "".join(f"{name.replace('_', '-')}: {text}\r\n" for name, text in lines.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


def hits(*values: dict[str, Any]) -> bytes:
    """An answer for one query."""
    return http({"results": [{"hits": list(values)}]})


def run(ids: list[Any], scores: list[Any], number: int = 2) -> bytes:
    """An answer with the same ranking for some queries."""
    return http({"results": [{"ids": ids, "scores": scores}] * number})


def endless(connection: socket.socket) -> None:
    """Send an answer without an end."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(b" " * (1 << 20))


def endless_chunk(connection: socket.socket) -> None:
    """Send a chunk of a negative size without an end; http.client reads it to the end."""
    connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n")
    while True:
        connection.sendall(b" " * (1 << 20))


def dripping(connection: socket.socket) -> None:
    """Send one byte after another."""
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
    while True:
        connection.sendall(b" ")
        time.sleep(0.02)


def dripping_head(connection: socket.socket) -> None:
    """Send one byte of a header after another."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nx: ")
    while True:
        connection.sendall(b"a")
        time.sleep(0.02)


def continuing(connection: socket.socket) -> None:
    """Announce an answer for ever."""
    while True:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")


def silent(connection: socket.socket) -> None:
    """Accept a request, like a stopped process."""
    time.sleep(30)


SLOW = (endless, endless_chunk, dripping, dripping_head, continuing, silent)
LENGTHS = ("-1", "+9", "1_0", "9, 9", "0x9", "", "9" * 30)
LISTS = {
    "empty": http(b""),
    "object": http({}),
    "list": http([]),
    "no digest": http({**LISTED, "indexes": [{"name": "i", "kind": "b", "search": {}}]}),
    "wrong type": http({**LISTED, "indexes": [{**LISTED["indexes"][0], "digest": 7}]}),
    "long": http({**LISTED, "indexes": [{**LISTED["indexes"][0], "digest": "d" * 10_000}]}),
    "deep": http(b'{"version": "1", "indexes": ' + b"[" * 100_000),
    "deep settings": http(
        json.dumps(LISTED).replace("{}", '{"a": ' * 900 + "1" + "}" * 900).encode()
    ),
    "not UTF-8": http(b'{"version": "\xff", "indexes": []}'),
    "redirect": http({}, "302 Found", location="http://127.0.0.1:1/"),
    "error of a stranger": http({"error": {"message": "no"}}, "418 I'm a teapot"),
    "page": http(b"<html>", "404 Not Found"),
    "wrong status": b"HTTP/1.1 abc\r\n\r\n",
    "other protocol": b"SSH-2.0-x\r\n\r\n",
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000 + b"\r\n",
    "wrong chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    "cut": http(b"{}", content_length="50"),
    **{f"length {text}": http(LISTED, content_length=text) for text in LENGTHS},
    **{each.__name__: each for each in SLOW},
}
HITS = {
    "no results": http({"results": []}),
    "two results": http({"results": [{"hits": []}] * 2}),
    "null": http({"results": None}),
    "no hits": http({"results": [{"ids": [], "scores": []}]}),
    "NaN": http(b'{"results": [{"hits": [{"id": "a", "score": NaN}]}]}'),
    "infinite": hits({**HIT, "score": 1e300}),
    "huge": http(b'{"results": [{"hits": [{"id": "a", "score": 1e999}]}]}'),
    "text score": hits({**HIT, "score": "2"}),
    "null score": hits({**HIT, "score": None}),
    "unsorted": hits({**HIT, "score": 1.0}, {**HIT, "id": "b"}),
    "twice": hits(HIT, HIT),
    "more than k": hits(*({**HIT, "id": f"d{number}"} for number in range(11))),
    "number as id": hits({**HIT, "id": 7}),
    "empty id": hits({**HIT, "id": ""}),
    "white space": hits({**HIT, "id": " "}),
    "control character": hits({**HIT, "id": "a\x1b[2J"}),
    "number as title": hits({**HIT, "title": 7}),
    "passage without a text": hits({**HIT, "passage": {"chunk": 0}}),
    "negative passage": hits({**HIT, "passage": {**PASSAGE, "begin": -5}}),
    "passage number": hits({**HIT, "passage": {**PASSAGE, "chunk": 3}}),
    "words": http({"results": [{"hits": [HIT], "words": ["w"] * 200_000}]}),
    "pairs": http({"results": [{"hits": [HIT], "pairs_cut": -5}]}),
    "huge passage": hits({**HIT, "passage": {**PASSAGE, "chunks": 10**30, "end": 10**30}}),
    "page": hits({**HIT, "passage": {**PASSAGE, "page": -7}}),
    "lines": hits({**HIT, "passage": {**PASSAGE, "lines": [9, 1]}}),
    "surrogate": http(b'{"results": [{"hits": [{"id": "\\ud800", "score": 1}]}]}'),
    **{each.__name__: each for each in SLOW},
}
RUNS = {
    "one result": run(["a"], [1.0], 1),
    "fewer scores": run(["a", "b"], [1.0]),
    "NaN": http(b'{"results": [{"ids": ["a"], "scores": [NaN]}]}'),
    "unsorted": run(["a", "b"], [1.0, 2.0]),
    "twice": run(["a", "a"], [1.0, 1.0]),
    "too many": run([f"d{number}" for number in range(6)], [1.0] * 6),
    "line break": run(["a\nq1 Q0 b 1 9 x"], [1.0]),
    "null": run([None], [1.0]),
}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small bounds."""
    for name in ("_LIST", "_NEAR", "_SEARCH"):
        monkeypatch.setattr(client, name, Bounds(0.5, 1 << 22))
    monkeypatch.setattr(client.Connection.get, "__defaults__", (client._SEARCH,))
    monkeypatch.setattr(client.RemoteIndex.__init__, "__defaults__", (None, client._LIST, ()))


@pytest.mark.parametrize("name", LISTS)
def test_a_bad_list_of_indexes(lmk: Lmk, stranger: Stranger, name: str) -> None:
    stranger.listed = LISTS[name]
    words = ("search", "i", "-q", "x", "--server", stranger.url)
    _one_message(lmk(*words, code=3).err, stranger)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_wrong_length_is_refused_at_once(
    lmk: Lmk, stranger: Stranger, monkeypatch: pytest.MonkeyPatch, length: str
) -> None:
    """The connection stays open, so a client that ignores the length waits for its end."""
    monkeypatch.setattr(client.RemoteIndex.__init__, "__defaults__", (None, Bounds(60, 1000), ()))
    stranger.listed = http(LISTED, content_length=length)
    err = lmk("search", "i", "-q", "x", "--server", stranger.url, code=3).err
    assert "wrong answer" in err
    assert "timed out" not in err


def test_a_chunk_without_an_end_takes_bounded_memory(lmk: Lmk, stranger: Stranger) -> None:
    stranger.listed = endless_chunk
    err = lmk("search", "i", "-q", "x", "--server", stranger.url, code=3).err
    assert "more than 4,194,304 bytes" in err


@pytest.mark.parametrize("name", HITS)
def test_bad_hits(lmk: Lmk, stranger: Stranger, name: str) -> None:
    stranger.found = HITS[name]
    found = lmk("search", "i", "-q", "x", "--server", stranger.url, code=3)
    assert not found.out
    _one_message(found.err, stranger)


@pytest.mark.parametrize(
    "body",
    [
        b'{"results": [{"hits": [], "words": [' + b'"a", ' * 1000 + b'"a"]}]}',
        b'{"results": [' + b'{"hits": []}, ' * 1000 + b"{}]}",
        b'{"results": [{"ids": [' + b'"\\",", ' * 1000 + b'"a"]}]}',
    ],
)
def test_many_values_are_refused_before_they_take_memory(
    lmk: Lmk, stranger: Stranger, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    monkeypatch.setattr(client, "_VALUES", 500)
    stranger.found = http(body)
    err = lmk("search", "i", "-q", "x", "--server", stranger.url, code=3).err
    assert "more than 500 values" in err


def test_commas_in_texts_are_no_values(
    lmk: Lmk, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_VALUES", 500)
    stranger.found = hits({**HIT, "text": 'a,"b\\",' * 1000})
    assert "a" in lmk("search", "i", "-q", "x", "--server", stranger.url).out


@pytest.mark.parametrize("name", RUNS)
def test_no_run_of_a_bad_answer(lmk: Lmk, stranger: Stranger, tmp_path: Path, name: str) -> None:
    stranger.found = RUNS[name]
    queries = tmp_path / "q.jsonl"
    queries.write_text('{"_id": "q1", "text": "a"}\n{"_id": "q2", "text": "b"}\n')
    output = tmp_path / "r.trec"
    words = ("search", "i", queries, "--server", stranger.url, "-k", 5, "-o", output)
    _one_message(lmk(*words, code=3).err, stranger)
    assert [each.name for each in tmp_path.iterdir() if "r.trec" in each.name] == []


def _one_message(err: str, stranger: Stranger) -> None:
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, err
    assert stranger.url in lines[0]
    assert "Traceback" not in err
    assert len(lines[0]) < 1000
    assert lines[0].isprintable()


def test_good_answers_of_the_test_are_accepted(lmk: Lmk, stranger: Stranger) -> None:
    """The other tests fail for the reason that they name."""
    stranger.found = hits(HIT, {**HIT, "id": "b", "passage": PASSAGE, "score": 2.0})
    found = lmk("search", "i", "-q", "x", "--server", stranger.url)
    assert [line.split()[2] for line in found.out.splitlines() if line[:3].strip()] == ["b", "a"]
    # without spaces, as in Chinese, a word is as long as the texts in which the server marks words
    stranger.found = http({"results": [{"hits": [HIT], "words": ["長" * 20_000]}]})
    assert lmk("search", "i", "-q", "長", "--server", stranger.url).out


def test_a_stopped_server_is_left_aside(
    lmk: Lmk, indexes: Path, stranger: Stranger, own_runtime_folder: Path
) -> None:
    wanted = lmk("search", indexes / "bm25", "-q", "rivers")
    stranger.found = stranger.listed = silent
    runtime.publish(address(indexes, url=stranger.url))
    found = lmk("search", indexes / "bm25", "-q", "rivers")
    assert found.out == wanted.out
    assert "timed out" in found.err
    assert "loading the index instead" in found.err


def test_a_question_has_a_bounded_length(
    lmk: Lmk, indexes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("search", indexes / "bm25", "-i")
    monkeypatch.setattr("sys.stdin", io.StringIO("a" * 100_001 + "\n"))
    assert "100,000" in lmk(*words, code=2).err
    monkeypatch.setattr("sys.stdin", io.StringIO("rivers " + "a" * 90_000 + "\n"))
    assert lmk(*words).out
