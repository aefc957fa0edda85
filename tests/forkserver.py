"""A server that imports torch and lmk once and forks a child for each command line of the tests.

A process that imports a model takes five seconds of processor time or more before it does anything.
One server per run, shared by all workers (the fixture `forkserver`), pays for that once. A child then
starts in milliseconds, and is a process of its own: with its own streams, environment, working folder
and signals.

The server forks while it has a single thread, so that no lock or thread pool is lost in a child.
Libraries that read an environment variable when they are imported (HF_HOME, HF_ENDPOINT) have read
the server's: start a new interpreter for a test that changes those.

    python -m tests.forkserver SOCKET PID [MODULE …]   # serve until the process PID is gone
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import select
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

import lmkcli
from lmkcli import catalog

ROOT = Path(__file__).resolve().parents[1]
LMK = "lmkcli.cli.main:main"
# Loaded in addition to lmkcli: commands import these later than lmkcli's own modules.
PRELOAD = (
    *("tests.forked", "bm25s", "ir_measures", "pydantic.type_adapter", "pytest", "hypothesis"),
    *("transformers.models.bert.modeling_bert", "transformers.models.bert.tokenization_bert"),
    "transformers.models.modernbert.modeling_modernbert",
)
# Nothing of these imports torch, transformers, scipy.stats, FAISS or matplotlib.
LIGHT = (
    *(
        "lmkcli.cli.main",
        "lmkcli.cli.adapter",
        "lmkcli.operations.encode",
        "lmkcli.operations.eval",
    ),
    *("lmkcli.operations.train", "lmkcli.plugins.pretrain.pretrain", "lmkcli.operations.fetch"),
    *("pydantic.type_adapter", "numpy", "pyarrow.parquet", "pyarrow.compute", "tokenizers"),
    *("ir_measures", "pytest", "hypothesis"),  # test modules whose functions run in children
)
# Modules of lmkcli that start threads or a JVM, or import libraries that few commands need or that read the
# environment (ir_datasets).
LEFT_OUT = ("irds", "lucene", "milvus", "pyserini", "plots", "seismic", "tensorboard", "umap")
START_SECONDS = 300  # for imports on a busy machine


class Request(NamedTuple):
    """A function "module:name", its arguments, and the process that calls it."""

    function: str
    arguments: list[Any]
    words: list[str]  # sys.argv
    folder: str
    environment: dict[str, str]


# --- the side of the tests ------------------------------------------------------------------------


class Child:
    """A process that the server forked. `code` is None while it runs; negative: killed by a signal."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("r")
        self.pid = int(self._lines.readline())
        self.code: int | None = None

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait for its end, at most so long; returns the code."""
        if self.code is None and select.select([self._connection], [], [], seconds)[0]:
            line = self._lines.readline()
            self.code = int(line) if line else -signal.SIGKILL  # the server itself is gone
            self._lines.close()
            self._connection.close()
        return self.code

    def fileno(self) -> int:
        """For `select`: something can be read when the process has ended."""
        return self._connection.fileno()

    def signal(self, number: int) -> None:
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, and wait for its end."""
        self.signal(signal.SIGKILL)
        self.wait()


