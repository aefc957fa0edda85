"""The step of contrastive training: gradients of an objective over query and passage vectors.

A frozen teacher can provide target vectors for the student. The teacher reads a text that exceeds its
maximum length in windows and averages their vectors. So a teacher for short texts can provide one target
vector for a long text.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor, nn

from lmkcli.encoding.encoder import BatchRunner, Encoder, encoder_of, open_forward
from lmkcli.encoding.resolution import ResolvedRecipe
from lmkcli.errors import UsageError
from lmkcli.models.forward import Finish, ForwardPass, ModelOptions
from lmkcli.models.tokenizer_folder import open_tokenizer
from lmkcli.pooling.placement import Input
from lmkcli.spec.recipe import EncoderConfig
from lmkcli.spec.settings import EncodeSettings
from lmkcli.training.data.batches import SourceSides, TeacherTexts, TrainBatch
from lmkcli.training.objectives.objective import BatchFacts, Embedded, Loss, Need, Objective
from lmkcli.training.objectives.prediction import Prediction
from lmkcli.training.step.distributed import gather, world_size
from lmkcli.training.step.gradients import Gradients
from lmkcli.vectors.rows import Ragged


@dataclass(frozen=True)
class Imitation:
    """An objective plus `weight` times the distance from the teacher's vectors."""

    objective: Objective
    weight: float = 1.0

    @property
    def needs(self) -> frozenset[Need]:
        """The facts that the objective requires, and the teacher's vectors."""
        return self.objective.needs | Prediction.needs

    def __call__(self, queries: Embedded, passages: Embedded, facts: BatchFacts) -> Loss:
        """Return the sum of both losses, with the parts of both."""
        loss = self.objective(queries, passages, facts)
        distance = Prediction()(queries, passages, facts)
        parts = {**loss.parts, **distance.parts}
        return Loss(loss.total + self.weight * distance.total, parts)


@dataclass(frozen=True)
class Teacher:
    """The query and passage encoders of the teacher, which share its weights."""

    query: Encoder[Ragged]
    passage: Encoder[Ragged]

    @classmethod
    def open(cls, resolved: ResolvedRecipe, settings: EncodeSettings, student: ForwardPass) -> Self:
        """Load the teacher. UsageError if its vectors and the student's vectors differ in dimensions."""
        recipe, folder = resolved.recipe, resolved.folder
        options = ModelOptions(settings.dtype, settings.device, recipe.doc.trust_remote_code)
        runner = BatchRunner(open_forward(recipe.doc, folder, options), settings)

        def side(config: EncoderConfig) -> Encoder[Ragged]:
            return encoder_of(config, open_tokenizer(folder, config), runner, folder.name)

        teacher = cls(side(recipe.query), side(recipe.doc))
        if teacher.passage.dim != student.width:
            raise UsageError(
                f"--teacher {folder.name}: its vectors have {teacher.passage.dim} dimensions, the model's "
                f"vectors {student.width}; choose a teacher with {student.width} dimensions"
            )
        return teacher

    def add_targets(self, batch: TrainBatch) -> BatchFacts:
        """Return the facts of a batch with the teacher's vectors of all its texts.

        Each process encodes its local texts; gathering gives query_targets [Q, dim] and
        passage_targets [N, dim].
        """
        return replace(
            batch.facts,
            query_targets=_vectors(self.query, batch.query_texts),
            passage_targets=_vectors(self.passage, batch.passage_texts),
        )


def _vectors(side: Encoder[Ragged], reading: TeacherTexts) -> torch.Tensor:
    """Encode the local texts and return the vectors of all processes, [texts of all processes, dim]."""
    tokenized = side.tokenizer(reading.texts)
    texts = [text.first(tokens) for text, tokens in zip(tokenized, reading.tokens, strict=True)]
    vectors = side.texts(texts, [f"the text '{text[:60]}'" for text in reading.texts]).vectors
    on_device = torch.from_numpy(vectors).to(side.model.device)
    return gather(Embedded(on_device)).vectors


class Regulariser(Protocol):
    """A part of the loss that depends on the vectors, not on their scores (`Representation.regulariser`)."""

    def __call__(self, loss: Loss, queries: Embedded, passages: Embedded, step: int) -> Loss:
        """Add the part to a loss."""

    def check(self, parts: Mapping[str, float], step: int) -> None:
        """Raise DataError if the parts of the loss of a step show that the training has failed."""


@dataclass
class ContrastiveStep:
    """A step of contrastive training: gather the vectors of all processes and apply one objective.

    With P processes, each process holds its share of the Q queries and N passages. After gathering, every
    process computes the same loss from [Q, dim] and [N, dim] vectors (or more rows in late interaction).
    """

    gradients: Gradients
    objective: Objective
    sides: SourceSides  # how vectors are finished; all sources share this
    teacher: Teacher | None = None
    regulariser: Regulariser | None = None

    def __call__(self, model: nn.Module, batch: TrainBatch) -> Loss:
        """Add the gradients of a batch to the parameters and return its loss."""
        return self.gradients(model, _inputs(batch), self._loss(batch))

    def check(self, parts: Mapping[str, float], step: int) -> None:
        """Raise DataError if the parts of the loss of a step show that the training has failed."""
        if self.regulariser:
            self.regulariser.check(parts, step)

    def _loss(self, batch: TrainBatch) -> Callable[[Tensor], Loss]:
        queries, passages = batch.queries, batch.passages
        split = [int(queries.counts.sum()), int(passages.counts.sum())]
        facts = self.teacher.add_targets(batch) if self.teacher else batch.facts

        def loss_of(vectors: Tensor) -> Loss:
            """Split [local vectors, dim] into query and passage vectors and compute the loss."""
            local = vectors.split(split)  # type: ignore[no-untyped-call]
            asked = gather(_embedded(self.sides.query.finish, local[0], queries.counts))
            found = gather(_embedded(self.sides.passage.finish, local[1], passages.counts))
            loss = self.objective(asked, found, facts.to(vectors.device))
            if self.regulariser:
                loss = self.regulariser(loss, asked, found, batch.step)
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
