"""Approximate search with FAISS: an HNSW graph, inverted lists, or any FAISS factory string.

Scores are inner products (vectors are normalised before they come here when the model's similarity
is cosine). An index knows numbers of vectors alone; whose they are, and exact scores, is dense.py's part.
Graphs are promised by recall: FAISS links vectors in parallel, so two builds may differ in a few
edges. Trained kinds are the same each time: their sample is drawn with a fixed seed.
"""

import math
import re
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from lmkcli.errors import DataError, UsageError
from lmkcli.progress import Progress
from lmkcli.retrieval.indexes import lists
from lmkcli.retrieval.kinds import AnnKind, Blocks, Candidates, Share, check_finite
from lmkcli.settings import AnnSettings
from lmkcli.system.atomic import atomic_file
from lmkcli.system.memory import free_memory

FILE = "faiss.index"
EXAMPLES = '"HNSW32,Flat", "IVF4096,Flat", "IVF4096,SQ8" or "OPQ64,IVF4096,PQ64"'
TRAIN_LEAST = 39  # training rows per centroid below which FAISS itself asks for more
TRAIN_ROWS = 64  # training rows per centroid that are drawn
TRAIN_SAMPLE = 65536  # but at least so many, where there are: rotations and codes use them all
MAX_LISTS = 65536
GROWTH = 1.5  # measured: arrays that double while they grow hold about half as much again
LARGEST = (1 << 31) - 1  # that FAISS takes
SMALL_ROW = 45  # bytes a row that short codes take besides, while lists grow (measured with PQ16)


class Ann(AnnKind):
    """An opened FAISS index.

    `overfetch` is 1 where vectors are kept as they are, else 4.
    """

    def __init__(self, index: Any, settings: AnnSettings) -> None:
        self._index = index
        self._settings = settings
        self.rows = self.most = int(index.ntotal)
        self.divisible = lists.lists_of(index) is not None
        self.overfetch = 1 if int(_storage_bytes(index)) >= 4 * int(index.d) else 4

    @classmethod
    def build(
        cls, blocks: Blocks, folder: Path, settings: AnnSettings, progress: Progress
    ) -> dict[str, Any]:
        """Write `folder/faiss.index` whole or not at all; returns facts (factory, rows, bytes).

        UsageError for a factory string that FAISS refuses; DataError, before any work, when
        there are too few vectors to train on or too little memory.
        """
        factory = factory_string(settings, blocks.rows, blocks.dim)
        index = _make(factory, blocks.dim)
        _check_trainable(index, factory, blocks.rows)
        _check_memory(settings, blocks)
        trained = _train(index, blocks, settings.seed)
        if isinstance(_core(index), faiss.IndexHNSW):
            _core(index).hnsw.efConstruction = min(settings.ef_construction, LARGEST)
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
        factory = factory_string(settings, blocks.rows, blocks.dim)
        index = _make(factory, blocks.dim)
        _check_trainable(index, factory, blocks.rows)
        _check_fits(
            f"training {factory}", _sample_bytes(index, blocks.rows), settings, "use fewer lists"
        )
        _train(index, blocks, settings.seed)
        faiss.write_index(index, str(path))

    @classmethod
    def build_shard(
        cls, share: Share, trained: Path, path: Path, settings: AnnSettings, progress: Progress
    ) -> None:
        """Add a shard's vectors to a trained index, and write that to `path`, whole or not at all."""
        index = _read_file(trained, 0)
        needed = forecast(index, share.blocks.rows)
        _check_fits("a shard", needed, settings, "more shards take less each")
        _add(index, share.blocks, progress, share.first)
        _write_file(index, path)

    @classmethod
    def join(
        cls, trained: Path, shards: list[Path], folder: Path, settings: AnnSettings
    ) -> dict[str, Any]:
        """Write the index of all shards into `folder`, as `build` would have made it; facts.

        Its lists go from file to file, to one beside `faiss.index`, and are never in memory as a whole.
        """
        index = _read_file(trained, 0)
        lists.join(index, shards, folder)
        facts = _write(index, folder)
        factory = factory_string(settings, facts["rows"], facts["dim"])
        sample = _sample_size(_make(factory, facts["dim"]), facts["rows"])
        size = facts["bytes"] + (folder / lists.LISTS).stat().st_size
        return {**facts, "bytes": size, "factory": factory, "training_rows": sample}

    @classmethod
    def open(cls, folder: Path, settings: AnnSettings) -> "Ann":
        """The index in `folder`, mapped from disk where FAISS can; DataError if unreadable."""
        return cls(_read(folder, mapped=True), settings)

    @staticmethod
    def check_joinable(blocks: Blocks, settings: AnnSettings) -> None:
        """UsageError for a kind that cannot be joined from shards."""
        factory = factory_string(settings, blocks.rows, blocks.dim)
        if lists.lists_of(_make(factory, blocks.dim)) is None:
            raise UsageError(
                f"--shard: {factory} is built whole; shards are for inverted lists, such as --kind ivf"
            )

    @staticmethod
    def memory(blocks: Blocks, settings: AnnSettings) -> int:
        """Bytes that building takes at its peak, roughly; UsageError for an unknown factory string."""
        return _forecast_of(factory_string(settings, blocks.rows, blocks.dim), blocks)

    def candidates(
        self, queries: NDArray[np.float32], k: int, among: range | None = None
    ) -> Candidates:
        """The approximately k best rows of each query [n, dim], scored as the index stores them."""
        core = _core(self._index)
        if isinstance(core, faiss.IndexHNSW):
            breadth = max(self._settings.ef_search or max(128, 2 * k), k)
            core.hnsw.efSearch = max(1, min(breadth, core.ntotal))  # FAISS holds room for all of it
        elif isinstance(core, faiss.IndexIVF):
            core.nprobe = min(self._settings.nprobe or _probes(core, k), core.nlist)
        how = None if among is None else lists.within(self._index, among)
        asked = np.ascontiguousarray(queries, dtype=np.float32)
        scores, rows = self._index.search(asked, k, params=how)
        return Candidates(np.where(rows < 0, np.float32(-np.inf), scores), rows)


