"""FAISS's inverted lists: searched for a range of numbers alone, and those of shards: joined on disk, or
left in files of their own and read as one.
"""

import ctypes
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import faiss
from faiss.contrib.ondisk import merge_ondisk

from lmkcli.system.atomic import atomic_file

LISTS = "faiss.ivfdata"  # beside faiss.index, where lists were joined
_APART, _ALL_APART = "faiss-{:05d}.index", "faiss-*.index"  # beside it, where they were not


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


def join(empty: Any, shards: list[Path], folder: Path) -> Path:
    """Give a trained index the lists of shards, in their order, which go from file to file; the new one."""
    joined = folder / LISTS
    with atomic_file(joined) as temporary, _silenced():
        merge_ondisk(empty, [str(path) for path in shards], str(temporary))
    on_disk: Any = faiss.downcast_InvertedLists(lists_of(empty).invlists)
    on_disk.filename = LISTS
    return joined


def put_beside(shards: list[Path], folder: Path) -> list[Path]:
    """Give the files of shards, in their order, names beside an index that holds nothing; these."""
    names = [folder / _APART.format(number) for number in range(len(shards))]
    for shard, name in zip(shards, names, strict=True):
        with atomic_file(name) as temporary:
            try:
                os.link(shard, temporary)
            except OSError:  # a file system without links
                shutil.copyfile(shard, temporary)
    return names


def beside(folder: Path) -> list[Path]:
    """The files of their own in which the lists of the index in a folder are, in order."""
    return [*folder.glob(LISTS), *sorted(folder.glob(_ALL_APART))]


def read_with_lists(path: Path) -> Any:
    """The index whose lists are beside it, which stay on disk; RuntimeError where it cannot be read."""
    files = beside(path.parent)
    with _silenced():
        index = _read(path, faiss.IO_FLAG_ONDISK_SAME_DIR | faiss.IO_FLAG_READ_ONLY)
        if path.with_name(LISTS) not in files:
            _stack(index, [_lists_alone(shard) for shard in files])
    return index


def _stack(index: Any, shards: list[Any]) -> None:
    """Give an index that holds nothing the lists of shards, each behind those of the one before."""
    pointers = vars(faiss)["InvertedListsPtrVector"]()  # which the stubs lack
    for each in shards:
        pointers.push_back(each)
    stacked: Any = faiss.HStackInvertedLists(pointers.size(), pointers.data())
    core = lists_of(index)
    stacked.this.disown()
    core.replace_invlists(stacked, True)
    core.ntotal = index.ntotal = stacked.compute_ntotal()


def _lists_alone(path: Path) -> Any:
    """The lists of an index, on disk, without what it has learned.

    They stay mapped until the process ends: FAISS gives nobody but an index the right to free them.
    """
    index = _read(path, faiss.IO_FLAG_MMAP)
    core = lists_of(index)
    core.own_invlists = False
    return core.invlists


def _read(path: Path, flags: int) -> Any:
    """An index whose lists stay on disk, if it has any and the flags say how."""
    index: Any = faiss.read_index(str(path), flags)
    on_disk: Any = faiss.downcast_InvertedLists(lists_of(index).invlists)
    if isinstance(on_disk, faiss.OnDiskInvertedLists):
        on_disk.prefetch_nthread = 0  # 32 threads for every search cost more than it does itself
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
