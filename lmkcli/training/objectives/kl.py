"""KL: distillation of teacher scores plus InfoNCE, the default of FlagEmbedding (Xiao et al. 2023)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lmkcli.training.objectives.objective import (
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

    The cross-entropy uses only passages with a teacher score. A query without such passages contributes to
    InfoNCE only. The cross-entropy is the KL divergence plus the entropy of the teacher, a constant.
    """

    temperature: float = 0.0  # 0: 0.02, or 1 for late interaction
    infonce: float = 1.0  # the weight of InfoNCE; 0 for distillation alone

    needs: ClassVar[frozenset[Need]] = frozenset({"teacher"})

    def __call__(self, queries: Embedded, passages: Embedded, facts: BatchFacts) -> Loss:
        """Return the sum of both parts."""
        teacher = given(facts.teacher, "teacher scores")
        values = logits(queries, passages, self.temperature, single=0.02)
        distillation = _cross_entropy(own(values, facts), teacher)
        if not self.infonce:
            return Loss(distillation, {"kl": distillation.detach()})
        infonce = contrastive(values, facts)
        parts = {"kl": distillation.detach(), "infonce": infonce.detach()}
        return Loss(distillation + self.infonce * infonce, parts)


def _cross_entropy(student: Tensor, teacher: Tensor) -> Tensor:
    """Return -sum_g softmax(teacher)_g log softmax(student)_g, averaged over queries with a score.

    `student` and `teacher` are [Q, G]; NaN in `teacher` means no score.
    """
    missing = teacher.isnan()
    weights = teacher.masked_fill(missing, FAR).softmax(1).masked_fill(missing, 0)
    logs = student.masked_fill(missing, FAR).log_softmax(1)
    return -(weights * logs).sum() / (~missing).any(1).sum().clamp(min=1)
