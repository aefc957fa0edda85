"""Approximate search with FAISS: an HNSW graph, inverted lists, or any FAISS factory string.

Scores are inner products; encoders normalise vectors for cosine similarity. An index stores only numbers of
vectors: dense/candidates.py maps them to documents and scores them exactly. Trained kinds are reproducible,
because their sample is drawn with a fixed seed. Graphs are not: FAISS links vectors in parallel, so two
builds may differ in a few edges. Tests check the recall of graphs.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
from numpy.typing import NDArray

from lmkcli.errors import DataError, UsageError
from lmkcli.progress import Progress
from lmkcli.retrieval.engines.faiss import lists
from lmkcli.retrieval.engines.faiss.factory import core_of, empty_index, error_text
from lmkcli.retrieval.engines.faiss.faiss_settings import FaissSettings
from lmkcli.retrieval.engines.faiss.lists import GpuLists
from lmkcli.retrieval.engines.faiss.resources import (
    check_disk,
    check_fits,
    check_memory,
    check_trainable,
    forecast,
    sample_bytes,
    sample_size,
    storage_bytes,
    train_on_sample,
)
from lmkcli.retrieval.vectors.vector_search import Blocks, Candidates, check_finite

FILE = "faiss.index"
_LARGEST = (1 << 31) - 1  # the largest int that FAISS accepts


class Share(NamedTuple):
    """The vectors of one shard, and the number of its first vector."""

    blocks: Blocks
    first: int


class FaissIndex:
    """An opened FAISS index.

    overfetch: 1 if vectors are stored in float32, 4 if they are compressed.
    note: the reason why inverted lists are not on the requested GPU; else empty.
    """

    def __init__(self, index: Any, settings: FaissSettings, gpu: int | None = None) -> None:
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
        cls, blocks: Blocks, folder: Path, settings: FaissSettings, progress: Progress
    ) -> dict[str, Any]:
        """Write `folder/faiss.index`, and return its facts (factory, rows, bytes).

        Raises UsageError for a factory string that FAISS refuses. Raises DataError, before any work, for too
        few training vectors or too little memory.
        """
        index, factory = _buildable(blocks, settings)
        trained = train_on_sample(index, blocks, settings.seed)
        if isinstance(core_of(index), faiss.IndexHNSW):
            core_of(index).hnsw.efConstruction = min(settings.ef_construction, _LARGEST)
        _add(index, blocks, progress)
        return {**_write(index, folder), "factory": factory, "training_rows": trained}

    @classmethod
    def append(cls, blocks: Blocks, old: Path, folder: Path, progress: Progress) -> dict[str, Any]:
        """Add the rows of `blocks` to the index in folder `old`, write it to `folder`, and return its facts.

        The index is not trained again. Raises DataError if it has another dimension, or if its kind does not
        allow new rows.
        """
        index = _read(old, mapped=False)
        if index.d != blocks.dim:
            raise DataError(
                f"{old} holds vectors of {index.d} dimensions, and these have {blocks.dim}"
            )
        _add(index, blocks, progress)
        return _write(index, folder)

    @classmethod
    def train(cls, blocks: Blocks, path: Path, settings: FaissSettings) -> None:
        """Write a trained index without vectors. Each shard then adds its vectors to a copy.

        Raises DataError like `build`.
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
        cls, share: Share, trained: Path, path: Path, settings: FaissSettings, progress: Progress
    ) -> None:
        """Add the vectors of a shard to a trained index, and write it to `path`."""
        index = _read_file(trained, 0)
        needed = forecast(index, share.blocks.rows)
        check_fits("a shard", needed, settings, "use more shards, which are smaller")
        _add(index, share.blocks, progress, share.first)
        _write_file(index, path)

    @classmethod
    def join(
        cls, trained: Path, shards: list[Path], folder: Path, settings: FaissSettings, apart: bool
    ) -> dict[str, Any]:
        """Join shards to the index that `build` would create, and return its facts.

        Lists are copied from the files of shards to one file next to `faiss.index`, without holding them in
        memory. With `apart`, each shard stays a file, and all are searched as one index. Raises DataError for
        a full disk.
        """
        index = _read_file(trained, 0)
        if apart:
            list_files = lists.keep_apart(shards, folder)
            _write_file(index, folder / FILE)
            index = _read(folder, mapped=True)
        else:
            check_disk(shards, folder)
            list_files = [lists.join(index, shards, folder)]
            _write_file(index, folder / FILE)
        untrained, factory = empty_index(settings, index.ntotal, index.d)
        sample = sample_size(untrained, index.ntotal)
        return {
            **_facts(index, [folder / FILE, *list_files]),
            "factory": factory,
            "training_rows": sample,
        }

    @classmethod
    def open(cls, folder: Path, settings: FaissSettings, gpu: int | None = None) -> "FaissIndex":
        """Open the index in `folder`, memory-mapped if FAISS can. Raises DataError if it cannot be read.

        `gpu` is the number of a GPU that gets a copy of inverted lists.
        """
        return cls(_read(folder, mapped=True), settings, gpu)

    @staticmethod
    def check_buildable(blocks: Blocks, settings: FaissSettings) -> None:
        """Raise the errors that `build` raises before any work."""
        _buildable(blocks, settings)

    @staticmethod
    def check_joinable(blocks: Blocks, settings: FaissSettings) -> None:
        """Raise UsageError for an index kind that cannot be joined from shards."""
        index, factory = empty_index(settings, blocks.rows, blocks.dim)
        if lists.lists_of(index) is None:
            raise UsageError(
                f"--shard: {factory} is built whole; shards are for inverted lists, such as --kind ivf"
            )

    @staticmethod
    def memory(blocks: Blocks, settings: FaissSettings) -> int:
        """Return the approximate peak memory of `build`. Raises UsageError for an unknown factory string."""
        index, _ = empty_index(settings, blocks.rows, blocks.dim)
        return forecast(index, blocks.rows)

    def candidates(
        self, queries: NDArray[np.float32], k: int, among: range | None = None
    ) -> Candidates:
        """Return approximately the best k rows of each query [n, dim], scored with the stored codes."""
        core = core_of(self._index)
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        if isinstance(core, faiss.IndexHNSW):
            breadth = max(self._settings.ef_search or max(128, 2 * k), k)
            core.hnsw.efSearch = max(1, min(breadth, core.ntotal))  # FAISS allocates memory for all
        elif isinstance(core, faiss.IndexIVF):
            core.nprobe = min(self._settings.nprobe or _probes(core, k), core.nlist)
        if among is None and self._on_gpu and self._on_gpu.accepts(k, core.nprobe):
            scores, rows = self._on_gpu.search(queries, k, core.nprobe)
        else:
            parameters = None if among is None else lists.range_parameters(self._index, among)
            scores, rows = self._index.search(queries, k, params=parameters)
        if rows.max(initial=-1) >= self.rows:
            raise DataError("the index numbers vectors that it does not have; build it again")
        return Candidates(np.where(rows < 0, np.float32(-np.inf), scores), rows)


