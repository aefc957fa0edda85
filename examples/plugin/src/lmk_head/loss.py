"""triplet: a positive must be closer to its query than each negative, by a margin."""

from dataclasses import dataclass
from typing import ClassVar

from lmkcli.training.objective import BatchFacts, Embedded, Loss, Need, own, scores


@dataclass(frozen=True)
class Triplet:
    """The mean over pairs of max(0, margin - score(positive) + score(negative))."""

    margin: float = 0.2

    # Flags of lmk train that the loss takes as fields, such as ("temperature",).
    settings: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[frozenset[Need]] = frozenset({"negatives"})

    def __call__(self, queries: Embedded, passages: Embedded, facts: BatchFacts) -> Loss:
        """The loss of one batch: scores are [queries, 1 + negatives], the positive in column 0."""
        found = own(scores(queries, passages), facts)
        wrong = (self.margin - found[:, :1] + found[:, 1:]).clamp(min=0)
        there = facts.present[:, 1:]
        total = wrong.masked_fill(~there, 0).sum() / there.sum().clamp(min=1)
        return Loss(total, {"triplet": total.detach()})
