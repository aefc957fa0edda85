"""The client of a server: an index that is searched over HTTP, for `lmk search --server` and `-q`."""

import hmac
import io
import json
import os
import re
import secrets
import socket
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
)
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import msgspec
import numpy as np

from lmkcli import __version__
from lmkcli.data.collection import Doc, Query, check_id
from lmkcli.data.run import Ranking, Run, ranked
from lmkcli.errors import DataError, UnknownName, UsageError
from lmkcli.plugins.documents.own_index import OwnIndex
from lmkcli.plugins.serve.limits import MAX_MARKED, has_more_values
from lmkcli.plugins.serve.runtime import RunningServer, plain_settings, running_servers
from lmkcli.plugins.serve.stamps import stamp
from lmkcli.progress import Note
from lmkcli.retrieval.fusion import Fusion, fused_info
from lmkcli.retrieval.index import IndexInfo, Passage
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.stages import Stages
from lmkcli.system.input_files import MAX_FILE
from lmkcli.text.query_words import QueryWords

TOKEN = "LMK_SERVE_TOKEN"
_CONNECT_SECONDS = 5.0
_PATIENCE = 60.0  # seconds to wait for a busy server
_AT_ONCE = 32  # queries of one request
_REFUSALS = frozenset((400, 401, 403, 404, 405, 413, 422))
_BLOCK = 1 << 20
_VALUES = 1 << 18  # values in an answer; 1,000 hits have about 20,000
_HEADS = 1 << 20  # bytes of the head of an answer, and of the sizes of its chunks


class Bounds(NamedTuple):
    """The time and the size of an answer."""

    seconds: float
    size: int


_SEARCH = Bounds(60.0, MAX_FILE)  # a search or a document
_LIST = Bounds(10.0, 1 << 20)  # the list of indexes
_NEAR = Bounds(2.0, 1 << 20)  # the same on this machine, where a server answers at once if it can
Value = TypeVar("Value")
Line = Annotated[str, msgspec.Meta(max_length=1000)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Place = Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]
Scalar = str | int | float | bool | None


_UPDATE_SECONDS = 10.0  # that a server may take to read changed files


class _Listed(msgspec.Struct):
    """One index of GET /v1/indexes."""

    name: Line
    kind: Line
    digest: Line
    search: dict[str, Scalar | list[Scalar] | dict[str, Scalar]]


class _List(msgspec.Struct):
    version: Line
    indexes: list[_Listed]
    note: Line = ""


class _Health(msgspec.Struct):
    proof: str = ""


class _Passage(msgspec.Struct):
    chunk: Count
    chunks: Count
    begin: Count
    end: Count
    text: str
    heading: str | None = None
    path: Line = ""
    page: Place | None = None
    lines: tuple[Place, Place] | None = None


class _Hit(msgspec.Struct):
    id: str
    score: float
    title: str | None = None
    text: str | None = None
    passage: _Passage | None = None


class _Hits(msgspec.Struct):
    hits: list[_Hit]
    complete: bool = True
    query_cut: bool = False
    meaning: Line = ""
    answered: bool | None = None
    words: list[str] = []
    pairs_cut: Count = 0


class _Ranked(msgspec.Struct):
    ids: list[str]
    scores: list[float]
    complete: bool = True
    query_cut: bool = False
    pairs_cut: Count = 0


class _Document(msgspec.Struct):
    title: str
    text: str


class _Detail(msgspec.Struct):
    message: str


class _Error(msgspec.Struct):
    error: _Detail


class _HitResults(msgspec.Struct):
    results: list[_Hits]


class _RankedResults(msgspec.Struct):
    results: list[_Ranked]


class _TooLarge(Exception):
    """An answer has too many bytes."""


