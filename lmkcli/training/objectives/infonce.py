"""InfoNCE: contrast a query's positive with every other passage of the batch (van den Oord et al. 2018).

In-batch and hard negatives are used as in DPR (Karpukhin et al. 2020, §3.2). With several vectors per text
this is ColBERT's contrastive loss over MaxSim (Khattab and Zaharia 2020, §3.3).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from lmkcli.training.objectives.objective import (
    FAR,
    BatchFacts,
    Embedded,
    Loss,
    Need,
    contrastive,
    given,
    logits,
)


@dataclass(frozen=True)
class InfoNCE:
    """Cross-entropy of each query over all passages of the batch.

    `symmetric` also computes the cross-entropy of each positive over all queries, and averages the two. With
    a `threshold`, a query's own passages are negatives only if their teacher score is lower than that of the
    positive by more than the threshold (TITE, Schlatt et al. 2025, §3.4), or if a score is missing.
    """

    temperature: float = 0.0  # 0: 0.02, or 1 for late interaction
    symmetric: bool = False  # also contrast each positive with all queries of the batch
    threshold: float | None = None  # of the teacher's scores

    needs: ClassVar[frozenset[Need]] = frozenset()

    def __call__(self, queries: Embedded, passages: Embedded, facts: BatchFacts) -> Loss:
        """Return the loss; its parts are the losses of the two directions."""
        values = logits(queries, passages, self.temperature, single=0.02)  # [Q, N]
        if self.threshold is not None:
            values = _without_close(values, facts, self.threshold)
        forward_loss = contrastive(values, facts)
        if not self.symmetric:
            return Loss(forward_loss, {"infonce": forward_loss.detach()})
        if facts.excluded is not None:
            values = values.masked_fill(facts.excluded, FAR)
        reverse = values[:, facts.positives].T  # [Q, Q]: row i holds the positive of query i
        targets = facts.positives.new_tensor(range(len(reverse)))
        reverse_loss = functional.cross_entropy(reverse, targets)
        parts = {"infonce": forward_loss.detach(), "infonce_back": reverse_loss.detach()}
        return Loss((forward_loss + reverse_loss) / 2, parts)


def _without_close(values: Tensor, facts: BatchFacts, threshold: float) -> Tensor:
    """Replace the logits [Q, N] of a query's passages that the teacher scores like its positive by FAR."""
    teacher = given(facts.teacher, "teacher scores")
    close = (teacher[:, :1] - teacher <= threshold) & facts.present  # false if a score is missing
    close[:, 0] = False
    queries, passages = values.shape
    columns = facts.groups.where(close, passages)  # all others hide an extra column
    hidden = values.new_zeros(queries, passages + 1, dtype=torch.bool).scatter(1, columns, True)
    return values.masked_fill(hidden[:, :passages], FAR)
