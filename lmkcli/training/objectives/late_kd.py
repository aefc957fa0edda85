"""Distillation for late interaction, as in PyLate (Clavié 2024, JaColBERTv2.5, §3; ColBERTv2, §3.2)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lmkcli.training.objectives.objective import (
    FAR,
    BatchFacts,
    Embedded,
    Loss,
    Need,
    given,
    own,
    scores,
)

TINY = 1e-8  # avoids a division by 0 if all scores are equal


@dataclass(frozen=True)
class LateDistillation:
    """KL divergence KL(teacher || student) over each query's own passages with a teacher score.

    The student's scores of each query are first rescaled to 0 … 1.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"teacher"})

    def __call__(self, queries: Embedded, passages: Embedded, facts: BatchFacts) -> Loss:
        """Return the loss, averaged over the queries with a teacher score."""
        teacher = given(facts.teacher, "teacher scores")
        missing = teacher.isnan()
        student = _rescaled(own(scores(queries, passages), facts), missing)
        target = teacher.masked_fill(missing, FAR).log_softmax(1)
        logs = student.masked_fill(missing, FAR).log_softmax(1)
        terms = (target.exp() * (target - logs)).masked_fill(missing, 0)
        total = terms.sum() / (~missing).any(1).sum().clamp(min=1)
        return Loss(total, {"late_kd": total.detach()})


def _rescaled(student: Tensor, missing: Tensor) -> Tensor:
    """Rescale the scores of each query, [Q, G], to 0 … 1. Passages without a teacher score are ignored."""
    low = student.masked_fill(missing, -FAR).amin(1, keepdim=True)
    high = student.masked_fill(missing, FAR).amax(1, keepdim=True)
    return (student - low) / (high - low).clamp(min=TINY)