class _Within(io.RawIOBase):
    """The first `most` bytes that a socket receives until a moment.

    Later reads raise TimeoutError: a time-out of the socket alone would start again with each byte. Further
    bytes raise _TooLarge.
    """

    def __init__(self, received: socket.socket, end: float, most: int) -> None:
        self._socket, self._end, self._left = received, end, most
        self._raw = received.makefile("rb", buffering=0)  # keeps the socket open

    def readable(self) -> bool:
        """Always true."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Receive some bytes."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(left)
        size = self._raw.readinto(buffer)
        self._left -= size or 0
        if self._left < 0:
            raise _TooLarge
        return size

    def close(self) -> None:
        """Close the file of the socket."""
        self._raw.close()
        super().close()


class Connection:
    """One connection to a server. Raises UsageError for an address that is not http:// or https://.

    The server is a stranger: the size and the time of its answers are bounded, and they must have a type.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:  # an invalid host or port
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--server {url}: write an address such as http://127.0.0.1:8080")
        self.url = url.rstrip("/")
        self._prefix = parts.path.rstrip("/")
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._connection = kind(parts.hostname, port)
        weakref.finalize(self, self._connection.close)
        self._headers = {"content-type": "application/json"}
        if token := os.environ.get(TOKEN):
            self._headers["authorization"] = f"Bearer {token}"

    def get(self, path: str, shape: type[Value], bounds: Bounds = _SEARCH) -> Value:
        """Return the answer to a GET request."""
        return self._request(("GET", path, None), shape, bounds)

    def post(self, path: str, value: Any, shape: type[Value]) -> Value:
        """Return the answer to a POST request."""
        return self._request(("POST", path, json.dumps(value).encode()), shape, _SEARCH)

    def wrong(self, reason: str) -> DataError:
        """Return the error of an answer that no lmk server gives."""
        return DataError(f"{self.url} gave a wrong answer ({reason}); is it an lmk server?")

    def _request(
        self, request: tuple[str, str, bytes | None], shape: type[Value], bounds: Bounds
    ) -> Value:
        """Return the value of an answer. A busy server is asked again until the patience ends.

        Raises DataError if the server does not answer or answers something else, and UsageError if it
        refuses the request.
        """
        end = time.monotonic() + min(_PATIENCE, bounds.seconds)
        while True:
            status, wait, content = self._answer(*request, bounds)
            if status != 503 or time.monotonic() + wait > end:
                break
            time.sleep(wait)
        if has_more_values(content, _VALUES):
            raise self.wrong(f"more than {_VALUES:,} values")
        try:
            if status == 200:
                return msgspec.json.decode(content, type=shape)
            message = msgspec.json.decode(content, type=_Error).error.message[:1000]
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            if status == 200:
                raise self.wrong(str(error)[:200]) from None
            raise DataError(f"{self.url} is no lmk server (status {status})") from None
        if status == 401:
            message = f"wrong token; set the environment variable {TOKEN} to the server's token"
        raise (UsageError if status in _REFUSALS else DataError)(f"{self.url}: {message}")

    def _answer(
        self, method: str, path: str, body: bytes | None, bounds: Bounds
    ) -> tuple[int, float, bytes]:
        """Return status, seconds to wait, and content. A closed connection is opened again once."""
        end = time.monotonic() + bounds.seconds
        self._connection.response_class = partial(_response, end, bounds.size)  # type: ignore[assignment]
        for attempt in (0, 1):
            try:
                self._connection.timeout = min(_CONNECT_SECONDS, bounds.seconds)
                if self._connection.sock is not None:
                    self._connection.sock.settimeout(bounds.seconds)
                self._connection.request(method, self._prefix + path, body, self._headers)
                answer = self._connection.getresponse()
                wait = answer.getheader("retry-after", "1")
                pause = float(wait) if re.fullmatch("[0-9]{1,2}", wait) else 1.0
                return answer.status, min(pause, 10.0), self._content(answer, bounds.size)
            except (OSError, HTTPException, UnicodeError, ValueError) as error:
                self._connection.close()
                if attempt or isinstance(error, TimeoutError | ConnectionRefusedError):
                    reason = repr(str(error)[:200]) if str(error) else type(error).__name__
                    raise DataError(f"{self.url} does not answer ({reason})") from None
            except _TooLarge:
                self._connection.close()
                raise self.wrong(f"more than {bounds.size:,} bytes") from None
        raise AssertionError

    def _content(self, answer: HTTPResponse, size: int) -> bytes:
        """Return the body of an answer. Raises DataError for a body of more than `size` bytes."""
        length = answer.getheader("content-length", "0")
        if not re.fullmatch(
            "[0-9]{1,18}", length
        ):  # http.client waits for the end of the connection
            self._connection.close()
            raise self.wrong(f"content-length {length[:40]!r}")
        if int(length) > size:
            self._connection.close()
            raise _TooLarge
        content = bytearray()
        while block := answer.read(_BLOCK):
            content += block
        if answer.length:  # the connection ended before
            raise IncompleteRead(b"", answer.length)
        return bytes(content)


def _response(
    end: float, size: int, received: socket.socket, *rest: Any, **more: Any
) -> HTTPResponse:
    """Return a response that is read until a moment, with a body of at most `size` bytes."""
    response = HTTPResponse(received, *rest, **more)
    response.fp.close()
    response.fp = io.BufferedReader(_Within(received, end, size + _HEADS))
    return response


