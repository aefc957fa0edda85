"""InSeNT: contrast a query's chunk with chunks of the same and other documents (Conti et al. 2025, §4).

The loss is λ L_seq + (1 - λ) L_batch. L_seq contrasts the gold chunk with the chunks of the same
document. L_batch contrasts it with the chunks of all other documents of the batch. Both are averaged over
the queries of a document, then over documents. Each passage of the batch is a chunk; `sequence` [N] gives
the document of each chunk.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmkcli.errors import UsageError
from lmkcli.training.objectives.objective import (
    FAR,
    BatchFacts,
    Embedded,
    Loss,
    Need,
    given,
    scores,
)


@dataclass(frozen=True)
class InSeNT:
    """The loss over chunks that are encoded in the context of their document.

    In a batch of one document, L_batch is 0.
    """

    temperature: float = 0.0  # 0 selects the default: 0.05, or 1 for late interaction
    # λ, the weight of negatives from the same document, 0 … 1; the default is the paper's value
    lambda_seq: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.lambda_seq <= 1:
            raise UsageError(
                f"--loss insent:lambda_seq={self.lambda_seq:g}: write a number from 0 to 1"
            )

    needs: ClassVar[frozenset[Need]] = frozenset({"sequence"})

    def __call__(self, queries: Embedded, passages: Embedded, facts: BatchFacts) -> Loss:
        """Return the weighted sum of both parts."""
        sequence = given(facts.sequence, "documents of chunks")
        temperature = self.temperature or (0.05 if queries.counts is None else 1.0)
        values = scores(queries, passages) / temperature  # [Q, N]
        document = sequence[facts.positives]  # [Q]: the document of each query's gold chunk
        same = sequence.unsqueeze(0) == document.unsqueeze(1)  # [Q, N]
        within = _cross_entropy(values, facts, same)
        across = _cross_entropy(values, facts, ~same)
        weights = _equal_documents(document).to(values.dtype)
        sequence_loss, batch_loss = (weights * within).sum(), (weights * across).sum()
        parts = {"insent_sequence": sequence_loss.detach(), "insent_batch": batch_loss.detach()}
        weight = self.lambda_seq
        return Loss(weight * sequence_loss + (1 - weight) * batch_loss, parts)


def _cross_entropy(values: Tensor, facts: BatchFacts, negatives: Tensor) -> Tensor:
    """Return the cross-entropy of each gold chunk against `negatives` ([Q, N] bool), [Q]."""
    gold = values.gather(1, facts.positives.unsqueeze(1))
    hidden = ~negatives if facts.excluded is None else ~negatives | facts.excluded
    hidden = hidden.scatter(1, facts.positives.unsqueeze(1), True)
    everything = torch.cat([gold, values.masked_fill(hidden, FAR)], dim=1)
    return everything.logsumexp(1) - gold.squeeze(1)


def _equal_documents(document: Tensor) -> Tensor:
    """Return query weights that sum to 1 and give each document the same total weight, [Q]."""
    counts = (document.unsqueeze(0) == document.unsqueeze(1)).sum(1)  # queries of the same document
    documents = (1 / counts).sum().round()
    return 1 / (counts * documents)
