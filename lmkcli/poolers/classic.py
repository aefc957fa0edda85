"""cls, last, mean and mean@k: the ordinary layout, other marks (specs/lmk_details.md §2)."""

from dataclasses import dataclass

import numpy as np

from lmkcli.errors import UsageError
from lmkcli.placement import SHARED, Arrangement, Content, Ints, Layout, plain


@dataclass(frozen=True)
class Cls:
    """Marks position 0, the state of the first special token."""

    chunked = False

    def check(self, layout: Layout) -> None:
        if not layout.prefix:
            raise UsageError(
                "--pool cls needs a tokenizer that begins with a special token; try mean or last"
            )

    def arrange(
        self, content: Content, layout: Layout, limit: int, marked_from: int
    ) -> Arrangement:
        ids, kept = plain(content, layout, limit)
        return Arrangement(ids, np.zeros(1, np.int32), _shared(1), kept)


@dataclass(frozen=True)
class Last:
    """Marks the last position: EOS of a decoder, SEP of an encoder."""

    chunked = False

    def check(self, layout: Layout) -> None:
        """Every layout has a last position."""

    def arrange(
        self, content: Content, layout: Layout, limit: int, marked_from: int
    ) -> Arrangement:
        ids, kept = plain(content, layout, limit)
        return Arrangement(ids, np.array([len(ids) - 1], np.int32), _shared(1), kept)


@dataclass(frozen=True)
class Mean:
    """Marks every `step`-th position from 0 on, specials included; step 1 is the plain mean."""

    step: int = 1
    chunked = False

    def check(self, layout: Layout) -> None:
        """Any layout has positions to average."""

    def arrange(
        self, content: Content, layout: Layout, limit: int, marked_from: int
    ) -> Arrangement:
        ids, kept = plain(content, layout, limit)
        marks = np.arange(0, len(ids), self.step, dtype=np.int32)
        visible = marks[marks >= marked_from]
        marks = visible if len(visible) else marks  # nothing but a prompt: it is all there is
        first = len(layout.prefix) + len(content.prompt)
        owners = np.searchsorted(content.ends, marks - first, side="right").astype(np.int32)
        owners[marks >= first + kept] = SHARED
        return Arrangement(ids, marks, owners, kept)


def _shared(count: int) -> Ints:
    return np.full(count, SHARED, np.int32)
