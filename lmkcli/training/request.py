"""Check and resolve a training request before torch is loaded, so that errors appear immediately."""

import os
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import NamedTuple

from lmkcli import catalog
from lmkcli.encoding.resolution import (
    ResolvedRecipe,
    check_gran,
    open_pooler,
    representation_of,
    resolve,
)
from lmkcli.encoding.sentence_folder import check_trainable, resolve_whole
from lmkcli.errors import DataError, MissingExtra, UsageError
from lmkcli.spec.option import options
from lmkcli.spec.recipe import ROTARY, Recipe, RecipeOptions
from lmkcli.spec.values import EACH_CHUNK, FULL, WHOLE_TEXT, Granularities, Granularity, Window
from lmkcli.training.data.examples import Examples, Tally
from lmkcli.training.data.sources import Source, parse_source, read_sources
from lmkcli.training.loop import tensorboard
from lmkcli.training.losses import LossNotation
from lmkcli.training.train_settings import (
    POOLER_SETTINGS,
    LoopSettings,
    TrainSettings,
    check_dims,
    read_dims,
)
from lmkcli.vectors.stored import DENSE

# Environment variables of accelerate's launcher for engines that split one model over processes.
_SHARDING = {"FSDP": "ACCELERATE_USE_FSDP", "DeepSpeed": "ACCELERATE_USE_DEEPSPEED"}


class ResolvedTraining(NamedTuple):
    """A checked training request. `read` contains examples and counts; None for documents in chunks."""

    resolved: ResolvedRecipe
    grans: tuple[Granularity, ...]
    sources: tuple[Source, ...]
    read: tuple[Examples, list[Tally]] | None
    teacher: ResolvedRecipe | None


def resolve_training(
    sources: Sequence[str], options: RecipeOptions, settings: TrainSettings, offline: bool = False
) -> ResolvedTraining:
    """Check a training request and read its examples, but not the objective and the model's weights.

    Raises UsageError and DataError for invalid requests.
    """
    check_installed(settings, "lmk train")
    dims = read_dims(settings.dims)
    _check_targets(settings)
    _check_batch(settings)
    parsed = tuple(parse_source(each) for each in sources)
    for source in parsed:
        if source.blocks is not None:
            raise UsageError(f"'{source.name}': blocks has no effect on examples; drop it")
    _check_positions(options)
    resolved = _resolve(with_first_gran(options), offline)
    doc = resolved.recipe.doc
    grans = tuple(check_gran(doc.pool, each, doc.unit, doc.window) for each in grans_of(options))
    check_trainable(
        published_model(resolved)
    )  # fails if the result cannot be written as a model folder
    _check_pooler(resolved, settings)
    check_dims(dims, resolved.folder.dimensions)
    _check_chunks(resolved, settings)
    teacher = _teacher(settings, resolved, offline)
    read = None if doc.by_chunk else read_sources(parsed)
    if read:
        check_found(len(read[0]), parsed)
    _check_scores(settings.loss, read[0] if read else None, parsed)
    return ResolvedTraining(resolved, grans, parsed, read, teacher)


def _resolve(options: RecipeOptions, offline: bool) -> ResolvedRecipe:
    """Return the recipe of a training. With --window chunk, each chunk of a document is an input.

    Otherwise a document is one input, and the new folder declares --window. With --no-normalize, the new
    model is scored by dot products, whatever its base declares.
    """
    if options.normalize is False:
        found = _resolve(replace(options, normalize=None), offline)
        doc, query = (
            replace(side, normalize=False, similarity="dot")
            for side in (found.recipe.doc, found.recipe.query)
        )
        return found._replace(recipe=Recipe(doc, query))
    if options.window != EACH_CHUNK:
        return resolve_whole(options, offline)
    resolved = resolve(options, offline)
    if not resolved.recipe.doc.by_chunk:
        raise UsageError(
            "--window chunk trains on each chunk of a document by itself; add --unit chunk --gran given"
        )
    return resolved._replace(folder=replace(resolved.folder, window=""))


def _check_pooler(resolved: ResolvedRecipe, settings: TrainSettings) -> None:
    """Raise UsageError for settings that have no effect with the pooler."""
    pool = resolved.recipe.doc.pool
    own, rows = catalog.pooler_row(pool).train_settings, catalog.POOLERS.values()
    for target, group in POOLER_SETTINGS.items():
        given = [
            each for each in options(group) if getattr(settings, each.name) != each.field.default
        ]
        if given and target != own:
            users = ", ".join(row.name for row in rows if row.train_settings == target)
            raise UsageError(
                f"--{given[0].name.replace('_', '-')} has no effect with --pool {pool}, only with --pool "
                f"{users}; drop it"
            )
    if (kind := representation_of(pool).kind) == DENSE:
        return
    for flag, value in (("--dims", settings.dims), ("--teacher", settings.teacher)):
        if value:
            raise UsageError(
                f"{flag} is for dense vectors, and --pool {pool} makes {kind} ones; drop it (a teacher's "
                "scores can teach all vectors: --loss kl or margin-mse)"
            )


