"""The rows that may belong to the k best of each query, by scores that err by no more than a bound.

Each query has a lower bound of its exact k-th best score: k rows are known to reach it. A row whose score
stays below that bound by more than its error is out. The bound rises while scores come in; a guess may
stand in for it meanwhile, and whether the guess was low enough is checked at the end.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lmkcli.retrieval.room import SPARE


class ErrorBound(NamedTuple):
    """How far a score may be from the exact one, per query, in float64.

    |score - exact| <= norm * |row's largest vector| + rounding_norm * |what rounding took from it|, and
    in a dtype that keeps few digits `relative` * |score| besides.
    """

    norm: torch.Tensor
    rounding_norm: torch.Tensor
    relative: torch.Tensor

    def absolute(self, norm: float, rounding_norm: float) -> torch.Tensor:
        """The absolute part, for rows of such norms."""
        return self.norm * norm + self.rounding_norm * rounding_norm

    def part(self, queries: slice) -> "ErrorBound":
        """Of some of the queries."""
        return ErrorBound(*(each[queries] for each in self))

    def lowered(self, scores: torch.Tensor) -> torch.Tensor:
        """Scores less the relative part; -inf stays what it is."""
        return torch.where(scores.isneginf(), scores, scores - self.relative * scores.abs())


class TopKBuffer:
    """Some 2k rows of each query and their scores. Several queries are given no more room than that:
    one that would need it, because very many rows tie, fails.
    """

    def __init__(self, error: ErrorBound, k: int, guess: torch.Tensor | None) -> None:
        self._error, self._k = error, k
        self._lower_bound = torch.full_like(error.norm, -torch.inf)  # of the exact k-th best score
        self._guess = self._lower_bound if guess is None else guess
        self._most = torch.zeros_like(error.norm)  # the largest absolute error so far
        count, device = len(error.norm), error.norm.device
        self._filled = torch.zeros(count, dtype=torch.int64, device=device)
        self._scores = torch.empty((count, 2 * k + SPARE), dtype=torch.float32, device=device)
        self._rows = torch.empty_like(self._scores, dtype=torch.int64)
        self._passed = torch.empty(0, dtype=torch.bool, device=device)

    def offer(self, scores: torch.Tensor, queries: slice, first: int, error: torch.Tensor) -> None:
        """Scores [queries, n] of rows `first` onwards, and their absolute error for all queries."""
        self._make_room(queries, scores.shape[1])
        self._most = torch.maximum(self._most, error)
        threshold = torch.maximum(self._lower_bound - error, self._guess)
        if scores.dtype == torch.float32:  # else it is rounded as the scores were
            threshold = self._error.lowered(threshold)
        threshold = threshold[queries]
        if len(self._passed) < scores.numel():  # reused: touching new memory would cost more
            self._passed = torch.empty(scores.numel(), dtype=torch.bool, device=scores.device)
        passed = self._passed[: scores.numel()].view(scores.shape)
        threshold, bits = threshold.to(scores.dtype), scores
        if scores.dtype == torch.bfloat16 and bool((threshold > 0).all()):
            # positive floats are in the order of their bits, and integers are compared quicker
            threshold, bits = threshold.view(torch.int16), scores.view(torch.int16)
        at = true_places(torch.ge(bits, threshold[:, None], out=passed))
        query, column = at // scores.shape[1], at % scores.shape[1]
        self._append(query + queries.start, scores.flatten()[at].float(), column + first)

    def _make_room(self, queries: slice, n: int) -> None:
        if int(self._filled[queries].max()) + n <= self._scores.shape[1]:
            return
        self._raise_bound()
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

    def _raise_bound(self) -> None:
        """Raise the lower bound by the k best so far, and drop the rows that stay below it."""
        width = int(self._filled.max())
        scores = self._scores[:, :width]
        valid = torch.arange(width, device=scores.device) < self._filled[:, None]
        if width >= self._k:
            held = torch.where(valid, scores, -torch.inf)
            kth = held.topk(self._k, dim=1, sorted=False).values.amin(1).double()
            bound = self._error.lowered(kth) - self._most
            # rows that differ by a float32's last place may tie in a run
            bound = torch.where(kth.isneginf(), kth, bound - bound.abs() * 2.0**-23 - 2.0**-149)
            self._lower_bound = torch.maximum(self._lower_bound, bound)
        threshold = self._error.lowered(self._lower_bound - self._most).float()
        query, column = torch.nonzero(valid & (scores >= threshold[:, None]), as_tuple=True)
        kept, rows = scores[query, column], self._rows[query, column]
        self._filled.zero_()
        self._append(query, kept, rows)

    def result(self) -> tuple[list[NDArray[np.int64]], NDArray[np.bool_]]:
        """The rows of each query, and which queries failed: their rows are not complete."""
        self._raise_bound()
        failed = (self._guess + self._most > self._lower_bound).cpu().numpy()
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
    wider = old.new_empty((len(old), width))
    wider[:, : old.shape[1]] = old
    return wider
