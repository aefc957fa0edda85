"""Where downloads and what is made of them are kept, how much that is, and what the disk has left."""

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import NamedTuple


class Place(NamedTuple):
    """A folder that may not be there yet: bytes in it (`whole`: all were counted), and on its disk."""

    folder: Path
    bytes: int
    whole: bool
    free: int
    writable: bool


def hub() -> Path:
    """Where the Hugging Face libraries keep models and collections."""
    home = os.environ.get("HF_HOME") or f"{_user()}/huggingface"
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(os.path.expanduser(os.path.expandvars(named or f"{home}/hub")))


def ir_datasets() -> Path:
    """Where ir_datasets keeps collections."""
    return Path(os.environ.get("IR_DATASETS_HOME") or Path.home() / ".ir_datasets")


def own() -> Path:
    """Where lmk keeps what it made of models; a temporary folder where no home directory is known."""
    cache = _user()
    return Path(cache if os.path.isabs(cache) else tempfile.gettempdir()) / "lmk"


def _user() -> str:
    return os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")


def look(folder: Path, seconds: float) -> Place:
    """A folder as it is now; counting its files ends after so many seconds."""
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    counted, whole = _size(folder, time.monotonic() + seconds)
    writable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    return Place(folder, counted, whole, shutil.disk_usage(there).free, writable)


def _size(folder: Path, until: float) -> tuple[int, bool]:
    """Bytes of the files below a folder, links not followed, and whether all were counted in time."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_size
            except OSError:  # it went away meanwhile
                continue
        if time.monotonic() > until:
            return total, False
    return total, True
