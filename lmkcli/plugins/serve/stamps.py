"""Stamps: whether an update has published new files of an index."""

import os
from pathlib import Path

from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import IndexManifest
from lmkcli.errors import DataError
from lmkcli.retrieval.index_folder import BUILT
from lmkcli.store.parts import DONE, GENERATION

Stamp = tuple[tuple[int, int, int], ...]


def stamp(folder: Path) -> Stamp:
    """Return the state of the files that an update replaces: their time, size and inode; zeros for missing
    files.

    The stamp of an index over vectors includes its vectors.
    """
    folders = [folder]
    try:
        described = manifest.read(folder)
        if isinstance(described, IndexManifest) and described.facts.vectors:
            folders.append(folder / described.facts.vectors)
    except (OSError, DataError):
        pass  # the folder is replaced just now, or another tool made it
    names = (manifest.NAME, BUILT, GENERATION, DONE)
    return tuple(_facts(each / name) for each in folders for name in names)


def _facts(path: Path) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # a recorded path can contain a null character
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)
