"""Skipping: short texts that stand at the positions of long ones, which teach these (PoSE).

Attention over a long text costs the square of its length, and most of what a model must learn of far
positions is that they mean what near ones mean.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmkcli.errors import UsageError
from lmkcli.pooling.placement import Input, Placement


@dataclass(frozen=True)
class Skipping:
    """Gives a share of inputs positions with one gap, so that they reach up to `reach` (exclusive).

    As PoSE with two chunks (arXiv 2309.10400 §3): the first begins at 0, where it ends and how far the
    second is moved are uniform. At 0 nothing skips.
    """

    share: float = 0.0
    reach: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise UsageError(f"--skip-positions {self.share:g}: write a share from 0 to 1")

    def __call__(self, placement: Placement, chances: NDArray[np.float64]) -> Placement:
        """The text's input, with a gap where `chances` ([3], of [0, 1): whether, where, how far) say so.

        Windows stay at the positions where they will be read.
        """
        if chances[0] >= self.share or len(placement.inputs) > 1:
            return placement
        return placement._replace(inputs=[self._gapped(one, chances) for one in placement.inputs])

    def _gapped(self, one: Input, chances: NDArray[np.float64]) -> Input:
        length = len(one.ids)
        if length < 2 or length >= self.reach:
            return one
        places = np.arange(length, dtype=np.int32)
        cut = 1 + int(chances[1] * (length - 1))
        places[cut:] += int(chances[2] * (self.reach - length + 1))
        return one._replace(positions=places)
