"""A training job of a bi-encoder: model, examples and settings.

planning.py creates it, running.py runs it.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lmkcli import catalog
from lmkcli.encoding.encoder import open_forward
from lmkcli.encoding.resolving import Resolved
from lmkcli.encoding.sentence_folder import exported
from lmkcli.errors import UsageError
from lmkcli.models.forward import ForwardPass, ModelOptions
from lmkcli.models.tokenizer import open_tokenizer
from lmkcli.recipe import EncoderConfig
from lmkcli.settings import EncodeSettings
from lmkcli.training import checkpoints, parts
from lmkcli.training.asking import published_model
from lmkcli.training.contexts import Contexts
from lmkcli.training.contextual import Documents
from lmkcli.training.contrasting import Contrast
from lmkcli.training.development import Dev
from lmkcli.training.examples import Examples, Tally
from lmkcli.training.feeding import Feed, Pairs, Place, SourceSides, TrainBatch
from lmkcli.training.gradients import Gradients, enable_gradient_checkpointing
from lmkcli.training.objective import Objective
from lmkcli.training.placing import Placed, TrainingSide
from lmkcli.training.running import MACHINE, Start, budget
from lmkcli.training.sampling import Sampling
from lmkcli.training.settings import TrainSettings
from lmkcli.training.showing import SHOWN, PlacedText, placed_text
from lmkcli.training.skipping import Skipping
from lmkcli.training.sources import Source, describe_sources
from lmkcli.training.teaching import Teacher
from lmkcli.training.trainer import TrainingTask


@dataclass(frozen=True)
class TrainJob:
    """The model, examples, objective and settings of a training."""

    resolved: Resolved
    grans: tuple[str, ...]
    sources: tuple[Source, ...]
    examples: Examples | Documents
    tallies: tuple[Tally, ...]
    objective: Objective
    settings: TrainSettings
    dev: Dev | None = None
    teacher: Resolved | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """The values that a resumed training must share with the original."""
        settings = {k: v for k, v in asdict(self.settings).items() if k not in MACHINE}
        shared = {
            "recipe": self.resolved.recipe.identity(),
            "granularities": list(self.grans),
            "data": self.examples.digest,
            "sources": [_source_identity(source) for source in self.sources],
            "settings": settings,
        }
        if package := catalog.OBJECTIVES[self.settings.loss].provider:
            shared["loss package"] = package
        if self.resolved.folder.window:
            shared["window"] = self.resolved.folder.window
        if self.teacher:
            shared["teacher"] = self.teacher.recipe.identity()
        return shared | ({"dev": self.dev.identity} if self.dev else {})

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.examples)

    def without_scoring(self) -> "TrainJob":
        """Return the same job without checkpoints and development set."""
        return replace(self, settings=self.settings.without_checkpoints(), dev=None)

    def shown(self, batch: TrainBatch) -> list[list[PlacedText]]:
        """Return the first examples of a batch: query, positive, and one negative if present."""
        tokenizer = open_tokenizer(self.resolved.folder, self.resolved.recipe.doc)

        def text(side: Placed, number: int, name: str) -> PlacedText:
            return placed_text(side.text(number), name, side.grans[number], tokenizer)

        groups = [[int(row) for row in group if row >= 0] for group in batch.facts.groups]
        return [
            [
                text(batch.queries, number, "query"),
                text(batch.passages, groups[number][0], "positive"),
                *(text(batch.passages, row, "negative") for row in groups[number][1:2]),
            ]
            for number in range(min(SHOWN, len(batch.examples)))
        ]

    def task(self, start: Start) -> TrainingTask:
        """Open the model and return the task of contrastive training."""
        forward = open_trainable(self)
        gradients = Gradients(forward, budget(forward.model, self.settings, start.note))
        feed = self.feed(start)
        step = Contrast(gradients, self.objective, feed.place.sides[0], self._teacher(forward))
        return TrainingTask(forward, step, feed, self.settings, self.dev)

    def _teacher(self, student: ForwardPass) -> Teacher | None:
        settings = EncodeSettings(dtype=self.settings.dtype, device=self.settings.device)
        return Teacher.open(self.teacher, settings, student) if self.teacher else None

    def feed(self, start: Start) -> Feed[Place]:
        """Return the batches of one process."""
        settings, sides = self.settings, [_sides(self, source) for source in self.sources]
        place: Place
        if isinstance(self.examples, Documents):
            place = Contexts(self.examples, sides, start.shard)
        else:
            reach = self.resolved.recipe.doc.max_length
            skipping = Skipping(settings.skip_positions, reach)
            has_teacher = self.teacher is not None
            place = Pairs(self.examples, sides, settings.seed, skipping, start.shard, has_teacher)
        weights = [source.weight for source in self.sources]
        return Feed(
            self.examples, weights, Sampling.of(settings), place, settings.steps, start.step
        )

    def facts(self, history: list[dict[str, float]]) -> dict[str, Any]:
        """Return the entries of training.json that are specific to bi-encoders."""
        return {
            "base": self.resolved.folder.name,
            "objective": self.settings.loss,
            "sources": describe_sources(self.sources, self.examples.sources),
            "loaded_by": exported(published_model(self.resolved)).loaded_by,
            **({"dev": self.dev.facts(history)} if self.dev else {}),
        }

    def publish(
        self, folder: Path, module: nn.Module, learned: dict[str, Tensor], facts: dict[str, Any]
    ) -> None:
        """Write the model in the layout of sentence-transformers."""
        checkpoints.publish(folder, published_model(self.resolved), module, learned, facts)


def _source_identity(source: Source) -> dict[str, Any]:
    """Return the settings of a source that change its inputs; the digest covers the examples."""
    names = ("weight", "query_prompt", "doc_prompt", "query_max_length", "max_length")
    windows = {"window": source.window} if source.window else {}
    drawing = {"drawing": asdict(source.drawing)}
    return {name: getattr(source, name) for name in names} | windows | drawing


def open_trainable(job: TrainJob) -> ForwardPass:
    """Open the model in the dtype of the forward pass, and freeze its unused weights."""
    settings = job.settings
    doc = job.resolved.recipe.doc
    options = ModelOptions(
        settings.dtype, settings.device, doc.trust_remote_code, doc.extend, trainable=True
    )
    torch.manual_seed(settings.seed)
    forward = open_forward(doc, job.resolved.folder, options)
    if settings.gradient_checkpointing:
        enable_gradient_checkpointing(forward.model.module)
    parts.select_trained(forward, settings.train, settings.freeze, settings.lora)
    first = next(job.feed(Start()).batches())
    vectors = forward(first.passages.inputs[:1])
    if not vectors.requires_grad:
        raise UsageError("--train and --freeze leave no weights to train; freeze fewer parts")
    parts.freeze_unused(forward, vectors)
    return forward


def _sides(job: TrainJob, source: Source) -> SourceSides:
    recipe, folder = job.resolved.recipe, job.resolved.folder

    def side(config: EncoderConfig, prompt: str | None, length: int | None) -> TrainingSide:
        prompt = config.prompt if prompt is None else prompt
        if length and length > config.max_length:
            raise UsageError(
                f"'{source.name}': length {length} exceeds the maximum length {config.max_length}; raise "
                "--max-length"
            )
        config = replace(config, prompt=prompt, max_length=length or config.max_length)
        return TrainingSide.of(config, open_tokenizer(folder, config), job.grans)

    if source.window and recipe.doc.unit != "doc":
        raise UsageError(
            f"'{source.name}': --unit {recipe.doc.unit} does not support windows, which are averaged; drop "
            f"window={source.window}"
        )
    window = str(source.window) if source.window else recipe.doc.window
    query = side(recipe.query, source.query_prompt, source.query_max_length)
    passage = side(
        replace(recipe.doc, window=window), source.doc_prompt, source.window or source.max_length
    )
    return SourceSides(source.drawing, query, passage, source.name)
