"""Limits of connections: a server of uvicorn with small limits, and clients that misuse it."""

import asyncio
import json
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from lmkcli.errors import UsageError
from tests.plugins.serve import conftest

assert conftest  # skips without the extra

GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n"
LARGE = 1 << 25  # bytes of an answer; the buffers of the system hold far less than a third of them


class Running(NamedTuple):
    """A server in a thread: its port, its table, and the bodies of requests that were answered."""

    port: int
    table: Any
    server: Any
    bodies: list[int]
    cancelled: list[str]

    def connect(self, receive: int = 0) -> socket.socket:
        """Return a connection, perhaps with a small buffer for what it receives."""
        client = socket.socket()
        if receive:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        client.settimeout(300)
        client.connect(("127.0.0.1", self.port))
        return client

    def wait_for(self, number: int) -> None:
        """Wait until the server has a number of connections."""
        while len(self.server.server_state.connections) != number:
            time.sleep(0.005)


@contextmanager
def running(most: int = 100, **limits: Any) -> Iterator[Running]:
    """Run a server. GET / has an answer at once, GET /large a large one, and GET /work none."""
    import uvicorn

    from lmkcli.plugins.serve.connections import ConnectionTable
    from lmkcli.plugins.serve.guard import TASK
    from lmkcli.plugins.serve.limits import Limits

    bodies: list[int] = []
    cancelled: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope[TASK] = asyncio.current_task()
        size, more = 0, True
        try:
            while more:
                message = await receive()
                size += len(message.get("body", b""))
                more = message.get("more_body", False)
            if scope["path"] == "/work":
                await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(scope["path"])
            return
        bodies.append(size)
        body = b"x" * (LARGE if scope["path"] == "/large" else 2)
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})

    table = ConnectionTable(Limits(**limits), most)
    config = uvicorn.Config(
        app, lifespan="off", http=table.protocol(), log_level="error", timeout_keep_alive=60
    )
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    while not server.started:
        time.sleep(0.005)
    try:
        yield Running(listening.getsockname()[1], table, server, bodies, cancelled)
    finally:
        server.should_exit = server.force_exit = True
        thread.join()


def whole(client: socket.socket) -> bytes:
    """Everything that a client receives until the connection is closed."""
    received = []
    try:
        while piece := client.recv(1 << 20):
            received.append(piece)
    except ConnectionResetError:
        pass
    return b"".join(received)


def answered(client: socket.socket, request: bytes = GET) -> bool:
    """Whether a request has an answer."""
    client.sendall(request)
    received = b""
    while not received.endswith(b"\r\n\r\nxx"):
        piece = client.recv(1000)
        if not piece:
            return False
        received += piece
    return received.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("sent", [b"", b"GE", b"GET / HTTP/1.1\r\nhost: a\r\n"])
def test_a_head_must_arrive_in_time(sent: bytes) -> None:
    with running(head_seconds=0.2) as server, server.connect() as client:
        client.sendall(sent)
        answer = whole(client)
        assert b" 408 " in answer.splitlines()[0]
        assert "0.2 seconds" in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
        server.wait_for(0)


def test_bytes_do_not_extend_the_time_of_a_head() -> None:
    with running(head_seconds=0.3) as server, server.connect() as client:
        client.settimeout(0.02)
        received = b""
        for byte in GET * 1000:
            try:
                client.sendall(bytes([byte]))
                received = client.recv(1000)
                break
            except TimeoutError:
                pass
            if byte == GET[-3]:  # never the end of a head
                client.sendall(b"x-a: b")
        assert b" 408 " in received


def test_a_new_client_takes_the_place_of_the_one_that_waits_longest() -> None:
    with running(most=3) as server:
        clients = [server.connect()]
        server.wait_for(1)
        clients.append(server.connect())
        clients[1].sendall(b"GE")
        server.wait_for(2)
        kept = server.connect()
        assert answered(kept)
        opened = [kept]
        for old in clients:
            opened.append(server.connect())
            assert answered(opened[-1])
            assert b" 503 " in whole(old).splitlines()[0]
            assert answered(kept)  # so it is the last to make way
        for client in [*clients, *opened]:
            client.close()


