"""A training job of a bi-encoder: model, examples and settings, planned from a request.

Planning creates the objective and reads the examples, but no weights. `loop.training_run` runs the job.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lmkcli.artifact.kinds import ModelIdentity
from lmkcli.encoding.encoder import open_forward
from lmkcli.encoding.resolution import (
    ResolvedRecipe,
    is_prompt_apart,
    lacks_weights,
    representation_of,
)
from lmkcli.encoding.sentence_folder import exported
from lmkcli.errors import UsageError
from lmkcli.models.forward import ForwardPass, ModelOptions
from lmkcli.models.tokenizer_folder import open_tokenizer
from lmkcli.spec.recipe import EncoderConfig, RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import FULL, Granularity, Window
from lmkcli.training import request
from lmkcli.training.data.batches import (
    ChunkBatches,
    Feed,
    MakeBatch,
    PairBatches,
    SourceSides,
    TrainBatch,
)
from lmkcli.training.data.contextual import Documents, read_documents
from lmkcli.training.data.examples import Examples, Tally
from lmkcli.training.data.inputs import (
    SHOWN,
    PlacedText,
    PlacedTexts,
    Skipping,
    TrainingSide,
    placed_text,
)
from lmkcli.training.data.sampling import Sampling
from lmkcli.training.data.sources import Source, describe_sources
from lmkcli.training.loop import checkpoints
from lmkcli.training.loop.development import Dev
from lmkcli.training.loop.trainer import TrainingTask
from lmkcli.training.loop.training_run import MACHINE, Start, budget
from lmkcli.training.losses import LossNotation
from lmkcli.training.objectives.composed import Matryoshka, WeightedSum
from lmkcli.training.objectives.objective import Objective
from lmkcli.training.request import ResolvedTraining, check_found, published_model
from lmkcli.training.step import trainable
from lmkcli.training.step.contrastive import ContrastiveStep, Imitation, Regulariser, Teacher
from lmkcli.training.step.gradients import Gradients, enable_gradient_checkpointing
from lmkcli.training.train_settings import TrainSettings, read_dims
from lmkcli.training.training_record import JobRecord, TrainingRecord

_SAMPLE = 500  # passages that are tokenized to look at their lengths


@dataclass(frozen=True)
class TrainJob:
    """The model, examples, objective and settings of a training."""

    resolved: ResolvedRecipe
    grans: tuple[Granularity, ...]
    sources: tuple[Source, ...]
    examples: Examples | Documents
    tallies: tuple[Tally, ...]
    objective: Objective
    settings: TrainSettings
    dev: Dev | None = None
    teacher: ResolvedRecipe | None = None

    @property
    def identity(self) -> ModelIdentity:
        """The values that a resumed training must share with the original."""
        settings = {
            name: value
            for name, value in asdict(self.settings).items()
            if name not in MACHINE and value is not None
        }
        return ModelIdentity(
            recipe=self.resolved.recipe,
            granularities=list(self.grans),
            data=self.examples.digest,
            sources=[_source_identity(source) for source in self.sources],
            settings=settings,
            loss_package=", ".join(LossNotation.parse(self.settings.loss).providers),
            window=self.resolved.folder.window,
            teacher=self.teacher.recipe if self.teacher else None,
            dev=self.dev.identity if self.dev else {},
        )

    @property
    def scored(self) -> ResolvedRecipe:
        """The recipe for development scores, which reads documents in windows if the training does.

        The window is the one that the new folder declares, else the longest `window=` of the sources.
        """
        recipe = self.resolved.recipe
        windows = [source.window for source in self.sources if source.window]
        longest = max(windows, key=lambda window: window.positions, default=FULL)
        window = Window(self.resolved.folder.window or longest)
        if not window.positions:
            return self.resolved
        doc = replace(recipe.doc, window=window, max_length=window.positions)
        return self.resolved._replace(recipe=replace(recipe, doc=doc))

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.examples)

    def without_scoring(self) -> "TrainJob":
        """Return the same job without checkpoints and development set."""
        return replace(self, settings=self.settings.without_checkpoints(), dev=None)

    def shown(self, batch: TrainBatch) -> list[list[PlacedText]]:
        """Return the first examples of a batch: query, positive, and one negative if present."""
        tokenizer = open_tokenizer(self.resolved.folder, self.resolved.recipe.doc)

        def text(side: PlacedTexts, number: int, name: str) -> PlacedText:
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
        regulariser = representation_of(self.resolved.recipe.doc.pool).regulariser
        step = ContrastiveStep(
            gradients,
            self.objective,
            feed.place.sides[0],
            self._teacher(forward),
            _named(regulariser)(self.settings) if regulariser else None,
        )
        return TrainingTask(forward, step, feed, self.settings, self.dev)

    def _teacher(self, student: ForwardPass) -> Teacher | None:
        settings = EncodeSettings(dtype=self.settings.dtype, device=self.settings.device)
        return Teacher.open(self.teacher, settings, student) if self.teacher else None

    def feed(self, start: Start) -> Feed[MakeBatch]:
        """Return the batches of one process."""
        settings, sides = self.settings, [_sides(self, source) for source in self.sources]
        place: MakeBatch
        if isinstance(self.examples, Documents):
            place = ChunkBatches(self.examples, sides, start.shard)
        else:
            reach = self.resolved.recipe.doc.max_length
            skipping = Skipping(settings.skip_positions, reach)
            has_teacher = self.teacher is not None
            place = PairBatches(
                self.examples, sides, settings.seed, skipping, start.shard, has_teacher
            )
        weights = [source.weight for source in self.sources]
        return Feed(
            self.examples, weights, Sampling.of(settings), place, settings.steps, start.step
        )

    def record(self, history: list[dict[str, float]]) -> JobRecord:
        """Return the entries of training.json that each kind of job writes in its own way."""
        record: JobRecord = {
            "base": self.resolved.folder.name,
            "objective": self.settings.loss,
            "sources": describe_sources(self.sources, self.examples.sources),
            "loaded_by": exported(published_model(self.resolved)).loaded_by,
        }
        if self.dev:
            record["dev"] = self.dev.record(history)
        return record

    def publish(
        self, folder: Path, module: nn.Module, learned: dict[str, Tensor], record: TrainingRecord
    ) -> None:
        """Write the model in the layout of sentence-transformers."""
        checkpoints.publish(folder, published_model(self.resolved), module, learned, record)


def _named(target: str) -> Callable[[TrainSettings], Regulariser]:
    """Import the function of a regulariser."""
    module, attribute = target.split(":")
    found: Callable[[TrainSettings], Regulariser] = getattr(import_module(module), attribute)
    return found


def _source_identity(source: Source) -> dict[str, Any]:
    """Return the settings of a source that change its inputs; the digest covers the examples."""
    names = ("weight", "query_prompt", "doc_prompt", "query_max_length", "max_length")
    windows = {"window": source.window.as_json()} if source.window else {}
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
    if not hasattr(forward.encoder, "save_pretrained"):
        raise UsageError(
            f"lmk cannot train {job.resolved.folder.name}: its kind of models has no save_pretrained, which "
            "writes the trained weights; use a model of transformers"
        )
    if settings.gradient_checkpointing:
        enable_gradient_checkpointing(forward.model.module)
    trainable.select_trained(forward, settings.train, settings.freeze, settings.lora)
    first = next(job.feed(Start()).batches())
    vectors = forward(first.passages.inputs[:1])
    if not vectors.requires_grad:
        raise UsageError("--train and --freeze leave no weights to train; freeze fewer parts")
    trainable.freeze_unused(forward, vectors)
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
        config = replace(config, prompt_apart=is_prompt_apart(config, folder))
        return TrainingSide.of(config, open_tokenizer(folder, config), job.grans)

    if source.window and recipe.doc.unit != "doc":
        raise UsageError(
            f"'{source.name}': --unit {recipe.doc.unit} does not support windows, which are averaged; drop "
            f"window={source.window}"
        )
    query = side(recipe.query, source.query_prompt, source.query_max_length)
    doc, length = recipe.doc, source.max_length
    if source.window:
        doc, length = replace(doc, window=source.window), source.window.positions
    passage = side(doc, source.doc_prompt, length)
    return SourceSides(source.drawing, query, passage, source.name)


def plan(
    sources: Sequence[str], options: RecipeOptions, settings: TrainSettings, offline: bool = False
) -> TrainJob:
    """Read everything except the model's weights. Raises UsageError and DataError for invalid requests."""
    return planned(request.resolve_training(sources, options, settings, offline), settings)


