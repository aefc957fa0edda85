"""Planning a training: what was asked, with its objective, and without weights."""

from collections.abc import Iterator, Sequence
from dataclasses import fields

from lmkcli import catalog
from lmkcli.errors import DataError, UsageError
from lmkcli.recipe import RecipeOptions
from lmkcli.training import asking
from lmkcli.training.asking import Asked, read_dims
from lmkcli.training.contextual import read_documents
from lmkcli.training.examples import Examples
from lmkcli.training.job import TrainJob
from lmkcli.training.matryoshka import Matryoshka
from lmkcli.training.objective import Objective
from lmkcli.training.settings import TrainSettings
from lmkcli.training.teaching import Imitation


def plan(
    sources: Sequence[str], options: RecipeOptions, settings: TrainSettings, offline: bool = False
) -> TrainJob:
    """Reads everything but the model; UsageError and DataError for what cannot be trained."""
    return planned(asking.ask(sources, options, settings, offline), settings)


def planned(asked: Asked, settings: TrainSettings) -> TrainJob:
    """The training of what was asked; UsageError and DataError where its objective cannot learn from it."""
    doc = asked.resolved.recipe.doc
    objective = open_objective(settings, doc.normalize)
    _check_objective(objective, settings, doc.unit == "chunk")
    examples, tallies = asked.read or read_documents(asked.sources)
    names = ", ".join(source.name for source in asked.sources)
    if not len(examples):
        raise DataError(f"{names}: no example was found to train on")
    if "teacher" in objective.needs and not (isinstance(examples, Examples) and examples.scored):
        raise DataError(
            f"--loss {settings.loss} learns from teacher scores, and {names} has none; "
            "give them (teacher=RUN, or pos_scores and neg_scores), or use --loss infonce"
        )
    settings = settings.counted(len(examples))
    return TrainJob(
        asked.resolved, asked.grans, asked.sources, examples, tuple(tallies), objective, settings,
        teacher=asked.teacher,
    )  # fmt: skip


def _check_objective(objective: Objective, settings: TrainSettings, documents: bool) -> None:
    """UsageError for an objective that learns from what such examples do not have."""
    if "targets" in objective.needs and not settings.teacher:
        raise UsageError(
            f"--loss {settings.loss} learns from a teacher's vectors; give --teacher MODEL"
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
    if dims := read_dims(settings.dims):
        objective = Matryoshka(objective, dims, normalize)
    alone = "targets" in objective.needs or not settings.teacher
    return objective if alone else Imitation(objective, settings.teacher_weight)


def describe_training(job: TrainJob) -> Iterator[str]:
    """What was found and resolved, in lines for people."""
    doc = job.resolved.recipe.doc
    grans = f" gran {' '.join(job.grans)}" if job.grans else ""
    yield (
        f"{job.resolved.folder.name}: pool {doc.pool}{grans}, max length {doc.max_length} "
        f"(queries {job.resolved.recipe.query.max_length}), {doc.similarity}"
    )
    for number, (source, tally) in enumerate(zip(job.sources, job.tallies, strict=True)):
        count = int((job.examples.sources == number).sum())
        rest = ", ".join(
            f"{name.replace('_', ' ')} {n:,}" for name, n in tally.found().items() if name != "read"
        )
        yield f"{source.name}: {count:,} examples of {tally.read:,}{f' ({rest})' if rest else ''}"
    yield from job.resolved.notes
