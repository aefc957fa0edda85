"""Caches of downloads and of derived files: their folders, their sizes, and the free space on their disks."""

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import NamedTuple


class CacheFolder(NamedTuple):
    """The state of a cache folder, which may not exist yet."""

    folder: Path
    bytes: int
    """Size of the files that were counted."""
    whole: bool
    """Whether all files were counted."""
    free: int
    """Free bytes on the disk."""
    writable: bool


class Kept(NamedTuple):
    """Something in the cache of lmk: what it is, its folder, and the time of its last use, if known."""

    name: str
    folder: Path
    used: float | None = None


def hub_cache() -> Path:
    """Return the folder in which the Hugging Face libraries keep models and datasets."""
    home = os.environ.get("HF_HOME") or f"{_user_cache()}/huggingface"
    cache = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(os.path.expanduser(os.path.expandvars(cache or f"{home}/hub")))


def cached_commits(repository: str, kind: str) -> list[str]:
    """Return the commits in the cache of the hub of a repository without a main branch there.

    `kind` is "model" or "dataset". A commit that was downloaded by its name leaves no name of a branch.
    """
    folder = hub_cache() / f"{kind}s--{repository.replace('/', '--')}"
    if (folder / "refs" / "main").is_file():
        return []
    return sorted(path.name for path in folder.glob("snapshots/*") if any(path.iterdir()))


def ir_datasets_cache() -> Path:
    """Return the folder in which ir_datasets keeps collections."""
    return Path(os.environ.get("IR_DATASETS_HOME") or Path.home() / ".ir_datasets")


def lmk_cache() -> Path:
    """Return the folder for files that lmk derives from models; a temporary folder
    without a home directory.
    """
    cache = _user_cache()
    return Path(cache if os.path.isabs(cache) else tempfile.gettempdir()) / "lmk"


def _user_cache() -> str:
    return os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")


def inspect_folder(folder: Path, seconds: float) -> CacheFolder:
    """Measure a cache folder; counting its files ends after `seconds`."""
    existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    size, whole = _size(folder, time.monotonic() + seconds)
    writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    return CacheFolder(folder, size, whole, shutil.disk_usage(existing).free, writable)


def _size(folder: Path, deadline: float) -> tuple[int, bool]:
    """Bytes of the files below a folder, and whether all were counted before `deadline`.

    Links are not followed.
    """
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_size
            except OSError:  # deleted in the meantime
                continue
        if time.monotonic() > deadline:
            return total, False
    return total, True
