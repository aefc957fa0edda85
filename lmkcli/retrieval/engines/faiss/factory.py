"""FAISS factory strings of the named index kinds, and the empty indexes that they create."""

import math
import re
from typing import Any

import faiss

from lmkcli.errors import UsageError
from lmkcli.retrieval.engines.faiss.faiss_settings import FaissSettings

TRAIN_LEAST = 39  # training rows per centroid below which FAISS prints a warning
_EXAMPLES = '"HNSW32,Flat", "IVF4096,Flat", "IVF4096,SQ8" or "OPQ64,IVF4096,PQ64"'
_MAX_LISTS = 65536


def factory_string(settings: FaissSettings, rows: int, dim: int) -> str:
    """Return the FAISS factory string of an index kind. ivf has at most 4 * sqrt(rows) lists.

    int8 is a scalar quantiser with the range of each dimension in the training sample. binary is RaBitQ
    (Gao & Long, 2024, section 3): signs around the mean, and two factors that turn them into scores.
    """
    names = {
        "hnsw": f"HNSW{settings.m},Flat",
        "ivf": f"IVF{lists_for(rows)},Flat",
        "int8": "SQ8",
        "binary": "RaBitQ",
        "pq": _product_quantiser(rows, dim),
    }
    return names.get(settings.kind, settings.kind)


def _product_quantiser(rows: int, dim: int) -> str:
    """Return one byte per 8 dimensions: a code of 8 bits, or two of 4 bits if rows cannot train 256
    centroids.
    """
    bits, least = (8, 8) if rows >= TRAIN_LEAST * 256 else (4, 4)
    codes = next(m for m in range(max(1, dim // least), 0, -1) if dim % m == 0)
    return f"PQ{codes}x{bits}"


def lists_for(rows: int) -> int:
    """Return the number of inverted lists for a number of rows, which must suffice to train them."""
    return max(1, min(4 * math.isqrt(rows), rows // TRAIN_LEAST, _MAX_LISTS))


def empty_index(settings: FaissSettings, rows: int, dim: int) -> tuple[Any, str]:
    """Return an untrained index without vectors, and its factory string.

    Raises UsageError like `make_index`.
    """
    factory = factory_string(settings, rows, dim)
    return make_index(factory, dim), factory


def make_index(factory: str, dim: int) -> Any:
    """Create an empty index from a factory string. Raises UsageError if FAISS refuses it."""
    try:
        return faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise UsageError(
            f"--kind {factory!r}: FAISS cannot create this index with {dim} dimensions "
            f"({error_text(error)}); write hnsw, ivf, or a factory string such as {_EXAMPLES}"
        ) from None


def error_text(error: Exception) -> str:
    """Return the message of FAISS without the C++ function and file before it."""
    return re.sub(r"^.*\.(cpp|h):\d+:\s*(Error: )?", "", str(error), flags=re.DOTALL).strip()


def core_of(index: Any) -> Any:
    """Return the index inside wrappers for rotation (OPQ, PCA) and refinement (RFlat)."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        return core_of(index.index)
    if isinstance(index, faiss.IndexRefine):
        return core_of(index.base_index)
    return index
