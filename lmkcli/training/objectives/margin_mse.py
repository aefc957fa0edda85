"""Margin-MSE: match the student's score margins to the teacher's (Hofstätter et al. 2020, §3).

With `pairs=all`, it is the loss of TITE (Schlatt et al. 2025, §3.4), over all pairs of a query's passages.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

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

    Pairs with a missing teacher score are left out. If `pairs` is 'all', the pairs are all those of two
    passages of a query.
    """

    scale: float = 1.0  # factor on the student's scores; scales cosines to the range of the teacher
    pairs: Literal["positive", "all"] = "positive"

    needs: ClassVar[frozenset[Need]] = frozenset({"teacher", "negatives"})

    def __call__(self, queries: Embedded, passages: Embedded, facts: BatchFacts) -> Loss:
        """Return the loss, averaged over the pairs of all queries."""
        teacher = given(facts.teacher, "teacher scores").where(facts.present, torch.nan)  # [Q, G]
        student = own(scores(queries, passages), facts) * self.scale
        size = teacher.shape[1]
        first, second = torch.triu_indices(size, size, 1, device=teacher.device)
        if self.pairs == "positive":  # the pairs with passage 0 come first
            first, second = first[: size - 1], second[: size - 1]
        margins = teacher[:, first] - teacher[:, second]  # [Q, pairs]
        missing = margins.isnan()
        errors = student[:, first] - student[:, second] - margins.nan_to_num()
        total = errors.masked_fill(missing, 0).square().sum() / (~missing).sum().clamp(min=1)
        return Loss(total, {"margin_mse": total.detach()})
