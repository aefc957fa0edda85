"""Memory and disk space of building a FAISS index, and the training sample.

Peak memory is the larger of two phases. Training holds the sample twice. Adding vectors holds the index. Its
arrays double when they are full, so they take about 1.5 times the size of their contents.
"""

import shutil
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from lmkcli.errors import DataError
from lmkcli.retrieval.engines.faiss.factory import (
    TRAIN_LEAST,
    core_of,
    error_text,
    lists_for,
    make_index,
)
from lmkcli.retrieval.engines.faiss.faiss_settings import FaissSettings
from lmkcli.retrieval.vectors.vector_search import Blocks, Computed, check_finite
from lmkcli.system.hardware import free_memory

_GROWTH = 1.5  # measured: peak size of growing arrays, relative to their contents
_SMALL_ROW = 45  # additional bytes per row with short codes while lists grow (measured with PQ16)


def forecast(index: Any, rows: int) -> int:
    """Return the peak memory, in bytes, of building `index` with `rows` rows, including training."""
    per_row = _row_bytes(index)
    adding = int(rows * max(_GROWTH * per_row, per_row + _SMALL_ROW))
    return max(sample_bytes(index, rows), adding)


def sample_bytes(index: Any, rows: int) -> int:
    """Return the bytes of the training sample in float32, twice, because FAISS copies it."""
    return 2 * 4 * sample_size(index, rows) * int(index.d)


def storage_bytes(index: Any) -> int:
    """Return the bytes of one stored vector in the innermost index."""
    core = core_of(index)
    if isinstance(core, faiss.IndexHNSW):
        core = faiss.downcast_index(core.storage)
    return int(getattr(core, "code_size", 4 * core.d))


def _row_bytes(index: Any) -> int:
    """Bytes per vector of an index, with its links (HNSW) or its number (IVF)."""
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


def check_memory(index: Any, settings: FaissSettings, blocks: Blocks) -> None:
    """Raise DataError, with the index kinds that would fit, if building an index needs too much memory."""
    limit, needed = _limit(settings), forecast(index, blocks.rows)
    if needed <= limit:
        return
    fitting = [kind for kind in _alternatives(blocks) if _forecast_of(kind, blocks) <= limit]
    advice = f"these fit: {', '.join(fitting)}" if fitting else "no kind of index fits"
    raise DataError(
        f"an index of kind {settings.kind} over {blocks.rows} vectors of {blocks.dim} dimensions "
        f"needs about {_size(needed)} to build, and {_size(limit)} may be used; "
        f"{advice}; exact search needs no index and little memory"
    )


def check_fits(what: str, needed: int, settings: FaissSettings, advice: str) -> None:
    """Raise DataError, with advice, if `needed` bytes exceed the memory limit. `what` needs the memory."""
    if needed > (limit := _limit(settings)):
        raise DataError(
            f"{what} needs about {_size(needed)}, and {_size(limit)} may be used; {advice}"
        )


def check_disk(shards: list[Path], folder: Path) -> None:
    """Raise DataError if the disk of `folder` has no space for a second copy of the lists of shards.

    FAISS writes through a memory map, so the system would kill the process if the disk were full.
    """
    needed, free = sum(path.stat().st_size for path in shards), shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"joining writes about {_size(needed)}, and {_size(free)} are left on the disk of {folder}; "
            "free some space, or keep the shards in files of their own (--apart), which needs none"
        )


def _limit(settings: FaissSettings) -> int:
    return settings.max_memory or free_memory()


def _forecast_of(factory: str, blocks: Blocks) -> int:
    return forecast(make_index(factory, blocks.dim), blocks.rows)


