"""The arrays of a part, opened and held against what the part says of itself."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmkcli.errors import DataError

# The arrays of a part, by name: dtype, and width after the first axis.
ArrayTypes = Mapping[str, tuple[str, tuple[int, ...]]]

_FIX = "delete this part and run the same command again"


def map_array(path: Path) -> NDArray[Any]:
    """A .npy file of any kind, memory-mapped; DataError where it is damaged."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy parses headers as Python, which can fail in any way
        raise DataError(
            f"{path} cannot be read ({error or type(error).__name__}); {_FIX}"
        ) from None
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path} is an archive, not an array; {_FIX}")
    return array


def open_array(path: Path, dtype: str, width: tuple[int, ...], rows: int | None) -> NDArray[Any]:
    """A .npy file, [rows, *width], memory-mapped; DataError where it is damaged or another array.

    `rows` is None where any number will do.
    """
    array = map_array(path)
    wanted = (len(array) if rows is None and array.ndim else rows, *width)
    if array.dtype != np.dtype(dtype).newbyteorder("<") or array.shape != wanted:
        raise DataError(
            f"{path} is {array.dtype.str} {list(array.shape)}, where {dtype} {list(wanted)} "
            f"is needed; {_FIX}"
        )
    return array


def check_finite_rows(array: NDArray[Any], path: Path) -> None:
    """DataError where some rows, spread over an array, hold what is no number."""
    sample = array[np.unique(np.linspace(0, len(array) - 1, min(len(array), 8)).astype(np.int64))]
    if not np.isfinite(sample).all():
        raise DataError(f"{path} holds values that are not finite; {_FIX}")
