"""Existing outputs: lmk replaces and removes only files that it has written.

A folder belongs to lmk if it has a readable manifest. In such a folder, the files that the manifest lists
belong to lmk while they are unchanged. So do the places where its kind of artifact writes by construction,
such as the parts of vectors. All other files stay.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import ExportManifest, Manifest, WrittenFile
from lmkcli.errors import DataError, Stopped
from lmkcli.spec.values import is_count
from lmkcli.system.atomic import LOCK_FILE, atomic_folder, remove_abandoned, unused
from lmkcli.system.input_files import read_json
from lmkcli.system.output_streams import is_stream

Described = Manifest | manifest.Header


# Each of these names marks an artifact folder as complete.
COMPLETE = {"done", "built.json", "generation.json", "training.json"}
REMOVED = ".removed."
_CHECKPOINT = "checkpoint-([1-9][0-9]{0,9})"
SIDECAR = ".json"  # the manifest of run.trec is run.trec.json

PART_FILE = r"[a-z_]+\.npy|docs\.parquet|part\.json"  # in the folder of a part
_PART = rf"(\d{{5}}of\d{{5}}-\d{{12}}-\d{{12}}|\.growing-\d+-[\w-]+)(/({PART_FILE}))?"
_PARTED = rf"generation\.json|done(/\d+of\d+\.json)?|parts(/{_PART})?"
# The places that belong to lmk in a folder of each kind, besides the manifest, the lock file and the listed
# files, as regular expressions. While lmk writes or removes them, they have a prefix.
PLACES = {
    "tokens": _PARTED,
    "vectors": _PARTED,
    "index": r"built\.json",  # and what its engine wrote into numbered subfolders, see `written_files`
    "model": (
        rf"log\.jsonl|training\.json|checkpoints(/({_CHECKPOINT}|\.growing)(/.*)?)?|\.growing(/.*)?"
        r"|tensorboard(/events\..*)?"
    ),
    "shards": r"(shared|\d{5}of\d{5})-.+",
    "export": "",
}
_TEMPORARY = re.compile(r"\.(.+?)(\.\d+){2,3}", re.ASCII)  # temporary names of system/atomic.py
FILES = (
    "files.json"  # in a numbered subfolder of an index: the list of the files that its engine wrote
)
# A numbered subfolder that an engine is filling, or that is being removed. Everything in it is lmk's.
_UNFINISHED = re.compile(r"\.removed\.\d+|\.\d+(\.\d+){2,3}", re.ASCII)


def sidecar(path: Path) -> Path:
    """Return the path of the manifest of a single-file artifact."""
    return path.with_name(path.name + SIDECAR)


def is_empty(path: Path) -> bool:
    """Return whether a path is missing, an empty folder, or a stream such as /dev/stdout.

    A lock file and the temporary file of a manifest, left by a killed job, do not count.
    """
    if path.is_dir():
        names = set(os.listdir(path)) - {LOCK_FILE}
        return all(name.startswith(f".{manifest.NAME}.") for name in names)
    return not path.exists() or is_stream(path)


def is_artifact(path: Path) -> bool:
    """Return whether lmk wrote the file or folder: it has a readable manifest of a matching kind."""
    try:
        if is_stream(path):
            return False
        if path.is_dir():
            return manifest.read_header(path / manifest.NAME).kind in PLACES
        return path.is_file() and manifest.read_header(sidecar(path)).kind == "run"
    except (DataError, OSError):
        return False


def is_cleared(path: Path) -> bool:
    """Return whether a folder has only the manifest of an artifact that was removed, or half removed."""
    marker = path / manifest.CLEARED
    return not (path / manifest.NAME).exists() and manifest_kind(marker) in PLACES


def check_sidecar(path: Path, kind: str = "run") -> None:
    """Raise DataError if the manifest of an output file would replace another kind of file."""
    existing = sidecar(path)
    if existing.exists() and manifest_kind(existing) != kind:
        raise DataError(
            f"{existing} exists and is not a manifest of lmk, but the manifest of {path.name} needs this "
            "name; nothing was changed; choose another output"
        )


def manifest_kind(path: Path) -> str:
    """Return the kind of artifact that a manifest describes, or '' if the file is no manifest."""
    try:
        return manifest.read_header(path).kind
    except (DataError, OSError):
        return ""


def checkpoints(folder: Path) -> dict[int, Path]:
    """Return the checkpoints of a training by step, in order. Other entries of the folder are the user's."""
    entries = folder.glob("checkpoints/*/")
    named = ((re.fullmatch(_CHECKPOINT, path.name), path) for path in entries)
    return dict(sorted((int(match[1]), path) for match, path in named if match))


@contextmanager
def rollback_on_error(folder: Path) -> Iterator[None]:
    """If the block fails, clear a folder that it created, unless the folder contains finished work."""
    fresh = not (folder / manifest.NAME).exists()
    cleared = is_cleared(folder)
    try:
        yield
    except Stopped:
        raise
    except Exception:  # every error: a claim without work would only block the folder
        if fresh and is_artifact(folder) and not _has_work(folder):
            with suppress(Stopped):  # another process works in the folder
                clear(folder, reuse=cleared)
        raise


def _has_work(folder: Path) -> bool:
    """Return whether an artifact folder contains a complete part, shard, index or checkpoint."""
    places = [folder / name for name in ("parts", "checkpoints")]
    names = [name for place in places if place.is_dir() for name in os.listdir(place)]
    published = any(not name.startswith(".") for name in names)
    return published or bool(COMPLETE & set(os.listdir(folder)))


