"""Planning a training: what was asked, with its objective, and without weights."""

from collections.abc import Iterator, Sequence

from lmkcli import catalog
from lmkcli.recipe import RecipeOptions
from lmkcli.training import asking
from lmkcli.training.asking import Asked, check_found
from lmkcli.training.contextual import read_documents
from lmkcli.training.job import TrainJob
from lmkcli.training.matryoshka import Matryoshka
from lmkcli.training.objective import Objective
from lmkcli.training.settings import TrainSettings, read_dims
from lmkcli.training.teaching import Imitation


def plan(
    sources: Sequence[str], options: RecipeOptions, settings: TrainSettings, offline: bool = False
) -> TrainJob:
    """Reads everything but the model; UsageError and DataError for what cannot be trained."""
    return planned(asking.ask(sources, options, settings, offline), settings)


def planned(asked: Asked, settings: TrainSettings) -> TrainJob:
    """The training of what was asked; DataError where documents in chunks hold nothing to learn."""
    objective = open_objective(settings, asked.resolved.recipe.doc.normalize)
    examples, tallies = asked.read or read_documents(asked.sources)
    check_found(len(examples), asked.sources)
    settings = settings.counted(len(examples))
    return TrainJob(
        asked.resolved, asked.grans, asked.sources, examples, tuple(tallies), objective, settings,
        teacher=asked.teacher,
    )  # fmt: skip


def open_objective(settings: TrainSettings, normalize: bool = True) -> Objective:
    """The objective with those of the settings that it has, at several dimensions where --dims says so."""
    kind = catalog.load(catalog.OBJECTIVES, settings.loss, "objective")
    own = catalog.OBJECTIVES[settings.loss].settings
    objective: Objective = kind(**{name: getattr(settings, name) for name in own})
    if dims := read_dims(settings.dims):
        objective = Matryoshka(objective, dims, normalize)
    alone = "targets" in objective.needs or not settings.teacher
    return objective if alone else Imitation(objective, settings.teacher_weight)


def _declared(job: TrainJob) -> str:
    window = job.resolved.folder.window
    return f"; will be read in windows of {window}" if window else ""


def describe_training(job: TrainJob) -> Iterator[str]:
    """What was found and resolved, in lines for people."""
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
        yield f"{source.name}: {count:,} examples of {tally.read:,}{f' ({rest})' if rest else ''}"
    yield from job.resolved.notes
    if job.teacher:
        told = job.teacher.recipe.doc
        guess = " (a guess: its folder declares none)" if job.teacher.notes else ""
        yield (
            f"taught by {job.teacher.folder.name}: pool {told.pool}{guess}, windows of "
            f"{told.max_length} positions"
        )
