"""Indexes for servers, a server in this process, and server processes."""

import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lmkcli.cli import main
from tests.conftest import Once

ROOT = Path(__file__).resolve().parents[3]
pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("mcp", reason="the extra serve is not installed")


@pytest.fixture(scope="session")
def indexes(once: Once, beir: Path, tiny_model: Callable[[str], Path]) -> Path:
    """A folder with chunks/ (vectors of chunks), docs/ (one vector each) and bm25/. Do not write into it."""

    def make(folder: Path) -> None:
        model = tiny_model("bert")
        for words in (
            ["encode", beir, "-m", model, "--unit", "chunk", "--gran", 4, "-o", folder / "chunks"],
            ["encode", beir, "-m", model, "-o", folder / "docs"],
            ["index", beir, "--kind", "bm25", "-o", folder / "bm25"],
        ):
            main.app(["-q", *map(str, words)], standalone_mode=False)

    return once("serving", make)


@pytest.fixture(autouse=True)
def own_runtime_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder for address files, so that no test finds another server of this user."""
    folder = tmp_path / "runtime"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.delenv("LMK_SERVE_TOKEN", raising=False)
    return folder


@pytest.fixture(scope="module")
def client(indexes: Path) -> Iterator[Any]:
    """A client of a server in this process."""
    from starlette.testclient import TestClient

    from lmkcli.plugins.serve.app import make_app
    from lmkcli.plugins.serve.service import SearchService

    service = SearchService([indexes / name for name in ("chunks", "docs", "bm25")])
    app: Any = make_app(service, secret=b"secret")
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=True) as opened:
        yield opened


class Process(NamedTuple):
    """A running `lmk serve`."""

    url: str
    process: "subprocess.Popen[str]"
    log: Path

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(300)


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `lmk serve` with some words at a free port by default, and wait until it is ready."""
    processes = []

    def run(*words: object, port: int = 0, files: int = 0, **environment: str) -> Process:
        log = tmp_path / f"serve-{len(processes)}.log"
        words = (*words, "--port", port)
        line = [sys.executable, "-m", "lmkcli.cli.main", "serve", *map(str, words)]
        with open(log, "w", encoding="utf-8") as file:
            process = subprocess.Popen(
                line, cwd=ROOT, stderr=file, text=True, env={**os.environ, **environment}
            )
        processes.append(process)
        if files:  # that the server may open
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (files, files))
        while not (found := re.search(r" at (http://\S+)", log.read_text("utf-8"))):
            assert process.poll() is None, log.read_text("utf-8")
            time.sleep(0.05)
        return Process(found[1], process, log)

    yield run
    for process in processes:
        process.kill()
        process.wait()
