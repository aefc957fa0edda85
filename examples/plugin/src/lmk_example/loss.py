"""The loss `triplet`: a positive must be closer to its query than each negative, by a margin."""

from dataclasses import dataclass
from typing import ClassVar

from lmkcli.training.objectives.objective import BatchFacts, Embedded, Loss, Need, own, scores


@dataclass(frozen=True)
class Triplet:
    """The mean over pairs of max(0, margin - score(positive) + score(negative)).

    The fields are its settings: `--loss triplet:margin=0.3`.
    """

    margin: float = 0.2

    needs: ClassVar[frozenset[Need]] = frozenset({"negatives"})

    def __call__(self, queries: Embedded, passages: Embedded, facts: BatchFacts) -> Loss:
        """Return the loss of one batch; scores are [queries, 1 + negatives], column 0 is the positive."""
        own_scores = own(scores(queries, passages), facts)
        losses = (self.margin - own_scores[:, :1] + own_scores[:, 1:]).clamp(min=0)
        present = facts.present[:, 1:]  # False for missing negatives
        total = losses.masked_fill(~present, 0).sum() / present.sum().clamp(min=1)
        return Loss(total, {"triplet": total.detach()})
