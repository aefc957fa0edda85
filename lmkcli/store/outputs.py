"""What may happen to an output that is there already: only what lmk made is ever replaced."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lmkcli import manifest
from lmkcli.errors import LmkError, Stopped

COMPLETE = {
    "done",
    "built.json",
    "generation.json",
}  # what says that an artifact folder is complete
REMOVED = ".removed."
SIDECAR = ".json"  # run.trec has its manifest in run.trec.json


def sidecar(path: Path) -> Path:
    """Where the manifest of a single-file artifact is."""
    return path.with_name(path.name + SIDECAR)


def is_empty(path: Path) -> bool:
    """Nothing there, an empty folder, or a device such as /dev/stdout.

    A manifest that was killed before it had its name is nothing.
    """
    if path.is_dir():
        return all(name.startswith(f".{manifest.NAME}.") for name in os.listdir(path))
    return not path.exists() or not path.is_file()


def is_artifact(path: Path) -> bool:
    """Whether lmk made what is there."""
    return (path / manifest.NAME).is_file() if path.is_dir() else sidecar(path).is_file()


@contextmanager
def as_it_was(folder: Path) -> Iterator[None]:
    """A refusal leaves no claim behind: the folder is free again if it was, and nothing is whole."""
    fresh = is_empty(folder)
    try:
        yield
    except Stopped:
        raise
    except LmkError:
        if fresh and is_artifact(folder) and not _holds_work(folder):
            clear(folder)
        raise


def _holds_work(folder: Path) -> bool:
    """Whether anything in an artifact folder is complete: a part, a shard, an index."""
    parts = folder / "parts"
    published = parts.is_dir() and any(not name.startswith(".") for name in os.listdir(parts))
    return published or bool(COMPLETE & set(os.listdir(folder)))


def clear(path: Path) -> None:
    """Remove an artifact; FileNotFoundError, and nothing is touched, where it has no manifest.

    What says that it is complete goes first, its manifest last: a half-removed artifact is never
    taken for whole, and the same command can go on removing it.
    """
    if not path.is_dir():
        sidecar(path).stat()
        path.unlink()
        sidecar(path).unlink()
        return
    (path / manifest.NAME).stat()
    names = set(os.listdir(path)) - {manifest.NAME}
    for name in sorted(names & COMPLETE) + sorted(names - COMPLETE):
        _remove(path / name)
    (path / manifest.NAME).unlink()
    path.rmdir()


def _remove(path: Path) -> None:
    """Remove a file or a folder; a folder loses its name at once."""
    if not path.is_dir() or path.is_symlink():
        return path.unlink()
    if not path.name.startswith(REMOVED):
        path = path.rename(path.with_name(REMOVED + path.name))
    shutil.rmtree(path)
