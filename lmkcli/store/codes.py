"""Storage of vectors: floating-point numbers, or codes of eight, four, two or one bit for each dimension.

Each vector is coded separately, and stored together with its scale (`scales.npy`). So the stored form of a
document depends neither on other documents nor on the task that encoded it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lmkcli.artifact.kinds import Manifest, VectorsManifest
from lmkcli.store.parts import ArrayTypes

if TYPE_CHECKING:
    import torch

Tensors = Mapping[str, "torch.Tensor"]

VECTORS, SCALES = "vectors", "scales"
_MULTIPLES = (1, 0.8, 1.25, 1.6)  # of the usual step between levels
SPARSE = "sparse"  # the dtype of sparse vectors in a manifest (sparse.py); they have no other


def is_sparse(described: Manifest) -> bool:
    """Return whether a manifest describes sparse vectors."""
    return isinstance(described, VectorsManifest) and described.execution.store_dtype == SPARSE


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

    def on_device(self, stored: Tensors, dim: int) -> "torch.Tensor":
        """Do the same on a device, with the same bits. A float16 value may stay one."""


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

    def on_device(self, stored: Tensors, dim: int) -> "torch.Tensor":
        return stored[VECTORS]


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

    def on_device(self, stored: Tensors, dim: int) -> "torch.Tensor":
        return stored[VECTORS] * stored[SCALES][:, None]


class Levels:
    """A few bits for each dimension: one of 2^bits levels, at equal steps around zero.

    value = (code - (2^bits - 1) / 2) * scale. `step` is the best distance between levels for normally
    distributed values of variance 1 (Max, 1960). For each vector, the multiple of this distance is chosen
    that gives the largest cosine, because vectors with a few large values need larger steps. The scale makes
    the dot product of the stored and the original vector equal to the squared length of the original. So dot
    products with similar vectors do not shrink (as in RaBitQ; Gao & Long, 2024, section 3.2).
    """

    def __init__(self, bits: int, step: float, slack: float) -> None:
        self.slack, self._step, self._in_byte = slack, np.float32(step), 8 // bits
        self._shifts = np.arange(0, 8, bits, dtype=np.uint8)
        self._highest = np.uint8((1 << bits) - 1)
        self._middle = np.float32(self._highest / 2)

    def arrays(self, dim: int) -> ArrayTypes:
        return {VECTORS: ("uint8", (-(-dim // self._in_byte),)), SCALES: ("float32", ())}

    def coded(self, vectors: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):  # zeros, infinities
            squares = np.square(vectors, dtype=np.float64).sum(axis=1, keepdims=True)
            steps = self._step * np.sqrt(squares / max(1, vectors.shape[1]))
            codes = np.zeros(vectors.shape, np.uint8)
            dots, cosines = np.ones_like(squares), np.full_like(squares, -np.inf)
            for multiple in _MULTIPLES:
                above = np.floor(vectors / (steps * multiple).astype(np.float32)) + self._middle
                levels = np.clip(np.nan_to_num(above + np.float32(0.5)), 0, self._highest)
                dot = (vectors * (levels - self._middle)).sum(axis=1, keepdims=True)
                cosine = dot / np.linalg.norm(levels - self._middle, axis=1, keepdims=True)
                better = cosine > cosines
                np.copyto(codes, levels.astype(np.uint8), where=better)
                np.copyto(dots, dot, where=better)
                np.copyto(cosines, cosine, where=better)
            scales = np.where(squares == 0, 0, squares / dots).astype(np.float32)
        return {VECTORS: self._packed(codes), SCALES: scales[:, 0]}

    def _packed(self, codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Pack codes [n, dim] into bytes [n, width].

        Byte i has the codes of the dimensions i, i + width, …, the first in its lowest bits. So all codes at
        the same place of their bytes are consecutive dimensions, which is fast to decode.
        """
        padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % self._in_byte)))
        places = padded.reshape(len(codes), self._in_byte, -1)
        packed: NDArray[np.uint8] = np.bitwise_or.reduce(places << self._shifts[:, None], axis=1)
        return packed

    def decoded(self, stored: Mapping[str, NDArray[Any]], dim: int) -> NDArray[np.float32]:
        packed, scales = stored[VECTORS], stored[SCALES][:, None]
        places = np.empty((len(packed), self._in_byte, packed.shape[1]), np.float32)
        for number, shift in enumerate(self._shifts):
            np.subtract(packed >> shift & self._highest, self._middle, out=places[:, number])
        places *= scales[..., None]
        vectors: NDArray[np.float32] = places.reshape(len(packed), -1)[:, :dim]
        return vectors

    def on_device(self, stored: Tensors, dim: int) -> "torch.Tensor":
        packed, middle = stored[VECTORS], float(self._middle)
        shifts = packed.new_tensor(self._shifts.tolist())[:, None]
        places = ((packed[:, None] >> shifts) & int(self._highest)).float() - middle
        return (places * stored[SCALES][:, None, None]).flatten(1)[:, :dim]


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

    def on_device(self, stored: Tensors, dim: int) -> "torch.Tensor":
        packed = stored[VECTORS]
        shifts = packed.new_tensor([7, 6, 5, 4, 3, 2, 1, 0])  # np.packbits starts with the highest
        bits = (packed[..., None] >> shifts & 1).flatten(1)[:, :dim]
        return (bits * 2.0 - 1) * stored[SCALES][:, None]


STORAGES: dict[str, Storage] = {
    "fp16": Floats("float16"),
    "fp32": Floats("float32"),
    "int8": Bytes(),
    "int4": Levels(4, 0.3352, slack=0.02),
    "int2": Levels(2, 0.9957, slack=0.05),
    "binary": Bits(),
}
