"""What may happen to an output that is there already: only what lmk made is ever replaced.

A folder is lmk's when its manifest says so, and of what is in it only the names that lmk writes.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from lmkcli import manifest
from lmkcli.errors import DataError, Stopped
from lmkcli.system.atomic import atomic_folder

# What says that an artifact folder is complete.
COMPLETE = {"done", "built.json", "generation.json", "training.json"}
REMOVED = ".removed."
SIDECAR = ".json"  # run.trec has its manifest in run.trec.json

_PART = (
    r"(\d{5}of\d{5}-\d{12}-\d{12}|\.growing-\d+-[\w-]+)(/([a-z_]+\.npy|docs\.parquet|part\.json))?"
)
_PARTED = rf"generation\.json|update\.lock|done(/\d+of\d+\.json)?|parts(/{_PART})?"
_BM25 = r"bm25(/([a-z]+(\.csc)?\.index\.(npy|json)|analysis\.json|ids\.parquet))?"
_LUCENE = r"lucene(/(segments_\w+|_\w+\.\w+|write\.lock|analysis\.json))?"
_FILES = rf"faiss(-\d{{5}})?\.(index|ivfdata)|docs\.parquet|{_BM25}|{_LUCENE}"
_SENTENCE = (
    r"(config_sentence_transformers|sentence_bert_config|modules)\.json"
    r"|\d+_\w+(/(config\.json|model\.safetensors))?"
)
_MODEL = (
    r"log\.jsonl|training\.json|README\.md|checkpoints(/checkpoint-\d+(/.*)?)?|\.growing(/.*)?"
    r"|tensorboard(/events\..*)?|heads(/model\.safetensors)?"
    rf"|adapter(/(adapter_config\.json|adapter_model\.safetensors|{_SENTENCE}))?"
    rf"|model(-\d+-of-\d+)?\.safetensors(\.index\.json)?|config\.json|{_SENTENCE}"
)
# The names in a folder of each kind, below it, as regular expressions; each has its manifest too.
NAMES = {
    "tokens": _PARTED,
    "vectors": _PARTED,
    "index": rf"built\.json|update\.lock|({_FILES})|\d+(/({_FILES}))?",
    "model": _MODEL,
    "shards": r"update\.lock|queries-\d+\.npz|trained\.index|\d{5}of\d{5}-(\d+\.npz|faiss\.index)",
    "export": r"vectors\.(npy|parquet)|ids\.txt|index|docid|corpus\.\d+\.pkl|train\.jsonl",
}
INDEX_FILES = re.compile(_FILES)  # names in the folder of an index, or in that of its last update
_TEMPORARY = re.compile(r"\.(.+)\.\d+\.\d+")  # as system/atomic.py names what is being written


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
    """Whether lmk made what is there: its manifest can be read, and is of a kind that is written so."""
    try:
        if path.is_dir():
            return manifest.read_file(path / manifest.NAME).kind in NAMES
        return path.is_file() and manifest.read_file(sidecar(path)).kind == "run"
    except (DataError, OSError):
        return False


def check_sidecar(path: Path, kind: str = "run") -> None:
    """DataError where the manifest of a run, or of another kind of file, would replace what is none."""
    beside = sidecar(path)
    if beside.exists() and manifest_kind(beside) != kind:
        raise DataError(
            f"{beside} is there and is not lmk's, and the manifest of {path.name} has that name: nothing "
            "was touched; choose another output"
        )


def manifest_kind(path: Path) -> str:
    """The kind of artifact that a manifest describes; empty for a file that is none."""
    try:
        return manifest.read_file(path).kind
    except (DataError, OSError):
        return ""


@contextmanager
def rollback_on_error(folder: Path) -> Iterator[None]:
    """A refusal leaves no claim behind: the folder is free again if it was, and nothing is whole."""
    fresh = not (folder / manifest.NAME).exists()
    try:
        yield
    except Stopped:
        raise
    except Exception:  # whatever it was: nobody continues a claim without work
        if fresh and is_artifact(folder) and not _holds_work(folder):
            clear(folder)
        raise


def _holds_work(folder: Path) -> bool:
    """Whether anything in an artifact folder is complete: a part, a shard, an index, a checkpoint."""
    places = [folder / name for name in ("parts", "checkpoints")]
    names = [name for place in places if place.is_dir() for name in os.listdir(place)]
    published = any(not name.startswith(".") for name in names)
    return published or bool(COMPLETE & set(os.listdir(folder)))


def clear(path: Path) -> list[str]:
    """Remove an artifact; returns the names in it that lmk does not write, which stay.

    DataError or FileNotFoundError, and nothing is touched, where it has no manifest of lmk's. What says
    that it is complete goes first, its manifest last: a half-removed artifact is never taken for whole,
    and the same command can go on removing it.
    """
    if not path.is_dir():
        manifest.read_file(sidecar(path))
        path.unlink()
        sidecar(path).unlink()
        return []
    described = manifest.read_file(path / manifest.NAME)
    discard(path, described, {manifest.NAME})
    (path / manifest.NAME).unlink()
    rest = sorted(os.listdir(path))
    if not rest and not path.is_symlink():  # the folder behind a link is the user's
        path.rmdir()
    return rest


def discard(folder: Path, described: manifest.Manifest, keep: set[str], below: str = "") -> None:
    """Remove what lmk wrote in an artifact's folder, or in its subfolder `below`, but what is in `keep`."""
    ours = _Names(folder, described)
    names = set(os.listdir(folder / below)) - keep
    for name in sorted(names & COMPLETE) + sorted(names - COMPLETE):
        ours.remove(folder / below / name)


class _Names:
    """The names that lmk writes in one artifact."""

    def __init__(self, folder: Path, described: manifest.Manifest) -> None:
        self._folder = folder
        self._pattern = re.compile(f"{re.escape(manifest.NAME)}|{NAMES[described.kind]}")
        listed = described.facts.get("files", [])
        self._listed = set(listed) if isinstance(listed, list) else set()
        self._listed |= {str(above) for name in self._listed for above in Path(str(name)).parents}

    def remove(self, path: Path) -> None:
        """Remove a file or a folder; a folder loses its name at once, unless it holds what is not ours."""
        if not self._knows(path):
            return None
        if path.is_symlink() or not path.is_dir():
            return path.unlink()
        if all(self._knows(below) for below in path.rglob("*")):
            if not path.name.startswith(REMOVED):
                path = path.rename(path.with_name(REMOVED + path.name))
            return shutil.rmtree(path)
        for below in sorted(path.iterdir()):
            self.remove(below)

    def _knows(self, path: Path) -> bool:
        names = [_plain(name) for name in path.relative_to(self._folder).parts]
        whole = "/".join(names)
        return whole in self._listed or self._pattern.fullmatch(whole) is not None


def _plain(name: str) -> str:
    """The name that something will have, or had, that is being written or removed."""
    name = name.removeprefix(REMOVED)
    temporary = _TEMPORARY.fullmatch(name)
    return temporary[1] if temporary else name


def write_once(folder: Path, described: manifest.Manifest, write: Callable[[Path], None]) -> None:
    """Let `write` fill a folder that appears whole, with its manifest; Mismatch if another is there."""
    if (folder / manifest.NAME).is_file():
        manifest.claim(folder, described)
        return
    with atomic_folder(folder.absolute()) as growing:
        write(growing)
        files = sorted(
            str(file.relative_to(growing)) for file in growing.rglob("*") if file.is_file()
        )
        manifest.claim(growing, replace(described, facts={**described.facts, "files": files}))
