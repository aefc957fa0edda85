"""The outer layer of the HTTP server: hosts, origins, the token, limits of requests, and measurements."""

import asyncio
import hmac
import json
import os
import re
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from lmkcli.plugins.serve.limits import (
    HEAD_BYTES,
    MAX_BRACKETS,
    MAX_DEPTH,
    MAX_KEYS,
    MAX_VALUES,
    Limits,
    has_more_values,
)
from lmkcli.plugins.serve.metrics import Metrics
from lmkcli.system import network

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

TASK = "lmk.task"  # the key of a scope for the task that answers; its cancellation ends the work
PUBLIC = frozenset(
    {"/", "/page.css", "/page.js", "/docs", "/docs.js", "/healthz", "/openapi.json"}
)  # without a token
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        b"img-src 'self' data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    ),
]
# Strings, and brackets and colons outside of strings. A string without an end reaches to the end of the body:
# otherwise, each of its escaped quotation marks would start another search for the end.
_SIGNS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[][{}:]', re.DOTALL)
_TOKENS = frozenset({"/v1/embeddings"})  # paths whose bodies have long lists
_GRACE = 5  # seconds in which a request that took too long can answer so itself


def error_body(message: str, kind: str) -> bytes:
    """Return the JSON of an error, in the form that OpenAI's clients read."""
    text = json.dumps({"error": {"message": message, "type": kind}}, ensure_ascii=False)
    return text.encode("utf-8", "replace")


@dataclass(frozen=True)
class Access:
    """Who may use a server.

    token: the required token; empty for none. origins: other web sites that browsers may use it from.
    hosts: names of the server in addition to the loopback names; they matter only without a token.
    """

    token: str = field(default="", repr=False)
    origins: Collection[str] = ()
    hosts: Collection[str] = ()

    def refusal(
        self, path: str, method: str, headers: dict[bytes, bytes]
    ) -> tuple[int, str] | None:
        """Return status and message for a request that is not allowed, else None.

        Without a token, the Host header must name this machine. So a web page cannot read answers by
        making its own host name point to 127.0.0.1 (DNS rebinding).
        """
        host = headers.get(b"host", b"").decode("latin-1")
        if not self.token and not self._is_own(host):
            return 403, "this server answers requests to this machine only; use http://127.0.0.1"
        origin = headers.get(b"origin", b"").decode("latin-1")
        foreign = origin and not _is_site(origin, host) and origin not in self.origins
        if foreign and method not in ("GET", "HEAD", "OPTIONS"):
            return 403, "requests from other web sites are not allowed; see --cors"
        if not self.token or path in PUBLIC or method == "OPTIONS":
            return None
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        right = hmac.compare_digest(given.strip(), os.fsencode(self.token))
        if scheme.lower() != b"bearer" or not right:
            return 401, "give the token of this server in the header Authorization: Bearer TOKEN"
        return None

    def _is_own(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        address = f"[{name}]" if ":" in name else name
        return name in self.hosts or network.is_local(f"http://{address}")


def _is_site(origin: str, host: str) -> bool:
    """Return whether an origin such as http://127.0.0.1:8080 is the site of a Host header."""
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False


def json_fault(body: bytes, values: int | None = MAX_VALUES) -> str:
    """Return why a JSON body takes too much memory or time when it is parsed; empty if it does not.

    A megabyte of brackets becomes hundreds of megabytes of Python objects and error messages, and a megabyte
    of numbers keeps the library of MCP busy for a second. `values` is the greatest number of values.
    """
    if values is not None and has_more_values(body, values):
        return f"the body has more than {values:,} values; send several requests"
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH and body.count(b":") <= MAX_KEYS:
        return ""
    depth = opened = keys = 0
    for found in _SIGNS.finditer(body):  # up to the first fault
        sign = body[found.start()]
        if sign in b"[{":
            depth, opened = depth + 1, opened + 1
        elif sign in b"]}":
            depth -= 1
        elif sign in b":":
            keys += 1
        if keys > MAX_KEYS:
            return f"the objects of the body have more than {MAX_KEYS:,} keys"
        if depth > MAX_DEPTH:
            return f"the body is nested more than {MAX_DEPTH} levels deep"
        if opened > MAX_BRACKETS:
            return (
                f"the body has more than {MAX_BRACKETS:,} lists and objects; send several requests"
            )
    return ""


class Guard:
    """ASGI middleware around all routes."""

    def __init__(self, app: App, access: Access, limits: Limits, metrics: Metrics) -> None:
        self._app, self._access, self._limits, self._metrics = app, access, limits, metrics

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        started, answer = time.monotonic(), _CheckedAnswer(send)
        scope[TASK] = asyncio.current_task()
        with self._metrics.running.track_inprogress():
            try:
                async with asyncio.timeout(self._longest):
                    await self._answer(scope, receive, answer)
            except TimeoutError:
                if not answer.status:
                    await _refuse(answer, 503, "the answer took too much time; try again")
                else:  # end the answer
                    await answer({"type": "http.response.body", "body": b""})
            except asyncio.CancelledError:  # the connection is closed, so nobody reads an answer
                pass
        route = getattr(scope.get("route"), "path", "other")
        self._metrics.requests.labels(route, str(answer.status or "closed")).inc()
        self._metrics.seconds.labels(route).observe(time.monotonic() - started)

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if refusal := self._access.refusal(scope["path"], scope["method"], headers):
            return await _refuse(send, *refusal)
        if _head_size(scope) > HEAD_BYTES:  # uvicorn limits only heads that arrive in pieces
            return await _refuse(
                send, 400, f"the head of the request has more than {HEAD_BYTES:,} bytes"
            )
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:18]) > self._limits.body_bytes:
            return await _refuse(send, 413, self._too_large)
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                body = await self._read(receive)
        except TimeoutError:
            return await _refuse(
                send, 408, f"the body took more than {self._limits.body_seconds:g} seconds"
            )
        except ConnectionError:
            return None
        if body is None:
            return await _refuse(send, 413, self._too_large)
        if fault := json_fault(body, None if scope["path"] in _TOKENS else MAX_VALUES):
            return await _refuse(send, 400, fault)
        pending = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_whole() -> Message:
            return pending.pop() if pending else await receive()

        await self._app(scope, receive_whole, send)

    @property
    def _longest(self) -> float:
        """Seconds from the head of a request to the end of its answer."""
        return self._limits.body_seconds + self._limits.answer_seconds + _GRACE

    @property
    def _too_large(self) -> str:
        return f"the body has more than {self._limits.body_bytes:,} bytes; send several requests"

    async def _read(self, receive: Receive) -> bytes | None:
        """Return the whole body; None if it is too large. Raises ConnectionError if the client has left."""
        chunks, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > self._limits.body_bytes:
                return None
            more = bool(message.get("more_body", False))
        return b"".join(chunks)


