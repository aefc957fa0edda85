"""Searches on a server: `--server`, and `-q` with a server of the same user and the same indexes."""

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from lmkcli.artifact import manifest
from lmkcli.plugins.serve import runtime
from lmkcli.plugins.serve.runtime import RunningServer
from lmkcli.plugins.serve.stamps import stamp
from tests import manifests
from tests.cli.test_startup import imported
from tests.conftest import Lmk
from tests.plugins.serve.conftest import Start

QUESTION = "rivers carry water"


class Other(BaseHTTPRequestHandler):
    """Another program, which answers everything with an empty object."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *words: object) -> None:
        pass


def address(folder: Path, **facts: object) -> RunningServer:
    """The address file of a server of bm25/ with some other facts."""
    import lmkcli

    state = [list(each) for each in stamp(folder / "bm25")]
    known: dict[str, object] = {
        "url": "http://127.0.0.1:9",
        "version": lmkcli.__version__,
        "pid": os.getpid(),
        "secret": "00",
        "settings": {},
        "indexes": {"bm25": (os.path.realpath(folder / "bm25"), state)},
    }
    return RunningServer(**{**known, **facts})  # type: ignore[arg-type]


def test_an_address_file_that_does_not_fit_is_ignored_with_a_note(
    lmk: Lmk, indexes: Path, own_runtime_folder: Path
) -> None:
    wanted = lmk("search", indexes / "bm25", "-q", QUESTION)
    assert "server" not in wanted.err
    other = HTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    for facts, reason in (
        ({}, "does not answer"),
        ({"version": "0.0.1"}, "it is lmk 0.0.1"),
        ({"settings": {"device": "cuda:7"}}, "other settings"),
        ({"url": f"http://127.0.0.1:{other.server_port}"}, "another program"),
        ({"indexes": {"bm25": (os.path.realpath(indexes / "bm25"), [[0, 0, 0]])}}, "updated"),
    ):
        path = runtime.publish(address(indexes, **facts))
        found = lmk("search", indexes / "bm25", "-q", QUESTION)
        assert found.out == wanted.out
        assert reason in found.err
        assert "server" not in lmk("search", indexes / "docs", "-q", QUESTION).err
        none = lmk("search", indexes / "bm25", "-q", QUESTION, "--server", "none")
        assert "server" not in none.err
    path.chmod(0o644)
    assert not list(runtime.running_servers())
    path.chmod(0o600)
    assert list(runtime.running_servers())
    path.parent.chmod(0o777)
    assert not list(runtime.running_servers())
    path.parent.chmod(0o700)
    runtime.publish(address(indexes, pid=2**22 + 1))  # larger than any process id
    assert [server.pid for server in runtime.running_servers()] == [os.getpid()]
    runtime.publish(address(indexes, pid=10**30)).rename(path)
    assert not list(runtime.running_servers())
    path.write_text("{")
    assert not list(runtime.running_servers())
    other.shutdown()


def test_the_stamp_of_an_index_with_an_impossible_path(tmp_path: Path) -> None:
    made = manifests.index(of_vectors="a\0b")
    (tmp_path / manifest.NAME).write_text(manifest.as_text(made))
    assert stamp(tmp_path)[-1] == (0, 0, 0)


def test_wrong_servers_are_one_message(lmk: Lmk, indexes: Path, tmp_path: Path) -> None:
    for words, code, message in (
        (["--server", "localhost:80"], 2, "http://127.0.0.1:8080"),
        (["--server", "http://127.0.0.1:9"], 3, "does not answer"),
        (["--server", "http://127.0.0.1:9/\u00e9"], 3, "does not answer"),
        (["--server", "http://a..b:9"], 3, "does not answer"),
        (["--server", "http://127.0.0.1:99999"], 2, "http://127.0.0.1:8080"),
        (["--server", "http://[x"], 2, "http://127.0.0.1:8080"),
        (["--server", "http://127.0.0.1:9", "--device", "cpu"], 2, "--device"),
        (["--server", "http://127.0.0.1:9", "--rerank-model", "m"], 2, "--rerank-model"),
    ):
        assert message in lmk("search", "bm25", "-q", "x", *words, code=code).err


@pytest.mark.slow
def test_a_server_gives_the_answers_and_runs_of_lmk_search(
    start: Start,
    lmk: Lmk,
    indexes: Path,
    beir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LMK_SERVE_TOKEN", "s3cret")
    for name in ("chunks", "bm25"):
        shutil.copytree(indexes / name, tmp_path / name)
    both = [tmp_path / "chunks", "--with", tmp_path / "bm25", "--fuse", "rrf"]
    local = {
        str(words): lmk("search", *words, "-q", QUESTION)
        for words in ([tmp_path / "chunks"], [tmp_path / "bm25"], both)
    }
    server = start(tmp_path / "chunks", tmp_path / "bm25")
    for words in ([tmp_path / "chunks"], [tmp_path / "bm25"], both):
        found = lmk("search", *words, "-q", QUESTION)
        assert f"using the server at {server.url}" in found.err
        assert found.out == local[str(words)].out
    assert imported(["search", str(tmp_path / "chunks"), "-q", QUESTION], 0) == {"numpy", "Stemmer"}
    for name in ("chunks", "bm25"):
        there, here = tmp_path / f"{name}-there.trec", tmp_path / f"{name}-here.trec"
        lmk("search", name, beir, "--server", server.url, "-k", 30, "-o", there)
        lmk("search", tmp_path / name, beir, "-k", 30, "-o", here)
        identities = [
            json.loads(Path(f"{path}.json").read_text("utf-8"))["identity"]
            for path in (there, here)
        ]
        assert identities[0] == identities[1]
        assert [line.split()[2] for line in there.read_text().splitlines()] == [
            line.split()[2] for line in here.read_text().splitlines()
        ]
    assert "nowhere" in lmk("search", "nowhere", "-q", "x", "--server", server.url, code=2).err
    monkeypatch.setenv("LMK_SERVE_TOKEN", "wrong")
    assert "token" in lmk("search", "bm25", "-q", "x", "--server", server.url, code=2).err
    assert server.stop() == 75
    assert "server" not in lmk("search", tmp_path / "bm25", "-q", QUESTION).err


@pytest.mark.slow
def test_documents_without_an_index_are_served(
    start: Start, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "copper.md").write_text("# Metals\ncopper conducts\n")
    (notes / "bread.md").write_text("# Food\nbread before dawn\n")
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    server = start(notes, "--model", tiny_model("bert"), **cache)
    with urlopen(f"{server.url}/v1/indexes") as answer:
        names = [each["name"] for each in json.load(answer)["indexes"]]
    assert names == ["notes", "notes-vectors", "notes-bm25"]
    body = json.dumps({"query": "copper", "index": ["notes-bm25"], "k": 1}).encode()
    asked = Request(f"{server.url}/v1/search", body, {"content-type": "application/json"})
    with urlopen(asked) as answer:
        (found,) = json.load(answer)["results"]
    assert [hit["id"] for hit in found["hits"]] == ["copper.md"]
    assert server.stop() == 75


@pytest.mark.slow
def test_a_folder_is_searched_by_the_server_that_serves_it(
    start: Start,
    lmk: Lmk,
    tmp_path: Path,
    tiny_model: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the same hits as without the server, also after a change of its files, and with conditions."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    notes = tmp_path / "my notes"
    notes.mkdir()
    (notes / "copper.md").write_text("# Metals\ncopper conducts\n")
    (notes / "bread.txt").write_text("bread before dawn\n")
    model = tiny_model("bert")
    server = start(notes, "--model", model)
    ask = ["search", notes, "-m", model, "-q", "copper bread", "--json"]
    used = f"using the server at {server.url}"
    for more in ([], ["--where", "type=txt"], ["-k", 1]):
        found = lmk(*ask, *more)
        assert used in found.err
        alone = lmk(*ask, *more, "--server", "none")
        assert used not in alone.err
        assert found.json == alone.json
    (notes / "zeppelin.txt").write_text("copper zeppelin\n")
    found = lmk(*ask)
    assert "zeppelin.txt" in {hit["id"] for hit in found.json}
    assert used not in lmk("search", notes, "-q", "copper", "-m", tiny_model("roberta")).err
    assert server.stop() == 75


@pytest.mark.slow
def test_a_killed_server_starts_again_with_the_same_command(
    start: Start, lmk: Lmk, indexes: Path, own_runtime_folder: Path
) -> None:
    killed = start(indexes / "bm25")
    assert killed.stop(signal.SIGKILL) == -signal.SIGKILL
    assert list(own_runtime_folder.glob("lmk/serve-*.json"))
    again = start(indexes / "bm25", port=urlsplit(killed.url).port)
    assert again.url == killed.url
    found = lmk("search", indexes / "bm25", "-q", QUESTION)
    assert f"using the server at {again.url}" in found.err
    assert again.stop(signal.SIGKILL) == -signal.SIGKILL
    alone = lmk("search", indexes / "bm25", "-q", QUESTION)
    assert alone.out == found.out
    assert "server" not in alone.err
    assert not list(own_runtime_folder.glob("lmk/*"))


@pytest.mark.slow
def test_updates_under_load_fail_no_request(
    start: Start, lmk: Lmk, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    from lmkcli.plugins.serve.client import Connection

    docs, vectors, bm25 = tmp_path / "d.jsonl", tmp_path / "vectors", tmp_path / "bm25"
    docs.write_text('{"_id": "0", "text": "rivers carry water 0"}\n')
    lmk("encode", docs, "-m", tiny_model("bert"), "-o", vectors)
    lmk("index", docs, "--kind", "bm25", "-o", bm25)
    server = start(vectors, bm25)
    done, sizes, errors = threading.Event(), {"vectors": [0], "bm25": [0]}, []

    def load(name: str) -> None:
        connection = Connection(server.url)
        while not done.is_set():
            try:
                request = {"query": "rivers water", "index": name, "k": 100}
                answer = connection.post("/v1/search", request, dict[str, Any])
                hits = answer["results"][0]["hits"]
                texts = {hit["id"]: hit["text"] for hit in hits}
                assert texts == {str(n): f"rivers carry water {n}" for n in range(len(hits))}
                sizes[name].append(len(hits))
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=load, args=[name]) for name in sizes for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(1, 5):
        with open(docs, "a", encoding="utf-8") as file:
            file.write(
                json.dumps({"_id": str(number), "text": f"rivers carry water {number}"}) + "\n"
            )
        lmk("update", docs, vectors, bm25)
        while any(each[-1] <= number for each in sizes.values()) and not errors:
            done.wait(0.05)
    done.set()
    for thread in threads:
        thread.join()
    assert not errors
    assert all(set(each) == {0, 1, 2, 3, 4, 5} for each in sizes.values())
