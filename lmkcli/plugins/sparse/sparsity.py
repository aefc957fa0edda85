"""Sparsity: losses that keep the vectors of a learned sparse model sparse, and their warm-up.

FLOPS is the sum over terms of the squared mean weight of the term in a batch. It estimates the work of a
search: a term costs work if many texts have it (Paria et al. 2020, arXiv 2004.05665). L1 is the mean sum of
the weights of a text. The weight of a loss rises with the square of the step, as in SPLADE (Formal et al.
2021, arXiv 2109.10086, §4): a model must rank before it may forget terms.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from lmkcli.errors import DataError
from lmkcli.plugins.sparse.sparse_settings import SparsitySettings
from lmkcli.training.objectives.objective import Embedded, Loss
from lmkcli.training.train_settings import TrainSettings

DOC_FLOPS, QUERY_FLOPS, WARMUP = 3e-5, 5e-5, 1 / 3  # defaults, as in sentence-transformers


@dataclass(frozen=True)
class Penalty:
    """The weights of both losses for one side: documents or queries."""

    flops: float
    l1: float

    def __call__(self, vectors: Tensor) -> Tensor:
        """Return the weighted loss of vectors [n, vocabulary]."""
        means = vectors.mean(0)  # weights are not negative, so the sum of the means is L1
        return self.flops * means.square().sum() + self.l1 * means.sum()


@dataclass(frozen=True)
class Sparsity:
    """The penalties of documents and queries. They reach their full weight after `warmup` steps."""

    docs: Penalty
    queries: Penalty
    warmup: int

    @classmethod
    def of(cls, settings: TrainSettings) -> Self:
        """Return the penalties of the settings, which contain the final number of steps."""
        given = settings.part(SparsitySettings)
        docs = Penalty(_chosen(given.doc_flops, DOC_FLOPS), given.doc_l1 or 0.0)
        queries = Penalty(_chosen(given.query_flops, QUERY_FLOPS), given.query_l1 or 0.0)
        warmup = _chosen(given.sparsity_warmup, WARMUP)
        return cls(docs, queries, int(warmup * settings.steps if warmup < 1 else warmup))

    def share(self, step: int) -> float:
        """Return the share of the full weight at a step, counted from 0."""
        return 1.0 if step >= self.warmup else (step / self.warmup) ** 2

    def __call__(self, loss: Loss, queries: Embedded, passages: Embedded, step: int) -> Loss:
        """Add the penalties to a loss. The parts get the mean numbers of terms."""
        docs, asked = passages.vectors.float(), queries.vectors.float()
        doc_terms, query_terms = ((side != 0).sum(1).float().mean() for side in (docs, asked))
        penalty = (self.docs(docs) + self.queries(asked)) * self.share(step)
        parts = {"sparsity": penalty.detach(), "doc_terms": doc_terms, "query_terms": query_terms}
        return Loss(loss.total + penalty, {**loss.parts, **parts})

    def check(self, parts: Mapping[str, float], step: int) -> None:
        """Raise DataError if no document or no query of a step has a term.

        Then all scores are 0, without gradients. `parts` are the parts of the loss.
        """
        for side, name in (("doc", "document"), ("query", "query")):
            if parts.get(f"{side}_terms") == 0:
                raise DataError(
                    f"no {name} of step {step} has a term left, so the model can learn nothing from them; "
                    f"lower --{side}-flops, --{side}-l1 or --lr, or raise --sparsity-warmup (checkpoints are "
                    "kept)"
                )


def _chosen(given: float | None, usual: float) -> float:
    return usual if given is None else given


def open_sparsity(settings: TrainSettings) -> Sparsity:
    """Return the penalties of a training."""
    return Sparsity.of(settings)
