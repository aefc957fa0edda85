"""A weighted sum of objectives: `--loss margin-mse+0.5*kl`."""

from dataclasses import dataclass

import torch

from lmkcli.training.objectives.objective import BatchFacts, Embedded, Loss, Need, Objective


@dataclass(frozen=True)
class WeightedSum:
    """The sum of objectives, each times its weight."""

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
