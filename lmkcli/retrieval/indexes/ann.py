"""Approximate search with FAISS: an HNSW graph, inverted lists, or any FAISS factory string.

Scores are inner products (vectors are normalised before they come here when the model's similarity
is cosine). An index knows numbers of vectors alone; whose they are, and exact scores, is dense.py's part.
Graphs are promised by recall: FAISS links vectors in parallel, so two builds may differ in a few
edges. Trained kinds are the same each time: their sample is drawn with a fixed seed.
"""

import math
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from lmkcli.errors import DataError, UsageError
from lmkcli.progress import Progress
from lmkcli.retrieval.indexes import lists
from lmkcli.retrieval.indexes.ann_memory import (
    check_disk,
    check_fits,
    check_memory,
    forecast,
    sample_bytes,
    storage_bytes,
)
from lmkcli.retrieval.indexes.ann_training import check_trainable, sample_size, train_on_sample
from lmkcli.retrieval.indexes.factories import core_of, empty_index, said
from lmkcli.retrieval.indexes.gpu_lists import GpuLists
from lmkcli.retrieval.kinds import AnnKind, Blocks, Candidates, Share, check_finite
from lmkcli.settings import AnnSettings
from lmkcli.system.atomic import atomic_file

FILE = "faiss.index"
_LARGEST = (1 << 31) - 1  # that FAISS takes


class Ann(AnnKind):
    """An opened FAISS index.

    `overfetch` is 1 where vectors are kept as they are, else 4; `note` says why inverted lists are not
    on the GPU that was asked for.
    """

    def __init__(self, index: Any, settings: AnnSettings, gpu: int | None = None) -> None:
        self._index = index
        self._settings = settings
        self._on_gpu, self.note = None, ""
        if gpu is not None and lists.lists_of(index) is not None:
            self._on_gpu, self.note = GpuLists.of(index, gpu)
        self.rows = self.most = int(index.ntotal)
        self.divisible = lists.lists_of(index) is not None
        self.overfetch = 1 if int(storage_bytes(index)) >= 4 * int(index.d) else 4

    @classmethod
    def build(
        cls, blocks: Blocks, folder: Path, settings: AnnSettings, progress: Progress
    ) -> dict[str, Any]:
        """Write `folder/faiss.index` whole or not at all; returns facts (factory, rows, bytes).

        UsageError for a factory string that FAISS refuses; DataError, before any work, when
        there are too few vectors to train on or too little memory.
        """
        index, factory = _buildable(blocks, settings)
        _clear_lists(folder)
        trained = train_on_sample(index, blocks, settings.seed)
        if isinstance(core_of(index), faiss.IndexHNSW):
            core_of(index).hnsw.efConstruction = min(settings.ef_construction, _LARGEST)
        _add(index, blocks, progress)
        return {**_write(index, folder), "factory": factory, "training_rows": trained}

    @classmethod
    def append(cls, blocks: Blocks, old: Path, folder: Path, progress: Progress) -> dict[str, Any]:
        """Write the index of folder `old` to `folder` with the rows of `blocks` behind its own; facts.

        What was trained stays as it was. DataError when the index has another dimension or its
        kind cannot grow.
        """
        index = _read(old, mapped=False)
        if index.d != blocks.dim:
            raise DataError(
                f"{old} holds vectors of {index.d} dimensions, and these have {blocks.dim}"
            )
        _add(index, blocks, progress)
        return _write(index, folder)

    @classmethod
    def train(cls, blocks: Blocks, path: Path, settings: AnnSettings) -> None:
        """Write an index that has learned from all vectors and holds none, for shards to fill.

        DataError as of `build`.
        """
        index, factory = empty_index(settings, blocks.rows, blocks.dim)
        check_trainable(index, factory, blocks.rows)
        check_fits(
            f"training {factory}", sample_bytes(index, blocks.rows), settings, "use fewer lists"
        )
        train_on_sample(index, blocks, settings.seed)
        _write_file(index, path)

    @classmethod
    def build_shard(
        cls, share: Share, trained: Path, path: Path, settings: AnnSettings, progress: Progress
    ) -> None:
        """Add a shard's vectors to a trained index, and write that to `path`, whole or not at all."""
        index = _read_file(trained, 0)
        needed = forecast(index, share.blocks.rows)
        check_fits("a shard", needed, settings, "more shards take less each")
        _add(index, share.blocks, progress, share.first)
        _write_file(index, path)

    @classmethod
    def join(
        cls, trained: Path, shards: list[Path], folder: Path, settings: AnnSettings, apart: bool
    ) -> dict[str, Any]:
        """Write the index of all shards into `folder`, as `build` would have made it; facts.

        Its lists go from file to file, to one beside `faiss.index`, and are never in memory as a whole.
        `apart`: each shard stays a file, and all are searched as one index. DataError for a full disk.
        """
        index = _read_file(trained, 0)
        _clear_lists(folder)
        if apart:
            beside = lists.put_beside(shards, folder)
            _write_file(index, folder / FILE)
            index = _read(folder, mapped=True)
        else:
            check_disk(shards, folder)
            beside = [lists.join(index, shards, folder)]
            _write_file(index, folder / FILE)
        untrained, factory = empty_index(settings, index.ntotal, index.d)
        sample = sample_size(untrained, index.ntotal)
        return {
            **_facts(index, [folder / FILE, *beside]),
            "factory": factory,
            "training_rows": sample,
        }

    @classmethod
    def open(cls, folder: Path, settings: AnnSettings, gpu: int | None = None) -> "Ann":
        """The index in `folder`, mapped from disk where FAISS can; DataError if unreadable.

        Inverted lists are copied to the GPU of that number, if one is given.
        """
        return cls(_read(folder, mapped=True), settings, gpu)

    @staticmethod
    def check_buildable(blocks: Blocks, settings: AnnSettings) -> None:
        """What `build` refuses before any work."""
        _buildable(blocks, settings)

    @staticmethod
    def check_joinable(blocks: Blocks, settings: AnnSettings) -> None:
        """UsageError for a kind that cannot be joined from shards."""
        index, factory = empty_index(settings, blocks.rows, blocks.dim)
        if lists.lists_of(index) is None:
            raise UsageError(
                f"--shard: {factory} is built whole; shards are for inverted lists, such as --kind ivf"
            )

    @staticmethod
    def memory(blocks: Blocks, settings: AnnSettings) -> int:
        """Bytes that building takes at its peak, roughly; UsageError for an unknown factory string."""
        index, _ = empty_index(settings, blocks.rows, blocks.dim)
        return forecast(index, blocks.rows)

    def candidates(
        self, queries: NDArray[np.float32], k: int, among: range | None = None
    ) -> Candidates:
        """The approximately k best rows of each query [n, dim], scored as the index stores them."""
        core = core_of(self._index)
        asked = np.ascontiguousarray(queries, dtype=np.float32)
        if isinstance(core, faiss.IndexHNSW):
            breadth = max(self._settings.ef_search or max(128, 2 * k), k)
            core.hnsw.efSearch = max(1, min(breadth, core.ntotal))  # FAISS holds room for all of it
        elif isinstance(core, faiss.IndexIVF):
            core.nprobe = min(self._settings.nprobe or _probes(core, k), core.nlist)
        if among is None and self._on_gpu and self._on_gpu.takes(k, core.nprobe):
            scores, rows = self._on_gpu.search(asked, k, core.nprobe)
        else:
            how = None if among is None else lists.within(self._index, among)
            scores, rows = self._index.search(asked, k, params=how)
        return Candidates(np.where(rows < 0, np.float32(-np.inf), scores), rows)