def test_running_requests_keep_their_places() -> None:
    with running(most=2) as server:
        clients = [server.connect() for _ in range(2)]
        for client in clients:
            client.sendall(GET.replace(b"/ ", b"/work ", 1))
        while any(each.is_answering is False for each in server.server.server_state.connections):
            time.sleep(0.005)
        server.wait_for(2)
        while server.table.waiting:
            time.sleep(0.005)
        with server.connect() as refused:
            assert b"503" in whole(refused).splitlines()[0]
        for client in clients:
            client.close()
        server.wait_for(0)
    assert server.cancelled == ["/work", "/work"]


def test_an_answer_must_be_read_in_time() -> None:
    with running(read_seconds=2) as server:
        with server.connect(4096) as deaf:
            deaf.sendall(GET.replace(b"/ ", b"/large ", 1))
            server.wait_for(1)
            server.wait_for(0)
            assert len(whole(deaf)) < LARGE
        with server.connect() as reads:
            reads.sendall(
                GET.replace(b"/ ", b"/large ", 1).replace(
                    b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"
                )
            )
            assert len(whole(reads)) > LARGE


def test_unread_answers_take_bounded_memory() -> None:
    with running(held_bytes=2 * LARGE) as server:
        clients = []
        for _ in range(6):
            clients.append(server.connect(4096))
            clients[-1].sendall(GET.replace(b"/ ", b"/large ", 1))
            while not any(each.held for each in server.table.waiting):
                time.sleep(0.005)
            assert server.table.held <= 2 * LARGE
        server.wait_for(2)
        for client in clients:
            client.close()
        server.wait_for(0)
        assert server.table.held == 0


def test_unfinished_bodies_take_bounded_memory() -> None:
    size = 100_000
    with running(held_bytes=250_000) as server:
        clients = []
        for number in range(5):
            clients.append(server.connect())
            clients[-1].sendall(POST % (size + 1) + b" " * size)
            while server.table.held < min(number + 1, 2) * size:
                time.sleep(0.005)
        server.wait_for(2)
        assert b" 503 " in whole(clients[0]).splitlines()[0]
        assert answered(clients[-1], b" ")
        assert server.bodies == [size + 1]
        for client in clients:
            client.close()
        server.wait_for(0)
        assert server.table.held == 0


def test_the_work_of_a_client_that_left_ends() -> None:
    with running() as server:
        with server.connect() as client:
            client.sendall(GET.replace(b"/ ", b"/work ", 1))
            while not server.table.waiting and not server.server.server_state.tasks:
                time.sleep(0.005)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        server.wait_for(0)
        while not server.cancelled:
            time.sleep(0.005)


def test_malformed_requests_leave_nothing_behind() -> None:
    with running() as server:
        for sent in (
            b"\0" * 100,
            b"GET\r\n\r\n",
            POST % 5 + b"ab",
            GET + b"\xff\xff\r\n\r\n",
            GET * 40,
        ):
            with server.connect() as client:
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                whole(client)
        server.wait_for(0)
        assert not server.table.waiting
        assert server.table.held == 0


@pytest.mark.parametrize("before", [b"", GET])
@pytest.mark.parametrize("sent", [b"\x16\x03\x01\r\n\r\n", GET.replace(b"host: a", b"nonsense")])
def test_a_malformed_request_gets_an_error_as_json(before: bytes, sent: bytes) -> None:
    with running() as server, server.connect() as client:
        if before:
            assert answered(client, before)
        client.sendall(sent)
        head, _, body = whole(client).partition(b"\r\n\r\n")
        assert b" 400 " in head.splitlines()[0]
        assert json.loads(body)["error"]["type"] == "refused"
        server.wait_for(0)
        assert not server.table.waiting
        assert server.table.held == 0


def test_a_long_head_is_named() -> None:
    with running() as server, server.connect() as client:
        client.sendall(GET[:-2] + b"x: " + b"a" * 66_000)
        assert b"its head has more than 65,536 bytes" in whole(client)


def test_connections_fit_into_the_files_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    from lmkcli.plugins.serve import limits

    raised = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, values: raised.append(values))

    def files(soft: int, hard: int) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))

    files(1 << 20, 1 << 20)
    assert limits.possible_connections(1000) == 1000
    assert not raised
    files(1024, 1 << 20)
    assert limits.possible_connections(1000) == 1000
    assert 1300 < raised.pop()[0] < 3000
    files(1024, 1024)
    assert 300 < limits.possible_connections(1000) < 704
    files(256, 256)
    with pytest.raises(UsageError, match="ulimit -n"):
        limits.possible_connections(1000)