class RemoteIndex:
    """One or several fused indexes of a server. It implements the protocol `Index`.

    Raises DataError if the server does not answer, has another version or gives a wrong answer, and
    UnknownName for an unknown name.
    """

    def __init__(
        self,
        connection: Connection,
        names: Sequence[str],
        fusion: Fusion | None = None,
        bounds: Bounds = _LIST,
        where: Sequence[str] = (),
    ) -> None:
        self._where = [*where]
        self._connection, self._names, self._fusion = connection, names, fusion
        listed = connection.get("/v1/indexes", _List, bounds)
        if listed.version != __version__:
            raise DataError(
                f"{connection.url} is lmk {listed.version[:40]}, and this is lmk {__version__}; use one "
                "version"
            )
        indexes = {each.name: each for each in listed.indexes}
        for name in names:
            if name not in indexes:
                raise UnknownName(f"index of {connection.url}", name, indexes)
        infos = [
            IndexInfo(
                f"{connection.url} {each.name}",
                each.kind,
                each.digest,
                each.search | ({"where": self._where} if where else {}),
            )
            for each in (indexes[name] for name in names)
        ]
        self.info = infos[0]
        if fusion is not None:
            self.info = fused_info(infos, fusion)._replace(notes=(listed.note,) * bool(listed.note))
        self._docs: dict[str, Doc] = {}
        self._passages: dict[str, dict[str, Passage]] = {}
        self._answered: dict[str, bool | None] = {}
        self._words: dict[str, list[str]] = {}

    def search(self, queries: list[Query], k: int) -> Run:
        """Search on the server. The answer for a single query has its texts and passages too."""
        if len(queries) == 1:
            return self._one(queries[0], k)
        rankings: dict[str, Ranking] = {}
        cut: set[str] = set()
        cut_pairs: dict[str, int] = {}
        for first in range(0, len(queries), _AT_ONCE):
            some = queries[first : first + _AT_ONCE]
            results = self._post([query.text for query in some], k, "run", _RankedResults).results
            self._check_number(len(results), len(some))
            for query, result in zip(some, results, strict=True):
                self._check_complete(result.complete)
                rankings[query.id] = self._ranking(result.ids, result.scores, k)
                cut |= {query.id} if result.query_cut else set()
                cut_pairs[query.id] = result.pairs_cut
        return Run(rankings, cut=frozenset(cut), cut_pairs=cut_pairs)

    def _one(self, query: Query, k: int) -> Run:
        results = self._post([query.text], k, "hits", _HitResults).results
        self._check_number(len(results), 1)
        self._check_complete(results[0].complete)
        hits, words = results[0].hits, results[0].words
        if len(words) + sum(map(len, words)) > 2 * MAX_MARKED:  # some are longer in lower case
            raise self._connection.wrong("words of other texts")
        ranking = self._ranking([hit.id for hit in hits], [hit.score for hit in hits], k)
        self._docs = {
            hit.id: Doc(hit.id, hit.text, hit.title or "") for hit in hits if hit.text is not None
        }
        passages = {
            hit.id: Passage(**msgspec.structs.asdict(hit.passage))
            for hit in hits
            if hit.passage is not None
        }
        for each in passages.values():
            first, last = each.lines or (1, 1)
            if each.chunk >= each.chunks or each.begin > each.end or first > last:
                raise self._connection.wrong("a passage outside its document")
        self._passages = {query.text: passages}
        self._answered = {query.text: results[0].answered}
        self._words = {query.text: words}
        self.info = self.info._replace(meaning=results[0].meaning)
        cut = frozenset({query.id} if results[0].query_cut else ())
        return Run({query.id: ranking}, cut=cut, cut_pairs={query.id: results[0].pairs_cut})

    def _check_complete(self, complete: bool) -> None:
        if not complete:
            raise DataError(
                f"{self._connection.url}: the server filters only the start of a ranking, which has too few "
                "documents that fulfil --where; search the index itself with --server none"
            )

    def _check_number(self, given: int, wanted: int) -> None:
        if given != wanted:
            raise self._connection.wrong(f"{given:,} results for {wanted:,} queries")

    def _ranking(self, ids: list[str], scores: list[float], k: int) -> Ranking:
        """Return a ranking of the server. Raises DataError if it is none, or cannot be written to a run."""
        if len(ids) != len(scores):
            raise self._connection.wrong(f"{len(ids):,} ids and {len(scores):,} scores")
        if len(ids) > k:
            raise self._connection.wrong(f"{len(ids):,} documents instead of at most {k:,}")
        if len(set(ids)) < len(ids):
            raise self._connection.wrong("a document twice")
        for name in ids:
            check_id(name.replace(" ", ""), self._connection.url)  # that of a file may have spaces
        with np.errstate(over="ignore"):
            values = np.array(scores, np.float32)
        if not np.isfinite(values).all():
            raise self._connection.wrong("a score that is not finite")
        if (values[1:] > values[:-1]).any():
            raise self._connection.wrong("documents in a wrong order")
        return ranked(ids, values)

    def _post(self, queries: Sequence[str], k: int, output: str, shape: type[Value]) -> Value:
        # The server refuses an empty query. An index finds the same for it as for a space.
        texts = [text or " " for text in queries]
        request = {"query": texts, "index": self._names, "k": k, "output": output, "text": "full"}
        if self._where:
            request["where"] = self._where
        if self._fusion is not None:
            request |= {"fuse": str(self._fusion), "fuse_scale": self._fusion.scale}
        return self._connection.post("/v1/search", request, shape)

    def is_answered(self, query: Query, ranking: Ranking) -> bool | None:
        """Return whether the best hit of the last search probably answers the query; None: unknown."""
        return self._answered.get(query.text)

    def query_words(self, question: str) -> QueryWords:
        """Return the words of the last question that matter, as the server found them in its texts."""
        return QueryWords(" ".join(self._words.get(question, ())) or question)

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """Return documents by id: those of the last search, or else one request each."""
        docs = {}
        for name in ids:
            if name not in self._docs:
                index = quote(self._names[0], safe="")
                path = f"/v1/documents/{quote(name, safe='')}?index={index}"
                found = self._connection.get(path, _Document)
                self._docs[name] = Doc(name, found.text, found.title)
            docs[name] = self._docs[name]
        return docs

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """Return the best chunks of the last search."""
        found = self._passages.get(query.text, {})
        return {name: found[name] for name in ids if name in found}