def planned(request: ResolvedTraining, settings: TrainSettings) -> TrainJob:
    """Return the job of a resolved request. Raises DataError if documents in chunks give no example."""
    doc = request.resolved.recipe.doc
    objective = open_objective(settings, doc.normalize, representation_of(doc.pool).temperature)
    examples, tallies = request.read or read_documents(request.sources)
    check_found(len(examples), request.sources)
    settings = settings.with_steps(len(examples))
    return TrainJob(
        request.resolved, request.grans, request.sources, examples, tuple(tallies), objective, settings,
        teacher=request.teacher,
    )  # fmt: skip


def open_objective(
    settings: TrainSettings, normalize: bool = True, temperature: float = 0.0
) -> Objective:
    """Create the objective with its settings, and add --dims and --teacher if given.

    `temperature` is the default of the pooler; 0 stands for that of the objective.
    """
    loss = LossNotation.parse(settings.loss)
    shared = {name: getattr(settings, name) for name in loss.flags}
    if temperature and "temperature" in shared:
        shared["temperature"] = settings.temperature or temperature
    made: list[Objective] = [term.create(shared) for term in loss.terms]
    weights = tuple(term.weight for term in loss.terms)
    objective = made[0] if weights == (1.0,) else WeightedSum(tuple(made), weights)
    if dims := read_dims(settings.dims):
        objective = Matryoshka(objective, dims, normalize)
    complete = "targets" in objective.needs or not settings.teacher
    return objective if complete else Imitation(objective, settings.teacher_weight)


