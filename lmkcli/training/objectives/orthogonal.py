"""Orthogonal projection loss, as used to fine-tune M2-BERT (Saad-Falcon et al. 2024, §4.3)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn import functional

from lmkcli.training.objectives.objective import BatchFacts, Embedded, Loss, Need


@dataclass(frozen=True)
class Orthogonal:
    """Squared error of cosines: the target is 1 for positives and 0 for negatives.

    The loss uses no passages of other queries, so it works with batches of any size.
    """

    needs: ClassVar[frozenset[Need]] = frozenset()

    def __call__(self, queries: Embedded, passages: Embedded, facts: BatchFacts) -> Loss:
        """Return the mean squared error over all pairs of a query and one of its own passages."""
        own_passages = passages.single()[facts.groups.clamp(min=0)]  # [Q, G, dim]
        cosines = functional.cosine_similarity(queries.single()[:, None], own_passages, dim=-1)
        targets = torch.zeros_like(cosines)
        targets[:, 0] = 1
        # Padding has the weight 0. Selecting the pairs instead would wait for the GPU.
        present = facts.present.to(cosines.dtype)
        total = ((cosines - targets).square() * present).sum() / present.sum()
        return Loss(total, {"opl": total.detach()})
