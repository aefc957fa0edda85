"""A training: planned from what was asked for, then run; after any stop the same call continues."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lmkcli import __version__, catalog
from lmkcli.encoding.encoder import open_forward
from lmkcli.encoding.resolving import Resolved, granularity, open_pooler, resolve
from lmkcli.encoding.sentence_folder import check_trainable, exported
from lmkcli.errors import DataError, MissingExtra, UsageError
from lmkcli.models.extend import ROTARY
from lmkcli.models.forward import ForwardPass, ModelOptions
from lmkcli.models.tokenizer import open_tokenizer
from lmkcli.progress import Report
from lmkcli.recipe import EncoderConfig, Recipe, RecipeOptions, is_count
from lmkcli.settings import TrainSettings
from lmkcli.training import board, checkpoints, parts
from lmkcli.training.contexts import Contexts
from lmkcli.training.contextual import Documents, read_documents
from lmkcli.training.contrasting import Contrast
from lmkcli.training.development import Dev
from lmkcli.training.examples import Examples, Tally
from lmkcli.training.feeding import Feed, Pairs, Place, SourceSides
from lmkcli.training.gradients import Gradients
from lmkcli.training.matryoshka import Matryoshka
from lmkcli.training.objective import Objective
from lmkcli.training.placing import TrainingSide
from lmkcli.training.running import Start, budget, run
from lmkcli.training.sampling import Sampling
from lmkcli.training.skipping import Skipping
from lmkcli.training.sources import Source, parse_source, read_sources
from lmkcli.training.trainer import Learning


@dataclass(frozen=True)
class TrainJob:
    """What will be learned, from what, and how."""

    resolved: Resolved
    grans: tuple[str, ...]
    sources: tuple[Source, ...]
    examples: Examples | Documents
    tallies: tuple[Tally, ...]
    objective: Objective
    settings: TrainSettings
    dev: Dev | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """What two trainings must share to be one."""
        machine = ("device", "batch_tokens", "save_every", "log_every", "tensorboard")
        settings = {k: v for k, v in asdict(self.settings).items() if k not in machine}
        found = {
            "recipe": self.resolved.recipe.identity(),
            "granularities": list(self.grans),
            "data": self.examples.digest,
            "sources": [_seen_as(source) for source in self.sources],
            "settings": settings,
        }
        return found | ({"dev": self.dev.identity} if self.dev else {})

    def learning(self, start: Start) -> Learning:
        """The forward pass, opened, and the contrast of its vectors."""
        forward = open_trainable(self)
        gradients = Gradients(forward, budget(forward.model, self.settings, start.note))
        feed = self.feed(start)
        step = Contrast(gradients, self.objective, feed.place.sides[0])
        return Learning(forward, step, feed, self.settings, self.dev)

    def feed(self, start: Start) -> Feed[Place]:
        """The batches of one process."""
        settings, sides = self.settings, [_sides(self, source) for source in self.sources]
        sampling = Sampling(
            settings.batch_size,
            settings.batches,
            settings.sampling_temperature,
            settings.like_length,
            settings.seed,
        )
        place: Place
        if isinstance(self.examples, Documents):
            place = Contexts(self.examples, sides, start.shard)
        else:
            reach = self.resolved.recipe.doc.max_length
            skipping = Skipping(settings.skip_positions, reach)
            place = Pairs(self.examples, sides, settings.seed, skipping, start.shard)
        weights = [source.weight for source in self.sources]
        return Feed(self.examples, weights, sampling, place, settings.steps, start.step)

    def facts(self, history: list[dict[str, float]]) -> dict[str, Any]:
        """What training.json says."""
        return _facts(self, history)

    def publish(
        self, folder: Path, module: nn.Module, learned: dict[str, Tensor], facts: dict[str, Any]
    ) -> None:
        """The model in the layout of sentence-transformers."""
        checkpoints.publish(folder, _published(self.resolved), module, learned, facts)


def _published(resolved: Resolved) -> Resolved:
    """What the folder will declare: a lengthened table of positions is its own, and units are no model's."""
    recipe = resolved.recipe
    doc, query = (replace(side, extend="") for side in (recipe.doc, recipe.query))
    if doc.unit == "chunk":  # which chunks there are is said when texts are encoded
        doc = replace(doc, unit="doc", gran=doc.gran if open_pooler(doc.pool).chunked else "")
    return resolved._replace(recipe=Recipe(doc, query))