def _buildable(blocks: Blocks, settings: FaissSettings) -> tuple[Any, str]:
    """Return an empty index for these vectors, and its factory string.

    Raises DataError if it cannot be built.
    """
    index, factory = empty_index(settings, blocks.rows, blocks.dim)
    check_trainable(index, factory, blocks.rows)
    check_memory(index, settings, blocks)
    return index, factory


def _probes(core: Any, k: int) -> int:
    """Return the number of lists to search: 1/32 of all lists, at least 32, and enough for 20 k vectors."""
    lists = int(core.nlist)
    return max(32, lists // 32, math.ceil(20 * k * lists / max(1, int(core.ntotal))))


def _add(index: Any, blocks: Blocks, progress: Progress, first: int | None = None) -> None:
    """Add vectors after those of the index, or with consecutive numbers from `first`."""
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
                f"FAISS could not add vectors to this kind of index: {error_text(error)}"
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


def _write_file(index: Any, path: Path) -> None:
    # FAISS does not raise an error if the disk is full when it closes a file. Python does.
    with open(path, "wb") as file:
        try:
            writer = faiss.PyCallbackIOWriter(file.write)  # type: ignore[attr-defined]
            faiss.write_index(index, writer)
        except RuntimeError as error:
            raise DataError(f"{path} cannot be written: {error_text(error)}") from None


def _read(folder: Path, mapped: bool) -> Any:
    with_lists = bool(lists.list_files(folder))
    if with_lists and not mapped:
        raise DataError("an index that was built in shards cannot grow")
    return _read_file(folder / FILE, faiss.IO_FLAG_MMAP_IFC if mapped else 0, with_lists)


def _read_file(path: Path, flags: int, with_lists: bool = False) -> Any:
    try:
        return lists.read_with_lists(path) if with_lists else faiss.read_index(str(path), flags)
    except RuntimeError as error:
        raise DataError(
            f"{path} cannot be read ({error_text(error)}); build the index again"
        ) from None
