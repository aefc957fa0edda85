"""Reductions: the marked states of a vector become one row. No other code combines states.

Several texts are in one batch. Their states are concatenated to [tokens, dim], and their marks are positions
in this array, sorted by vector. So the marks of one vector are a segment, and the vectors of the batch are
reductions of consecutive segments. Most poolers take the mean:

    states  [s0 s1 s2 s3 s4 s5]      marks  [0 1 2 5]      groups  [0 0 0 1]
    vector 0 = (s0 + s1 + s2) / 3    vector 1 = s5

The other reductions are those of sentence-transformers. The results of several reductions are concatenated.

Sums are in float32, because bfloat16 and float16 lose the last states of a long segment.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmkcli.pooling.table import MEAN_ONLY, StateReduction

_LEAST = 1e-9  # of a sum of weights that divides, as in sentence-transformers: weights may be zero


class Marks(NamedTuple):
    """The marked rows of some states, and the vector that each contributes to."""

    marks: Tensor  # [m]: rows of the states
    groups: Tensor  # [m], ascending: 0 … vectors - 1, each with at least one mark
    counts: NDArray[np.int64]  # [vectors], the marks of each, known without waiting for a GPU
    places: Tensor | None = None  # [m], from 1: the positions in the input, only for 'weighted'
    weights: Tensor | None = None  # [m], factors of the states, such as the idf of words

    @property
    def vectors(self) -> int:
        """The number of vectors."""
        return len(self.counts)

    @property
    def starts(self) -> NDArray[np.int64]:
        """The position in `marks` of the first mark of each vector, and the total, [vectors + 1]."""
        return np.concatenate([[0], np.cumsum(self.counts)])


class _Segments(NamedTuple):
    """The marked states of all vectors [m, dim], and the length of each segment [vectors]."""

    states: Tensor
    lengths: Tensor
    marks: Marks

    def reduced(self, values: Tensor, how: str) -> Tensor:
        """Return the 'sum', 'mean' or 'max' of the values of each segment, in each dimension."""
        # unsafe=True leaves out checks for which a GPU would have to wait
        return torch.segment_reduce(values, how, lengths=self.lengths, unsafe=True)

    def divisor(self, factors: Tensor) -> Tensor:
        """Return the sum of the factors of each segment, or of the weights of tokens, [vectors, 1].

        sentence-transformers ignores the factors of positions if tokens have weights.
        """
        divisors = factors if self.marks.weights is None else self.marks.weights
        return self.reduced(divisors, "sum").clamp(min=_LEAST)[:, None]

    def ones(self) -> Tensor:
        return self.states.new_ones(len(self.states))


def _mean(segments: _Segments) -> Tensor:
    if segments.marks.weights is None:
        return segments.reduced(segments.states, "mean")
    return segments.reduced(segments.states, "sum") / segments.divisor(segments.ones())


def _sqrt(segments: _Segments) -> Tensor:
    return segments.reduced(segments.states, "sum") / segments.divisor(segments.ones()).sqrt()


def _weighted(segments: _Segments) -> Tensor:
    places = segments.marks.places
    assert places is not None
    factors = places.to(segments.states.dtype)
    return segments.reduced(segments.states * factors[:, None], "sum") / segments.divisor(factors)


def _first(segments: _Segments) -> Tensor:
    return segments.states.index_select(0, segments.lengths.cumsum(0) - segments.lengths)


_REDUCTIONS: dict[StateReduction, Callable[[_Segments], Tensor]] = {
    "mean": _mean,
    "sqrt": _sqrt,
    "weighted": _weighted,
    "max": lambda segments: segments.reduced(segments.states, "max"),
    "first": _first,
    "last": lambda segments: segments.states.index_select(0, segments.lengths.cumsum(0) - 1),
}


def pool(states: Tensor, marks: Marks, reductions: Sequence[StateReduction] = MEAN_ONLY) -> Tensor:
    """Return the reduced marked states of each vector, [vectors, reductions * dim].

    states: [tokens, dim] of any floating dtype. The result is in float32 (float64 for float64), and
    differentiable.
    """
    marked = states.index_select(0, marks.marks)
    marked = marked.to(torch.promote_types(marked.dtype, torch.float32))
    if marks.weights is not None:
        marked = marked * marks.weights[:, None]
    elif len(marked) == marks.vectors:  # one mark for each vector: cls, last
        return marked if len(reductions) == 1 else marked.repeat(1, len(reductions))
    # A GPU would have to wait in bincount.
    groups = marks.groups
    lengths = groups.new_zeros(marks.vectors).index_add_(0, groups, torch.ones_like(groups))
    segments = _Segments(marked, lengths, marks)
    vectors = [_REDUCTIONS[how](segments) for how in reductions]
    return vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=1)
