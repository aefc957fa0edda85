"""Orthogonal projection loss, as used to fine-tune M2-BERT (Saad-Falcon et al. 2024, §4.2)."""

from dataclasses import dataclass
from typing import ClassVar

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
        pairs = facts.present.nonzero()  # [pairs, 2]: the query, and the column in its group
        left = queries.single()[pairs[:, 0]]
        right = passages.single()[facts.groups[facts.present]]
        cosines = functional.cosine_similarity(left, right)
        total = functional.mse_loss(cosines, (pairs[:, 1] == 0).to(cosines.dtype))
        return Loss(total, {"opl": total.detach()})
