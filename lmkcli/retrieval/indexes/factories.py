"""FAISS's factory strings: those of the kinds that have a name here, and the empty indexes they make."""

import math
import re
from typing import Any

import faiss

from lmkcli.errors import UsageError
from lmkcli.settings import AnnSettings

TRAIN_LEAST = 39  # training rows per centroid below which FAISS itself asks for more
_EXAMPLES = '"HNSW32,Flat", "IVF4096,Flat", "IVF4096,SQ8" or "OPQ64,IVF4096,PQ64"'
_MAX_LISTS = 65536


def factory_string(settings: AnnSettings, rows: int, dim: int) -> str:
    """The FAISS factory string of a kind; ivf gets at most 4 * sqrt(rows) lists.

    int8 is a scalar quantiser with the range of each dimension in the training sample; binary is RaBitQ
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
    """A byte for 8 dimensions, in two codes of 4 bits where rows are too few to train 256 centroids."""
    bits, least = (8, 8) if rows >= TRAIN_LEAST * 256 else (4, 4)
    codes = next(m for m in range(max(1, dim // least), 0, -1) if dim % m == 0)
    return f"PQ{codes}x{bits}"


def lists_for(rows: int) -> int:
    """How many inverted lists so many rows are divided into, and can train."""
    return max(1, min(4 * math.isqrt(rows), rows // TRAIN_LEAST, _MAX_LISTS))


def empty_index(settings: AnnSettings, rows: int, dim: int) -> tuple[Any, str]:
    """An index that can take so many vectors and has neither learned nor holds any; its factory string.

    UsageError as of `make_index`.
    """
    factory = factory_string(settings, rows, dim)
    return make_index(factory, dim), factory


def make_index(factory: str, dim: int) -> Any:
    """FAISS's empty index of this name; UsageError where FAISS refuses it."""
    try:
        return faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise UsageError(
            f"--kind {factory!r}: FAISS cannot make this of {dim} dimensions ({said(error)}); "
            f"write hnsw, ivf, or a factory string such as {_EXAMPLES}"
        ) from None


def said(error: RuntimeError) -> str:
    """FAISS's message without the C++ function and file in front of it."""
    return re.sub(r"^.*\.(cpp|h):\d+:\s*(Error: )?", "", str(error), flags=re.DOTALL).strip()


def core_of(index: Any) -> Any:
    """The index that searches, under rotations (OPQ, PCA) and refinement (RFlat)."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        return core_of(index.index)
    if isinstance(index, faiss.IndexRefine):
        return core_of(index.base_index)
    return index