def _head_size(scope: Message) -> int:
    """Return the bytes of the request line and the headers, at least approximately."""
    line = len(scope["method"]) + len(scope["raw_path"]) + len(scope["query_string"])
    return line + sum(len(name) + len(value) + 4 for name, value in scope["headers"])


class _CheckedAnswer:
    """Sends the answer to one request, with the headers of this server. Errors of libraries become JSON."""

    def __init__(self, send: Send) -> None:
        self._send, self.status = send, 0
        self._error: Message | None = None  # the start of an error that is not JSON …
        self._text = b""  # … and its body

    async def __call__(self, message: Message) -> None:
        """Send a message of an application; hold back an error that is not JSON until it is complete."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", []), *_HEADERS]
            if self.status >= 400 and not _is_json(message):
                self._error = message
                return None
        if self._error is None:
            return await self._send(message)
        self._text += message.get("body", b"")
        if message.get("more_body", False):
            return None
        text = self._text.decode("utf-8", "replace") or HTTPStatus(self.status).phrase
        body = error_body(text, "refused")
        own = {b"content-type": b"application/json", b"content-length": str(len(body)).encode()}
        rest = [(name, value) for name, value in self._error["headers"] if name not in own]
        await self._send({**self._error, "headers": [*rest, *own.items()]})
        self._error = None
        return await self._send({"type": "http.response.body", "body": body})


def _is_json(start: Message) -> bool:
    kind = dict(start["headers"]).get(b"content-type", b"")
    return bool(kind.partition(b";")[0] == b"application/json")


async def _refuse(send: Send, status: int, message: str) -> None:
    """Send an error."""
    body = error_body(message, "refused")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status in (408, 413):
        headers.append((b"connection", b"close"))
    if status == 503:
        headers.append((b"retry-after", b"5"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
