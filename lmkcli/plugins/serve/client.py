"""The client of a server: an index that is searched over HTTP, for `lmk search --server` and `-q`."""

import hmac
import json
import os
import secrets
import time
import weakref
from collections.abc import Sequence
from hashlib import sha256
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np

from lmkcli import __version__
from lmkcli.data.collection import Doc, Query
from lmkcli.data.run import Ranking, Run
from lmkcli.errors import DataError, UnknownName, UsageError
from lmkcli.plugins.serve.runtime import RunningServer, plain_settings, running_servers
from lmkcli.plugins.serve.stamps import stamp
from lmkcli.progress import Note
from lmkcli.retrieval.fusion import Fusion, fused_info
from lmkcli.retrieval.index import IndexInfo, Passage
from lmkcli.retrieval.pipeline import Stages
from lmkcli.retrieval.settings import OpenSettings

TOKEN = "LMK_SERVE_TOKEN"
_SECONDS = 60  # for one request
_PATIENCE = 60  # seconds to wait for a busy server
_AT_ONCE = 32  # queries of one request


class Connection:
    """One connection to a server. Raises UsageError for an address that is not http:// or https://."""

    def __init__(self, url: str, seconds: float = _SECONDS) -> None:
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
        self._connection = kind(parts.hostname, port, timeout=seconds)
        weakref.finalize(self, self._connection.close)
        self._headers = {"content-type": "application/json"}
        if token := os.environ.get(TOKEN):
            self._headers["authorization"] = f"Bearer {token}"

    def get(self, path: str) -> Any:
        """Return the JSON of a GET request."""
        return self._request("GET", path, None)

    def post(self, path: str, value: Any) -> Any:
        """Return the JSON of a POST request."""
        return self._request("POST", path, json.dumps(value).encode())

    def _request(self, method: str, path: str, body: bytes | None) -> Any:
        """Return the JSON of an answer. A busy server is asked again until the patience ends.

        Raises DataError if the server does not answer, and UsageError if it refuses the request.
        """
        end = time.monotonic() + _PATIENCE
        while True:
            status, wait, content = self._answer(method, path, body)
            if status != 503 or time.monotonic() + wait > end:
                break
            time.sleep(wait)
        try:
            value = json.loads(content)
            if status == 200:
                return value
            message = str(value["error"]["message"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DataError(f"{self.url} is no lmk server (status {status})") from None
        if status == 401:
            message = f"wrong token; set the environment variable {TOKEN} to the server's token"
        raise (DataError if status == 503 else UsageError)(f"{self.url}: {message}")

    def _answer(self, method: str, path: str, body: bytes | None) -> tuple[int, float, bytes]:
        """Return status, seconds to wait, and content. A closed connection is opened again once."""
        for attempt in (0, 1):
            try:
                self._connection.request(method, self._prefix + path, body, self._headers)
                answer = self._connection.getresponse()
                wait = answer.getheader("retry-after", "1")
                seconds = min(float(wait), 10.0) if wait.isdigit() else 1.0
                return answer.status, seconds, answer.read()
            except (OSError, HTTPException, UnicodeError) as error:
                self._connection.close()
                if attempt or isinstance(error, TimeoutError | ConnectionRefusedError):
                    raise DataError(f"{self.url} does not answer ({error})") from None
        raise AssertionError


class RemoteIndex:
    """One or several fused indexes of a server. It implements the protocol `Index`.

    Raises DataError if the server does not answer or has another version, UnknownName for an unknown name.
    """

    def __init__(
        self, connection: Connection, names: Sequence[str], fusion: Fusion | None = None
    ) -> None:
        self._connection, self._names, self._fusion = connection, names, fusion
        listed = connection.get("/v1/indexes")
        try:
            version, indexes = listed["version"], {each["name"]: each for each in listed["indexes"]}
            if version != __version__:
                raise DataError(
                    f"{connection.url} is lmk {version}, and this is lmk {__version__}; use one version"
                )
            for name in names:
                if name not in indexes:
                    raise UnknownName(f"index of {connection.url}", name, indexes)
            infos = [
                IndexInfo(f"{connection.url} {name}", each["kind"], each["digest"], each["search"])
                for name, each in ((name, indexes[name]) for name in names)
            ]
        except (KeyError, TypeError):
            raise DataError(f"{connection.url} is no lmk server") from None
        self.info = infos[0] if fusion is None else fused_info(infos, fusion)
        self._docs: dict[str, Doc] = {}
        self._passages: dict[str, dict[str, Passage]] = {}

    def search(self, queries: list[Query], k: int) -> Run:
        """Search on the server. The answer for a single query has its texts and passages too."""
        if len(queries) == 1:
            return self._one(queries[0], k)
        rankings: dict[str, Ranking] = {}
        cut: set[str] = set()
        for first in range(0, len(queries), _AT_ONCE):
            some = queries[first : first + _AT_ONCE]
            results = self._post([query.text for query in some], k, "run")
            for query, result in zip(some, results, strict=True):
                rankings[query.id] = Ranking(result["ids"], np.array(result["scores"], np.float32))
                cut |= {query.id} if result["query_cut"] else set()
        return Run(rankings, cut=frozenset(cut))

    def _one(self, query: Query, k: int) -> Run:
        (result,) = self._post([query.text], k, "hits")
        hits = result["hits"]
        self._docs = {
            hit["id"]: Doc(hit["id"], hit["text"], hit["title"]) for hit in hits if "text" in hit
        }
        passages = {hit["id"]: Passage(**hit["passage"]) for hit in hits if "passage" in hit}
        self._passages = {query.text: passages}
        scores = np.array([hit["score"] for hit in hits], np.float32)
        ranking = Ranking([hit["id"] for hit in hits], scores)
        cut = frozenset({query.id} if result["query_cut"] else ())
        return Run({query.id: ranking}, cut=cut)

    def _post(self, queries: Sequence[str], k: int, output: str) -> Any:
        # The server refuses an empty query. An index finds the same for it as for a space.
        texts = [text or " " for text in queries]
        request = {"query": texts, "index": self._names, "k": k, "output": output, "text": "full"}
        if self._fusion is not None:
            request |= {"fuse": str(self._fusion), "fuse_scale": self._fusion.scale}
        return self._connection.post("/v1/search", request)["results"]

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """Return documents by id: those of the last search, or else one request each."""
        docs = {}
        for name in ids:
            if name not in self._docs:
                index = quote(self._names[0], safe="")
                found = self._connection.get(f"/v1/documents/{quote(name, safe='')}?index={index}")
                self._docs[name] = Doc(name, found["text"], found["title"])
            docs[name] = self._docs[name]
        return docs

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """Return the best chunks of the last search."""
        found = self._passages.get(query.text, {})
        return {name: found[name] for name in ids if name in found}


def open_remote(url: str, names: Sequence[str], fusion: Fusion | None = None) -> RemoteIndex:
    """Open indexes of a server by their names."""
    return RemoteIndex(Connection(url), names, fusion)


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
                    remote = RemoteIndex(connection, names, stages.fusion)
                    note(
                        f"using the server at {server.url} (--server none: load the index instead)"
                    )
                    return remote
            except (DataError, UsageError) as error:
                reason = str(error)
        note(f"the server at {server.url} was not used: {reason}; loading the index instead")
    return None


def _mismatch(
    server: RunningServer, paths: Sequence[Path], names: Sequence[str], wanted: dict[str, str]
) -> str:
    """The reason why a server would give other answers; empty if there is none."""
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
    """Whether the server knows the secret of its address file."""
    challenge = secrets.token_hex(16)
    right = hmac.new(bytes.fromhex(secret), challenge.encode(), sha256).hexdigest()
    answer = connection.get(f"/healthz?challenge={challenge}")
    return hmac.compare_digest(str(answer.get("proof", "")), right)
