"""BGE-M3's distillation, the loss of landmark pooling (Chen et al. 2024, §3.3; LMK, appendix B).

Every passage of a query is contrasted, in the order of the group, with the passages of the other
queries and with its own that come later; the teacher's softmax over the group weights the terms. It is
the InfoNCE of all passages at once, and InfoNCE itself where the teacher is sure of the positive.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmkcli.training.objective import (
    FAR,
    BatchFacts,
    Embedded,
    Loss,
    Need,
    given,
    logits,
    own,
)


@dataclass(frozen=True)
class M3Distillation:
    """A passage without a score weighs nothing, and is a negative still.

    A query whose positive has no score gives that all the weight.
    """

    temperature: float = 0.0  # 0 is 0.02, and 1 for late interaction

    needs: ClassVar[frozenset[Need]] = frozenset({"teacher"})

    def __call__(self, queries: Embedded, passages: Embedded, facts: BatchFacts) -> Loss:
        """The loss, the mean over queries."""
        weights = _weights(given(facts.teacher, "teacher scores"))
        values = logits(queries, passages, self.temperature, single=0.02)
        mine = own(values, facts)
        later = mine.flip(1).logcumsumexp(1).flip(1)
        against = torch.logaddexp(_others(values, facts).unsqueeze(1), later)
        total = (weights * (against - mine)).sum(1).mean()
        return Loss(total, {"m3_kd": total.detach()})


def _weights(teacher: Tensor) -> Tensor:
    """[Q, G]: the softmax of the scores that are there."""
    weights = teacher.masked_fill(teacher.isnan(), FAR)
    first = torch.zeros_like(weights).index_fill(1, weights.new_zeros(1, dtype=torch.int64), 1)
    return torch.where(teacher[:, :1].isnan(), first, weights.softmax(1))


def _others(values: Tensor, facts: BatchFacts) -> Tensor:
    """[Q]: the log of the summed exponentials over the passages of the other queries."""
    rows = torch.arange(len(values), device=values.device).unsqueeze(1).expand_as(facts.groups)
    hidden = torch.zeros_like(values, dtype=torch.bool)
    hidden[rows[facts.present], facts.groups[facts.present]] = True
    if facts.excluded is not None:
        hidden |= facts.excluded
    return values.masked_fill(hidden, FAR).logsumexp(1)