def clear(path: Path, reuse: bool = False) -> list[str]:
    """Remove an artifact. Returns the names in it that lmk does not write; these files stay.

    Raises DataError or FileNotFoundError, and changes nothing, if the path has no manifest of lmk. Raises
    Stopped if another process is writing the artifact. The files that mark the artifact as complete are
    removed first, and the manifest last. So no reader takes a half-removed artifact for a complete one, and
    the same command can continue to remove it. With `reuse`, the manifest of a folder with other files gets
    the name manifest.CLEARED, so that the same command may write into this folder after a kill.
    """
    if not path.is_dir():
        manifest.read_header(sidecar(path))
        path.unlink()
        sidecar(path).unlink()
        return []
    cleared = path / manifest.CLEARED
    existing = cleared if is_cleared(path) else path / manifest.NAME
    described = manifest.read_header(existing)
    with unused(existing):
        discard(path, described, {manifest.NAME, cleared.name})
    rest = sorted({*os.listdir(path)} - {manifest.NAME, cleared.name})
    if reuse and rest:
        with suppress(FileNotFoundError):  # it is cleared already
            os.replace(path / manifest.NAME, cleared)
        return rest
    (path / manifest.NAME).unlink(missing_ok=True)
    cleared.unlink(missing_ok=True)
    if not rest and not path.is_symlink():  # the folder behind a link belongs to the user
        path.rmdir()
    return rest


def retire(folder: Path) -> None:
    """Remove an artifact in one step for its readers: its manifest gets the name manifest.CLEARED first."""
    with suppress(FileNotFoundError):  # another process removes it at the same time
        os.replace(folder / manifest.NAME, folder / manifest.CLEARED)
        clear(folder)


def discard(folder: Path, described: Described, keep: set[str], below: str = "") -> None:
    """Remove the files of lmk in an artifact folder, or in its subfolder `below`, except `keep`."""
    own_names = _OwnNames(folder, described)
    names = set(os.listdir(folder / below)) - keep
    for name in sorted(names & COMPLETE) + sorted(names - COMPLETE):
        own_names.remove(folder / below / name)


class _OwnNames:
    """The files and folders of lmk in one artifact."""

    def __init__(self, folder: Path, described: Described) -> None:
        self._folder = folder
        own = f"{re.escape(manifest.NAME)}|{re.escape(LOCK_FILE)}|{PLACES[described.kind]}"
        self._places = re.compile(own, re.ASCII)
        self._unfinished = described.kind == "index"
        self._listed = described.files
        self._of_engine = {*written_files(folder)} if described.kind == "index" else set()
        names = {*self._listed, *self._of_engine}
        self._folders = {str(each) for name in names for each in Path(name).parents}

    def remove(self, path: Path) -> None:
        """Remove a file, a folder or a link. A folder without foreign files first gets a hidden name."""
        if not self._is_own(path):
            return
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            return
        if all(self._is_own(below) for below in path.rglob("*")):
            if not path.name.startswith(REMOVED):
                path = path.rename(path.with_name(REMOVED + path.name))
            shutil.rmtree(path)
            return
        # The list of files is removed last, so that a process can continue after a kill.
        for below in sorted(path.iterdir(), key=lambda each: (each.name == FILES, each)):
            self.remove(below)

    def _is_own(self, path: Path) -> bool:
        parts = path.relative_to(self._folder).parts
        if self._unfinished and _UNFINISHED.fullmatch(parts[0]):
            return True
        whole = "/".join(map(_final_name, parts))
        if whole in self._of_engine or self._places.fullmatch(whole):
            return True
        if path.is_dir() and not path.is_symlink():
            return whole in self._folders
        return whole in self._listed and self._is_unchanged(path, self._listed[whole])

    def _is_unchanged(self, path: Path, listed: WrittenFile) -> bool:
        """Return whether a file is the one in the list.

        Another person may have written the manifest, and could list any file. But nobody can list the digest
        of an unknown file.
        """
        try:
            same_size = not path.is_symlink() and path.lstat().st_size == listed.size
            return same_size and manifest.written(path) == listed
        except OSError:
            return False


def written_files(folder: Path) -> list[str]:
    """Return the files that engines wrote into the numbered subfolders of an index, and their lists.

    A subfolder without a readable list is another person's, and so is a link.
    """
    names = []
    for subfolder in folder.iterdir() if folder.is_dir() else ():
        path = subfolder / FILES
        if not is_count(subfolder.name) or subfolder.is_symlink() or path.is_symlink():
            continue
        with suppress(DataError, OSError):
            listed = [*read_json(path, dict[str, Any], "build the index again"), FILES]
            names += [f"{subfolder.name}/{name}" for name in listed]
    return names


def _final_name(name: str) -> str:
    """Return the name of a file or folder without the temporary prefix of writing or removing it."""
    name = name.removeprefix(REMOVED)
    temporary = _TEMPORARY.fullmatch(name)
    return temporary[1] if temporary else name


def files_in(folder: Path) -> dict[str, Path]:
    """Return all files in a folder and its subfolders, by their paths relative to it, in order."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path for path in paths}


def write_once(folder: Path, described: ExportManifest, write: Callable[[Path], None]) -> None:
    """Create a folder atomically with the files of `write` and its manifest.

    If the folder exists with the same identity, nothing is written. Raises Mismatch for another identity.
    """
    remove_abandoned(folder.absolute())
    if (folder / manifest.NAME).is_file():
        manifest.claim(folder, described)
        return
    with atomic_folder(folder.absolute(), last=manifest.NAME) as growing:
        write(growing)
        files = {name: manifest.written(path) for name, path in files_in(growing).items()}
        manifest.claim(growing, replace(described, files=files))
    (folder / manifest.CLEARED).unlink(missing_ok=True)
