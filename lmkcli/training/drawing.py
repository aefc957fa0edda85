"""Drawing: which of an example's passages stand in a batch.

A draw is a function of the seed, the epoch and the example alone, so that it is the same in any
process and after any resume.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.training.chance import dice
from lmkcli.training.examples import Examples, Ints


class Drawn(NamedTuple):
    """A query and the passages that are its own, the positive first: rows of the examples' texts."""

    example: int
    query: int
    passages: Ints
    scores: NDArray[np.float32]


@dataclass(frozen=True)
class Drawing:
    """How passages are drawn, anew each epoch; fewer negatives where an example has no more."""

    negatives: int = 7
    replace: bool = False  # with replacement, every example that has a negative gives that many
    positive: Literal["random", "first"] = "random"

    def draw(self, examples: Examples, number: int, epoch: int, seed: int) -> Drawn:
        """The query and the passages of one example in one epoch."""
        chance = dice(seed, "passages", epoch, number)
        first = int(examples.starts[number])
        positives = int(examples.positives[number])
        others = int(examples.starts[number + 1]) - first - positives
        kept = int(chance.integers(positives)) if self.positive == "random" else 0
        wanted = self.negatives if self.replace and others else min(self.negatives, others)
        chosen = chance.choice(max(others, 1), wanted, self.replace)
        places = first + np.concatenate([[kept], positives + chosen])
        query = int(examples.queries[number])
        return Drawn(number, query, examples.passages[places], examples.scores[places])
