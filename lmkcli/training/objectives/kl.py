"""Distillation by KL divergence beside InfoNCE, FlagEmbedding's default (Xiao et al. 2023)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lmkcli.training.objective import (
    FAR,
    BatchFacts,
    Embedded,
    Loss,
    Need,
    contrastive,
    given,
    logits,
    own,
)


@dataclass(frozen=True)
class KL:
    """Cross-entropy of teacher and student over a query's own passages, plus InfoNCE over all.

    Only passages with a teacher score are compared; a query that has none counts in InfoNCE alone.
    """

    temperature: float = 0.0  # 0 is 0.02, and 1 for late interaction

    needs: ClassVar[frozenset[Need]] = frozenset({"teacher"})

    def __call__(self, queries: Embedded, passages: Embedded, facts: BatchFacts) -> Loss:
        """The sum of both parts."""
        teacher = given(facts.teacher, "teacher scores")
        values = logits(queries, passages, self.temperature, single=0.02)
        infonce = contrastive(values, facts)
        distilled = _cross_entropy(own(values, facts), teacher)
        parts = {"kl": distilled.detach(), "infonce": infonce.detach()}
        return Loss(distilled + infonce, parts)


def _cross_entropy(student: Tensor, teacher: Tensor) -> Tensor:
    """The mean over queries that have a score of -sum softmax(teacher) log softmax(student)."""
    missing = teacher.isnan()
    weights = teacher.masked_fill(missing, FAR).softmax(1).masked_fill(missing, 0)
    logs = student.masked_fill(missing, FAR).log_softmax(1)
    return -(weights * logs).sum() / (~missing).any(1).sum().clamp(min=1)
