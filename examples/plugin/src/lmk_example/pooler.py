"""The pooler `head@k`: the mean over the first k positions, special tokens included."""

from dataclasses import dataclass

import numpy as np

from lmkcli.pooling.placement import SHARED, Arrangement, Content, SpecialTokens, plain


@dataclass(frozen=True)
class Head:
    """Marks the first `step` positions of an input; lmk averages the states at marked positions."""

    step: int = 1  # the k of head@k

    chunked = False  # True for poolers that add a token to each chunk: they need --gran
    per = "input"  # the marks belong to the whole input, not to single chunks

    def reserved(self, special: SpecialTokens) -> int:
        """Return the number of positions of an input that are not content."""
        return len(special.prefix) + len(special.suffix)

    def check(self, special: SpecialTokens) -> None:
        """Raise UsageError if a required special token is missing; this pooler needs none."""

    def arrange(
        self, content: Content, special: SpecialTokens, limit: int, marked_from: int
    ) -> Arrangement:
        """Return an ordinary input of at most `limit` positions with its first positions marked."""
        ids, kept = plain(content, special, limit)
        marks = np.arange(min(self.step, len(ids)), dtype=np.int32)
        return Arrangement(ids, marks, np.full(len(marks), SHARED, np.int32), kept)
