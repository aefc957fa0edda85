"""Objectives: functions that map the vectors and facts of a batch to a loss.

An objective receives vectors and has no access to the model. This separation has two uses:
- Several processes can gather their vectors and compute the loss of the whole batch. Only the local
  vectors of a process carry a gradient.
- Gradient caching can compute the gradient of the loss with respect to the vectors first, and run the
  model a second time afterwards.

All objectives share one score, MaxSim: score(q, p) = sum over the vectors of q of the maximum dot product
with a vector of p. With one vector per text this is the dot product. The recipe decides whether vectors
are normalised; they are if the similarity is cosine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from lmkcli.errors import DataError

Need = Literal["teacher", "negatives", "sequence", "targets"]
FAR = -1e9  # the logit of an excluded pair: its softmax probability and its gradient are exactly 0


@dataclass(frozen=True)
class Embedded:
    """The vectors of several texts, concatenated in the order of the texts.

    vectors: [vectors, dim].
    counts: [texts], the number of vectors of each text; None if each text has one vector.
    """

    vectors: Tensor
    counts: Tensor | None = None

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.vectors if self.counts is None else self.counts)

    def single(self) -> Tensor:
        """Return the vectors as [texts, dim] in float32 or float64.

        Raises DataError if texts have several vectors.
        """
        if self.counts is not None:
            raise DataError("this objective needs one vector per text; train with --unit doc")
        return _float32(self.vectors)

    def owners(self) -> Tensor:
        """Return the number of the text that each vector belongs to, [vectors]."""
        rows = torch.arange(len(self), device=self.vectors.device)
        if self.counts is None:
            return rows
        # With the size of the output, the CPU does not wait for the counts on the GPU.
        return rows.repeat_interleave(self.counts, output_size=len(self.vectors))


@dataclass(frozen=True)
class BatchFacts:
    """Facts about a batch that its vectors do not contain.

    The batch has Q queries and N passages. Each query has at most G passages of its own.

    groups: [Q, G] int64, the row numbers of each query's own passages. The positive comes first; -1 is
        padding.
    teacher: [Q, G], the teacher's scores of these passages; NaN means no score.
    excluded: [Q, N] bool, pairs that are not contrasted, because the passage answers this query too or
        its text occurs earlier in the batch. A query's own passages are never excluded.
    sequence: [N] int64, the document that each passage (a chunk) belongs to, counted from 0.
    query_targets, passage_targets: [Q, dim] and [N, dim], the teacher's vectors of the texts.
    """

    groups: Tensor
    teacher: Tensor | None = None
    excluded: Tensor | None = None
    sequence: Tensor | None = None
    query_targets: Tensor | None = None
    passage_targets: Tensor | None = None

    @property
    def positives(self) -> Tensor:
        """The row of each query's positive, [Q]."""
        return self.groups[:, 0]

    @property
    def present(self) -> Tensor:
        """The mask of `groups` without padding, [Q, G] bool."""
        return self.groups >= 0

    def to(self, device: torch.device | str) -> "BatchFacts":
        """Return a copy of the facts on another device."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved = {name: v.to(device) for name, v in values.items() if v is not None}
        return replace(self, **moved)


class Loss(NamedTuple):
    """The scalar to minimise, and its named parts (detached scalars, for the log)."""

    total: Tensor
    parts: Mapping[str, Tensor]

    def fetched(self) -> tuple[float, dict[str, float]]:
        """Return both as numbers. A GPU copies all of them at once, because every copy waits for it."""
        values = [value.detach().double() for value in (self.total, *self.parts.values())]
        total, *parts = torch.stack(values).tolist()
        return total, dict(zip(self.parts, parts, strict=True))


class Objective(Protocol):
    """The interface of objectives. Each one is a frozen dataclass; its fields are its settings."""

    @property
    def needs(self) -> frozenset[Need]:
        """The facts that the objective requires."""

    def __call__(self, queries: Embedded, passages: Embedded, facts: BatchFacts) -> Loss:
        """Return the loss of one batch. Raises DataError if a required fact is missing."""


def given(fact: Tensor | None, what: str) -> Tensor:
    """Return the fact. Raises DataError with the name `what` if the fact is None."""
    if fact is None:
        raise DataError(f"this objective needs {what}, but the training data have none")
    return fact


def scores(queries: Embedded, passages: Embedded) -> Tensor:
    """Return the MaxSim score of every query and passage, [Q, N], in float32 or float64.

    The scores are computed in three steps:
    1. products = query vectors x passage vectors, [query vectors, passage vectors];
    2. the maximum over the vectors of each passage, [query vectors, N];
    3. the sum over the vectors of each query, [Q, N].

    A text without vectors scores 0.
    """
    with torch.autocast(queries.vectors.device.type, enabled=False):
        products = _float32(queries.vectors) @ _float32(passages.vectors).T
    if passages.counts is not None:
        empty = products.new_zeros(len(products), len(passages))
        owners = passages.owners().expand_as(products)
        products = empty.scatter_reduce(1, owners, products, "amax", include_self=False)
    if queries.counts is None:
        return products
    return products.new_zeros(len(queries), products.shape[1]).index_add(
        0, queries.owners(), products
    )


def logits(queries: Embedded, passages: Embedded, temperature: float, single: float) -> Tensor:
    """Return the scores divided by the temperature, [Q, N].

    Temperature 0 selects the default: `single` for one vector per query, 1 for late interaction.
    """
    late = queries.counts is not None
    return scores(queries, passages) / (temperature or (1.0 if late else single))


def own(values: Tensor, facts: BatchFacts) -> Tensor:
    """Select the values of each query's own passages: [Q, N] -> [Q, G]. Padding becomes FAR."""
    return values.gather(1, facts.groups.clamp(min=0)).masked_fill(~facts.present, FAR)


def contrastive(values: Tensor, facts: BatchFacts) -> Tensor:
    """Return the cross-entropy of logits [Q, N], averaged over queries.

    The target is each query's positive. Excluded pairs get the logit FAR.
    """
    if facts.excluded is not None:
        values = values.masked_fill(facts.excluded, FAR)
    return functional.cross_entropy(values, facts.positives)


def _float32(vectors: Tensor) -> Tensor:
    return vectors if vectors.dtype in (torch.float32, torch.float64) else vectors.float()
