"""Objectives made of others: a weighted sum, and an objective at several dimensions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from lmkcli.training.objectives.objective import BatchFacts, Embedded, Loss, Need, Objective
from lmkcli.training.train_settings import check_dims


@dataclass(frozen=True)
class WeightedSum:
    """The sum of objectives, each times its weight: `--loss margin-mse+0.5*kl`."""

    objectives: tuple[Objective, ...]
    weights: tuple[float, ...]

    @property
    def needs(self) -> frozenset[Need]:
        """The facts that any of the objectives requires."""
        return frozenset().union(*(each.needs for each in self.objectives))

    def __call__(self, queries: Embedded, passages: Embedded, facts: BatchFacts) -> Loss:
        """Return the sum. The parts keep their names and are not weighted."""
        losses = [each(queries, passages, facts) for each in self.objectives]
        weighted = [weight * loss.total for weight, loss in zip(self.weights, losses, strict=True)]
        parts = {name: part for loss in losses for name, part in loss.parts.items()}
        return Loss(torch.stack(weighted).sum(), parts)


@dataclass(frozen=True)
class Matryoshka:
    """The sum of an objective over prefixes of the vectors: the first d dimensions for each d in `dims`.

    The source is Kusupati et al. 2022, §3.
    `normalize` rescales the cut vectors to length 1, which cosine similarity requires.
    """

    objective: Objective
    dims: Sequence[int]
    normalize: bool = True

    @property
    def needs(self) -> frozenset[Need]:
        """The facts that the objective requires."""
        return self.objective.needs

    def __call__(self, queries: Embedded, passages: Embedded, facts: BatchFacts) -> Loss:
        """Return the sum of the losses. The names of parts end with the dimension ('infonce@128')."""
        losses = {
            dim: self.objective(self._cut(queries, dim), self._cut(passages, dim), facts)
            for dim in self.dims
        }
        parts = {
            f"{k}@{dim}": part for dim, loss in losses.items() for k, part in loss.parts.items()
        }
        return Loss(torch.stack([loss.total for loss in losses.values()]).sum(), parts)

    def _cut(self, texts: Embedded, dim: int) -> Embedded:
        check_dims([dim], texts.vectors.shape[1])
        cut = texts.vectors[:, :dim]
        return replace(texts, vectors=functional.normalize(cut, dim=1) if self.normalize else cut)
