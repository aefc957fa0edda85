"""What an objective is: a function from the vectors of a batch, and what is known of it, to a loss.

An objective sees vectors and nothing of the model. So it can be computed from the gathered vectors of
many processes, of which only the own ones carry a gradient, and its gradient with respect to the
vectors can be had before the model is run again (cached batches).

Everything is compared by the one score: for each query vector the best of a document's vectors,
summed. Vectors come as the recipe makes them: normalised where the similarity is cosine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from lmkcli.errors import DataError

Need = Literal["teacher", "negatives", "sequence", "targets"]
FAR = -1e9  # the logit of what takes no part: its share is exactly 0, its gradient too


@dataclass(frozen=True)
class Embedded:
    """The vectors of texts, one text after the other.

    `vectors` is [vectors, dim]; `counts` [texts] says how many each text has, and is None where each
    has one.
    """

    vectors: Tensor
    counts: Tensor | None = None

    def __len__(self) -> int:
        """How many texts there are."""
        return len(self.vectors if self.counts is None else self.counts)

    def single(self) -> Tensor:
        """The vectors as [texts, dim], of float32 at least. DataError where a text has several."""
        if self.counts is not None:
            raise DataError("this objective compares one vector a text; train with --unit doc")
        return _wide(self.vectors)

    def owners(self) -> Tensor:
        """[vectors]: the text that each vector belongs to."""
        rows = torch.arange(len(self), device=self.vectors.device)
        return rows if self.counts is None else rows.repeat_interleave(self.counts)


@dataclass(frozen=True)
class BatchFacts:
    """What is known of a batch beside its vectors: Q queries, N passages, at most G to a query.

    groups: [Q, G] int64, for each query the rows of its own passages, the positive first; -1 fills up.
    teacher: [Q, G], the teacher's scores of these, NaN where there is none.
    excluded: [Q, N] bool, pairs that are not contrasted, because the passage answers this query too
        or is there already; never one of the query's own passages.
    sequence: [N] int64, the document, counted from 0, of which each passage is a chunk.
    query_targets, passage_targets: [Q, dim] and [N, dim], the vectors that a teacher gives them.
    """

    groups: Tensor
    teacher: Tensor | None = None
    excluded: Tensor | None = None
    sequence: Tensor | None = None
    query_targets: Tensor | None = None
    passage_targets: Tensor | None = None

    @property
    def positives(self) -> Tensor:
        """[Q]: the row of each query's positive."""
        return self.groups[:, 0]

    @property
    def present(self) -> Tensor:
        """[Q, G] bool: where `groups` names a passage."""
        return self.groups >= 0

    def to(self, device: torch.device | str) -> "BatchFacts":
        """The same facts on another device."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved = {name: v.to(device) for name, v in values.items() if v is not None}
        return replace(self, **moved)


class Loss(NamedTuple):
    """A scalar to be minimised, and the named parts that it is made of (scalars, detached)."""

    total: Tensor
    parts: Mapping[str, Tensor]


class Objective(Protocol):
    """A frozen dataclass whose fields are its settings."""

    @property
    def needs(self) -> frozenset[Need]:
        """The facts without which it has nothing to compute."""

    def __call__(self, queries: Embedded, passages: Embedded, facts: BatchFacts) -> Loss:
        """The loss of one batch; DataError when a fact that it needs is missing."""


def given(fact: Tensor | None, what: str) -> Tensor:
    """The fact, or DataError that says what is missing."""
    if fact is None:
        raise DataError(f"this objective needs {what}, and the training data have none")
    return fact


def scores(queries: Embedded, passages: Embedded, padded: bool = False) -> Tensor:
    """[Q, N]: the one score of every query and passage, in float32 at least.

    A text without vectors scores 0. `padded` has every passage padded with zero vectors to the
    longest one, as ColBERT's code does, so that the best match of a shorter one is never below 0.
    """
    with torch.autocast(queries.vectors.device.type, enabled=False):
        products = _wide(queries.vectors) @ _wide(passages.vectors).T
    if passages.counts is not None:
        products = _best(products, passages, padded)
    if queries.counts is None:
        return products
    return products.new_zeros(len(queries), products.shape[1]).index_add(
        0, queries.owners(), products
    )


def logits(queries: Embedded, passages: Embedded, temperature: float, single: float) -> Tensor:
    """[Q, N]: scores over the temperature; 0 stands for `single`, and for 1 in late interaction."""
    late = queries.counts is not None
    return scores(queries, passages) / (temperature or (1.0 if late else single))


def own(values: Tensor, facts: BatchFacts) -> Tensor:
    """[Q, G] out of [Q, N]: the values of each query's own passages, FAR where there is none."""
    return values.gather(1, facts.groups.clamp(min=0)).masked_fill(~facts.present, FAR)


def contrastive(values: Tensor, facts: BatchFacts) -> Tensor:
    """Cross-entropy of logits [Q, N] with each query's positive as the target, the mean over queries."""
    if facts.excluded is not None:
        values = values.masked_fill(facts.excluded, FAR)
    return functional.cross_entropy(values, facts.positives)


def _best(products: Tensor, passages: Embedded, padded: bool) -> Tensor:
    """[query vectors, N] out of [query vectors, passage vectors]: the maximum in each passage."""
    empty = products.new_zeros(len(products), len(passages))
    best = empty.scatter_reduce(
        1, passages.owners().expand_as(products), products, "amax", include_self=False
    )
    if not padded or passages.counts is None or not len(passages):
        return best
    return torch.where(passages.counts < passages.counts.max(), best.clamp(min=0), best)


def _wide(vectors: Tensor) -> Tensor:
    return vectors if vectors.dtype in (torch.float32, torch.float64) else vectors.float()