def _buildable(blocks: Blocks, settings: AnnSettings) -> tuple[Any, str]:
    """The empty index of these vectors, and its factory string; DataError where it cannot be filled here."""
    index, factory = empty_index(settings, blocks.rows, blocks.dim)
    check_trainable(index, factory, blocks.rows)
    check_memory(index, settings, blocks)
    return index, factory


def _probes(core: Any, k: int) -> int:
    """Lists to search: a 32nd of all, 32 at least, and as many as hold 20 k vectors on average."""
    lists = int(core.nlist)
    return max(32, lists // 32, math.ceil(20 * k * lists / max(1, int(core.ntotal))))


def _add(index: Any, blocks: Blocks, progress: Progress, first: int | None = None) -> None:
    """Add vectors behind those that are there, or under the numbers from `first` on."""
    done = 0
    for block in blocks:
        check_finite(float(np.abs(block.vectors).max(initial=0)))
        try:
            if first is None:
                index.add(block.vectors)
            else:
                numbers = np.arange(len(block.vectors), dtype=np.int64) + first + done
                index.add_with_ids(block.vectors, numbers)
        except RuntimeError as error:
            raise DataError(
                f"FAISS could not add vectors to this kind of index: {said(error)}"
            ) from None
        done += len(block.vectors)
        progress(done, blocks.rows, "vectors")


def _write(index: Any, folder: Path) -> dict[str, Any]:
    _write_file(index, folder / FILE)
    return _facts(index, [folder / FILE])


def _facts(index: Any, files: list[Path]) -> dict[str, Any]:
    size = sum(path.stat().st_size for path in files)
    facts = {"rows": int(index.ntotal), "dim": int(index.d), "bytes": size}
    return {**facts, "faiss": faiss.__version__}


def _clear_lists(folder: Path) -> None:
    """Remove what a life left that was killed while it joined shards."""
    for path in lists.beside(folder):
        path.unlink()


def _write_file(index: Any, path: Path) -> None:
    with atomic_file(path) as temporary:
        try:
            faiss.write_index(index, str(temporary))
        except RuntimeError as error:
            raise DataError(f"{path} cannot be written: {said(error)}") from None


def _read(folder: Path, mapped: bool) -> Any:
    with_lists = bool(lists.beside(folder))
    if with_lists and not mapped:
        raise DataError("an index that was built in shards cannot grow")
    return _read_file(folder / FILE, faiss.IO_FLAG_MMAP_IFC if mapped else 0, with_lists)


def _read_file(path: Path, flags: int, with_lists: bool = False) -> Any:
    try:
        return lists.read_with_lists(path) if with_lists else faiss.read_index(str(path), flags)
    except RuntimeError as error:
        raise DataError(f"{path} cannot be read ({said(error)}); build the index again") from None
