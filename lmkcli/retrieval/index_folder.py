"""An index folder on disk: what is recorded about an index, and which files belong to it.

    index/  manifest.json  built.json  1/{files.json, files of the engine}

An engine writes into a new, numbered subfolder. Until the engine has finished, the subfolder has a temporary
name, and everything in it is unfinished work. Its last file is `files.json`: size and sha256 of each other
file. lmk removes only the files that such a list names. `built.json` is written last, and makes the index
complete (`IndexRecord`).
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from lmkcli.artifact import manifest, outputs
from lmkcli.artifact.artifact import Artifact, open_artifact
from lmkcli.artifact.kinds import (
    IndexIdentity,
    IndexManifest,
    OpenMapping,
    Section,
    WrittenFile,
    plain,
)
from lmkcli.artifact.outputs import FILES
from lmkcli.errors import DataError
from lmkcli.store.parts import SliceJson
from lmkcli.system.atomic import LOCK_FILE, atomic_file, sync, sync_tree, temporary_name
from lmkcli.system.input_files import decode, file_digest, read_json

BUILT = "built.json"
_AGAIN = "build the index again with --if-exists overwrite"
NumberedJson = tuple[
    str, list[tuple[int, int]], int
]  # a part, its deleted rows, its number of vectors


class VectorsState(Section, frozen=True, kw_only=True, tag_field="kind", tag="vectors"):
    """The vectors that an index was built from.

    digest: of all of them. parts: the name and the deleted rows of each part, at that time. numbering: the
    parts that the index numbers, in its order, with the deleted rows when they were numbered. part_digests:
    of each part. unfinished_shards: the shards that were missing.
    """

    digest: str
    parts: list[SliceJson]
    numbering: list[NumberedJson]
    part_digests: dict[str, str]
    unfinished_shards: tuple[int, ...] = ()


class CollectionStamp(Section, frozen=True, kw_only=True, tag_field="kind", tag="collection"):
    """The collection that an index was built from.

    stamp: size and time (ns) of each of its files, before they were read; empty without files.
    """

    stamp: dict[str, list[int]]


InputState = VectorsState | CollectionStamp


class IndexRecord(Section, frozen=True, kw_only=True):
    """The contents of built.json: what makes an index complete.

    digest: identifies the settings and the input. of: the state of the input. at: the subfolder of the files;
    empty if the engine keeps its data elsewhere. facts: those of the engine, such as the number of rows.
    """

    digest: str
    of: InputState
    at: Annotated[str, Meta(pattern=r"\A[0-9]{0,9}\Z")]
    facts: OpenMapping

    @property
    def shown(self) -> OpenMapping:
        """The facts and the digest, as results and `lmk show` print them."""
        return {**self.facts, "digest": self.digest}


class BuiltIndex(NamedTuple):
    """A finished index: its folder, its manifest, and its record."""

    folder: Path
    described: IndexManifest
    record: IndexRecord

    @property
    def files(self) -> Path:
        """The folder with the files of the engine."""
        return self.folder / self.record.at

    @property
    def vectors(self) -> VectorsState:
        """The vectors that the index was built from, if it is one of vectors."""
        return state_of_vectors(self.record.of)


def state_of_vectors(of: InputState) -> VectorsState:
    """Return the state of an input that is known to be vectors."""
    assert isinstance(of, VectorsState)  # `read_record` compares it with the manifest
    return of


def read_record(folder: Path, described: IndexManifest | None = None) -> IndexRecord | None:
    """Read built.json; None if the index is not finished. Raises DataError if the file is damaged.

    `described` is the manifest of the index, if it was read already.
    """
    path = folder / BUILT
    try:
        value = read_json(path, dict[str, Any], _AGAIN)
    except FileNotFoundError:
        return None
    record = decode(value, IndexRecord, path, _AGAIN)
    described = described or manifest.read(folder, IndexManifest)
    if isinstance(record.of, VectorsState) != bool(described.facts.vectors):
        raise DataError(f"{path} does not record the input of the index; {_AGAIN}")
    return record


def write_record(folder: Path, facts: OpenMapping, of: InputState, at: str) -> IndexRecord:
    """Write built.json: the index, with its files in subfolder `at`, is complete. Returns its contents."""
    digest = _digest(manifest.read(folder, IndexManifest).identity, facts, of)
    record = IndexRecord(digest=digest, of=of, at=at, facts=facts)
    with atomic_file(folder / BUILT) as temporary:
        temporary.write_text(json.dumps(plain(record), indent=1))
    return record


def _digest(identity: IndexIdentity, facts: OpenMapping, of: InputState) -> str:
    """Return the digest of an index: of its settings and its input."""
    of_vectors = [of.digest, of.numbering] if isinstance(of, VectorsState) else ["", []]
    inputs = [facts.get("collection", ""), *of_vectors]
    return manifest.digest({"identity": plain(identity), "of": inputs})


def write_files(
    folder: Path, at: str, write: Callable[[Path], OpenMapping]
) -> tuple[OpenMapping, str]:
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
    folder, record = index.folder, index.record
    if record.digest != _digest(index.described.identity, record.facts, record.of):
        raise DataError(
            f"{folder / BUILT} or {manifest.NAME} next to it was changed after it was written; {_AGAIN}"
        )
    files = {}
    for name, written in _listed(index.files).items() if record.at else ():
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
    if not (record := read_record(index.folder, index.manifest)):
        raise DataError(f"{index.folder} is not complete; run its index command again")
    return BuiltIndex(index.folder, index.manifest, record)