def open_remote(
    url: str, names: Sequence[str], fusion: Fusion | None = None, where: Sequence[str] = ()
) -> RemoteIndex:
    """Open indexes of a server by their names; all hits fulfil the conditions `where`."""
    return RemoteIndex(Connection(url), names, fusion, where=where)


def open_running(stages: Stages, settings: OpenSettings, note: Note) -> RemoteIndex | None:
    """Open indexes on a server of this user that has loaded the same files with the same settings.

    Returns None without such a server. If there is one that cannot be used, a note names the reason.
    """
    wanted = plain_settings(settings, OpenSettings())
    for server in running_servers():
        names = [name for path in stages.paths if (name := server.name_of(path))]
        if len(names) < len(stages.paths):
            continue
        reason = _mismatch(server, stages.paths, names, wanted)
        if not reason:
            try:
                connection = Connection(server.url)
                if not _is_genuine(connection, server.secret):
                    reason = "another program answers"
                else:
                    remote = RemoteIndex(connection, names, stages.fusion, _NEAR, stages.where)
                    note(
                        f"using the server at {server.url} (--server none: load the index instead)"
                    )
                    return remote
            except (DataError, UsageError) as error:
                reason = str(error)
        note(f"the server at {server.url} was not used: {reason}; loading the index instead")
    return None


def open_running_documents(
    own: OwnIndex, settings: OpenSettings, note: Note, where: Sequence[str] = ()
) -> RemoteIndex | None:
    """Open documents on a server of this user that serves them with the same model and settings.

    Returns None without such a server, or if it does not serve the latest files within some seconds.
    """
    wanted = plain_settings(replace(settings, model=""), OpenSettings())
    end = time.monotonic() + _UPDATE_SECONDS
    while any(server.name_of(own.folder) for server in running_servers()):
        for server in running_servers():
            name = server.name_of(own.folder)
            if name is None or server.version != __version__ or server.settings != wanted:
                continue
            loaded = [list(item) for path in own.paths for item in stamp(path)]
            if loaded != [list(item) for item in server.indexes[name][1]] or not own.is_current():
                continue
            try:
                connection = Connection(server.url)
                if _is_genuine(connection, server.secret):
                    remote = RemoteIndex(connection, [name], None, _NEAR, where)
                    note(
                        f"using the server at {server.url} (--server none: load the index instead)"
                    )
                    return remote
            except (DataError, UsageError) as error:
                note(f"the server at {server.url} was not used: {error}; loading the index instead")
                return None
        if time.monotonic() > end:
            break
        time.sleep(0.2)
    return None


def _mismatch(
    server: RunningServer, paths: Sequence[Path], names: Sequence[str], wanted: dict[str, str]
) -> str:
    """Return the reason why a server would give other answers; empty if there is none."""
    if server.version != __version__:
        return f"it is lmk {server.version}"
    if server.settings != wanted:
        return "it has other settings"
    for path, name in zip(paths, names, strict=True):
        loaded = server.indexes[name][1]
        if [list(each) for each in stamp(path)] != [list(each) for each in loaded]:
            return f"{path} was updated just now"
    return ""


def _is_genuine(connection: Connection, secret: str) -> bool:
    """Return whether the server knows the secret of its address file."""
    challenge = secrets.token_hex(16)
    right = hmac.new(bytes.fromhex(secret), challenge.encode(), sha256).hexdigest()
    path = f"/healthz?challenge={challenge}"
    answer = connection.get(path, _Health, _NEAR)
    return hmac.compare_digest(answer.proof.encode("utf-8", "replace"), right.encode())
