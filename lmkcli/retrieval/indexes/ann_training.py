"""What a FAISS index learns before it holds vectors: from how many, and from which."""

from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from lmkcli.errors import DataError
from lmkcli.retrieval.indexes.factories import TRAIN_LEAST, core_of, said
from lmkcli.retrieval.kinds import Blocks, check_finite

_TRAIN_ROWS = 64  # training rows per centroid that are drawn
_TRAIN_SAMPLE = 65536  # but at least so many, where there are: rotations and codes use them all


def training_rows(index: Any) -> int:
    """How many vectors an untrained FAISS index needs at least; 0 if it learns nothing."""
    return 0 if index.is_trained else TRAIN_LEAST * _centroids(index)


def check_trainable(index: Any, factory: str, rows: int) -> None:
    """DataError where there are too few vectors to train on."""
    needed = training_rows(index)
    if rows < needed:
        raise DataError(
            f"{factory} is trained on at least {needed} vectors, and there are {rows}: "
            "use --kind hnsw, fewer lists or 4-bit codes (PQ32x4), or no index at all "
            "(exact search is quick at this size)"
        )


def train_on_sample(index: Any, blocks: Blocks, seed: int) -> int:
    """Train an index, if it must learn anything; returns how many vectors were drawn for it."""
    if index.is_trained:
        return 0
    chosen = sample_rows(index, blocks.rows, seed)
    try:
        index.train(_gather(blocks, chosen))
    except RuntimeError as error:
        raise DataError(
            f"FAISS could not train on {len(chosen)} vectors ({said(error)}); "
            "use --kind hnsw or more vectors"
        ) from None
    return len(chosen)


def sample_size(index: Any, rows: int) -> int:
    """How many of so many vectors an index is trained on; 0 if it learns nothing, or has."""
    return 0 if index.is_trained else min(rows, max(_TRAIN_SAMPLE, _TRAIN_ROWS * _centroids(index)))


def sample_rows(index: Any, rows: int, seed: int) -> NDArray[np.int64]:
    """The numbers of the vectors that an index is trained on, ascending."""
    size = sample_size(index, rows)
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


def _centroids(index: Any) -> int:
    """The largest k-means that training runs; 1 where nothing, or only a range, is learned."""
    core = core_of(index)
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
