"""Inverted lists of FAISS: joined from shards, searched for a range of numbers, or copied to a GPU.

Every shard has the same trained centroids: list i of a shard contains the shard's vectors that are nearest
to centroid i. There are two ways to join shards:

- `join` concatenates the lists i of all shards to list i of the index, from file to file. Shards are joined
  in order, so the lists equal the lists of an index that one process built.
- `keep_apart` links the files of shards next to the index. `read_with_lists` maps them, and stacks their
  lists in the same order when the index is opened.
"""

import ctypes
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import faiss
import numpy as np
from faiss.contrib.ondisk import merge_ondisk
from numpy.typing import NDArray

from lmkcli.errors import DataError
from lmkcli.retrieval.engines.faiss.factory import error_text

LISTS = "faiss.ivfdata"  # the joined lists, next to faiss.index
_APART, _ALL_APART = "faiss-{:05d}.index", "faiss-*.index"  # files of shards that are kept apart


def lists_of(index: Any) -> Any:
    """Return the index of inverted lists inside rotations; None for other indexes.

    Refined lists (IVFPQR), and lists with blocked codes (FastScan), cannot be joined or divided. The result
    is a view: `index` owns the memory and must be kept.
    """
    core = faiss.downcast_index(index)
    if isinstance(core, faiss.IndexPreTransform):
        return lists_of(core.index)
    unsupported = isinstance(core, faiss.IndexIVFPQR | faiss.IndexIVFFastScan)
    return core if isinstance(core, faiss.IndexIVF) and not unsupported else None


def range_parameters(index: Any, numbers: range) -> Any:
    """Return parameters that restrict a search to a range of vector numbers."""
    lists: Any = faiss.SearchParametersIVF()
    lists.nprobe = lists_of(index).nprobe
    # True: numbers are sorted in each list, so FAISS finds the range by bisection.
    lists.sel = faiss.IDSelectorRange(numbers.start, numbers.stop, True)
    if not isinstance(faiss.downcast_index(index), faiss.IndexPreTransform):
        return lists
    transformed: Any = faiss.SearchParametersPreTransform()
    transformed.index_params = lists
    return transformed


def join(empty: Any, shards: list[Path], folder: Path) -> Path:
    """Write the joined lists of shards to a file, attach it to a trained empty index, and return its path."""
    joined = folder / LISTS
    with _silenced():
        try:
            merge_ondisk(empty, [str(path) for path in shards], str(joined))
        except (RuntimeError, AssertionError) as error:
            raise DataError(
                f"the shards in {shards[0].parent} cannot be joined ({error_text(error)}); remove this "
                "folder and build the shards again"
            ) from None
    on_disk: Any = faiss.downcast_InvertedLists(lists_of(empty).invlists)
    on_disk.filename = LISTS
    return joined


def keep_apart(shards: list[Path], folder: Path) -> list[Path]:
    """Link the files of shards into the folder of an empty index, in order, and return the new paths."""
    names = [folder / _APART.format(number) for number in range(len(shards))]
    for shard, name in zip(shards, names, strict=True):
        try:
            os.link(shard, name)
        except OSError:  # a file system without hard links
            shutil.copyfile(shard, name)
    return names


def list_files(folder: Path) -> list[Path]:
    """Return the files with the lists of an index that was joined from shards, in order."""
    return [*folder.glob(LISTS), *sorted(folder.glob(_ALL_APART))]


def read_with_lists(path: Path) -> Any:
    """Read an index with its lists in other files, which stay on disk.

    Raises RuntimeError if it cannot be read.
    """
    files = list_files(path.parent)
    with _silenced():
        index = _read(path, faiss.IO_FLAG_ONDISK_SAME_DIR | faiss.IO_FLAG_READ_ONLY)
        if path.with_name(LISTS) not in files:
            _stack(index, [_mapped_lists(shard) for shard in files])
    return index


