"""The connections of a server: their number, and the time and memory that each client may take.

At any time the server waits for a client (for a request, for the rest of a body, or until an answer is read),
or it works on an answer. A table has all connections that the server waits for, in the order in which the
waiting began. Data do not change this order, so a client that sends one byte at a time gains nothing. If
there are too many connections, or too many bytes in memory, those make way for whom the server has waited
longest. An honest client sends its request at once, so it is never among them.
"""

import asyncio
from enum import Enum
from functools import partial
from http import HTTPStatus
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

from lmkcli.plugins.serve.guard import TASK, error_body
from lmkcli.plugins.serve.limits import HEAD_BYTES, Limits

_SMALL = 1 << 14  # bytes; connections that hold less are not closed to free memory


class Awaited(Enum):
    """What the server waits for."""

    REQUEST = "another request"
    HEAD = "the head of a request"
    BODY = "the rest of a body"
    READING = "the client, which reads an answer"


class ConnectionTable:
    """All connections of one server."""

    def __init__(self, limits: Limits, most: int) -> None:
        """`most` is the number of connections; it replaces the one of the limits."""
        self.limits, self._most = limits, most
        self.waiting: dict[ClientConnection, None] = {}  # the longest first
        self.held = 0  # bytes of bodies and unread answers

    def protocol(self) -> Any:
        """Return the class that uvicorn creates for each connection."""
        return partial(ClientConnection, self)

    def admit(self, newcomer: "ClientConnection") -> None:
        """Close another connection for a new one if there are too many; refuse it if all are at work."""
        if len(newcomer.connections) <= self._most:
            return
        longest = next(iter(self.waiting), newcomer)
        longest.make_way()

    def hold(self, connection: "ClientConnection", size: int) -> bool:
        """Note how many bytes a connection keeps in memory.

        If there are too many bytes, other connections are closed. Returns whether that was enough.
        """
        self.held += size - connection.held
        connection.held = size
        if self.held <= self.limits.held_bytes or size <= _SMALL:
            return True
        for other in list(self.waiting):
            if other is not connection and other.held > _SMALL:
                other.make_way()
                if self.held <= self.limits.held_bytes:
                    return True
        return False


class ClientConnection(H11Protocol):
    """One connection: uvicorn's protocol with the limits of a table."""

    def __init__(self, table: ConnectionTable, *rest: Any, **settings: Any) -> None:
        super().__init__(*rest, **settings)
        self._table = table
        self.held = 0
        self._awaited: Awaited | None = None
        self._request: object = None  # the cycle of uvicorn for which `_awaited` holds
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for a request, unless there are too many connections."""
        super().connection_made(transport)
        self._table.admit(self)
        if not transport.is_closing():
            self._wait_for(Awaited.HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection, and end the work on an answer that nobody will read."""
        task = self.cycle.scope.get(TASK) if self.is_answering else None
        super().connection_lost(exc)
        self._forget()
        if task is not None:
            cast("asyncio.Task[None]", task).cancel()

    def data_received(self, data: bytes) -> None:
        """Read a piece of a request."""
        super().data_received(data)
        if self.is_answering and not self._table.hold(self, self.held + len(data)):
            self.make_way()
        self._update(Awaited.HEAD)

    def send_400_response(self, msg: str) -> None:
        """Refuse a malformed request, or one whose head is too long."""
        self._close(400, f"this is no HTTP request, or its head has more than {HEAD_BYTES:,} bytes")

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._update(Awaited.REQUEST)

    def pause_writing(self) -> None:
        """Wait until the client reads."""
        super().pause_writing()
        self._update(Awaited.REQUEST)

    def resume_writing(self) -> None:
        """Continue with the answer, or wait for the next request."""
        super().resume_writing()
        self._update(Awaited.REQUEST)

    @property
    def is_answering(self) -> bool:
        """Whether a request has arrived, at least in part, and is not answered."""
        cycle = cast(Any, self.cycle)
        return cycle is not None and not cycle.response_complete

    def _update(self, between: Awaited) -> None:
        """Find out what the server waits for; `between` is the answer between two requests."""
        unread = self.transport.get_write_buffer_size()
        if self.transport.is_closing() and not unread:
            return
        if unread and (self.flow.write_paused or not self.is_answering):
            self._wait_for(Awaited.READING)
            self._table.hold(self, unread)
        elif not self.is_answering:
            self._table.hold(self, 0)
            self._wait_for(between)
        else:
            self._wait_for(Awaited.BODY if self.cycle.more_body else None)

    def _wait_for(self, awaited: Awaited | None) -> None:
        if (awaited, self.cycle) == (self._awaited, self._request):
            return
        self._end_waiting()
        self._awaited, self._request = awaited, self.cycle
        if awaited is None:
            return
        self._table.waiting[self] = None
        limits = self._table.limits
        # The guard limits the time of a body, and uvicorn the time between two requests.
        seconds = {Awaited.HEAD: limits.head_seconds, Awaited.READING: limits.read_seconds}
        if awaited in seconds:
            self._timer = self.loop.call_later(seconds[awaited], self._expire)

    def _end_waiting(self) -> None:
        self._table.waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _forget(self) -> None:
        self._end_waiting()
        self._table.held -= self.held
        self.held = 0
        self.connections.discard(cast(Any, self))

    def _expire(self) -> None:
        """Close the connection, because its client took too much time."""
        seconds = self._table.limits.head_seconds
        self._close(408, f"the head of the request took more than {seconds:g} seconds")

    def make_way(self) -> None:
        """Close the connection, because others need its place or its memory."""
        self._close(503, "too many connections or large bodies; try again")

    def _close(self, status: int, message: str) -> None:
        """Close the connection. A client that waits for an answer gets an error."""
        between = status != 400 and self._awaited is Awaited.REQUEST
        started = self.is_answering and self.cycle.response_started
        if not (between or started or self.transport.get_write_buffer_size()):
            body = error_body(message, "busy" if status == 503 else "refused")
            retry = "retry-after: 1\r\n" if status == 503 else ""
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\n{retry}connection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()
        self._forget()
