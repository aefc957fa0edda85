"""Teaching: distill the vectors of a frozen teacher model into the model that is trained.

The teacher reads a text that exceeds its maximum length in windows and averages their vectors. So a
teacher for short texts can provide one target vector for a long text.
"""

from dataclasses import dataclass, replace
from typing import Self

import torch

from lmkcli.encoding.batches import BatchRunner
from lmkcli.encoding.encoder import Encoder, encoder_of, open_forward
from lmkcli.encoding.resolving import Resolved
from lmkcli.errors import UsageError
from lmkcli.models.forward import ForwardPass, ModelOptions
from lmkcli.models.tokenizer import open_tokenizer
from lmkcli.recipe import EncoderConfig
from lmkcli.settings import EncodeSettings
from lmkcli.training.feeding import TeacherTexts, TrainBatch
from lmkcli.training.gathering import gather
from lmkcli.training.objective import BatchFacts, Embedded, Loss, Need, Objective
from lmkcli.training.objectives.prediction import Prediction


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

    query: Encoder
    passage: Encoder

    @classmethod
    def open(cls, resolved: Resolved, settings: EncodeSettings, student: ForwardPass) -> Self:
        """Load the teacher. Raises UsageError if its vectors and the student's differ in dimensions."""
        recipe, folder = resolved.recipe, resolved.folder
        options = ModelOptions(settings.dtype, settings.device, recipe.doc.trust_remote_code)
        runner = BatchRunner(open_forward(recipe.doc, folder, options), settings)

        def side(config: EncoderConfig) -> Encoder:
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


def _vectors(side: Encoder, reading: TeacherTexts) -> torch.Tensor:
    """Encode the local texts and return the vectors of all processes, [texts of all processes, dim]."""
    tokenized = side.tokenizer(reading.texts)
    texts = [text.first(tokens) for text, tokens in zip(tokenized, reading.tokens, strict=True)]
    vectors = side.texts(texts, [f"the text '{text[:60]}'" for text in reading.texts]).vectors
    on_device = torch.from_numpy(vectors).to(side.model.device)
    return gather(Embedded(on_device)).vectors
