"""Orthogonal projection loss as M2-BERT is tuned with it (Saad-Falcon et al. 2024, §4.2)."""

from dataclasses import dataclass
from typing import ClassVar

from torch.nn import functional

from lmkcli.training.objective import BatchFacts, Embedded, Loss, Need


@dataclass(frozen=True)
class Orthogonal:
    """A positive's cosine shall be 1 and a negative's 0; no other queries are needed."""

    needs: ClassVar[frozenset[Need]] = frozenset()

    def __call__(self, queries: Embedded, passages: Embedded, facts: BatchFacts) -> Loss:
        """The mean squared error over all pairs of a query and one of its own passages."""
        pairs = facts.present.nonzero()
        left = queries.single()[pairs[:, 0]]
        right = passages.single()[facts.groups[facts.present]]
        cosines = functional.cosine_similarity(left, right)
        total = functional.mse_loss(cosines, (pairs[:, 1] == 0).to(cosines.dtype))
        return Loss(total, {"opl": total.detach()})
