"""InSeNT: a query's chunk against the chunks of its document, and of the others (Conti et al. 2025, §4).

The loss is λ L_seq + (1 - λ) L_batch. L_seq contrasts the gold chunk with the chunks of the same
document, L_batch with those of all other documents of the batch; both are means over a document's
queries, then over documents. A passage of the batch is a chunk, and `sequence` names its document.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmkcli.training.objective import FAR, BatchFacts, Embedded, Loss, Need, given, scores


@dataclass(frozen=True)
class InSeNT:
    """Chunks in the context of their document. A batch of one document has no L_batch, which is 0."""

    weight: float = 0.1  # λ, the weight of negatives from the same document; the paper's choice
    temperature: float = 0.0  # 0 is 0.05, and 1 for late interaction
    empty_chunk: bool = (
        False  # each document has one more chunk, a zero vector, as in the official code
    )
    padded: bool = (
        False  # late interaction: chunks are padded with zero vectors, as in the official code
    )

    needs: ClassVar[frozenset[Need]] = frozenset({"sequence"})

    def __call__(self, queries: Embedded, passages: Embedded, facts: BatchFacts) -> Loss:
        """The weighted sum of both parts."""
        sequence = given(facts.sequence, "documents of chunks")
        temperature = self.temperature or (0.05 if queries.counts is None else 1.0)
        values = scores(queries, passages, self.padded) / temperature
        home = sequence[facts.positives]
        inside = sequence.unsqueeze(0) == home.unsqueeze(1)
        documents = int(sequence.max()) + 1
        within = self._term(values, facts, inside, 1)
        across = self._term(values, facts, ~inside, documents - 1)
        weights = _equal_documents(home).to(values.dtype)
        first, second = (weights * within).sum(), (weights * across).sum()
        parts = {"insent_sequence": first.detach(), "insent_batch": second.detach()}
        return Loss(self.weight * first + (1 - self.weight) * second, parts)

    def _term(self, values: Tensor, facts: BatchFacts, among: Tensor, empty: int) -> Tensor:
        """[Q]: cross-entropy of the gold chunk among the others, with so many empty chunks of score 0."""
        gold = values.gather(1, facts.positives.unsqueeze(1))
        hidden = ~among if facts.excluded is None else ~among | facts.excluded
        hidden = hidden.scatter(1, facts.positives.unsqueeze(1), True)
        zeros = gold.new_zeros(len(gold), empty if self.empty_chunk else 0)
        everything = torch.cat([gold, values.masked_fill(hidden, FAR), zeros], dim=1)
        return everything.logsumexp(1) - gold.squeeze(1)


def _equal_documents(home: Tensor) -> Tensor:
    """[Q]: weights that sum to 1, so that documents weigh equally whatever their number of queries."""
    counts = home.bincount()
    return 1 / (counts[home] * (counts > 0).sum())
