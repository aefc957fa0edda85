"""Margin-MSE: the student's margins shall be the teacher's (Hofstätter et al. 2020, §3)."""

from dataclasses import dataclass
from typing import ClassVar

from lmkcli.training.objective import BatchFacts, Embedded, Loss, Need, given, own, scores


@dataclass(frozen=True)
class MarginMSE:
    """Squared error of the margin of positive over negative; a pair without both scores is left out."""

    scale: float = 1.0  # of the student's scores; cosines need the range of the teacher's

    needs: ClassVar[frozenset[Need]] = frozenset({"teacher", "negatives"})

    def __call__(self, queries: Embedded, passages: Embedded, facts: BatchFacts) -> Loss:
        """The loss, the mean over pairs of a positive and a negative of the same query."""
        teacher = given(facts.teacher, "teacher scores")
        student = own(scores(queries, passages), facts) * self.scale
        wanted = teacher[:, :1] - teacher[:, 1:]
        missing = wanted.isnan() | ~facts.present[:, 1:]
        wrong = student[:, :1] - student[:, 1:] - wanted.nan_to_num()
        total = wrong.masked_fill(missing, 0).square().sum() / (~missing).sum().clamp(min=1)
        return Loss(total, {"margin_mse": total.detach()})
