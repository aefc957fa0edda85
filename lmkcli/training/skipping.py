"""Position skipping (PoSE): train positions of long texts with short texts.

The cost of attention is quadratic in the length of a text. With a gap in its position numbers, a short
text trains high positions at the cost of a short text.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmkcli.errors import UsageError
from lmkcli.pooling.placement import Input, Placement


@dataclass(frozen=True)
class Skipping:
    """Adds one gap to the positions of a share of the inputs; positions stay below `reach`.

    This is PoSE with two chunks (arXiv 2309.10400 §3). The first chunk starts at position 0. Its end and the
    size of the gap after it are uniform. Share 0 disables skipping.
    """

    share: float = 0.0
    reach: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise UsageError(f"--skip-positions {self.share:g}: write a share from 0 to 1")

    def __call__(self, placement: Placement, uniform: NDArray[np.float64]) -> Placement:
        """Return the placement of a text, possibly with a gap.

        `uniform` [3] are random numbers of [0, 1). They decide whether the input gets a gap, the position of
        the gap, and its size. Texts in several windows remain unchanged, because each window is read from
        position 0.
        """
        if uniform[0] >= self.share or len(placement.inputs) > 1:
            return placement
        return placement._replace(inputs=[self._gapped(one, uniform) for one in placement.inputs])

    def _gapped(self, one: Input, uniform: NDArray[np.float64]) -> Input:
        length = len(one.ids)
        if length < 2 or length >= self.reach:
            return one
        positions = np.arange(length, dtype=np.int32)
        cut = 1 + int(uniform[1] * (length - 1))
        positions[cut:] += int(uniform[2] * (self.reach - length + 1))
        return one._replace(positions=positions)
