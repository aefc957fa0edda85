"""Margin-MSE: match the student's score margins to the teacher's (Hofstätter et al. 2020, §3)."""

from dataclasses import dataclass
from typing import ClassVar

from lmkcli.training.objectives.objective import (
    BatchFacts,
    Embedded,
    Loss,
    Need,
    given,
    own,
    scores,
)


@dataclass(frozen=True)
class MarginMSE:
    """Squared error of the margins: score of the positive minus score of a negative.

    Pairs with a missing teacher score are left out.
    """

    scale: float = 1.0  # factor on the student's scores; scales cosines to the range of the teacher

    needs: ClassVar[frozenset[Need]] = frozenset({"teacher", "negatives"})

    def __call__(self, queries: Embedded, passages: Embedded, facts: BatchFacts) -> Loss:
        """Return the loss, averaged over pairs of a positive and a negative of the same query."""
        teacher = given(facts.teacher, "teacher scores")
        student = own(scores(queries, passages), facts) * self.scale
        margins = teacher[:, :1] - teacher[:, 1:]  # [Q, G - 1]
        missing = margins.isnan() | ~facts.present[:, 1:]
        errors = student[:, :1] - student[:, 1:] - margins.nan_to_num()
        total = errors.masked_fill(missing, 0).square().sum() / (~missing).sum().clamp(min=1)
        return Loss(total, {"margin_mse": total.detach()})
