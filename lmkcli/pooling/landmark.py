"""lmk and multicls: a special token for every chunk (arXiv 2601.21525 §4, Algorithms 1 and 2).

Landmarks are paid out of the length limit: the input is never longer than without them.
"""

from dataclasses import dataclass

import numpy as np

from lmkcli.errors import UsageError
from lmkcli.pooling.placement import SHARED, Arrangement, Content, Ints, SpecialTokens


@dataclass(frozen=True)
class Landmark:
    """CLS, then a landmark after every chunk; cut to the limit; the landmarks are marked.

    The cut leaves the tail after the last landmark without one of its own: it is context for the
    landmarks before it. Where no landmark survives, every position is marked, as in the official
    evaluation; `force` overwrites the last id by a landmark instead, as in the official training.
    """

    force: bool = False
    chunked = True
    per = "chunk"

    def reserved(self, special: SpecialTokens) -> int:
        return len(special.prefix)

    def check(self, special: SpecialTokens) -> None:
        if special.landmark is None:
            raise UsageError(
                "--pool lmk needs a tokenizer with a SEP or EOS token, and this one has neither; try mean"
            )

    def arrange(
        self, content: Content, special: SpecialTokens, limit: int, marked_from: int
    ) -> Arrangement:
        head = np.concatenate([np.array(special.prefix, np.int32), content.prompt])
        body = content.ids[:limit]
        ends = content.ends[content.ends <= len(body)]
        ids = np.concatenate([head, np.insert(body, ends, np.int32(special.landmark or 0))])[:limit]
        marks = (len(head) + ends + np.arange(len(ends))).astype(np.int32)
        marks = marks[marks < limit]
        ids = ids.astype(np.int32, copy=False)
        if not len(marks):
            kept = max(len(ids) - len(head), 0)
            if self.force:
                return self._overwritten(ids, special, kept)
            return _all(ids, marked_from, kept)
        kept = max(len(ids) - len(head) - len(marks), 0)
        return Arrangement(ids, marks, np.arange(len(marks), dtype=np.int32), kept)

    def _overwritten(self, ids: Ints, special: SpecialTokens, kept: int) -> Arrangement:
        last = len(ids) - 1
        ids[last] = special.landmark or 0
        return Arrangement(ids, np.array([last], np.int32), np.zeros(1, np.int32), max(kept - 1, 0))


def _all(ids: Ints, marked_from: int, kept: int) -> Arrangement:
    """Every position is marked, less a prompt that is not averaged, unless that is all there is."""
    first = marked_from if marked_from < len(ids) else 0
    marks = np.arange(first, len(ids), dtype=np.int32)
    return Arrangement(ids, marks, np.full(len(marks), SHARED, np.int32), kept)


@dataclass(frozen=True)
class MultiCls:
    """Every chunk is preceded by CLS; cut before one final suffix; the CLS positions are marked."""

    chunked = True
    per = "chunk"

    def reserved(self, special: SpecialTokens) -> int:
        return len(special.suffix)

    def check(self, special: SpecialTokens) -> None:
        if special.cls is None:
            raise UsageError(
                "--pool multicls needs a tokenizer with a CLS or BOS token; try mean or lmk"
            )

    def arrange(
        self, content: Content, special: SpecialTokens, limit: int, marked_from: int
    ) -> Arrangement:
        room = limit - len(special.suffix)
        body = content.ids[:room]
        starts = np.concatenate([np.zeros(1, np.int32), content.ends[:-1]])
        starts = starts[starts < len(body) + (len(body) == len(content.ids))]
        joined = np.insert(body, starts, np.int32(special.cls or 0))
        # the prompt follows the first CLS and belongs to the first chunk
        joined = np.concatenate([joined[:1], content.prompt, joined[1:]])[:room]
        marks = (starts + np.arange(len(starts))).astype(np.int32)
        marks[1:] += len(content.prompt)
        marks = marks[marks < room]
        ids = np.concatenate([joined, np.array(special.suffix, np.int32)]).astype(np.int32)
        kept = max(len(joined) - len(content.prompt) - len(marks), 0)
        return Arrangement(ids, marks, np.arange(len(marks), dtype=np.int32), kept)
