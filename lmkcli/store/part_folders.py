"""A part on disk: it grows under a temporary name, is published by its own, and is removed in the end."""

import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path

from lmkcli.data.collection import Shard
from lmkcli.store.parts import ADDED, PARTS, PartName
from lmkcli.system.atomic import sync

ABANDONED_SECONDS = 3600.0
_FILES = re.compile(r"[a-z_]+\.npy|docs\.parquet|part\.json")  # of a part


def create(folder: Path, shard: Shard) -> Path:
    """An empty temporary folder in which a part can grow; sweeps up what killed jobs left."""
    _sweep(folder, f".growing-{shard.number}-")
    path = folder / PARTS / f".growing-{shard.number}-{os.getpid()}-{time.monotonic_ns()}"
    path.mkdir(parents=True)
    return path


def _sweep(folder: Path, prefix: str) -> None:
    """Remove growing parts that nobody has touched for long: an earlier life may still be running."""
    for path in (folder / PARTS).glob(f"{prefix}*"):
        try:
            newest = max(
                (entry.stat().st_mtime for entry in os.scandir(path)), default=path.stat().st_mtime
            )
        except FileNotFoundError:
            continue
        if time.time() - newest > ABANDONED_SECONDS:
            remove(path)


def publish(growing: Path, name: PartName) -> Path:
    """Sync a grown part and give it its name; if that part is already there, drop this one."""
    final = growing.parent / str(name)
    for entry in os.scandir(growing):
        sync(Path(entry.path))
    sync(growing)
    try:
        os.rename(growing, final)
    except OSError:
        if not final.is_dir():
            raise
        shutil.rmtree(growing)  # another life of the same task was quicker
    sync(final.parent)
    return final


def retire(part: Path) -> list[str]:
    """Remove a published part; it loses its name at once, so that nobody finds half of it.

    Returns what is in it that lmk did not write, which stays where it is.
    """
    foreign = sorted(name for name in os.listdir(part) if not _FILES.fullmatch(name))
    if not foreign:
        hidden = part.with_name(f".growing-{ADDED.number}-{part.name}")
        os.rename(part, hidden)
        part = hidden
    remove(part)
    return foreign


def remove(growing: Path) -> None:
    """Remove the files of a part, and its folder if nothing else is in it."""
    with suppress(OSError):
        for name in filter(_FILES.fullmatch, os.listdir(growing)):
            os.unlink(growing / name)
        os.rmdir(growing)
