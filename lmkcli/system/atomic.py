"""Files and folders that appear whole or not at all: written beside their place, synced, renamed."""

import errno
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`; synced and renamed onto it when the block ends well."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path`; synced, and put in its place when the block ends well.

    Into a folder that is not empty its entries go one by one, in the order in which they were made.
    """
    path = destination(path)  # beside what a link leads to
    growing = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    growing.mkdir(parents=True)
    try:
        yield growing
        for entry in [*growing.iterdir(), growing]:
            sync(entry)
        if path.is_dir() and os.listdir(path):
            for entry in sorted(growing.iterdir(), key=lambda item: item.stat().st_mtime_ns):
                os.replace(entry, path / entry.name)
        else:
            os.rename(growing, path)
        sync(path.parent)
    finally:
        shutil.rmtree(growing, ignore_errors=True)


def destination(path: Path) -> Path:
    """What a name stands for, where links lead to another one; OSError for a link that leads to itself."""
    real = Path(os.path.realpath(path))
    if real.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return real


def sync(path: Path) -> None:
    """Bring what was written of a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
