"""Storage of vectors: floating-point numbers, or codes of a byte or a bit for each dimension.

Each vector is coded separately, and stored together with its scale (`scales.npy`). So the stored form of a
document depends neither on other documents nor on the task that encoded it.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lmkcli.spec.manifest import Manifest
from lmkcli.store.parts import ArrayTypes

VECTORS, SCALES = "vectors", "scales"
SPARSE = "sparse"  # the dtype of sparse vectors in a manifest (sparse.py); they have no other


def is_sparse(described: Manifest) -> bool:
    """Return whether a manifest describes sparse vectors."""
    return bool(described.execution.get("store_dtype") == SPARSE)


class Storage(Protocol):
    """A format for stored vectors.

    slack: the maximum change in the cosine of a stored vector if rounding changes the vector.
    """

    slack: float

    def arrays(self, dim: int) -> ArrayTypes:
        """Return the arrays for vectors of `dim` dimensions: dtype and width of each, by name."""

    def coded(self, vectors: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """Convert vectors [n, dim] to these arrays. Values that are not finite stay not finite."""

    def decoded(self, stored: Mapping[str, NDArray[Any]], dim: int) -> NDArray[np.float32]:
        """Convert rows of these arrays to vectors [n, dim]."""


class Floats:
    """A floating-point number for each dimension."""

    slack = 0.0

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    def arrays(self, dim: int) -> ArrayTypes:
        return {VECTORS: (self._dtype, (dim,))}

    def coded(self, vectors: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        return {VECTORS: vectors.astype(self._dtype)}

    def decoded(self, stored: Mapping[str, NDArray[Any]], dim: int) -> NDArray[np.float32]:
        return stored[VECTORS].astype(np.float32)


class Bytes:
    """A byte for each dimension: value = code * scale, with scale = max |value| / 127 for each vector."""

    slack = 1e-3

    def arrays(self, dim: int) -> ArrayTypes:
        return {VECTORS: ("int8", (dim,)), SCALES: ("float32", ())}

    def coded(self, vectors: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        scales = np.abs(vectors).max(axis=1, initial=0) / np.float32(127)
        divisors = np.where(scales > 0, scales, np.float32(1))[:, None]  # a zero vector has scale 0
        with np.errstate(invalid="ignore"):  # infinities
            steps = np.rint(np.nan_to_num(vectors / divisors))
        return {VECTORS: steps.astype(np.int8), SCALES: scales}

    def decoded(self, stored: Mapping[str, NDArray[Any]], dim: int) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = stored[VECTORS] * stored[SCALES][:, None]
        return vectors


class Bits:
    """A bit for each dimension, eight in a byte: value = ±scale. The vector keeps its length."""

    slack = 0.05

    def arrays(self, dim: int) -> ArrayTypes:
        return {VECTORS: ("uint8", (-(-dim // 8),)), SCALES: ("float32", ())}

    def coded(self, vectors: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
        scales = lengths / max(1, vectors.shape[1]) ** 0.5
        return {VECTORS: np.packbits(vectors > 0, axis=1), SCALES: scales.astype(np.float32)}

    def decoded(self, stored: Mapping[str, NDArray[Any]], dim: int) -> NDArray[np.float32]:
        signs = np.unpackbits(stored[VECTORS], axis=1, count=dim).astype(np.float32)
        signs *= 2
        signs -= 1
        signs *= stored[SCALES][:, None]
        return signs


STORAGES: dict[str, Storage] = {
    "fp16": Floats("float16"),
    "fp32": Floats("float32"),
    "int8": Bytes(),
    "binary": Bits(),
}
