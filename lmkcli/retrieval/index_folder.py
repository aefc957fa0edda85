"""An index folder on disk: `manifest.json`, the files of the engine, and `built.json` when it is complete.

`built.json` contains the facts of the engine and these fields:
digest: identifies the settings and the input of the index.
of: the input that the index was built from.
at: the subfolder of the files; '' for the index folder itself.
files: size and sha256 of each file.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

from lmkcli.artifact import manifest, outputs
from lmkcli.artifact.kinds import IndexIdentity, IndexManifest, WrittenFile, plain
from lmkcli.artifact.outputs import INDEX_FILES
from lmkcli.errors import DataError
from lmkcli.store.parts import SliceJson
from lmkcli.system.atomic import LOCK_FILE, atomic_file, make_folder
from lmkcli.system.input_files import file_digest, read_json, validate

DOCS, BUILT = "docs.parquet", "built.json"
_AGAIN = "build the index again with --if-exists overwrite"
_OF_VECTORS = {"vectors", "parts", "numbering", "digests"}


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


class _Built(TypedDict):
    digest: str
    of: _Of
    at: str
    files: dict[str, tuple[int, str]]


def read_built(folder: Path, described: IndexManifest | None = None) -> dict[str, Any]:
    """Read built.json; empty if the index is not finished. Raises DataError if the file is damaged.

    `described` is the manifest of the index, if it was read already.
    """
    path = folder / BUILT
    try:
        built = read_json(path, _Built, _AGAIN)
    except FileNotFoundError:
        return {}
    if not re.fullmatch(r"\d{0,9}", built["at"], re.ASCII):
        raise DataError(
            f"{path}: at is {built['at']!r}, which is not a subfolder of an index; {_AGAIN}"
        )
    of = built["of"]
    validate(of.get("unfinished shards", []), list[int], path, _AGAIN)
    described = described or manifest.read(folder, IndexManifest)
    of_vectors = bool(described.facts.vectors)
    if not (_OF_VECTORS if of_vectors else {"stamp"}) <= of.keys():
        raise DataError(f"{path} does not record the input of the index; {_AGAIN}")
    return dict(built)


def write_built(folder: Path, facts: dict[str, Any], of: dict[str, Any], at: str) -> dict[str, Any]:
    """Write built.json: the index, with its files in subfolder `at`, is complete. Returns its contents.

    `facts` may contain `files` if the files did not change.
    """
    digest = _digest(manifest.read(folder, IndexManifest).identity, facts, of)
    files = facts.get("files") or _written_files(folder / at)
    built = {**facts, "digest": digest, "of": of, "at": at, "files": files}
    with atomic_file(folder / BUILT) as temporary:
        temporary.write_text(json.dumps(built, indent=1))
    return built


def _digest(identity: IndexIdentity, facts: dict[str, Any], of: dict[str, Any]) -> str:
    """The digest of an index: of its settings and its input."""
    inputs = [facts.get("collection", ""), of.get("vectors", ""), of.get("numbering", [])]
    return manifest.digest({"identity": plain(identity), "of": inputs})


def _written_files(files: Path) -> dict[str, WrittenFile]:
    """Size and digest of each index file, by its path below `files`."""
    paths = {path.relative_to(files).as_posix(): path for path in files.rglob("*")}
    return {
        name: manifest.written(path)
        for name, path in sorted(paths.items())
        if path.is_file() and INDEX_FILES.fullmatch(name) and path.name != "write.lock"
    }


def check_built(
    folder: Path, built: dict[str, Any], described: IndexManifest
) -> dict[Path, WrittenFile]:
    """Return the files of an index, after a quick check.

    Raises DataError if a file is missing or has another size than when it was written, or if built.json or
    the manifest was changed.
    """
    if built["digest"] != _digest(described.identity, built, built["of"]):
        raise DataError(
            f"{folder / BUILT} or {manifest.NAME} next to it was changed after it was written; {_AGAIN}"
        )
    files = {}
    for name, (size, sha256) in built["files"].items():
        path = folder / built["at"] / name
        if not path.is_file():
            raise DataError(f"{path} is missing; {_AGAIN}")
        if path.stat().st_size != size:
            raise DataError(
                f"{path} has {path.stat().st_size} bytes, but was written with {size}; {_AGAIN}"
            )
        files[path] = WrittenFile(size, sha256)
    return files


def check_files(folder: Path, described: IndexManifest | None = None) -> list[WrittenFile]:
    """Read all files of an index and compare them with their digests. Returns the files.

    Raises DataError for a file that differs, and for an index that is incomplete.
    """
    described = described or manifest.read(folder, IndexManifest)
    if not (built := read_built(folder, described)):
        raise DataError(f"{folder} is not complete; run its index command again")
    files = check_built(folder, built, described)
    for path, written in files.items():
        if file_digest(path) != written.sha256:
            raise DataError(f"{path} was changed after it was written; {_AGAIN}")
    return list(files.values())


def replace_files(
    folder: Path,
    built: dict[str, Any],
    make: Callable[[Path], dict[str, Any]],
    of: dict[str, Any],
) -> dict[str, Any]:
    """Replace the files of an index and return the new facts.

    The new files are written into a numbered subfolder. Then `built.json`, which names the subfolder, is
    replaced atomically, and the old files are removed. Open readers keep the files that they opened.
    """
    at = str(int(built["at"] or 1) + 1)
    subfolder = folder / at
    if subfolder.is_symlink():
        subfolder.unlink()  # another person's link; nothing behind it is changed
    make_folder(subfolder)
    described = manifest.read(folder, IndexManifest)
    outputs.discard(folder, described, set(), at)  # the rest of an interrupted update
    facts = write_built(folder, make(subfolder), of, at)
    remove_replaced(folder, at)
    return facts


def remove_replaced(folder: Path, at: str) -> None:
    """Remove the files that an update has replaced; `at` is the subfolder of the current files.

    Updates call this first, since a killed one can leave some of them.
    """
    if at:
        kept = {manifest.NAME, BUILT, LOCK_FILE, at}
        outputs.discard(folder, manifest.read(folder, IndexManifest), kept)
