"""Contrasting: the gradients of a batch of queries and passages, by an objective over their vectors."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from lmkcli.models.forward import Finish
from lmkcli.pooling.placement import Input
from lmkcli.training.feeding import SourceSides, TrainBatch
from lmkcli.training.gathering import gathered, world
from lmkcli.training.gradients import Gradients
from lmkcli.training.objective import Embedded, Loss, Objective
from lmkcli.training.teaching import Teacher


@dataclass
class Contrast:
    """A step of contrastive training: vectors of all processes, one objective over them."""

    gradients: Gradients
    objective: Objective
    sides: SourceSides  # how vectors are finished, which is the same for all sources
    teacher: Teacher | None = None

    def __call__(self, model: nn.Module, batch: TrainBatch) -> Loss:
        """The loss of a batch, its gradients added to the parameters."""
        return self.gradients(model, _inputs(batch), self._loss(batch))

    def _loss(self, batch: TrainBatch) -> Callable[[Tensor], Loss]:
        queries, passages = batch.queries, batch.passages
        split = [int(queries.counts.sum()), int(passages.counts.sum())]
        facts = self.teacher.taught(batch) if self.teacher else batch.facts

        def loss_of(vectors: Tensor) -> Loss:
            mine = vectors.split(split)  # type: ignore[no-untyped-call]
            loss = self.objective(
                gathered(_embedded(self.sides.query.finish, mine[0], queries.counts)),
                gathered(_embedded(self.sides.passage.finish, mine[1], passages.counts)),
                facts.to(vectors.device),
            )
            # processes average their gradients, and each has its part of one sum
            return Loss(loss.total * world(), loss.parts)

        return loss_of


def _inputs(batch: TrainBatch) -> list[Input]:
    """All inputs of a batch, queries first, numbered over both."""
    first = int(batch.queries.counts.sum())
    return [*batch.queries.inputs, *batch.passages.behind(first)]


def _embedded(finish: Finish, vectors: Tensor, counts: Tensor) -> Embedded:
    """Vectors as they are compared; one a text where windows are averaged."""
    done = finish(vectors, counts)
    return Embedded(done, None if finish.average else counts.to(vectors.device))
