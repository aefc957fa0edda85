"""Offline commands contact no server. `lmk fetch` downloads missing files once, even if two run at a time."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.main import get_command

from lmkcli.cli.main import app
from lmkcli.system import network
from tests.forkserver import ForkServer

Models = Callable[[str], Path]
Lmk = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[2]
HUB, SET = "organisation/model", "vaswani"  # neither is in a cache on this machine


class Guarded(NamedTuple):
    """The exit codes of command lines, their attempted connections, and their messages."""

    codes: list[int]
    attempts: str
    messages: str


@pytest.fixture
def guarded(tmp_path: Path) -> Callable[..., Guarded]:
    """Run command lines in a new process without a network (tests/guarded.py)."""

    def run(*lines: list[object], **environment: str) -> Guarded:
        log = tmp_path / "attempts"
        env = {k: v for k, v in os.environ.items() if k != network.VARIABLE}
        env |= {"IR_DATASETS_HOME": str(tmp_path / "irds"), "HF_HOME": str(tmp_path / "hf")}
        words = json.dumps([[str(word) for word in line] for line in lines])
        done = subprocess.run(
            [sys.executable, "-m", "tests.guarded", str(log), words],
            cwd=ROOT,
            env={**env, "IR_DATASETS_DL_TRIES": "1", **environment},
            capture_output=True,
            text=True,
        )
        messages = done.stderr.strip().splitlines()
        attempts = log.read_text() if log.exists() else ""
        return Guarded(json.loads(messages[-1]), attempts, "\n".join(messages[:-1]))

    return run


def test_the_guard_notices_connections(guarded: Callable[..., Guarded], tmp_path: Path) -> None:
    done = guarded(["encode", SET, "-m", HUB, "-o", tmp_path / "v"], ["show", SET])
    assert done.codes == [3, 3]
    assert "huggingface.co" in done.attempts
    assert "ir.dcs.gla.ac.uk" in done.attempts or "ir-datasets.com" in done.attempts


def test_with_the_variable_no_command_asks_anybody(
    forkserver: ForkServer, tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    bert, v = tiny_model("bert"), tmp_path / "v"
    works: list[list[object]] = [
        ["tokenize", beir, "-m", bert, "-o", tmp_path / "t"],
        ["encode", tmp_path / "t", "-m", bert, "-o", v],
        ["index", v, "-o", tmp_path / "i"],
        ["index", beir, "--kind", "bm25", "-o", tmp_path / "b"],
        ["search", tmp_path / "i", beir, "-o", tmp_path / "r.trec"],
        ["eval", tmp_path / "r.trec"],
        ["verify", v],
        ["show", tmp_path / "r.trec"],
    ]
    fails: list[list[object]] = [
        ["tokenize", SET, "-m", bert, "-o", tmp_path / "t2"],
        ["encode", beir, "-m", HUB, "-o", tmp_path / "v2"],
        ["encode", SET, "-m", bert, "--shard", "1/2", "-o", tmp_path / "v3"],
        ["index", SET, "--kind", "bm25", "-o", tmp_path / "b2"],
        ["search", v, SET, "-o", tmp_path / "r2.trec"],
        ["search", v, beir, "--rerank-model", HUB, "-o", tmp_path / "r3.trec"],
        ["eval", tmp_path / "r.trec", "--qrels", SET],
        ["show", SET],
        ["fetch", SET],
        ["fetch", "-m", HUB],
    ]
    words = json.dumps([[str(word) for word in line] for line in (*works, *fails)])
    env = {**os.environ, network.VARIABLE: "1", "IR_DATASETS_HOME": str(tmp_path / "irds")}
    log = tmp_path / "attempts"
    done = forkserver.run(log, words, function="tests.guarded:main", env=env)
    *messages, codes = done.stderr.strip().splitlines()
    assert json.loads(codes) == [0] * len(works) + [3] * len(fails), messages
    assert not log.exists()
    assert "\n".join(messages).count("lmk fetch") == len(fails)


@pytest.mark.parametrize("verb", ["encode", "eval"])
def test_the_flag_has_the_effect_of_the_variable(
    guarded: Callable[..., Guarded], tmp_path: Path, verb: str
) -> None:
    lines: dict[str, list[object]] = {
        "encode": ["encode", SET, "-m", HUB, "-o", tmp_path / "v", "--offline"],
        "eval": ["eval", tmp_path / "r.trec", "--qrels", SET, "--offline"],
    }
    (tmp_path / "r.trec").write_text("1 Q0 1 1 1.0 x\n")
    done = guarded(lines[verb])
    assert (done.codes, done.attempts) == ([3], ""), done.messages
    assert "lmk fetch" in done.messages


def test_every_command_that_may_ask_has_the_flag() -> None:
    group: Any = get_command(app)
    without = {
        verb
        for verb, command in group.commands.items()
        if not any("--offline" in param.opts for param in command.params)
    }
    # to ask; the package's own; local files, three times; ask only with --download
    assert without <= {"fetch", "demo", "compact", "plot", "doctor", "repro", "update"}


# --- a hub on loopback ----------------------------------------------------------------------------


class Hub(ThreadingHTTPServer):
    """Serve one model folder like the hub, and count the downloads."""

    commit = "0" * 39 + "1"

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        self.served: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


def _etag(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


class Answers(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/"):
            about = self._tree() if "/tree/" in self.path else self._model()
            return self._send(json.dumps(about).encode(), {"Content-Type": "application/json"})
        data = self.server.files[self.path.rpartition("/")[2].partition("?")[0]]
        if self.command == "GET":
            self.server.served.append(self.path)
        headers = {"ETag": f'"{_etag(data)}"', "X-Repo-Commit": self.server.commit}
        return self._send(data, headers)

    def _model(self) -> dict[str, object]:
        names = [{"rfilename": name} for name in self.server.files]
        return {"id": HUB, "modelId": HUB, "sha": self.server.commit, "siblings": names}

    def _tree(self) -> list[dict[str, object]]:
        return [
            {"type": "file", "path": name, "size": len(data), "oid": _etag(data)}
            for name, data in self.server.files.items()
        ]

    def _send(self, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)


@pytest.fixture
def hub(tiny_model: Models) -> Iterator[Hub]:
    made = Hub(tiny_model("bert"))
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.mark.slow
def test_two_fetches_download_a_model_once(
    hub: Hub, guarded: Callable[..., Guarded], beir: Path, tmp_path: Path
) -> None:
    env = {k: v for k, v in os.environ.items() if k != network.VARIABLE}
    env |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}
    line = [sys.executable, "-m", "lmkcli.cli.main", "fetch", "-m", HUB]
    both = [
        subprocess.Popen(line, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = {process.communicate()[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(printed) == 1
    assert printed.pop().startswith(f"{HUB}: {tmp_path}")
    assert len(hub.served) == len(set(hub.served)) == len(hub.files)
    done = guarded(["encode", beir, "-m", HUB, "--offline", "-o", tmp_path / "v"])
    assert (done.codes, done.attempts) == ([0], ""), done.messages


def test_fetch_needs_something_to_fetch(lmk: Lmk, beir: Path, tiny_model: Models) -> None:
    assert "nothing to fetch" in lmk("fetch", code=2).err
    assert "needs exactly one model" in lmk("fetch", beir, "--revision", "main", code=2).err
    local = lmk("fetch", "-m", tiny_model("bert"), "--revision", "main", code=2)
    assert "has no revisions" in local.err
    assert lmk("fetch", beir).out == f"{beir}: downloaded\n"
