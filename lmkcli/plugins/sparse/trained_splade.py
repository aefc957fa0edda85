"""SPLADE in training: vectors with gradients, without the logits of all positions.

The logits of a batch are positions times vocabulary: 64 passages of 128 positions have a gigabyte of them in
float32. The vector of a text needs only the largest logit of each term, so only one position of the text gets
a gradient for this term. `LargestLogits` therefore keeps the number of this position, [vectors, vocabulary],
and computes the logits block by block. Its backward pass multiplies sparse matrices, with an entry for each
term that has a weight; it needs neither the logits nor a second pass through the last layer.

A sum of weights has gradients for all positions. Its blocks are computed again in the backward pass.
"""

from itertools import pairwise
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.sparse import check_sparse_tensor_invariants

from lmkcli.models.language_head import VocabularyHead
from lmkcli.models.prediction_head import recomputed
from lmkcli.plugins.sparse.splade_pooling import SpladePooling
from lmkcli.pooling.reductions import Marks
from lmkcli.store.ragged import cut


class TrainedSplade(SpladePooling):
    """SpladePooling with gradients. The vectors are dense."""

    def __init__(
        self, head: VocabularyHead, of_marks: Literal["max", "sum"], logarithms: int
    ) -> None:
        super().__init__(head, of_marks, logarithms)
        self._head = _SplitHead(head) if self._maximum else None

    @property
    def exact(self) -> bool:
        """Whether the weights equal those of SpladePooling: the head ends in a linear layer."""
        return self._head is None or self._head.exact

    def forward(self, states: Tensor, marks: Marks) -> Tensor:
        """[rows, d] -> [marks.vectors, vocabulary] in float32."""
        marked = states.index_select(0, marks.marks)
        starts = marks.starts.tolist()
        if self._head is None:
            return self._sums(marked, starts)
        inner, last = self._head.transformed(marked), self._head.last
        layout = Layout(starts, self._block)
        return self._weights(_largest_logits(inner, last.weight, last.bias, layout))

    def _sums(self, marked: Tensor, starts: list[int]) -> Tensor:
        """[marks, d] -> [vectors, vocabulary]: the sums of the weights of each vector."""

        def summed(part: Tensor) -> Tensor:
            return self._weights(self.token_head(part).float()).sum(0)

        sums = []
        for first, stop in pairwise(starts):
            parts = torch.split(marked[first:stop], self._block)
            sums.append(torch.stack([recomputed(summed, part) for part in parts]).sum(0))
        return torch.stack(sums)


class _SplitHead:
    """A language head in two steps: its transformation of states, and its last linear layer."""

    def __init__(self, head: VocabularyHead) -> None:
        self._masked: Any = head.masked
        self._head = head
        self.last: Any = self._masked.get_output_embeddings()
        named = self._masked.named_modules()
        self._name = next(name for name, module in named if module is self.last)

    @property
    def exact(self) -> bool:
        """Whether the two steps give the logits of the head: nothing follows its last layer."""
        if not isinstance(self.last, nn.Linear):
            return False
        with torch.no_grad():
            states = torch.linspace(-1, 1, self.last.in_features, device=self.last.weight.device)
            states = states.to(self.last.weight.dtype)[None]
            two_steps = self.last(self.transformed(states))
            return torch.allclose(self._head(states), two_steps, equal_nan=True)

    def transformed(self, states: Tensor) -> Tensor:
        """[n, d] -> [n, d], the input of the last layer."""
        self._masked.set_submodule(self._name, nn.Identity())
        try:
            return cast(Tensor, self._head(states))
        finally:
            self._masked.set_submodule(self._name, self.last)


class Layout(NamedTuple):
    """Vector i has the states starts[i] … starts[i + 1] - 1; `block` states have logits at a time."""

    starts: list[int]
    block: int


class LargestLogits(torch.autograd.Function):
    """The largest logit of each term in each vector, [vectors, vocabulary] in float32.

    Inputs: states [m, d] of all vectors, one vector after another, and the last layer: a matrix
    [vocabulary, d] and its bias.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, layout: Layout
    ) -> Tensor:
        """Return the maxima, and keep the numbers of their states."""
        starts, block = layout
        shape = (len(starts) - 1, len(weight))
        largest = states.new_full(shape, -torch.inf, dtype=torch.float32)
        places = torch.zeros(shape, dtype=torch.int32, device=states.device)
        for first, stop in cut(np.array(starts), block):
            for begin in range(starts[first], starts[stop], block):
                end = min(begin + block, starts[stop])
                logits = functional.linear(states[begin:end], weight, bias)
                for row in range(first, stop):
                    low, high = max(starts[row], begin), min(starts[row + 1], end)
                    values, at = logits[low - begin : high - begin].max(0)
                    # The parts of a long vector follow each other.
                    better = (values > largest[row]) | values.isnan()
                    largest[row] = torch.where(better, values.float(), largest[row])
                    places[row] = torch.where(better, at.int() + low, places[row])
        ctx.save_for_backward(states, weight, bias, places)
        ctx.block = block
        return largest

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the states, the matrix and the bias."""
        states, weight, bias, places = ctx.saved_tensors
        if gradient.is_cuda:
            of_states, of_weight = blockwise_gradients(states, weight, places, gradient, ctx.block)
        else:
            of_states, of_weight = sparse_gradients(states, weight, places, gradient)
        of_bias = gradient.sum(0).to(bias.dtype) if ctx.needs_input_grad[2] else None
        return of_states, of_weight, of_bias, None


def sparse_gradients(
    states: Tensor, weight: Tensor, places: Tensor, gradient: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of the states and, if it is trained, of the matrix by sparse products.

    Few terms of a vector have a gradient, so on a CPU this is much less work than dense products. A GPU would
    wait for their number.
    """
    rows, terms = torch.nonzero(gradient, as_tuple=True)
    entries = torch.stack([places[rows, terms].long(), terms])
    shape = (len(states), len(weight))
    # torch 2.11 warns unless this is explicit
    with check_sparse_tensor_invariants(enable=False):  # type: ignore[no-untyped-call]
        logits = torch.sparse_coo_tensor(entries, gradient[rows, terms], shape)
        of_states = torch.sparse.mm(logits, weight.float()).to(states.dtype)
        if not weight.requires_grad:  # with LoRA, the matrix may be frozen
            return of_states, None
        return of_states, torch.sparse.mm(logits.t(), states.float()).to(weight.dtype)


def blockwise_gradients(
    states: Tensor, weight: Tensor, places: Tensor, gradient: Tensor, block: int
) -> tuple[Tensor, Tensor | None]:
    """Return the same gradients by dense products, `block` states at a time. A GPU need not be waited for."""
    parts = []
    of_weight = torch.zeros_like(weight, dtype=torch.float32) if weight.requires_grad else None
    for begin in range(0, len(states), block):
        some = states[begin : begin + block]
        inside = (places >= begin) & (places < begin + len(some))
        at = (places - begin).clamp(0, len(some) - 1).long()
        logits = gradient.new_zeros(len(some), len(weight))
        logits.scatter_add_(0, at, gradient.where(inside, 0))
        parts.append((logits @ weight.float()).to(states.dtype))
        if of_weight is not None:
            of_weight += logits.t() @ some.float()
    return torch.cat(parts), None if of_weight is None else of_weight.to(weight.dtype)


def _largest_logits(states: Tensor, weight: Tensor, bias: Tensor | None, layout: Layout) -> Tensor:
    largest = LargestLogits.apply(states, weight, bias, layout)  # type: ignore[no-untyped-call]
    return cast(Tensor, largest)
