"""Prediction loss: the student's vectors shall point where a teacher's do (M2-BERT, §4.2).

The paper's prototype loss is a sum of two cosines; the loss is their distance from 1.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from lmkcli.errors import DataError
from lmkcli.training.objective import BatchFacts, Embedded, Loss, Need, given


@dataclass(frozen=True)
class Prediction:
    """One minus the cosine of student and teacher, for queries and for passages."""

    needs: ClassVar[frozenset[Need]] = frozenset({"targets"})

    def __call__(self, queries: Embedded, passages: Embedded, facts: BatchFacts) -> Loss:
        """The sum of the means over queries and over passages, which are its parts."""
        asked = _distance(queries, given(facts.query_targets, "a teacher's vectors"))
        told = _distance(passages, given(facts.passage_targets, "a teacher's vectors"))
        parts = {"prediction_queries": asked.detach(), "prediction_passages": told.detach()}
        return Loss(asked + told, parts)


def _distance(texts: Embedded, targets: Tensor) -> Tensor:
    vectors = texts.single()
    if vectors.shape != targets.shape:
        raise DataError(
            f"the teacher's vectors have {targets.shape[1]} dimensions and the model's "
            f"{vectors.shape[1]}; the prediction loss needs a teacher of the same size"
        )
    return 1 - functional.cosine_similarity(vectors, targets.to(vectors.dtype)).mean()
