"""The codec `bf16`: the upper half of a float32, with its range and eight bits of precision."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lmkcli.vectors.dense_codecs import DenseCodec

VECTORS = "vectors"


class BFloat16(DenseCodec):
    """A number of 16 bits for each dimension. NumPy has no such type, so it is stored as uint16."""

    slack = 1e-5  # the cosine of a vector with its rounded form

    def types(self, dim: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the array of a part: its dtype and width."""
        return {VECTORS: ("uint16", (dim,))}

    def encode(self, vectors: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """Round vectors [n, dim] to the nearest number, and of two to the even one."""
        bits = np.ascontiguousarray(vectors, np.float32).view(np.uint32)
        rounded = bits + 0x7FFF + (bits >> 16 & 1)
        return {VECTORS: (rounded >> 16).astype(np.uint16)}

    def decode(self, stored: Mapping[str, NDArray[Any]], dim: int) -> NDArray[np.float32]:
        """Return vectors [n, dim]."""
        vectors: NDArray[np.float32] = (stored[VECTORS].astype(np.uint32) << 16).view(np.float32)
        return vectors

    def on_device(self, stored: Mapping[str, torch.Tensor], dim: int) -> torch.Tensor:
        """Return the same vectors on a device."""
        return stored[VECTORS].view(torch.bfloat16)


BF16 = BFloat16()
