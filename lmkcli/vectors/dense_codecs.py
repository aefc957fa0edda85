"""Codecs of dense vectors: floating-point numbers, or eight, four, two bits or one for each dimension.

Each vector is coded separately, and stored together with its scale (`scales.npy`). So the stored form of a
document depends neither on other documents nor on the task that encoded it.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lmkcli.store.parts import ArrayTypes
from lmkcli.store.ragged import Longs
from lmkcli.vectors.codec import ArraySource, RowsBefore
from lmkcli.vectors.rows import Ragged

if TYPE_CHECKING:
    import torch

Tensors = Mapping[str, "torch.Tensor"]

VECTORS, SCALES = "vectors", "scales"
_MULTIPLES = (1, 0.8, 1.25, 1.6)  # of the usual step between levels


class DenseCodec(ABC):
    """A stored form of dense vectors. All arrays have a row for each vector.

    slack: the maximum change in the cosine of a stored vector if rounding changes the vector.
    """

    rows = Ragged
    slack: float

    @property
    def exact(self) -> "DenseCodec":
        """A float32 for each dimension."""
        return FP32

    @abstractmethod
    def types(self, dim: int) -> ArrayTypes:
        """Return the arrays for vectors of `dim` dimensions: dtype and width of each, by name."""

    @abstractmethod
    def encode(self, vectors: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """Convert vectors [n, dim] to these arrays. Values that are not finite stay not finite."""

    @abstractmethod
    def decode(self, stored: Mapping[str, NDArray[Any]], dim: int) -> NDArray[np.float32]:
        """Convert rows of these arrays to vectors [n, dim]."""

    @abstractmethod
    def on_device(self, stored: Tensors, dim: int) -> "torch.Tensor":
        """Do the same on a device, with the same bits. A float16 value may stay one."""

    def coded(self, rows: Ragged, before: RowsBefore) -> dict[str, NDArray[Any]]:
        """Convert vectors to arrays."""
        return self.encode(rows.vectors)

    def not_finite(self, rows: Ragged, coded: Mapping[str, NDArray[Any]]) -> int | None:
        """Return the first text whose stored form is not finite, for instance beyond the range of fp16."""
        if (bad_row := rows.not_finite()) is not None:  # not every code shows it
            return bad_row
        finite = [np.isfinite(each).reshape(len(each), -1).all(axis=1) for each in coded.values()]
        bad = np.flatnonzero(~np.all(finite, axis=0))
        return int(np.searchsorted(rows.starts, bad[0], side="right")) - 1 if len(bad) else None

    def notes(self, blocks: Iterable[Ragged]) -> list[str]:
        """Return nothing."""
        return []

    def open(self, source: ArraySource, dim: int) -> "CodedDense":
        """Open the arrays of a part."""
        types = self.types(dim).items()
        arrays = {name: source.array(name, *kind, source.vectors) for name, kind in types}
        return CodedDense(self, arrays, dim)


class CodedDense:
    """The opened arrays of a part."""

    def __init__(self, codec: DenseCodec, arrays: dict[str, NDArray[Any]], dim: int) -> None:
        self.arrays: Mapping[str, NDArray[Any]] = arrays
        self._codec, self._dim = codec, dim
        self._tensor: torch.Tensor | None = None

    def sizes(self, starts: Longs, counts: Longs) -> Longs:
        """Return the bytes of texts in float32."""
        return counts * (4 * self._dim)

    def read(self, numbers: slice | Longs, counts: Longs) -> Ragged:
        """Return some vectors in float32."""
        return Ragged.of(self._float32(numbers), counts)

    def copied(self, numbers: slice | Longs, before: RowsBefore) -> dict[str, NDArray[Any]]:
        """Return some rows of the arrays."""
        return {name: array[numbers] for name, array in self.arrays.items()}

    def _float32(self, numbers: slice | Longs) -> NDArray[np.float32]:
        """Copy vectors. torch gathers and converts fp16 many times faster than NumPy."""
        if not isinstance(self._codec, Floats):
            stored = {name: array[numbers] for name, array in self.arrays.items()}
            return self._codec.decode(stored, self._dim)
        import torch  # here, because most commands only read tables and digests

        if self._tensor is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # the map is not writable
                self._tensor = torch.from_numpy(self.arrays[VECTORS])
        if isinstance(numbers, slice):
            return self._tensor[numbers].to(torch.float32, copy=True).numpy()
        return self._tensor.index_select(0, torch.from_numpy(numbers)).float().numpy()


class Floats(DenseCodec):
    """A floating-point number for each dimension."""

    slack = 0.0

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    def types(self, dim: int) -> ArrayTypes:
        return {VECTORS: (self._dtype, (dim,))}

    def encode(self, vectors: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        return {VECTORS: vectors.astype(self._dtype)}

    def decode(self, stored: Mapping[str, NDArray[Any]], dim: int) -> NDArray[np.float32]:
        return stored[VECTORS].astype(np.float32)

    def on_device(self, stored: Tensors, dim: int) -> "torch.Tensor":
        return stored[VECTORS]


class Bytes(DenseCodec):
    """A byte for each dimension: value = code * scale, with scale = max |value| / 127 for each vector."""

    slack = 1e-3

    def types(self, dim: int) -> ArrayTypes:
        return {VECTORS: ("int8", (dim,)), SCALES: ("float32", ())}

    def encode(self, vectors: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        scales = np.abs(vectors).max(axis=1, initial=0) / np.float32(127)
        divisors = np.where(scales > 0, scales, np.float32(1))[:, None]  # a zero vector has scale 0
        with np.errstate(invalid="ignore"):  # infinities
            steps = np.rint(np.nan_to_num(vectors / divisors))
        return {VECTORS: steps.astype(np.int8), SCALES: scales}

    def decode(self, stored: Mapping[str, NDArray[Any]], dim: int) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = stored[VECTORS] * stored[SCALES][:, None]
        return vectors

    def on_device(self, stored: Tensors, dim: int) -> "torch.Tensor":
        return stored[VECTORS] * stored[SCALES][:, None]


class Levels(DenseCodec):
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

    def types(self, dim: int) -> ArrayTypes:
        return {VECTORS: ("uint8", (-(-dim // self._in_byte),)), SCALES: ("float32", ())}

    def encode(self, vectors: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
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

    def decode(self, stored: Mapping[str, NDArray[Any]], dim: int) -> NDArray[np.float32]:
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


class Bits(DenseCodec):
    """A bit for each dimension, eight in a byte: value = ±scale. The vector keeps its length."""

    slack = 0.05

    def types(self, dim: int) -> ArrayTypes:
        return {VECTORS: ("uint8", (-(-dim // 8),)), SCALES: ("float32", ())}

    def encode(self, vectors: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
        scales = lengths / max(1, vectors.shape[1]) ** 0.5
        return {VECTORS: np.packbits(vectors > 0, axis=1), SCALES: scales.astype(np.float32)}

    def decode(self, stored: Mapping[str, NDArray[Any]], dim: int) -> NDArray[np.float32]:
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


FP32 = Floats("float32")
FP16 = Floats("float16")
INT8 = Bytes()
INT4 = Levels(4, 0.3352, slack=0.02)
INT2 = Levels(2, 0.9957, slack=0.05)
BINARY = Bits()