def _alternatives(blocks: Blocks) -> list[str]:
    """Factory strings that the rows can train, from the most exact to the smallest index."""
    lists = f"IVF{lists_for(blocks.rows)}"
    kinds = ["HNSW32,Flat", f"{lists},Flat", "HNSW32,SQ8", f"{lists},SQ8"]
    codes = next((m for m in (64, 48, 32, 16, 8, 4, 2, 1) if blocks.dim % m == 0), 1)
    kinds.append(f"OPQ{codes},{lists},PQ{codes}")
    return [kind for kind in kinds if training_rows(make_index(kind, blocks.dim)) <= blocks.rows]


def _size(size: int) -> str:
    return f"{size / 1e9:.3g} GB" if size >= 1e8 else f"{size / 1e6:.3g} MB"


_TRAIN_ROWS = 64  # rows of the training sample per centroid
_TRAIN_SAMPLE = (
    65536  # minimum size of the sample, because rotations and codes are trained on all of it
)


def training_rows(index: Any) -> int:
    """Return the minimum number of vectors to train an index; 0 if it needs no training."""
    return 0 if index.is_trained else TRAIN_LEAST * _centroids(index)


def check_trainable(index: Any, factory: str, rows: int) -> None:
    """Raise DataError if there are too few vectors to train on."""
    needed = training_rows(index)
    if rows < needed:
        raise DataError(
            f"{factory} is trained on at least {needed} vectors, and there are {rows}: "
            "use --kind hnsw, fewer lists or 4-bit codes (PQ32x4), or no index at all "
            "(exact search is quick at this size)"
        )


def train_on_sample(index: Any, blocks: Blocks, seed: int) -> int:
    """Train an index if it needs training, and return the number of sampled vectors."""
    if index.is_trained:
        return 0
    chosen = sample_rows(index, blocks.rows, seed)
    try:
        index.train(_gather(blocks, chosen))
    except RuntimeError as error:
        raise DataError(
            f"FAISS could not train on {len(chosen)} vectors ({error_text(error)}); "
            "use --kind hnsw or more vectors"
        ) from None
    return len(chosen)


def sample_size(index: Any, rows: int) -> int:
    """Return the size of the training sample; 0 if the index needs no training or is trained."""
    return 0 if index.is_trained else min(rows, max(_TRAIN_SAMPLE, _TRAIN_ROWS * _centroids(index)))


def sample_rows(index: Any, rows: int, seed: int) -> NDArray[np.int64]:
    """Return the ascending numbers of the vectors that an index is trained on."""
    size = sample_size(index, rows)
    chosen = np.random.default_rng(seed).choice(rows, size, replace=False, shuffle=False)
    return np.sort(chosen.astype(np.int64))


def _gather(blocks: Blocks, chosen: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the vectors [n, dim] of the chosen rows (ascending), read block by block or computed."""
    if isinstance(blocks, Computed):
        vectors = blocks.compute(chosen)
        check_finite(float(np.abs(vectors).max(initial=0)))
        return vectors
    vectors = np.empty((len(chosen), blocks.dim), np.float32)
    first = 0  # the row of the block's first vector
    for block in blocks:
        check_finite(float(np.abs(block.vectors).max(initial=0)))
        in_block = slice(*np.searchsorted(chosen, (first, first + len(block.vectors))))
        vectors[in_block] = block.vectors[chosen[in_block] - first]
        first += len(block.vectors)
    return vectors


def _centroids(index: Any) -> int:
    """Return the number of centroids of the largest k-means in training; 1 without k-means."""
    core = core_of(index)
    sizes = [1]
    if isinstance(core, faiss.IndexIVF):
        sizes.append(core.nlist)
    if hasattr(core, "pq"):
        sizes.append(core.pq.ksub)
    if any(isinstance(transform, faiss.OPQMatrix) for transform in _transforms(index)):
        sizes.append(256)  # OPQ is trained with 8-bit codes, whatever codes the index uses
    return int(max(sizes))


def _transforms(index: Any) -> list[Any]:
    index = faiss.downcast_index(index)
    if not isinstance(index, faiss.IndexPreTransform):
        return []
    chain: Any = index.chain
    return [faiss.downcast_VectorTransform(chain.at(i)) for i in range(chain.size())]