def _declared(job: TrainJob) -> str:
    window = Window(job.resolved.folder.window or "full")
    return f"; the model will read windows of {window.length}" if window.positions else ""


def _short_passages(job: TrainJob) -> Iterator[str]:
    """Yield a line if nearly all passages of a sample are much shorter than the maximum length."""
    doc, examples = job.resolved.recipe.doc, job.examples
    if isinstance(examples, Documents) or doc.window.positions or job.settings.skip_positions:
        return
    rows = examples.passages[:: len(examples.passages) // _SAMPLE + 1]
    texts = [str(examples.texts[int(row)]) for row in rows]
    tokens = sorted(len(text.ids) for text in open_tokenizer(job.resolved.folder, doc)(texts))
    most = tokens[(len(tokens) - 1) * 99 // 100]
    enough = (
        -(-(most + 8) // 32) * 32 * 2
    )  # twice the length: room for special tokens and landmarks
    if 2 * enough <= doc.max_length:
        yield (
            f"short passages: 99% of them have at most {most} tokens, and the maximum length is "
            f"{doc.max_length}; --max-length {enough} limits the memory for the few longer ones"
        )


def _chunks(examples: Examples | Documents, source: int) -> str:
    """Return the numbers of chunks and queries of documents in chunks, as in Table 4 of arXiv 2505.24782."""
    if not isinstance(examples, Documents):
        return ""
    found = [examples[int(row)] for row in (examples.sources == source).nonzero()[0]]
    chunks = sum(len(each.chunks) for each in found)
    queries = sum(len(each.queries) for each in found)
    answers = sum(len({asked.chunk for asked in each.queries}) for each in found)
    share = answers / max(1, chunks)
    return f"; {chunks:,} chunks, {share:.1%} with a query; {queries:,} queries"


def describe_training(job: TrainJob) -> Iterator[str]:
    """Yield lines that describe the resolved model, settings and examples."""
    doc = job.resolved.recipe.doc
    grans = f" gran {' '.join(job.grans)}" if job.grans else ""
    yield (
        f"{job.resolved.folder.name}: pool {doc.pool}{grans}, max length {doc.max_length} "
        f"(queries {job.resolved.recipe.query.max_length}), {doc.similarity}{_declared(job)}"
    )
    for number, (source, tally) in enumerate(zip(job.sources, job.tallies, strict=True)):
        count = int((job.examples.sources == number).sum())
        rest = ", ".join(
            f"{name.replace('_', ' ')} {n:,}" for name, n in tally.found().items() if name != "read"
        )
        line = f"{source.name}: {count:,} examples of {tally.read:,}{f' ({rest})' if rest else ''}"
        yield line + _chunks(job.examples, number)
    yield from job.resolved.notes
    if lacks_weights(doc.pool, job.resolved.folder):
        yield (
            f"pool {doc.pool}: {job.resolved.folder.name} has no weights of this pooler; the training starts "
            f"with new ones (seed {job.settings.seed})"
        )
    yield from _short_passages(job)
    if job.teacher:
        teacher_doc = job.teacher.recipe.doc
        guess = "" if job.teacher.folder.pool else " (a guess: its folder declares none)"
        yield (
            f"teacher {job.teacher.folder.name}: pool {teacher_doc.pool}{guess}, windows of "
            f"{teacher_doc.max_length} positions"
        )
