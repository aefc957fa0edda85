"""The page of `lmk browse`: one HTML file with its style, its script and its data.

The parts are in the folder page/. The page loads nothing, and its content security policy forbids it to. All
texts are in JSON, which the script writes into the page as text, never as HTML.
"""

import hashlib
from base64 import b64encode
from html import escape
from importlib.resources import files
from pathlib import Path

import msgspec

from lmkcli import __version__
from lmkcli.errors import DataError
from lmkcli.plugins.browse.browsing import Browsed
from lmkcli.system.atomic import atomic_file, destination, make_folder

_MARK = b'<meta name="generator" content="lmk browse'  # in the first bytes of every page
_HEAD = 2000  # bytes with the mark


def check_replaceable(path: Path) -> None:
    """Raise DataError if `path` exists and is not a page of lmk browse."""
    if not path.exists():
        return
    if path.is_file():
        with open(path, "rb") as file:
            if _MARK in file.read(_HEAD):
                return
    raise DataError(
        f"{path} exists and was not made by lmk browse; it was left unchanged. Choose another output"
    )


def write(path: Path, browsed: Browsed) -> int:
    """Write the page, and return its size in bytes."""
    data = page(browsed)
    make_folder(path.parent)
    with atomic_file(destination(path)) as temporary:
        temporary.write_bytes(data)
    return len(data)


def page(browsed: Browsed) -> bytes:
    """Return the bytes of the page. The same data give the same bytes."""
    style, script = _part("browse.css"), _part("browse.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    overview = browsed.overview
    title = f"{overview.collection} · {' · '.join(run.name for run in overview.runs)}"[:200]
    values = {
        "version": escape(__version__).encode(),
        "policy": escape(policy, quote=False).encode(),
        "title": escape(title).encode(),
        "style": style,
        "script": script,
        "overview": _embedded(msgspec.json.encode(browsed.overview)),
        "details": _embedded(b"\n".join(browsed.details)),
    }
    first, *rest = _part("browse.html").split(b"{{")
    parts = [first]
    for piece in rest:
        name, _, after = piece.partition(b"}}")
        parts += [values[name.decode()], after]
    return b"".join(parts)


def _part(name: str) -> bytes:
    return files("lmkcli.plugins.browse").joinpath("page", name).read_bytes()


def _hash(part: bytes) -> str:
    return f"sha256-{b64encode(hashlib.sha256(part).digest()).decode()}"


def _embedded(data: bytes) -> bytes:
    """JSON that contains no tag, so that the script element does not end in it."""
    return data.replace(b"<", rb"\u003c")
