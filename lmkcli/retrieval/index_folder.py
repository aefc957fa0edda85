"""An index folder on disk: what is recorded about an index, and which files belong to it.

    index/  manifest.json  built.json  1/{files.json, files of the engine}

An engine writes into a new, numbered subfolder. Until the engine has finished, the subfolder has a temporary
name, and everything in it is unfinished work. Its last file is `files.json`: size and sha256 of each other
file. lmk removes only the files that such a list names. `built.json` is written last, and makes the index
complete:

digest: identifies the settings and the input of the index.
of: the input that the index was built from.
at: the subfolder of the files; '' if the engine keeps its data elsewhere.

The other fields are the facts of the engine.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, NotRequired, TypedDict

from lmkcli.artifact import manifest, outputs
from lmkcli.artifact.artifact import Artifact, open_artifact
from lmkcli.artifact.kinds import IndexIdentity, IndexManifest, WrittenFile, plain
from lmkcli.artifact.outputs import FILES
from lmkcli.errors import DataError
from lmkcli.store.parts import SliceJson
from lmkcli.system.atomic import LOCK_FILE, atomic_file, sync, sync_tree, temporary_name
from lmkcli.system.input_files import file_digest, read_json, validate

BUILT = "built.json"
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


class BuiltIndex(NamedTuple):
    """A finished index, as it was recorded: its folder, its manifest, and the contents of its built.json."""

    folder: Path
    described: IndexManifest
    built: dict[str, Any]

    @property
    def files(self) -> Path:
        """The folder with the files of the engine."""
        return self.folder / str(self.built["at"])

    @property
    def of(self) -> dict[str, Any]:
        """The record of the input that the index was built from."""
        recorded: dict[str, Any] = self.built["of"]
        return recorded


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
    """Write built.json: the index, with its files in subfolder `at`, is complete. Returns its contents."""
    digest = _digest(manifest.read(folder, IndexManifest).identity, facts, of)
    built = {**facts, "digest": digest, "of": of, "at": at}
    with atomic_file(folder / BUILT) as temporary:
        temporary.write_text(json.dumps(built, indent=1))
    return built


def _digest(identity: IndexIdentity, facts: dict[str, Any], of: dict[str, Any]) -> str:
    """The digest of an index: of its settings and its input."""
    inputs = [facts.get("collection", ""), of.get("vectors", ""), of.get("numbering", [])]
    return manifest.digest({"identity": plain(identity), "of": inputs})


def write_files(
    folder: Path, at: str, write: Callable[[Path], dict[str, Any]]
) -> tuple[dict[str, Any], str]:
    """Let an engine write its files into a new subfolder. Returns its facts and the name of the subfolder.

    `at` is the current subfolder. Its name is returned if the engine wrote nothing. The new subfolder gets
    its name when all files are on the disk, with the list of them. Open readers keep the files that they
    opened.
    """
    number = int(at or 0) + 1
    while os.path.lexists(folder / str(number)):  # another person's, even if it is a link
        number += 1
    path = folder / str(number)
    growing = temporary_name(path)
    growing.mkdir()
    try:
        facts = write(growing)
        if not (written := _written_files(growing)):
            return facts, at
        (growing / FILES).write_text(json.dumps(written, indent=1))
        sync_tree(growing)
        os.rename(growing, path)
        sync(folder)
    finally:
        shutil.rmtree(growing, ignore_errors=True)
    return facts, path.name


def _written_files(folder: Path) -> dict[str, WrittenFile]:
    """Size and digest of each file in a folder, by its path in the folder."""
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return {
        name: manifest.written(path)
        for name, path in sorted(paths.items())
        if path.is_file() and name != FILES
    }


def remove_leftovers(folder: Path, at: str) -> None:
    """Remove the files of replaced indexes and of killed processes; `at` is the current subfolder."""
    kept = {manifest.NAME, BUILT, LOCK_FILE, at}
    outputs.discard(folder, manifest.read(folder, IndexManifest), kept)


def check_built(index: BuiltIndex) -> dict[Path, WrittenFile]:
    """Return the files of an index, after a quick check.

    Raises DataError if a file is missing or has another size than when it was written, or if built.json or
    the manifest was changed.
    """
    folder, built = index.folder, index.built
    if built["digest"] != _digest(index.described.identity, built, built["of"]):
        raise DataError(
            f"{folder / BUILT} or {manifest.NAME} next to it was changed after it was written; {_AGAIN}"
        )
    files = {}
    for name, written in _listed(index.files).items() if built["at"] else ():
        path = index.files / name
        if not path.is_file():
            raise DataError(f"{path} is missing; {_AGAIN}")
        if path.stat().st_size != written.size:
            raise DataError(
                f"{path} has {path.stat().st_size} bytes, but was written with {written.size}; {_AGAIN}"
            )
        files[path] = written
    return files


def _listed(files: Path) -> dict[str, WrittenFile]:
    """Read the list of the files in a subfolder. Raises DataError if it is missing or damaged."""
    path = files / FILES
    try:
        listed = read_json(path, dict[str, tuple[int, str]], _AGAIN)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path} is missing; {_AGAIN}") from None
    for name in listed:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise DataError(f"{path} names {name!r}, which is not in its folder; {_AGAIN}")
    return {name: WrittenFile(*written) for name, written in listed.items()}


def check_files(index: BuiltIndex) -> list[WrittenFile]:
    """Read all files of an index and compare them with their digests. Returns the files.

    Raises DataError for a file that differs.
    """
    files = check_built(index)
    for path, written in files.items():
        if file_digest(path) != written.sha256:
            raise DataError(f"{path} was changed after it was written; {_AGAIN}")
    return list(files.values())


def finished_index(opened: Path | Artifact[IndexManifest]) -> BuiltIndex:
    """Read the record of an index. Raises DataError if it is not finished, or if its record is damaged."""
    index = open_artifact(opened, IndexManifest)
    if not (built := read_built(index.folder, index.manifest)):
        raise DataError(f"{index.folder} is not complete; run its index command again")
    return BuiltIndex(index.folder, index.manifest, built)
