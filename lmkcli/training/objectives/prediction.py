"""Prediction loss: align the student's vectors with a teacher's vectors (M2-BERT, §4.3).

The paper's prototype loss is a sum of two cosines, one for queries and one for passages. This loss
minimises 1 - cosine for each.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from lmkcli.errors import DataError
from lmkcli.training.objectives.objective import BatchFacts, Embedded, Loss, Need, given


@dataclass(frozen=True)
class Prediction:
    """1 - cosine(student, teacher), for queries and for passages."""

    needs: ClassVar[frozenset[Need]] = frozenset({"targets"})

    def __call__(self, queries: Embedded, passages: Embedded, facts: BatchFacts) -> Loss:
        """Return the sum of two parts: the mean distance of queries, and that of passages."""
        query_loss = _distance(queries, given(facts.query_targets, "a teacher's vectors"))
        passage_loss = _distance(passages, given(facts.passage_targets, "a teacher's vectors"))
        parts = {
            "prediction_queries": query_loss.detach(),
            "prediction_passages": passage_loss.detach(),
        }
        return Loss(query_loss + passage_loss, parts)


def _distance(texts: Embedded, targets: Tensor) -> Tensor:
    """Return the mean of 1 - cosine over rows of two [texts, dim] matrices."""
    vectors = texts.single()
    if vectors.shape != targets.shape:
        raise DataError(
            f"the teacher's vectors have {targets.shape[1]} dimensions, the model's vectors "
            f"{vectors.shape[1]}; choose a teacher with vectors of the same size"
        )
    return 1 - functional.cosine_similarity(vectors, targets.to(vectors.dtype)).mean()
