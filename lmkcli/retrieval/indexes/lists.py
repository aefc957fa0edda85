"""FAISS's inverted lists: searched for a range of numbers alone, and joined on disk from those of shards."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import faiss
from faiss.contrib.ondisk import merge_ondisk

from lmkcli.system.atomic import atomic_file

LISTS = "faiss.ivfdata"  # beside faiss.index, where lists were joined


def lists_of(index: Any) -> Any:
    """The inverted lists that decide a search alone, under rotations; None where there are none."""
    known = faiss.downcast_index(index)  # `index` owns what it stands for, and must outlive it
    if isinstance(known, faiss.IndexPreTransform):
        return lists_of(known.index)
    others = isinstance(known, faiss.IndexIVFPQR | faiss.IndexIVFFastScan)  # refined, or in blocks
    return known if isinstance(known, faiss.IndexIVF) and not others else None


def within(index: Any, numbers: range) -> Any:
    """Search parameters by which an index of lists finds a range of numbers alone."""
    lists: Any = faiss.SearchParametersIVF()
    lists.nprobe = lists_of(index).nprobe
    lists.sel = faiss.IDSelectorRange(numbers.start, numbers.stop, True)  # lists are in their order
    if not isinstance(faiss.downcast_index(index), faiss.IndexPreTransform):
        return lists
    under: Any = faiss.SearchParametersPreTransform()
    under.index_params = lists
    return under


def join(empty: Any, shards: list[Path], folder: Path) -> None:
    """Give a trained index the lists of shards, in their order, which go from file to file: to LISTS."""
    with atomic_file(folder / LISTS) as temporary, _silenced():
        merge_ondisk(empty, [str(path) for path in shards], str(temporary))
    on_disk: Any = faiss.downcast_InvertedLists(lists_of(empty).invlists)
    on_disk.filename = LISTS


def read_joined(path: Path) -> Any:
    """The index whose lists are beside it, which stay on disk; RuntimeError where it cannot be read."""
    with _silenced():
        flags = faiss.IO_FLAG_ONDISK_SAME_DIR | faiss.IO_FLAG_READ_ONLY
        index: Any = faiss.read_index(str(path), flags)
    on_disk: Any = faiss.downcast_InvertedLists(lists_of(index).invlists)
    on_disk.prefetch_nthread = (
        0  # its threads, 32 for every search, cost more than the search itself
    )
    return index


@contextmanager
def _silenced() -> Iterator[None]:
    """Without what FAISS prints of lists on disk: stdout is for results."""
    c = ctypes.CDLL(None)
    sys.stdout.flush()
    c.fflush(None)
    try:
        kept = os.dup(1)
    except OSError:  # nobody listens
        yield
        return
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        yield
    finally:
        c.fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
