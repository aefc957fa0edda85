"""BGE-M3's distillation, the loss of landmark pooling (Chen et al. 2024, §3.3; the code of LMK).

Let v_1 … v_G be the logits of a query's own passages, and O the sum of exp(logit) over the passages of the
other queries. The loss of the query is

    sum over g of w_g (log(O + exp(v_g) + … + exp(v_G)) - v_g),   w = softmax(teacher scores), [G].

Each passage is contrasted with the passages of other queries and with the later passages of its own group.
If the teacher gives the positive (g = 1) all the weight, this is InfoNCE.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmkcli.training.objectives.objective import (
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
    """The distillation loss of BGE-M3.

    A passage without a teacher score has weight 0, but remains a negative. If the positive has no score,
    it gets all the weight of its query.
    """

    temperature: float = 0.0  # 0: 0.02, or 1 for late interaction

    needs: ClassVar[frozenset[Need]] = frozenset({"teacher"})

    def __call__(self, queries: Embedded, passages: Embedded, facts: BatchFacts) -> Loss:
        """Return the loss, averaged over queries."""
        weights = _weights(given(facts.teacher, "teacher scores"))  # [Q, G]
        values = logits(queries, passages, self.temperature, single=0.02)  # [Q, N]
        group = own(values, facts)  # [Q, G]
        later = group.flip(1).logcumsumexp(1).flip(1)  # log(exp(v_g) + … + exp(v_G))
        denominators = torch.logaddexp(_others(values, facts).unsqueeze(1), later)
        total = (weights * (denominators - group)).sum(1).mean()
        return Loss(total, {"m3_kd": total.detach()})


def _weights(teacher: Tensor) -> Tensor:
    """Return the softmax over the available scores, or all weight on an unscored positive, [Q, G]."""
    weights = teacher.masked_fill(teacher.isnan(), FAR)
    first = torch.zeros_like(weights).index_fill(1, weights.new_zeros(1, dtype=torch.int64), 1)
    return torch.where(teacher[:, :1].isnan(), first, weights.softmax(1))


def _others(values: Tensor, facts: BatchFacts) -> Tensor:
    """Return log O, the logsumexp over the passages of the other queries, [Q]."""
    queries, passages = values.shape
    own_columns = facts.groups.where(facts.present, passages)  # padding hides an extra column
    hidden = values.new_zeros(queries, passages + 1, dtype=torch.bool)
    hidden = hidden.scatter(1, own_columns, True)[:, :passages]
    if facts.excluded is not None:
        hidden = hidden | facts.excluded
    return values.masked_fill(hidden, FAR).logsumexp(1)