def _stack(index: Any, shards: list[Any]) -> None:
    """Give an empty index the lists of shards: list i is the concatenation of the lists i of all shards."""
    pointers = vars(faiss)["InvertedListsPtrVector"]()  # missing in the type stubs of FAISS
    for shard_lists in shards:
        pointers.push_back(shard_lists)
    stacked: Any = faiss.HStackInvertedLists(pointers.size(), pointers.data())
    core = lists_of(index)
    stacked.this.disown()  # the index owns and frees them
    core.replace_invlists(stacked, True)
    core.ntotal = index.ntotal = stacked.compute_ntotal()


def _mapped_lists(path: Path) -> Any:
    """Map the lists of an index from disk.

    They stay mapped until the process ends, because FAISS frees lists only together with their index.
    """
    index = _read(path, faiss.IO_FLAG_MMAP)
    core = lists_of(index)
    core.own_invlists = False
    return core.invlists


def _read(path: Path, flags: int) -> Any:
    """Read an index. Lists on disk stay there."""
    index: Any = faiss.read_index(str(path), flags)
    if (core := lists_of(index)) is None:
        raise RuntimeError("it has no inverted lists, but files of lists are next to it")
    on_disk: Any = faiss.downcast_InvertedLists(core.invlists)
    if isinstance(on_disk, faiss.OnDiskInvertedLists):
        on_disk.prefetch_nthread = 0  # starting 32 threads per search takes longer than the search
    return index


@contextmanager
def _silenced() -> Iterator[None]:
    """Suppress messages of FAISS about lists on disk: stdout is for results."""
    libc = ctypes.CDLL(None)
    sys.stdout.flush()
    libc.fflush(None)
    try:
        stdout = os.dup(1)
    except OSError:  # stdout is closed
        yield
        return
    try:
        with open(os.devnull, "wb") as devnull:
            os.dup2(devnull.fileno(), 1)
        yield
    finally:
        libc.fflush(None)
        os.dup2(stdout, 1)
        os.close(stdout)


MOST = 2048  # the limit of FAISS kernels for candidates and for lists of a search
_ON_CPU = "; it is searched on the CPU"


class GpuLists:
    """A copy of an index of inverted lists, with its rotations, on a GPU. Numbers keep 64 bits."""

    def __init__(self, copy: Any, resources: Any) -> None:
        self._copy, self._resources = copy, resources  # the copy uses the resources

    @classmethod
    def of(cls, index: Any, device: int) -> tuple[Self | None, str]:
        """Copy an index to GPU `device`. Returns None with the reason if that is impossible.

        Tables of product quantisation are float16 on the GPU, because float32 tables of 64 codes do not fit.
        Candidates are scored exactly afterwards.
        """
        if not count():
            return (
                None,
                f'FAISS finds no GPU (pip install "lmkcli[faiss-gpu]" installs a build for GPUs){_ON_CPU}',
            )
        gpu: Any = faiss
        try:
            resources, options = gpu.StandardGpuResources(), gpu.GpuClonerOptions()
            options.useFloat16 = options.allowCpuCoarseQuantizer = True
            copy = gpu.index_cpu_to_gpu(resources, device, index, options)
        except RuntimeError as error:
            return None, f"FAISS cannot hold this index on the GPU ({error_text(error)}){_ON_CPU}"
        return cls(copy, resources), ""

    @staticmethod
    def accepts(k: int, probes: int) -> bool:
        """Return whether FAISS kernels support a search for `k` candidates in `probes` lists."""
        return max(k, probes) <= MOST

    def search(
        self, queries: NDArray[np.float32], k: int, probes: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return scores and numbers [n, k] of the best vectors in `probes` lists, padded with -1.

        Raises DataError if the GPU fails, for instance because its memory is full.
        """
        gpu: Any = faiss
        gpu.GpuParameterSpace().set_index_parameter(self._copy, "nprobe", probes)
        try:
            scores, rows = self._copy.search(queries, k)
        except RuntimeError as error:
            raise DataError(f"the GPU failed ({error_text(error)}); use --device cpu") from None
        return scores, rows


def count() -> int:
    """Return the number of GPUs that FAISS can use; 0 if it was built without GPU support."""
    return int(getattr(faiss, "get_num_gpus", int)())