class ForkServer:
    """The server at a socket, started if nothing answers there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def start(self, owner: int, *modules: str) -> None:
        """Start it; it ends when the process `owner` does. It has imported all, or these modules alone."""
        log = self.path.with_suffix(".log")
        words = [sys.executable, "-m", "tests.forkserver", str(self.path), str(owner), *modules]
        with open(log, "wb") as file:
            server = subprocess.Popen(
                words, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=file,
                stderr=file, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while not self.path.exists():
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no fork server: {log.read_text()}")
            time.sleep(0.05)

    def call(
        self,
        function: str,
        *arguments: Any,
        words: Sequence[object] = ("lmk",),
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        streams: tuple[IO[Any], IO[Any]] | None = None,
    ) -> Child:
        """Start a call in a child. `streams` are its stdout and stderr; otherwise both are discarded."""
        request = Request(
            function, list(arguments), [str(word) for word in words], str(cwd or Path.cwd()),
            dict(os.environ if env is None else env),
        )  # fmt: skip
        with open(os.devnull, "r+b") as nothing:
            out, err = streams or (nothing, nothing)
            numbers = [nothing.fileno(), out.fileno(), err.fileno()]
            return Child(_send(self.path, request, numbers))

    def run(
        self, *words: object, cwd: Path | None = None, env: Mapping[str, str] | None = None,
        function: str = LMK, name: str = "lmk",
    ) -> "subprocess.CompletedProcess[str]":  # fmt: skip
        """Run a command line to its end, as subprocess.run with captured text does."""
        line = [name, *map(str, words)]
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = self.call(function, words=line, cwd=cwd, env=env, streams=(out, err))
            code = child.wait()
            assert code is not None
            texts = []
            for stream in (out, err):
                stream.seek(0)
                texts.append(stream.read().decode("utf-8", "replace"))
        return subprocess.CompletedProcess(line, code, *texts)

    def execute(self, code: str, *words: object, env: Mapping[str, str] | None = None) -> str:
        """What code prints in a process of its own, as `python -c` runs it."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            line = ["-c", *words]
            child = self.call("builtins:exec", code, {}, words=line, env=env, streams=(out, err))
            status = child.wait()
            err.seek(0)
            assert status == 0, err.read().decode("utf-8", "replace")
            out.seek(0)
            return out.read().decode()

    def program(self, path: Path, function: str = LMK, *arguments: object) -> Path:
        """Write an executable that runs a function in a child, with its own words, streams and folder.

        It passes signals on, and the child ends with it.
        """
        call = f"forkserver.client({str(self.path)!r}, {function!r}, {list(arguments)!r}, {path.name!r})"
        code = (
            f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests import forkserver; {call}"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\nexec {sys.executable} -SE -c {shlex.quote(code)} "$@"\n')
        path.chmod(0o755)
        return path


def environment() -> dict[str, str]:
    """The environment of this process, with the package of this checkout on PYTHONPATH."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}


def _send(path: Path | str, request: Request, streams: list[int]) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    data = json.dumps(request).encode()
    socket.send_fds(connection, [len(data).to_bytes(8, "big")], streams)
    connection.sendall(data)
    return connection


def client(path: str, function: str, arguments: list[Any], name: str) -> NoReturn:
    """Run in a program of `ForkServer.program`: start a child, pass signals on, end as it ends."""
    words = [name, *sys.argv[1:]]
    request = Request(function, arguments, words, os.getcwd(), dict(os.environ))
    wake, waker = socket.socketpair()
    for end in (wake, waker):
        end.setblocking(False)
    # A handler that passes signals on would come too late for one just before `select` starts to wait.
    signal.set_wakeup_fd(waker.fileno())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    child = Child(_send(path, request, [0, 1, 2]))
    while child.code is None:
        if wake in select.select([child, wake], [], [])[0]:
            for number in wake.recv(4096):
                child.signal(number)
        else:
            child.wait()
    code = child.code
    if code < 0:  # die as the child did
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


# --- the side of the server -----------------------------------------------------------------------


def everything() -> list[str]:
    """The modules that children use, as far as forking allows."""
    within = (each.name for each in pkgutil.walk_packages(lmkcli.__path__, "lmkcli."))
    left_out = (*LEFT_OUT, "__main__")
    return [*(name for name in within if not any(word in name for word in left_out)), *PRELOAD]


def preload(modules: Iterable[str]) -> None:
    """Import modules, as far as they are installed."""
    gc.disable()  # while everything that is made stays
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.enable()
    gc.collect()
    gc.freeze()  # collections in children would copy the pages of all these objects


def serve(path: Path, owner: int) -> None:
    """Fork a child for each connection until the process `owner` is gone."""
    assert threading.active_count() == 1, (
        "a lock of another thread would stay locked in the children"
    )
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.new")
    listener.listen(64)
    Path(f"{path}.new").rename(path)  # whoever sees it can connect
    wake, waker = socket.socketpair()
    for end in (wake, waker):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # the end of a child ends `select`
    signal.set_wakeup_fd(waker.fileno())
    clients: dict[int, socket.socket] = {}  # by the pid of their child
    with selectors.DefaultSelector() as loop:
        loop.register(listener, selectors.EVENT_READ)
        loop.register(wake, selectors.EVENT_READ)
        while _alive(owner):
            for key, _ in loop.select(timeout=2):
                if key.fileobj is listener:
                    client = listener.accept()[0]
                    own = (loop, listener, wake, waker, client, *clients.values())
                    if pid := _fork(client, own):
                        clients[pid] = client
                        loop.register(client, selectors.EVENT_READ, pid)
                    else:
                        client.close()
                elif key.fileobj is wake:
                    wake.recv(4096)
                else:  # a client sends nothing more, so it is gone, and its child goes with it
                    loop.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)
            _report(clients, loop)
    for pid in clients:
        os.kill(pid, signal.SIGKILL)
    for file in (path, path.with_suffix(".log")):
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # other files are there
        path.parent.rmdir()


def _fork(client: socket.socket, own: Iterable[Any]) -> int:
    """Fork a child for a client and tell it the pid; `own` is closed in the child.

    A client can be killed at any moment. Returns 0 if its request is not complete.
    """
    head, streams, _, _ = socket.recv_fds(client, 8, 3)
    length = int.from_bytes(head, "big")
    with client.makefile("rb") as file:
        data = file.read(length)
    pid = os.fork() if data and len(data) == length else None
    if pid == 0:
        for each in own:
            each.close()
        _run(Request(*json.loads(data)), list(streams))
    for number in streams:
        os.close(number)
    if pid is None:
        return 0
    with contextlib.suppress(OSError):  # a client that is gone; `serve` ends its child
        client.sendall(f"{pid}\n".encode())
    return pid


def _report(clients: dict[int, socket.socket], loop: selectors.BaseSelector) -> None:
    """Tell the clients of ended children their exit codes."""
    for pid, client in list(clients.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            del clients[pid]
            with contextlib.suppress(KeyError, OSError):
                loop.unregister(client)
                client.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
            client.close()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _run(request: Request, streams: list[int]) -> NoReturn:
    """Become the process of a request."""
    code: Any = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        text = {"encoding": "utf-8", "errors": "backslashreplace", "closefd": False}
        sys.stderr = os.fdopen(2, "w", buffering=1, **text)
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
        os.chdir(request.folder)
        os.environ.clear()
        os.environ.update(request.environment)
        paths = request.environment.get("PYTHONPATH", "").split(os.pathsep)
        if added := [path for path in paths if path and path not in sys.path]:
            sys.path[:0] = added
            catalog.read_again()  # packages there may add rows
        sys.argv = request.words
        sys.modules["__main__"].__package__ = None  # usage lines show argv[0], as for a script
        module, _, name = request.function.partition(":")
        getattr(importlib.import_module(module), name)(*request.arguments)
        code = 0
    except SystemExit as left:
        code = left.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    preload(sys.argv[3:] or everything())
    serve(Path(sys.argv[1]), int(sys.argv[2]))
