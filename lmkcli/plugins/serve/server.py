"""The HTTP server process: its socket, its signals and its address file."""

import asyncio
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import uvicorn

from lmkcli import __version__
from lmkcli.errors import Stopped, UsageError
from lmkcli.plugins.serve import runtime
from lmkcli.plugins.serve.app import make_app
from lmkcli.plugins.serve.connections import ConnectionTable
from lmkcli.plugins.serve.guard import Access
from lmkcli.plugins.serve.limits import BACKLOG, HEAD_BYTES, ServerTask, possible_connections
from lmkcli.plugins.serve.runtime import RunningServer, plain_settings
from lmkcli.plugins.serve.service import SearchService
from lmkcli.progress import Report
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.text.formatting import counted

_QUEUED = 1024  # connections that wait in the system until asyncio accepts them
# Seconds that a thread computes while another one waits for the interpreter's lock. The event loop waits for
# it at each system call, and a search computes in another thread: with Python's 5 ms, a hundred system calls
# would take half a second.
_SWITCH_SECONDS = 0.0005


def bind(host: str, port: int) -> socket.socket:
    """Return a socket at an address. Raises UsageError if the address is unknown or taken.

    This happens before any model is loaded. The socket refuses connections until the server is ready.
    """
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--host {host}: {error}") from None
    family, kind, protocol, _, place = infos[0]
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(place)
    except OSError as error:
        bound.close()
        raise UsageError(
            f"--host {host} --port {port}: {error.strerror or error}; choose another --port"
        ) from None
    return bound


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve_http(task: ServerTask, report: Report) -> None:
    """Answer requests until a signal arrives, then finish the running ones and raise Stopped."""
    bound = bind(task.host, task.port)
    limits = task.limits
    sys.setswitchinterval(_SWITCH_SECONDS)
    service = SearchService(
        task.indexes, task.settings, task.rerank_model, limits, note=report.note
    )
    most = possible_connections(limits.connections)
    if most < limits.connections:
        report.note(
            f"at most {most:,} connections instead of {limits.connections:,}, because this process may "
            "open no more files (ulimit -n)"
        )
    access = Access(task.token, task.origins, (task.host,))
    secret = secrets.token_bytes(32)
    port = bound.getsockname()[1]
    url = _url(task.host, port)
    # a server at all addresses is also at the loopback address
    reachable = _url("127.0.0.1", port) if task.host in ("0.0.0.0", "::", "") else url

    def publish() -> None:
        try:
            path = runtime.publish(_running(service, reachable, secret))
        except OSError as error:
            report.note(f"lmk search -q will not find this server: {error}")
        else:
            published[:] = [path]

    published: list[os.PathLike[str]] = []
    service.on_reload(publish)

    def ready() -> None:
        publish()
        names = ", ".join(service.indexes.main)
        report.note(f"serving {names} at {url} (stop with Ctrl-C)")

    config = uvicorn.Config(
        make_app(service, access, secret),
        http=ConnectionTable(limits, most).protocol(),
        log_level="error",  # a stranger can cause any number of warnings
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
        backlog=BACKLOG,
        h11_max_incomplete_event_size=HEAD_BYTES,
        timeout_keep_alive=limits.idle_seconds,
    )
    try:
        with report.job("serve", "answering the running requests") as job:
            server = _Server(config, job.stopping, ready, limits.stop_seconds)
            server.run([bound])
    finally:
        for path in published:
            if os.path.exists(path):
                os.unlink(path)
    if server.unanswered:
        raise Stopped(
            f"the server has stopped; {counted(server.unanswered, 'request')} had no answer, or a client did "
            f"not read it, after {limits.stop_seconds:g} seconds"
        )
    raise Stopped("the server has stopped; all running requests were answered")


def _running(service: SearchService, url: str, secret: bytes) -> RunningServer:
    return RunningServer(
        url,
        __version__,
        os.getpid(),
        secret.hex(),
        plain_settings(service.settings, OpenSettings()),
        {
            name: (os.path.realpath(each.path), [list(item) for item in each.stamp])
            for name, each in service.indexes.served.items()
        },
    )


class _Server(uvicorn.Server):
    """uvicorn with the signals of lmk: `stopping` returns whether one has arrived.

    `unanswered` is the number of requests that had no complete answer when the server stopped.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        stopping: Callable[[], bool],
        ready: Callable[[], None],
        stop_seconds: float,
    ) -> None:
        super().__init__(config)
        self._stopping, self._ready, self._stop_seconds = stopping, ready, stop_seconds
        self.unanswered = 0

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to lmk."""
        yield

    async def startup(self, sockets: Sequence[socket.socket] | None = None) -> None:
        """Accept connections."""
        await super().startup(list(sockets or []))
        for each in sockets or []:
            each.listen(_QUEUED)
        if self.started:
            self._ready()

    async def on_tick(self, counter: int) -> bool:
        """Return whether the server ends; uvicorn calls this ten times a second."""
        self.should_exit = self.should_exit or self._stopping()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: Sequence[socket.socket] | None = None) -> None:
        """Answer the running requests, and close the connections of those that take too much time."""
        end = asyncio.get_running_loop().call_later(self._stop_seconds, self._abort)
        await super().shutdown(list(sockets or []))
        end.cancel()

    def _abort(self) -> None:
        for connection in list(self.server_state.connections):
            self.unanswered += 1
            connection.transport.abort()
        for task in self.server_state.tasks:
            task.cancel()
