"""Downloads from a hub on loopback: once, whole, kept, and resumed; each in a process of its own."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lmkcli.data import hub_layouts
from lmkcli.system import network
from tests import mirrors

ROOT = Path(__file__).resolve().parents[2]
PINNED = "d67138e705d963e346253a80e59676ddb418810a"
SCRIPT = """
import json, sys
from lmkcli.data.collection import open_collection
from lmkcli.errors import LmkError
try:
    found = open_collection(sys.argv[1])
    found.fetch()
    print(json.dumps([len(list(found.docs())), len(list(found.judged_queries())), found.stamp()]))
except LmkError as error:
    print(json.dumps(str(error)))
"""


class Hub(ThreadingHTTPServer):
    """Serves a folder of repositories as the hub does, and records the requests."""

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.root = root
        self.commit = "0" * 39 + "1"  # the commit behind 'main'
        self.asked: list[str] = []
        self.served: list[tuple[str, int]] = []  # the files requested, and from which byte on
        self.cut = 0  # drop the connection after so many bytes of a file, once

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answers(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        words = self.path.partition("?")[0].strip("/").split("/")
        if words[0] == "api":
            return self._about("/".join(words[2:4]), words[4:])
        repo, commit, name = "/".join(words[1:3]), words[4], "/".join(words[5:])
        path = self.server.root / repo / name
        if not path.is_file():
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
        return self._file(path.read_bytes(), name, commit)

    def _about(self, repo: str, words: list[str]) -> None:
        if not (self.server.root / repo).is_dir():
            return self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        revision = words[1] if len(words) > 1 else "main"
        commit = self.server.commit if revision == "main" else revision
        paths = [p for p in sorted((self.server.root / repo).rglob("*")) if p.is_file()]
        names = [p.relative_to(self.server.root / repo).as_posix() for p in paths]
        if words[:1] == ["tree"]:
            said: Any = [
                {"type": "file", "path": n, "size": p.stat().st_size, "oid": etag(p.read_bytes())}
                for n, p in zip(names, paths, strict=True)
            ]
        else:
            said = {"id": repo, "sha": commit, "siblings": [{"rfilename": n} for n in names]}
        return self._send(200, json.dumps(said).encode(), {"Content-Type": "application/json"})

    def _file(self, data: bytes, name: str, commit: str) -> None:
        headers = {"ETag": f'"{etag(data)}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        start = int(self.headers.get("Range", "bytes=0-")[6:].partition("-")[0])
        if self.command == "GET":
            self.server.served.append((name, start))
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self._send(206 if start else 200, data[start:], headers)

    def _send(self, code: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            cut = self.server.cut if 0 < self.server.cut < len(data) else len(data)
            self.wfile.write(data[:cut])
            if cut < len(data):
                self.server.cut = 0
                self.close_connection = True


def etag(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    made = Hub(tmp_path / "remote")
    mirrors.mldr(made.root, "en")
    mirrors.text(made.root / "Shitao/MLDR/README.md", "---\nlicense: mit\n---\n")
    mirrors.loco(made.root, ["qmsum"])
    for name in ("Documents", "Queries"):
        mirrors.card(
            made.root / f"hazyresearch/LoCoV1-{name}", {"default": {"test": "data/test-*"}}
        )
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(hub: Hub, tmp_path: Path) -> Start:
    """Begins to fetch a collection and to read it, with a cache of the test's own."""

    def begin(name: str, **more: str) -> "subprocess.Popen[str]":
        env = {
            k: v for k, v in os.environ.items() if k not in (network.VARIABLE, hub_layouts.MIRROR)
        }
        env |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
        words = [sys.executable, "-c", SCRIPT, name]
        return subprocess.Popen(words, cwd=ROOT, env=env | more, stdout=subprocess.PIPE, text=True)

    return begin


def outcome(process: "subprocess.Popen[str]") -> Any:
    return json.loads(process.communicate(timeout=120)[0])


FILES = {
    "README.md", "mldr-v1.0-en/corpus.jsonl.gz", "mldr-v1.0-en/test.jsonl.gz",
    "qrels/qrels.mldr-v1.0-en-test.tsv",
}  # fmt: skip


def test_two_at_once_bring_each_file_once_and_then_nobody_is_asked(hub: Hub, start: Start) -> None:
    both = [start("mldr/en/test") for _ in range(2)]
    results = [outcome(process) for process in both]
    assert results[0] == results[1]
    docs, queries, stamp = results[0]
    assert (docs, queries) == (6, 3)
    assert list(stamp) == [f"Shitao/MLDR@{PINNED}/mldr-v1.0-en/corpus.jsonl.gz"]
    assert {name for name, _ in hub.served} == FILES  # not the other languages, not the scripts
    assert len(hub.served) == len(FILES)
    hub.asked.clear()
    assert outcome(start("mldr/en/test")) == results[0]
    assert outcome(start("mldr/en/test", HF_HUB_OFFLINE="1")) == results[0]
    assert hub.asked == []


def test_without_a_pin_the_commit_is_recorded_and_stays(hub: Hub, start: Start) -> None:
    first = outcome(start("loco/qmsum"))
    assert [key.split("/data/")[0] for key in first[2]] == [
        f"hazyresearch/LoCoV1-Documents@{hub.commit}"
    ]
    hub.commit = "0" * 39 + "2"
    assert outcome(start("loco/qmsum")) == first


def test_a_broken_download_goes_on(hub: Hub, start: Start) -> None:
    corpus = hub.root / "Shitao/MLDR/mldr-v1.0-en/corpus.jsonl.gz"
    mirrors.jsonl(corpus, [{"docid": f"d{i}", "text": os.urandom(99).hex()} for i in range(9000)])
    hub.cut = 700_000
    assert outcome(start("mldr/en/test"))[0] == 9000
    assert sum(name.endswith("corpus.jsonl.gz") for name, _ in hub.served) > 1
    assert hub.cut == 0


def test_half_a_cache_is_not_a_smaller_collection(hub: Hub, start: Start, tmp_path: Path) -> None:
    mirrors.miracl(hub.root, "sw")
    assert outcome(start("hf:miracl/sw/dev"))[0] == 6
    pointer = next((tmp_path / "hf").rglob("docs-1.jsonl.gz"))
    pointer.unlink()
    said = outcome(start("hf:miracl/sw/dev", HF_HUB_OFFLINE="1"))
    assert "Run 'lmk fetch hf:miracl/sw/dev' once" in said
    assert outcome(start("hf:miracl/sw/dev"))[0] == 6


def test_what_the_hub_does_not_have(hub: Hub, start: Start) -> None:
    said = outcome(start("coir/cosqa"))
    assert "CoIR-Retrieval/cosqa: it cannot be downloaded" in said
    assert "LMK_DATA=folder with folder/CoIR-Retrieval/cosqa/" in said
    (hub.root / "CoIR-Retrieval/cosqa").mkdir(parents=True)
    mirrors.text(hub.root / "CoIR-Retrieval/cosqa/cosqa.py", "print('never run')")
    assert "no file of configuration 'corpus'" in outcome(start("coir/cosqa"))
