"""InfoNCE: a query's positive against every other passage of the batch (van den Oord et al. 2018).

With in-batch and hard negatives as in DPR (Karpukhin et al. 2020, §3.2). With several vectors a text
it is ColBERT's contrastive loss over MaxSim (Khattab and Zaharia 2020, §3.3).
"""

from dataclasses import dataclass
from typing import ClassVar

from torch.nn import functional

from lmkcli.training.objective import (
    FAR,
    BatchFacts,
    Embedded,
    Loss,
    Need,
    contrastive,
    logits,
)


@dataclass(frozen=True)
class InfoNCE:
    """Cross-entropy over all passages of the batch; `symmetric` adds that over all queries, halved."""

    temperature: float = 0.0  # 0 is 0.02, and 1 for late interaction
    symmetric: bool = False  # also each positive against the queries of the batch

    needs: ClassVar[frozenset[Need]] = frozenset()

    def __call__(self, queries: Embedded, passages: Embedded, facts: BatchFacts) -> Loss:
        """The loss; its parts are those of the two directions."""
        values = logits(queries, passages, self.temperature, single=0.02)
        forth = contrastive(values, facts)
        if not self.symmetric:
            return Loss(forth, {"infonce": forth.detach()})
        if facts.excluded is not None:
            values = values.masked_fill(facts.excluded, FAR)
        back = values[:, facts.positives].T
        targets = facts.positives.new_tensor(range(len(back)))
        backward = functional.cross_entropy(back, targets)
        parts = {"infonce": forth.detach(), "infonce_back": backward.detach()}
        return Loss((forth + backward) / 2, parts)
