"""FAISS's file of a flat inner-product index, which is a header and float32 rows, without FAISS.

So that vectors larger than memory can be written and read row by row, where FAISS holds them all.
"""

import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmkcli.errors import DataError
from lmkcli.reading import check_finite

# Kind, dimensions, rows, two unused numbers, trained, metric; then how many floats follow.
_HEADER = struct.Struct("<4siqqqBiQ")
_KIND, _UNUSED, _TRAINED, _INNER_PRODUCT = b"IxFI", 1 << 20, 1, 0


def write_flat(path: Path, rows: int, dim: int, blocks: Iterable[NDArray[np.float32]]) -> None:
    """Write what `faiss.read_index` reads as an IndexFlatIP of `rows` vectors, given in blocks."""
    with open(path, "wb") as file:
        file.write(
            _HEADER.pack(_KIND, dim, rows, _UNUSED, _UNUSED, _TRAINED, _INNER_PRODUCT, rows * dim)
        )
        for block in blocks:
            file.write(np.ascontiguousarray(block, "<f4").tobytes())


def open_flat(path: Path) -> NDArray[np.float32]:
    """The rows of such a file, [rows, dim], memory-mapped; DataError for any other file."""
    check_finite(path)
    with open(path, "rb") as file:
        head = file.read(_HEADER.size)
    if len(head) < _HEADER.size or not head.startswith(_KIND):
        raise DataError(
            f"{path} is no flat inner-product index of FAISS ({head[:4]!r}, not {_KIND!r}): other "
            "kinds keep no vectors as they were, or compare them otherwise; give the flat index or "
            "the jsonl that it was built from"
        )
    _, dim, rows, *_, floats = _HEADER.unpack(head)
    if floats != rows * dim or path.stat().st_size != _HEADER.size + 4 * floats:
        raise DataError(
            f"{path} is damaged: {rows} rows of {dim} numbers do not fill it; copy it again"
        )
    if not rows:
        return np.zeros((0, dim), np.float32)
    return np.memmap(path, "<f4", "r", offset=_HEADER.size, shape=(rows, dim))
