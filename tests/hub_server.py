"""A local server that serves a folder of repositories like the Hugging Face hub."""

import hashlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote


class Hub(ThreadingHTTPServer):
    """Serves a folder of repositories like the hub, and records the requests."""

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.root = root
        self.commit = "0" * 39 + "1"  # the commit of 'main'
        self.requests: list[str] = []
        self.served: list[tuple[str, int]] = []  # the requested files and their first bytes
        self.cut = 0  # drop one connection after so many bytes of a file

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        words = unquote(self.path.partition("?")[0]).strip("/").split("/")
        if words[0] == "api":
            return self._about("/".join(words[2:4]), words[4:])
        repo, commit, name = "/".join(words[1:3]), words[4], "/".join(words[5:])
        path = self.server.root / repo / name
        if not path.is_file():
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
        return self._file(path.read_bytes(), name, commit)

    def _about(self, repo: str, words: list[str]) -> None:
        if not (self.server.root / repo).is_dir():
            return self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        revision = words[1] if len(words) > 1 else "main"
        commit = self.server.commit if revision == "main" else revision
        paths = [p for p in sorted((self.server.root / repo).rglob("*")) if p.is_file()]
        names = [p.relative_to(self.server.root / repo).as_posix() for p in paths]
        if words[:1] == ["tree"]:
            answer: Any = self._tree(
                repo, "/".join(words[2:]), "recursive=true" in self.path.lower()
            )
        else:
            answer = {"id": repo, "sha": commit, "siblings": [{"rfilename": n} for n in names]}
        return self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def do_POST(self) -> None:
        """Facts about some paths of a repository."""
        self.server.requests.append(self.path)
        words = unquote(self.path).strip("/").split("/")
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        root = self.server.root / "/".join(words[2:4])
        answer = [
            self._entry(root, root / name) for name in body["paths"] if (root / name).exists()
        ]
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _tree(self, repo: str, folder: str, recursive: bool) -> list[dict[str, Any]]:
        root = self.server.root / repo
        found = (root / folder).rglob("*") if recursive else (root / folder).glob("*")
        return [self._entry(root, path) for path in sorted(found)]

    def _entry(self, root: Path, path: Path) -> dict[str, Any]:
        name = path.relative_to(root).as_posix()
        if path.is_dir():
            return {"type": "directory", "path": name, "oid": etag(name.encode())}
        data = path.read_bytes()
        return {"type": "file", "path": name, "size": len(data), "oid": etag(data)}

    def _file(self, data: bytes, name: str, commit: str) -> None:
        headers = {"ETag": f'"{etag(data)}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        first, _, last = self.headers.get("Range", "bytes=0-")[6:].partition("-")
        start, stop = int(first), min(int(last or len(data)), len(data) - 1) + 1
        if self.command == "GET":
            self.server.served.append((name, start))
        ranged = start or stop < len(data)
        if ranged:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        self._send(206 if ranged else 200, data[start:stop], headers)

    def _send(self, code: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            cut = self.server.cut if 0 < self.server.cut < len(data) else len(data)
            self.wfile.write(data[:cut])
            if cut < len(data):
                self.server.cut = 0
                self.close_connection = True


def etag(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()
