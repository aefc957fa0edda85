"""Drawing: choose the passages of an example that a batch contains.

A draw depends only on the seed, the epoch and the example. It is therefore the same in every process and
after every resume.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.training.chance import seeded_rng
from lmkcli.training.examples import Examples, Ints


class Drawn(NamedTuple):
    """The query and the passages of one example, the positive first, as rows of the examples' texts."""

    example: int
    query: int
    passages: Ints
    scores: NDArray[np.float32]


@dataclass(frozen=True)
class Drawing:
    """The settings of drawing passages. Each epoch draws again.

    An example with too few negatives gives all that it has.
    """

    negatives: int = 7
    replace: bool = (
        False  # draw with replacement: every example with a negative gives the full number
    )
    positive: Literal["random", "first"] = "random"

    def draw(self, examples: Examples, number: int, epoch: int, seed: int) -> Drawn:
        """Draw the passages of one example in one epoch."""
        rng = seeded_rng(seed, "passages", epoch, number)
        first = int(examples.starts[number])
        positives = int(examples.positives[number])
        negatives = int(examples.starts[number + 1]) - first - positives
        positive = int(rng.integers(positives)) if self.positive == "random" else 0
        count = self.negatives if self.replace and negatives else min(self.negatives, negatives)
        chosen = rng.choice(max(negatives, 1), count, self.replace)
        places = first + np.concatenate([[positive], positives + chosen])
        query = int(examples.queries[number])
        return Drawn(number, query, examples.passages[places], examples.scores[places])