def factory_string(settings: AnnSettings, rows: int, dim: int) -> str:
    """The FAISS factory string of a kind; ivf gets at most 4 * sqrt(rows) lists.

    int8 is a scalar quantiser with the range of each dimension in the training sample; binary is RaBitQ
    (Gao & Long, 2024, section 3): signs around the mean, and two factors that turn them into scores.
    """
    names = {
        "hnsw": f"HNSW{settings.m},Flat",
        "ivf": f"IVF{_lists(rows)},Flat",
        "int8": "SQ8",
        "binary": "RaBitQ",
        "pq": _product_quantiser(rows, dim),
    }
    return names.get(settings.kind, settings.kind)


def _product_quantiser(rows: int, dim: int) -> str:
    """A byte for 8 dimensions, in two codes of 4 bits where rows are too few to train 256 centroids."""
    bits, least = (8, 8) if rows >= TRAIN_LEAST * 256 else (4, 4)
    codes = next(m for m in range(max(1, dim // least), 0, -1) if dim % m == 0)
    return f"PQ{codes}x{bits}"


def _lists(rows: int) -> int:
    return max(1, min(4 * math.isqrt(rows), rows // TRAIN_LEAST, MAX_LISTS))


def _probes(core: Any, k: int) -> int:
    """Lists to search: a 32nd of all, 32 at least, and as many as hold 20 k vectors on average."""
    lists = int(core.nlist)
    return max(32, lists // 32, math.ceil(20 * k * lists / max(1, int(core.ntotal))))


def _make(factory: str, dim: int) -> Any:
    try:
        return faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise UsageError(
            f"--kind {factory!r}: FAISS cannot make this of {dim} dimensions ({_said(error)}); "
            f"write hnsw, ivf, or a factory string such as {EXAMPLES}"
        ) from None


def _said(error: RuntimeError) -> str:
    """FAISS's message without the C++ function and file in front of it."""
    return re.sub(r"^.*\.(cpp|h):\d+:\s*(Error: )?", "", str(error), flags=re.DOTALL).strip()


def _core(index: Any) -> Any:
    """The index that searches, under rotations (OPQ, PCA) and refinement (RFlat)."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        return _core(index.index)
    if isinstance(index, faiss.IndexRefine):
        return _core(index.base_index)
    return index


def _centroids(index: Any) -> int:
    """The largest k-means that training runs; 1 where nothing, or only a range, is learned."""
    core = _core(index)
    sizes = [1]
    if isinstance(core, faiss.IndexIVF):
        sizes.append(core.nlist)
    if hasattr(core, "pq"):
        sizes.append(core.pq.ksub)
    if any(isinstance(transform, faiss.OPQMatrix) for transform in _transforms(index)):
        sizes.append(256)  # a rotation is fitted to 8-bit codes, whatever follows it
    return int(max(sizes))


def _transforms(index: Any) -> list[Any]:
    index = faiss.downcast_index(index)
    if not isinstance(index, faiss.IndexPreTransform):
        return []
    chain: Any = index.chain
    return [faiss.downcast_VectorTransform(chain.at(i)) for i in range(chain.size())]


def training_rows(index: Any) -> int:
    """How many vectors an untrained FAISS index needs at least; 0 if it learns nothing."""
    return 0 if index.is_trained else TRAIN_LEAST * _centroids(index)


def _check_trainable(index: Any, factory: str, rows: int) -> None:
    """DataError where there are too few vectors to train on."""
    needed = training_rows(index)
    if rows < needed:
        raise DataError(
            f"{factory} is trained on at least {needed} vectors, and there are {rows}: "
            "use --kind hnsw, fewer lists or 4-bit codes (PQ32x4), or no index at all "
            "(exact search is quick at this size)"
        )


def _train(index: Any, blocks: Blocks, seed: int) -> int:
    """Train on a seeded sample; returns its size."""
    if index.is_trained:
        return 0
    chosen = _sample_rows(index, blocks.rows, seed)
    try:
        index.train(_gather(blocks, chosen))
    except RuntimeError as error:
        raise DataError(
            f"FAISS could not train on {len(chosen)} vectors ({_said(error)}); "
            "use --kind hnsw or more vectors"
        ) from None
    return len(chosen)


def _sample_size(index: Any, rows: int) -> int:
    return 0 if index.is_trained else min(rows, max(TRAIN_SAMPLE, TRAIN_ROWS * _centroids(index)))


def _sample_rows(index: Any, rows: int, seed: int) -> NDArray[np.int64]:
    size = _sample_size(index, rows)
    chosen = np.random.default_rng(seed).choice(rows, size, replace=False, shuffle=False)
    return np.sort(chosen.astype(np.int64))


def _gather(blocks: Blocks, chosen: NDArray[np.int64]) -> NDArray[np.float32]:
    """The chosen rows (ascending), read block by block."""
    vectors = np.empty((len(chosen), blocks.dim), np.float32)
    first = 0
    for block in blocks:
        check_finite(float(np.abs(block.vectors).max(initial=0)))
        here = slice(*np.searchsorted(chosen, (first, first + len(block.vectors))))
        vectors[here] = block.vectors[chosen[here] - first]
        first += len(block.vectors)
    return vectors


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
                f"FAISS could not add vectors to this kind of index: {_said(error)}"
            ) from None
        done += len(block.vectors)
        progress(done, blocks.rows, "vectors")


def _write(index: Any, folder: Path) -> dict[str, Any]:
    path = folder / FILE
    _write_file(index, path)
    facts = {"rows": int(index.ntotal), "dim": int(index.d), "bytes": path.stat().st_size}
    return {**facts, "faiss": faiss.__version__}


def _write_file(index: Any, path: Path) -> None:
    with atomic_file(path) as temporary:
        try:
            faiss.write_index(index, str(temporary))
        except RuntimeError as error:
            raise DataError(f"{path} cannot be written: {_said(error)}") from None


def _read(folder: Path, mapped: bool) -> Any:
    path, joined = folder / FILE, (folder / lists.LISTS).exists()
    if joined and not mapped:
        raise DataError("an index that was joined from shards cannot grow")
    return _read_file(path, faiss.IO_FLAG_MMAP_IFC if mapped else 0, joined)


def _read_file(path: Path, flags: int, joined: bool = False) -> Any:
    try:
        return lists.read_joined(path) if joined else faiss.read_index(str(path), flags)
    except RuntimeError as error:
        raise DataError(f"{path} cannot be read ({_said(error)}); build the index again") from None


def forecast(index: Any, rows: int) -> int:
    """Bytes that building `index` with so many rows takes at its peak, training sample included."""
    return max(
        _sample_bytes(index, rows),
        int(rows * max(GROWTH * _row_bytes(index), _row_bytes(index) + SMALL_ROW)),
    )


def _sample_bytes(index: Any, rows: int) -> int:
    return 8 * _sample_size(index, rows) * int(index.d)  # twice: FAISS copies what it trains on


def _storage_bytes(index: Any) -> int:
    """Bytes in which the searching index keeps one vector."""
    core = _core(index)
    if isinstance(core, faiss.IndexHNSW):
        core = faiss.downcast_index(core.storage)
    return int(getattr(core, "code_size", 4 * core.d))


def _row_bytes(index: Any) -> int:
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        return _row_bytes(index.index)
    if isinstance(index, faiss.IndexRefine):
        return _row_bytes(index.base_index) + _row_bytes(index.refine_index)
    if isinstance(index, faiss.IndexHNSW):
        links: Any = index.hnsw
        return _row_bytes(index.storage) + 4 * int(links.nb_neighbors(0)) + 16
    if isinstance(index, faiss.IndexIVF):
        return int(index.code_size) + 8
    return int(getattr(index, "code_size", 4 * index.d))


def _check_memory(settings: AnnSettings, blocks: Blocks) -> None:
    limit = settings.max_memory or free_memory()
    needed = _forecast_of(factory_string(settings, blocks.rows, blocks.dim), blocks)
    if needed <= limit:
        return
    fitting = [kind for kind in _alternatives(blocks) if _forecast_of(kind, blocks) <= limit]
    advice = f"these fit: {', '.join(fitting)}" if fitting else "no kind of index fits"
    raise DataError(
        f"an index of kind {settings.kind} over {blocks.rows} vectors of {blocks.dim} dimensions "
        f"takes about {_size(needed)} to build, and {_size(limit)} may be used; "
        f"{advice}; exact search needs no index and little memory"
    )


def _check_fits(what: str, needed: int, settings: AnnSettings, advice: str) -> None:
    limit = settings.max_memory or free_memory()
    if needed > limit:
        raise DataError(
            f"{what} takes about {_size(needed)}, and {_size(limit)} may be used; {advice}"
        )


def _forecast_of(factory: str, blocks: Blocks) -> int:
    return forecast(_make(factory, blocks.dim), blocks.rows)


def _alternatives(blocks: Blocks) -> list[str]:
    """Factory strings from the most exact to the smallest, as far as the rows can train them."""
    lists = f"IVF{_lists(blocks.rows)}"
    kinds = ["HNSW32,Flat", f"{lists},Flat", "HNSW32,SQ8", f"{lists},SQ8"]
    codes = next((m for m in (64, 48, 32, 16, 8, 4, 2, 1) if blocks.dim % m == 0), 1)
    kinds.append(f"OPQ{codes},{lists},PQ{codes}")
    return [kind for kind in kinds if training_rows(_make(kind, blocks.dim)) <= blocks.rows]


def _size(size: int) -> str:
    return f"{size / 1e9:.3g} GB" if size >= 1e8 else f"{size / 1e6:.3g} MB"
