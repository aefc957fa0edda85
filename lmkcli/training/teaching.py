"""Teaching: a model that is not trained says where the vectors of the one that is shall point.

The teacher reads what is longer than its inputs in windows, and averages their vectors: so a model of
short texts teaches one vector of a long text.
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
from lmkcli.training.feeding import Reading, TrainBatch
from lmkcli.training.gathering import gathered
from lmkcli.training.objective import BatchFacts, Embedded, Loss, Need, Objective
from lmkcli.training.objectives.prediction import Prediction


@dataclass(frozen=True)
class Imitation:
    """An objective, and the distance from a teacher's vectors beside it, `weight` times."""

    objective: Objective
    weight: float = 1.0

    @property
    def needs(self) -> frozenset[Need]:
        """What the objective needs, and the teacher's vectors."""
        return self.objective.needs | Prediction.needs

    def __call__(self, queries: Embedded, passages: Embedded, facts: BatchFacts) -> Loss:
        """The sum; its parts are those of both."""
        loss = self.objective(queries, passages, facts)
        distance = Prediction()(queries, passages, facts)
        parts = {**loss.parts, **distance.parts}
        return Loss(loss.total + self.weight * distance.total, parts)


@dataclass(frozen=True)
class Teacher:
    """Both sides of a model, which share its weights."""

    query: Encoder
    passage: Encoder

    @classmethod
    def open(cls, resolved: Resolved, settings: EncodeSettings, student: ForwardPass) -> Self:
        """Loads the model; UsageError where its vectors are not as wide as those of the student."""
        recipe, folder = resolved.recipe, resolved.folder
        options = ModelOptions(settings.dtype, settings.device, recipe.doc.trust_remote_code)
        runner = BatchRunner(open_forward(recipe.doc, folder, options), settings)

        def side(config: EncoderConfig) -> Encoder:
            return encoder_of(config, open_tokenizer(folder, config), runner, folder.name)

        teacher = cls(side(recipe.query), side(recipe.doc))
        if teacher.passage.dim != student.width:
            raise UsageError(
                f"--teacher {folder.name}: its vectors have {teacher.passage.dim} dimensions and those of "
                f"the model {student.width}; choose one with as many"
            )
        return teacher

    def taught(self, batch: TrainBatch) -> BatchFacts:
        """The facts of a batch with the teacher's vectors of all its texts, gathered from all processes."""
        return replace(
            batch.facts,
            query_targets=_vectors(self.query, batch.asked),
            passage_targets=_vectors(self.passage, batch.told),
        )


def _vectors(side: Encoder, reading: Reading) -> torch.Tensor:
    """[texts of all processes, dim]."""
    tokenized = side.tokenizer(reading.texts)
    texts = [text.first(tokens) for text, tokens in zip(tokenized, reading.tokens, strict=True)]
    vectors = side.texts(texts, [f"the text '{text[:60]}'" for text in reading.texts]).vectors
    on_device = torch.from_numpy(vectors).to(side.model.device)
    return gathered(Embedded(on_device)).vectors