def _teacher(
    settings: TrainSettings, student: ResolvedRecipe, offline: bool
) -> ResolvedRecipe | None:
    """Resolve the teacher model. It reads texts beyond its maximum length in windows."""
    if not settings.teacher:
        return None
    trust = student.recipe.doc.trust_remote_code
    found = resolve(RecipeOptions(model=settings.teacher, trust_remote_code=trust), offline)
    doc = found.recipe.doc
    if (kind := representation_of(doc.pool).kind) != DENSE:
        raise UsageError(
            f"--teacher {settings.teacher} makes {kind} vectors; give a model with dense vectors"
        )
    if (doc.unit, student.recipe.doc.unit) != ("doc", "doc"):
        raise UsageError(
            f"--teacher {settings.teacher}: both models must give one vector per text; use --unit doc and "
            "a teacher with one vector per text"
        )
    windows = replace(doc, window=Window(str(doc.max_length)))
    return found._replace(recipe=replace(found.recipe, doc=windows))


def check_installed(settings: LoopSettings, command: str) -> None:
    """Raise MissingExtra or UsageError if a library of training is missing or the launcher unsupported."""
    if find_spec("accelerate") is None:
        raise MissingExtra("accelerate", "train", command)
    for engine, variable in _SHARDING.items():
        if os.environ.get(variable) == "true":
            raise UsageError(
                f"{command} keeps the whole model in every process and does not run under {engine}; use "
                f"torchrun, or a configuration of accelerate without {engine}; --lora and "
                "--gradient-checkpointing save memory"
            )
    if settings.tensorboard:
        tensorboard.check_installed()


def grans_of(options: RecipeOptions) -> tuple[Granularity, ...]:
    """Return the granularities in the options."""
    return options.gran.values if options.gran else ()


def with_first_gran(options: RecipeOptions) -> RecipeOptions:
    """Return the options with only the first granularity."""
    return replace(options, gran=Granularities(options.gran.values[0]) if options.gran else None)


def _check_positions(options: RecipeOptions) -> None:
    if options.extend in ROTARY:
        raise UsageError(
            f"--extend {options.extend} has no effect on training, because rotary positions have no limit; "
            "drop it, and set the length with --max-length"
        )


def _check_targets(settings: TrainSettings) -> None:
    """Raise UsageError if the loss requires a teacher model, or if --teacher-weight has no effect."""
    needs_teacher = "targets" in LossNotation.parse(settings.loss).needs
    if needs_teacher and not settings.teacher:
        raise UsageError(
            f"--loss {settings.loss} learns from a teacher's vectors; give --teacher MODEL"
        )
    if settings.teacher_weight != 1 and (needs_teacher or not settings.teacher):
        raise UsageError(
            "--teacher-weight needs --teacher, and has no effect with --loss prediction; add --teacher "
            "MODEL, or drop it"
        )


def _check_batch(settings: TrainSettings) -> None:
    """Raise UsageError if the loss contrasts the queries of a batch, and a batch has only one."""
    contrasting = [
        term.name for term in LossNotation.parse(settings.loss).terms if not term.row.single
    ]
    if settings.batch_size == 1 and contrasting:
        single = ", ".join(name for name, row in catalog.LOSSES.items() if row.single)
        raise UsageError(
            f"--batch-size 1: --loss {contrasting[0]} contrasts a query with the passages of other queries; "
            f"raise it to 2 or more, or use a loss for single queries ({single})"
        )


def _check_scores(loss: str, examples: Examples | None, sources: Sequence[Source]) -> None:
    if "teacher" in LossNotation.parse(loss).needs and not (examples and examples.scored):
        raise DataError(
            f"--loss {loss} learns from teacher scores, but {_names(sources)} has none; add scores "
            "(teacher=RUN, or pos_scores and neg_scores), or use --loss infonce"
        )


def check_found(count: int, sources: Sequence[Source]) -> None:
    """Raise DataError if the sources contain no usable example."""
    if not count:
        raise DataError(
            f"{_names(sources)}: no usable example was found; give a source with queries and positives"
        )


def _names(sources: Sequence[Source]) -> str:
    return ", ".join(source.name for source in sources)


def _check_chunks(resolved: ResolvedRecipe, settings: TrainSettings) -> None:
    doc, loss = resolved.recipe.doc, settings.loss
    if "sequence" in LossNotation.parse(loss).needs and not doc.by_chunk:
        unit = "" if doc.unit == "token" else "--unit chunk "
        raise UsageError(
            f"--loss {loss} learns from documents in chunks; add {unit}--gran given, and give documents with "
            "chunks"
        )
    if doc.by_chunk and doc.gran != "given":
        raise UsageError(
            f"--unit {doc.unit} trains on the given chunks of documents; add --gran given"
        )
    if doc.by_chunk and settings.skip_positions:
        raise UsageError("--skip-positions has no effect on documents in chunks; drop it")


def published_model(resolved: ResolvedRecipe) -> ResolvedRecipe:
    """Return the recipe that the trained model's folder will declare.

    An extended table of positions becomes part of the model, so the recipe drops `extend`. A model declares
    neither given chunks nor the unit 'chunk', which becomes 'doc'.
    """
    recipe = resolved.recipe
    doc, query = (replace(side, extend="") for side in (recipe.doc, recipe.query))
    if doc.by_chunk:  # the command that encodes texts selects the unit and the chunks
        unit = "token" if doc.unit == "token" else "doc"
        gran = doc.gran if open_pooler(doc.pool).chunked else WHOLE_TEXT
        doc = replace(doc, unit=unit, gran=gran, window=FULL, prompt_apart=False)
    # training with one pooler moves the weights away from the others
    folder = replace(resolved.folder, trained_poolers=())
    return resolved._replace(recipe=Recipe(doc, query), folder=folder)
