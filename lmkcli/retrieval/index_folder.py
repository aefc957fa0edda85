"""An index folder on disk: `manifest.json`, the kind's files, and `built.json` once it is whole.

`built.json` holds the kind's facts, the `digest` of the index, what it was built `of`, the subfolder
`at` which the files are ('' for the folder itself), and size and sha256 of these `files`.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

from lmkcli import manifest
from lmkcli.errors import DataError
from lmkcli.reading import file_digest, read_json
from lmkcli.store.outputs import INDEX_FILES
from lmkcli.store.parts import SliceJson
from lmkcli.system.atomic import atomic_file

DOCS, BUILT = "docs.parquet", "built.json"
_AGAIN = "build the index again with --if-exists overwrite"


class _NumberedJson(NamedTuple):
    """A numbered part: its name, the ranges of its deleted rows, and its number of vectors."""

    name: str
    deleted: list[tuple[int, int]]
    vectors: int = 0


class _Of(TypedDict):
    vectors: NotRequired[str]
    parts: NotRequired[list[SliceJson]]
    numbering: NotRequired[list[_NumberedJson]]
    digests: NotRequired[dict[str, str]]
    stamp: NotRequired[dict[str, Any] | None]


class WrittenFile(NamedTuple):
    """A file of an index as it was written."""

    size: int
    sha256: str


class _Built(TypedDict):
    digest: str
    of: _Of
    at: str
    files: NotRequired[dict[str, tuple[int, str]]]


def read_built(folder: Path) -> dict[str, Any]:
    """What built.json says; empty while the index is not finished. DataError where it is damaged."""
    path = folder / BUILT
    try:
        built = read_json(path, _Built, _AGAIN)
    except FileNotFoundError:
        return {}
    if not re.fullmatch(r"\d*", built["at"], re.ASCII):
        raise DataError(
            f"{path} says that the files are in {built['at']!r}, which cannot be; {_AGAIN}"
        )
    of = built["of"]
    if "stamp" not in of and not {"vectors", "parts", "numbering", "digests"} <= of.keys():
        raise DataError(f"{path} does not say what the index was built of; {_AGAIN}")
    return dict(built)


def write_built(folder: Path, facts: dict[str, Any], of: dict[str, Any], at: str) -> dict[str, Any]:
    """Say that the index whose files are in subfolder `at` is whole; returns what was written.

    `facts` may bring `files`, where they are those of before.
    """
    chain = _chain(manifest.read(folder).identity, facts, of)
    files = facts.get("files") or _written(folder / at)
    built = {**facts, "digest": chain, "of": of, "at": at, "files": files}
    with atomic_file(folder / BUILT) as temporary:
        temporary.write_text(json.dumps(built, indent=1))
    return built


def _chain(identity: dict[str, Any], facts: dict[str, Any], of: dict[str, Any]) -> str:
    """The digest of an index: of its settings, and of what it was built of."""
    made_of = [facts.get("collection", ""), of.get("vectors", ""), of.get("numbering", [])]
    return manifest.digest({"identity": identity, "of": made_of})


def _written(files: Path) -> dict[str, WrittenFile]:
    """Size and digest of each file of an index, by its path below `files`."""
    named = {path.relative_to(files).as_posix(): path for path in files.rglob("*")}
    return {
        name: WrittenFile(path.stat().st_size, file_digest(path))
        for name, path in sorted(named.items())
        if path.is_file() and INDEX_FILES.fullmatch(name) and path.name != "write.lock"
    }


def check_built(folder: Path, built: dict[str, Any]) -> dict[Path, WrittenFile]:
    """The files of an index; DataError for one that is gone, or longer or shorter than it was written,
    and where built.json says something else than when it was.

    No files of an index that was built before their digests were kept.
    """
    if "files" not in built:
        return {}
    if built["digest"] != _chain(manifest.read(folder).identity, built, built["of"]):
        raise DataError(
            f"{folder / BUILT} or {manifest.NAME} beside it is not as it was written; {_AGAIN}"
        )
    files = {}
    for name, (size, sha256) in built["files"].items():
        path = folder / built["at"] / name
        if not path.is_file():
            raise DataError(f"{path} is missing; {_AGAIN}")
        if path.stat().st_size != size:
            raise DataError(
                f"{path} has {path.stat().st_size} bytes, and was written with {size}; {_AGAIN}"
            )
        files[path] = WrittenFile(size, sha256)
    return files


def check_files(folder: Path) -> list[WrittenFile]:
    """The files of an index, each read and held against its digest; DataError for one that differs.

    DataError too for an index that is not complete, or has no digests.
    """
    if not (built := read_built(folder)):
        raise DataError(f"{folder} is not complete; run its index command again")
    if not (files := check_built(folder, built)):
        raise DataError(f"{folder} was built before digests of its files were kept; {_AGAIN}")
    for path, written in files.items():
        if file_digest(path) != written.sha256:
            raise DataError(f"{path} is not as it was written; {_AGAIN}")
    return list(files.values())
