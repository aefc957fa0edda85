"""The rows that may belong to the k best of each query, by scores that err by no more than a bound.

Of each query something is sure: k rows have exact scores of at least that. A row whose score and error
stay below it is out. This bound rises while scores come in; a guess may stand in for it meanwhile, and
whether it was low enough is looked at in the end.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

ROOM = 8192  # places of each query beyond those for 2k: two blocks of rows


class Error(NamedTuple):
    """How far a score may be from the exact one, per query, in float64.

    |score - exact| <= norm * |row's largest vector| + off * |what rounding took from it|, and in a
    dtype that keeps few digits `relative` * |score| besides.
    """

    norm: torch.Tensor
    off: torch.Tensor
    relative: torch.Tensor

    def of(self, norm: float, off: float) -> torch.Tensor:
        """The absolute part for rows of such a norm and rounding."""
        return self.norm * norm + self.off * off

    def part(self, queries: slice) -> "Error":
        """Of some of the queries."""
        return Error(*(each[queries] for each in self))

    def lowered(self, scores: torch.Tensor) -> torch.Tensor:
        """Scores less the relative part; -inf stays what it is."""
        return torch.where(scores.isneginf(), scores, scores - self.relative * scores.abs())


class Best:
    """Some 2k rows of each query and their scores. Several queries are given no more room than that:
    one that would need it, because very many rows tie, fails.
    """

    def __init__(self, error: Error, k: int, guess: torch.Tensor | None) -> None:
        self._error, self._k = error, k
        self._sure = sure = torch.full_like(error.norm, -torch.inf)
        self._guess = sure if guess is None else guess
        self._most = torch.zeros_like(sure)  # the largest absolute error so far
        self._filled = torch.zeros(len(sure), dtype=torch.int64, device=sure.device)
        self._scores = sure.new_empty((len(sure), 2 * k + ROOM), dtype=torch.float32)
        self._rows = torch.empty_like(self._scores, dtype=torch.int64)
        self._passed = torch.empty(0, dtype=torch.bool, device=sure.device)

    def offer(self, scores: torch.Tensor, queries: slice, first: int, error: torch.Tensor) -> None:
        """Scores [queries, n] of rows `first` onwards, and their absolute error for all queries."""
        self._make_room(queries, scores.shape[1])
        self._most = torch.maximum(self._most, error)
        bar = torch.maximum(self._sure - error, self._guess)
        if scores.dtype == torch.float32:  # else it is rounded as the scores were
            bar = self._error.lowered(bar)
        bar = bar[queries]
        if len(self._passed) < scores.numel():  # kept: fresh pages are dear
            self._passed = torch.empty(scores.numel(), dtype=torch.bool, device=scores.device)
        passed = self._passed[: scores.numel()].view(scores.shape)
        bar, bits = bar.to(scores.dtype), scores
        if scores.dtype == torch.bfloat16 and bool((bar > 0).all()):
            # positive floats are in the order of their bits, and integers are compared quicker
            bar, bits = bar.view(torch.int16), scores.view(torch.int16)
        at = true_places(torch.ge(bits, bar[:, None], out=passed))
        query, column = at // scores.shape[1], at % scores.shape[1]
        self._append(query + queries.start, scores.flatten()[at].float(), column + first)

    def _make_room(self, queries: slice, n: int) -> None:
        if int(self._filled[queries].max()) + n <= self._scores.shape[1]:
            return
        self._raise()
        full = self._filled + n > self._scores.shape[1]
        if len(full) > 1:  # for a query alone there is room
            self._filled[full] = 0
            self._guess = torch.where(full, torch.inf, self._guess)
        elif bool(full):
            self._scores = _widened(self._scores, 2 * self._scores.shape[1] + n)
            self._rows = _widened(self._rows, self._scores.shape[1])

    def _append(self, query: torch.Tensor, scores: torch.Tensor, rows: torch.Tensor) -> None:
        """Entries in the order of their queries."""
        counts = torch.bincount(query, minlength=len(self._filled))
        before = self._filled - (counts.cumsum(0) - counts)
        place = before[query] + torch.arange(len(query), device=query.device)
        place += query * self._scores.shape[1]
        self._scores.view(-1)[place] = scores
        self._rows.view(-1)[place] = rows
        self._filled += counts

    def _raise(self) -> None:
        """Learn from the k best so far what is sure, and drop what is out."""
        width = int(self._filled.max())
        scores = self._scores[:, :width]
        valid = torch.arange(width, device=scores.device) < self._filled[:, None]
        if width >= self._k:
            held = torch.where(valid, scores, -torch.inf)
            kth = held.topk(self._k, dim=1, sorted=False).values.amin(1).double()
            sure = self._error.lowered(kth) - self._most
            # rows that differ by a float32's last place may tie in a run
            sure = torch.where(kth.isneginf(), kth, sure - sure.abs() * 2.0**-23 - 2.0**-149)
            self._sure = torch.maximum(self._sure, sure)
        bar = self._error.lowered(self._sure - self._most)
        query, column = torch.nonzero(valid & (scores >= bar.float()[:, None]), as_tuple=True)
        kept, rows = scores[query, column], self._rows[query, column]
        self._filled.zero_()
        self._append(query, kept, rows)

    def result(self) -> tuple[list[NDArray[np.int64]], NDArray[np.bool_]]:
        """The rows of each query, and which queries failed: their rows are not complete."""
        self._raise()
        failed = (self._guess + self._most > self._sure).cpu().numpy()
        rows, filled = self._rows.cpu().numpy(), self._filled.tolist()
        return [row[:count].copy() for row, count in zip(rows, filled, strict=True)], failed


def true_places(mask: torch.Tensor) -> torch.Tensor:
    """Where a mask that is seldom true is, in the order of its memory: eight places at a glance."""
    if mask.numel() % 8:
        return torch.nonzero(mask.flatten()).squeeze(1)
    words = mask.view(-1, 8)
    hit = torch.nonzero(words.view(torch.int64).flatten()).squeeze(1)
    at = torch.nonzero(words[hit].flatten()).squeeze(1)
    return hit[at >> 3] * 8 + (at & 7)


def _widened(old: torch.Tensor, width: int) -> torch.Tensor:
    made = old.new_empty((len(old), width))
    made[:, : old.shape[1]] = old
    return made
