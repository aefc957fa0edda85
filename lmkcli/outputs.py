"""What may happen to an output that is there already: only what lmk made is ever replaced."""

import os
import shutil
from pathlib import Path

from lmkcli import manifest

SIDECAR = ".json"  # run.trec has its manifest in run.trec.json


def sidecar(path: Path) -> Path:
    """Where the manifest of a single-file artifact is."""
    return path.with_name(path.name + SIDECAR)


def is_empty(path: Path) -> bool:
    """Nothing there, an empty folder, or a device such as /dev/stdout."""
    if path.is_dir():
        return not os.listdir(path)
    return not path.exists() or not path.is_file()


def is_artifact(path: Path) -> bool:
    """Whether lmk made what is there."""
    return (path / manifest.NAME).is_file() if path.is_dir() else sidecar(path).is_file()


def clear(path: Path) -> None:
    """Remove an artifact; its manifest goes first, so that a half-removed one is never opened."""
    if path.is_dir():
        (path / manifest.NAME).unlink()
        shutil.rmtree(path)
    else:
        sidecar(path).unlink()
        path.unlink()
