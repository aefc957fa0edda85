"""The outer layer of the HTTP server: hosts, origins, the token, limits of bodies, and measurements."""

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from lmkcli.plugins.serve.limits import Limits
from lmkcli.plugins.serve.metrics import Metrics
from lmkcli.system import network

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

PUBLIC = frozenset({"/", "/page.css", "/page.js", "/healthz", "/openapi.json"})  # without a token
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
        if origin and method not in ("GET", "HEAD", "OPTIONS"):
            own = urlsplit(origin).netloc == host
            if not own and origin not in self.origins:
                return 403, "requests from other web sites are not allowed; see --cors"
        if not self.token or path in PUBLIC or method == "OPTIONS":
            return None
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        right = hmac.compare_digest(given.strip(), self.token.encode())
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
        status, started = 500, time.monotonic()

        async def send_checked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *_HEADERS]
            await send(message)

        with self._metrics.running.track_inprogress():
            await self._answer(scope, receive, send_checked)
        route = getattr(scope.get("route"), "path", "other")
        self._metrics.requests.labels(route, str(status)).inc()
        self._metrics.seconds.labels(route).observe(time.monotonic() - started)

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if refusal := self._access.refusal(scope["path"], scope["method"], headers):
            return await _refuse(send, *refusal)
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
        if body is None:
            return await _refuse(send, 413, self._too_large)
        pending = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_whole() -> Message:
            return pending.pop() if pending else await receive()

        await self._app(scope, receive_whole, send)

    @property
    def _too_large(self) -> str:
        return f"the body has more than {self._limits.body_bytes:,} bytes; send several requests"

    async def _read(self, receive: Receive) -> bytes | None:
        """Return the whole body; None if it is too large."""
        chunks, size, more = [], 0, True
        while more:
            message = await receive()
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > self._limits.body_bytes:
                return None
            more = bool(message.get("more_body", False))
        return b"".join(chunks)


async def _refuse(send: Send, status: int, message: str) -> None:
    """Send an error."""
    body = error_body(message, "refused")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status in (408, 413):
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
