"""How vectors are stored: as floating-point numbers, or as codes of a byte or a bit a dimension.

Every vector is coded alone, and a code has its scale beside it (`scales.npy`): what is stored of a document
depends neither on the others nor on the task that encoded it.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lmkcli.store.arrays import ArrayTypes

VECTORS, SCALES = "vectors", "scales"


class Storage(Protocol):
    """One way to store vectors.

    `slack` is by how much the cosine of a stored vector may move when the vector moves by rounding.
    """

    slack: float

    def arrays(self, dim: int) -> ArrayTypes:
        """The arrays that hold vectors of so many dimensions: dtype and width of each, by name."""

    def coded(self, vectors: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """These arrays of some vectors [n, dim]; a vector that is not finite leaves what is not."""

    def decoded(self, stored: Mapping[str, NDArray[Any]], dim: int) -> NDArray[np.float32]:
        """The vectors of rows of these arrays."""


class Floats:
    """A floating-point number a dimension."""

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
    """A byte a dimension, between the largest value of the vector and its negative."""

    slack = 1e-3

    def arrays(self, dim: int) -> ArrayTypes:
        return {VECTORS: ("int8", (dim,)), SCALES: ("float32", ())}

    def coded(self, vectors: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        scales = np.abs(vectors).max(axis=1, initial=0) / np.float32(127)
        with np.errstate(invalid="ignore"):  # zeros and infinities
            steps = np.rint(np.nan_to_num(vectors / _divisors(scales)))
        return {VECTORS: steps.astype(np.int8), SCALES: scales}

    def decoded(self, stored: Mapping[str, NDArray[Any]], dim: int) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = stored[VECTORS] * stored[SCALES][:, None]
        return vectors


class Bits:
    """A sign a dimension, eight in a byte, as long as the vector was."""

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


def _divisors(scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scales [n, 1] without zeros."""
    return np.where(scales > 0, scales, np.float32(1))[:, None]


STORAGES: dict[str, Storage] = {
    "fp16": Floats("float16"),
    "fp32": Floats("float32"),
    "int8": Bytes(),
    "binary": Bits(),
}
