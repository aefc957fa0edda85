"""The file of a flat inner-product index of FAISS, written and read without FAISS.

The file is a header and float32 rows. FAISS keeps all of them in memory; here vectors larger than the
memory are written in blocks and read through a memory map.
"""

import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmkcli.errors import DataError
from lmkcli.system.input_files import check_finite

# Kind, dimensions, rows, two unused numbers, trained, metric; then the number of floats that follow.
_HEADER = struct.Struct("<4siqqqBiQ")
_KIND, _UNUSED, _TRAINED, _INNER_PRODUCT = b"IxFI", 1 << 20, 1, 0


def write_flat(path: Path, rows: int, dim: int, blocks: Iterable[NDArray[np.float32]]) -> None:
    """Write an IndexFlatIP of `rows` vectors for `faiss.read_index`, from blocks [n, dim]."""
    with open(path, "wb") as file:
        file.write(
            _HEADER.pack(_KIND, dim, rows, _UNUSED, _UNUSED, _TRAINED, _INNER_PRODUCT, rows * dim)
        )
        for block in blocks:
            file.write(np.ascontiguousarray(block, "<f4").tobytes())


def open_flat(path: Path) -> NDArray[np.float32]:
    """Return the rows [rows, dim] of such a file as a memory map; DataError for any other file."""
    check_finite(path)
    with open(path, "rb") as file:
        head = file.read(_HEADER.size)
    if len(head) < _HEADER.size or not head.startswith(_KIND):
        raise DataError(
            f"{path} is not a flat inner-product index of FAISS (its kind is {head[:4]!r}, not "
            f"{_KIND!r}). Other kinds change the vectors or use another metric: give the flat index, or "
            "the jsonl that the index was built from"
        )
    _, dim, rows, *_, floats = _HEADER.unpack(head)
    if (
        dim < 1
        or rows < 0
        or floats != rows * dim
        or path.stat().st_size != _HEADER.size + 4 * floats
    ):
        raise DataError(
            f"{path} is damaged: its size does not match {rows} rows of {dim} numbers; copy it again"
        )
    if not rows:
        return np.zeros((0, dim), np.float32)
    return np.memmap(path, "<f4", "r", offset=_HEADER.size, shape=(rows, dim))
