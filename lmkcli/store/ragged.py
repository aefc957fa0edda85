"""Rows of different lengths in one flat array."""

import numpy as np
from numpy.typing import NDArray


def ranges(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the concatenated ranges starts[i] … starts[i] + counts[i] - 1, [sum of counts].

    Position p of the result belongs to range i and is p - before[i] after starts[i], where before[i] counts
    the positions of earlier ranges. So it is p + (starts[i] - before[i]).
    """
    before = np.cumsum(counts) - counts
    shifts: NDArray[np.int64] = np.repeat(starts - before, counts)
    return shifts + np.arange(len(shifts))
