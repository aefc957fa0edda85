"""Poolers of two experiments in docs/lmk-minilm.md.

`side` is for training only: half of the texts have the mean, the other half landmarks. `own` has landmarks
of a token of their own.
"""

from dataclasses import dataclass
from zlib import crc32

import numpy as np

from lmkcli.errors import UsageError
from lmkcli.pooling.block_placement import ArrangedBlock, WindowBlock
from lmkcli.pooling.classic import Mean
from lmkcli.pooling.landmark import Landmark
from lmkcli.pooling.placement import Arrangement, Content, PoolerTraits, SpecialTokens


@dataclass(frozen=True)
class Side:
    """A checksum of its token ids selects the pooler of a text, so queries and documents have both."""

    chunked = True
    per = "chunk"
    traits = PoolerTraits(marks_separator=True)

    def reserved(self, special: SpecialTokens) -> int:
        """The positions of the special tokens of the mean, which has more of them."""
        return len(special.prefix) + len(special.suffix)

    def check(self, special: SpecialTokens) -> None:
        """Raise UsageError for a tokenizer without a token for landmarks."""
        Landmark().check(special)

    def arrange(
        self, content: Content, special: SpecialTokens, limit: int, marked_from: int
    ) -> Arrangement:
        """Place a text as one of the two poolers does."""
        ids = np.ascontiguousarray(content.ids, np.int32)
        pooler = Landmark(force=True) if crc32(ids.tobytes()) & 1 else Mean()
        return pooler.arrange(content, special, limit, marked_from)


class Own(Landmark):
    """Landmarks are mask tokens, which no text contains, instead of SEP."""

    def for_training(self) -> "Own":
        """The same pooler with a landmark in every input."""
        return Own(force=True)

    def check(self, special: SpecialTokens) -> None:
        """Raise UsageError for a tokenizer without a mask token."""
        if special.mask is None:
            raise UsageError("--pool own needs a tokenizer with a mask token")

    def arrange(
        self, content: Content, special: SpecialTokens, limit: int, marked_from: int
    ) -> Arrangement:
        """Place a text with landmarks."""
        return super().arrange(content, _masks(special), limit, marked_from)

    def arrange_block(
        self, windows: WindowBlock, special: SpecialTokens, limit: int
    ) -> ArrangedBlock:
        """Place many texts with landmarks."""
        return super().arrange_block(windows, _masks(special), limit)


def _masks(special: SpecialTokens) -> SpecialTokens:
    return special._replace(landmark=special.mask)
