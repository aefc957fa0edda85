"""The pooler `side`: half of the texts with the mean, the other half with landmarks; for training only.

docs/lmk-minilm.md has the experiment.
"""

from dataclasses import dataclass
from zlib import crc32

import numpy as np

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