def _check_chunks(resolved: Resolved) -> None:
    doc = resolved.recipe.doc
    if doc.unit == "chunk" and doc.gran != "given":
        raise UsageError("--unit chunk trains on the chunks that documents bring: add --gran given")


def _check_positions(resolved: Resolved) -> None:
    how = resolved.recipe.doc.extend.partition(":")[0]
    if how in ROTARY:
        raise UsageError(
            f"--extend {how} has no effect on training: rotary positions have no end; drop it, and say how "
            "far with --max-length"
        )


def _seen_as(source: Source) -> dict[str, Any]:
    """How the examples of a source are seen, beside what they are."""
    names = ("weight", "query_prompt", "doc_prompt", "query_max_length", "max_length")
    return {**{name: getattr(source, name) for name in names}, "drawing": asdict(source.drawing)}


def plan(
    sources: Sequence[str], options: RecipeOptions, settings: TrainSettings, offline: bool = False
) -> TrainJob:
    """Reads everything but the model; UsageError and DataError for what cannot be trained."""
    if find_spec("accelerate") is None:
        raise MissingExtra("accelerate", "train", "lmk train")
    if settings.tensorboard:
        board.check_installed()
    grans = tuple(filter(None, (options.gran or "").split(",")))
    resolved = resolve(replace(options, gran=grans[0] if grans else None), offline)
    doc = resolved.recipe.doc
    grans = tuple(granularity(doc.pool, each, doc.unit) for each in grans)
    check_trainable(_published(resolved))  # what has no model folder to end in
    _check_positions(resolved)
    _check_chunks(resolved)
    objective = open_objective(settings, resolved.recipe.doc.normalize)
    _check_objective(objective, settings, resolved.recipe.doc.unit == "chunk")
    parsed = tuple(parse_source(each) for each in sources)
    read = read_documents if resolved.recipe.doc.unit == "chunk" else read_sources
    examples, tallies = read(parsed)
    if not len(examples):
        raise DataError(f"{', '.join(sources)}: no example was found to train on")
    if "teacher" in objective.needs and not (isinstance(examples, Examples) and examples.scored):
        raise DataError(
            f"--loss {settings.loss} learns from teacher scores, and {', '.join(sources)} has none; "
            "give them (teacher=RUN, or pos_scores and neg_scores), or use --loss infonce"
        )
    steps = settings.steps or max(1, int(settings.epochs * len(examples)) // settings.batch_size)
    return TrainJob(
        resolved, grans, parsed, examples, tuple(tallies), objective, replace(settings, steps=steps)
    )


def _check_objective(objective: Objective, settings: TrainSettings, documents: bool) -> None:
    """UsageError for an objective that learns from what such examples do not have."""
    if "targets" in objective.needs:
        raise UsageError(
            f"--loss {settings.loss} learns from a teacher's vectors, which examples do not have; use it "
            "from Python, or --loss infonce"
        )
    if "sequence" in objective.needs and not documents:
        raise UsageError(
            f"--loss {settings.loss} learns from documents in chunks; add --unit chunk --gran given, and "
            "give such documents"
        )
    if settings.skip_positions and documents:
        raise UsageError("--skip-positions has no effect on documents in chunks; drop it")


def open_objective(settings: TrainSettings, normalize: bool = True) -> Objective:
    """The objective with those of the settings that it has, at several dimensions where --dims says so."""
    kind = catalog.load(catalog.OBJECTIVES, settings.loss, "objective")
    own = {field.name for field in fields(kind)}
    asked = {
        name: getattr(settings, name)
        for name in ("temperature", "symmetric")
        if getattr(settings, name)
    }
    if useless := sorted(asked.keys() - own):
        raise UsageError(f"--{useless[0]} has no effect with --loss {settings.loss}; drop it")
    objective: Objective = kind(**asked)
    return Matryoshka(objective, _dims(settings.dims), normalize) if settings.dims else objective


def _dims(text: str) -> list[int]:
    if not all(is_count(part) for part in text.split(",")):
        raise UsageError(f"--dims {text}: write numbers with commas, such as 384,256,128")
    return [int(part) for part in text.split(",")]


def run_train(job: TrainJob, folder: Path, report: Report, watching: Sequence[Any] = ()) -> None:
    """Train into `folder`; Stopped with a checkpoint when a signal asks for it.

    `watching` are callbacks of transformers' Trainer.
    """
    run(job, folder, report, watching)


def open_trainable(job: TrainJob) -> ForwardPass:
    """The model with its weights in the dtype of the forward pass, those that take no part frozen."""
    settings = job.settings
    doc = job.resolved.recipe.doc
    options = ModelOptions(
        settings.dtype, settings.device, doc.trust_remote_code, doc.extend, trainable=True
    )
    torch.manual_seed(settings.seed)
    forward = open_forward(doc, job.resolved.folder, options)
    if settings.gradient_checkpointing:
        _compute_again(forward.model.module)
    parts.choose(forward, settings.train, settings.freeze, settings.lora)
    freeze_unused(forward, job)
    return forward


def _compute_again(module: Any) -> None:
    """States are computed again in the backward pass; older transformers know that by another name."""
    named = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
    next(getattr(module, name) for name in named if hasattr(module, name))()


def freeze_unused(forward: ForwardPass, job: TrainJob) -> None:
    """Weights without a gradient (a pooler that nobody asks) would stall several processes."""
    first = next(job.feed(Start()).batches())
    vectors = forward(first.passages.inputs[:1])
    if not vectors.requires_grad:
        raise UsageError("--train and --freeze leave nothing to train; freeze less")
    vectors.sum().backward()
    for parameter in forward.parameters():
        parameter.requires_grad_(parameter.requires_grad and parameter.grad is not None)
        parameter.grad = None


def _sides(job: TrainJob, source: Source) -> SourceSides:
    recipe, folder = job.resolved.recipe, job.resolved.folder

    def side(config: EncoderConfig, prompt: str | None, length: int | None) -> TrainingSide:
        prompt = config.prompt if prompt is None else prompt
        if length and length > config.max_length:
            raise UsageError(
                f"'{source.name}': a length of {length} is beyond that of all texts, "
                f"{config.max_length}; raise --max-length"
            )
        own = replace(config, prompt=prompt, max_length=length or config.max_length)
        return TrainingSide.of(own, open_tokenizer(folder, own), job.grans)

    query = side(recipe.query, source.query_prompt, source.query_max_length)
    passage = side(recipe.doc, source.doc_prompt, source.max_length)
    return SourceSides(source.drawing, query, passage, source.name)


def _facts(job: TrainJob, history: list[dict[str, float]]) -> dict[str, Any]:
    """What training.json says."""
    counts = [int((job.examples.sources == i).sum()) for i in range(len(job.sources))]
    return {
        "version": __version__,
        "base": job.resolved.folder.name,
        "steps": job.settings.steps,
        "objective": job.settings.loss,
        "data": job.examples.digest,
        "sources": [
            {"name": source.name, "examples": count, "weight": source.weight}
            for source, count in zip(job.sources, counts, strict=True)
        ],
        "granularities": list(job.grans),
        "recipe": job.resolved.recipe.identity(),
        "settings": asdict(job.settings),
        "loaded_by": exported(_published(job.resolved)).loaded_by,
        "curve": [line for line in history if "loss" in line],
        **({"dev": job.dev.facts(history)} if job.dev else {}),
    }


def describe(job: TrainJob) -> Iterator[str]:
    """What was found and resolved, in lines for people."""
    doc = job.resolved.recipe.doc
    grans = f" gran {' '.join(job.grans)}" if job.grans else ""
    yield (
        f"{job.resolved.folder.name}: pool {doc.pool}{grans}, max length {doc.max_length} "
        f"(queries {job.resolved.recipe.query.max_length}), {doc.similarity}"
    )
    for number, (source, tally) in enumerate(zip(job.sources, job.tallies, strict=True)):
        found = int((job.examples.sources == number).sum())
        rest = ", ".join(
            f"{name.replace('_', ' ')} {n:,}" for name, n in tally.found().items() if name != "read"
        )
        yield f"{source.name}: {found:,} examples of {tally.read:,}{f' ({rest})' if rest else ''}"
    yield from job.resolved.notes
