"""The step of contrastive training: gradients of an objective over query and passage vectors."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from lmkcli.models.forward import Finish
from lmkcli.pooling.placement import Input
from lmkcli.training.feeding import SourceSides, TrainBatch
from lmkcli.training.gathering import gather, world_size
from lmkcli.training.gradients import Gradients
from lmkcli.training.objective import Embedded, Loss, Objective
from lmkcli.training.teaching import Teacher


@dataclass
class Contrast:
    """A step of contrastive training: gather the vectors of all processes and apply one objective.

    With P processes, each one holds its slice of the Q queries and N passages. After gathering, every
    process computes the same loss from [Q, dim] and [N, dim] vectors (or more rows in late interaction).
    """

    gradients: Gradients
    objective: Objective
    sides: SourceSides  # how vectors are finished; all sources share this
    teacher: Teacher | None = None

    def __call__(self, model: nn.Module, batch: TrainBatch) -> Loss:
        """Add the gradients of a batch to the parameters and return its loss."""
        return self.gradients(model, _inputs(batch), self._loss(batch))

    def _loss(self, batch: TrainBatch) -> Callable[[Tensor], Loss]:
        queries, passages = batch.queries, batch.passages
        split = [int(queries.counts.sum()), int(passages.counts.sum())]
        facts = self.teacher.add_targets(batch) if self.teacher else batch.facts

        def loss_of(vectors: Tensor) -> Loss:
            """Split [local vectors, dim] into query and passage vectors and compute the loss."""
            local = vectors.split(split)  # type: ignore[no-untyped-call]
            loss = self.objective(
                gather(_embedded(self.sides.query.finish, local[0], queries.counts)),
                gather(_embedded(self.sides.passage.finish, local[1], passages.counts)),
                facts.to(vectors.device),
            )
            # The gradient of the batch is the sum over processes, but DDP averages; the factor undoes it.
            return Loss(loss.total * world_size(), loss.parts)

        return loss_of


def _inputs(batch: TrainBatch) -> list[Input]:
    """Return all inputs of a batch: queries first, with vector numbers counted over both sides."""
    first = int(batch.queries.counts.sum())
    return [*batch.queries.inputs, *batch.passages.shifted(first)]


def _embedded(finish: Finish, vectors: Tensor, counts: Tensor) -> Embedded:
    """Return the finished vectors; one vector per text if windows are averaged."""
    finished = finish(vectors, counts)
    return Embedded(finished, None if finish.average else counts.to(vectors.device))
