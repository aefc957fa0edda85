"""Distillation for late interaction as PyLate has it (Clavié 2024, JaColBERTv2.5, §3; ColBERTv2, §3.2)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lmkcli.training.objective import FAR, BatchFacts, Embedded, Loss, Need, given, own, scores

TINY = 1e-8  # keeps the range of equal scores from being 0


@dataclass(frozen=True)
class LateDistillation:
    """KL divergence of the student from the teacher over each query's own scored passages."""

    minmax: bool = True  # the student's scores of a query are stretched to 0 … 1 first

    needs: ClassVar[frozenset[Need]] = frozenset({"teacher"})

    def __call__(self, queries: Embedded, passages: Embedded, facts: BatchFacts) -> Loss:
        """The loss, the mean over the queries that have a score."""
        teacher = given(facts.teacher, "teacher scores")
        missing = teacher.isnan()
        student = own(scores(queries, passages), facts)
        if self.minmax:
            student = _stretched(student, missing)
        target = teacher.masked_fill(missing, FAR).log_softmax(1)
        logs = student.masked_fill(missing, FAR).log_softmax(1)
        terms = (target.exp() * (target - logs)).masked_fill(missing, 0)
        total = terms.sum() / (~missing).any(1).sum().clamp(min=1)
        return Loss(total, {"late_kd": total.detach()})


def _stretched(student: Tensor, missing: Tensor) -> Tensor:
    low = student.masked_fill(missing, -FAR).amin(1, keepdim=True)
    high = student.masked_fill(missing, FAR).amax(1, keepdim=True)
    return (student - low) / (high - low).clamp(min=TINY)
