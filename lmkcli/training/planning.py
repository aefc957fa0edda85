"""Planning a training: resolve the request, create the objective and read the examples, but no weights."""

from collections.abc import Iterator, Sequence

from lmkcli import catalog
from lmkcli.recipe import RecipeOptions
from lmkcli.training import asking
from lmkcli.training.asking import ResolvedTraining, check_found
from lmkcli.training.contextual import read_documents
from lmkcli.training.job import TrainJob
from lmkcli.training.matryoshka import Matryoshka
from lmkcli.training.objective import Objective
from lmkcli.training.settings import TrainSettings, read_dims
from lmkcli.training.teaching import Imitation


def plan(
    sources: Sequence[str], options: RecipeOptions, settings: TrainSettings, offline: bool = False
) -> TrainJob:
    """Read everything except the model's weights. Raises UsageError and DataError for invalid requests."""
    return planned(asking.resolve_training(sources, options, settings, offline), settings)


def planned(request: ResolvedTraining, settings: TrainSettings) -> TrainJob:
    """Return the job of a resolved request. Raises DataError if documents in chunks give no example."""
    objective = open_objective(settings, request.resolved.recipe.doc.normalize)
    examples, tallies = request.read or read_documents(request.sources)
    check_found(len(examples), request.sources)
    settings = settings.with_steps(len(examples))
    return TrainJob(
        request.resolved, request.grans, request.sources, examples, tuple(tallies), objective, settings,
        teacher=request.teacher,
    )  # fmt: skip


def open_objective(settings: TrainSettings, normalize: bool = True) -> Objective:
    """Create the objective with its settings, and add --dims and --teacher if given."""
    kind = catalog.load(catalog.OBJECTIVES, settings.loss, "objective")
    names = catalog.OBJECTIVES[settings.loss].settings
    objective: Objective = kind(**{name: getattr(settings, name) for name in names})
    if dims := read_dims(settings.dims):
        objective = Matryoshka(objective, dims, normalize)
    complete = "targets" in objective.needs or not settings.teacher
    return objective if complete else Imitation(objective, settings.teacher_weight)


def _declared(job: TrainJob) -> str:
    window = job.resolved.folder.window
    return f"; the model will read windows of {window} positions" if window else ""


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
        yield f"{source.name}: {count:,} examples of {tally.read:,}{f' ({rest})' if rest else ''}"
    yield from job.resolved.notes
    if job.teacher:
        teacher_doc = job.teacher.recipe.doc
        guess = " (a guess: its folder declares none)" if job.teacher.notes else ""
        yield (
            f"teacher {job.teacher.folder.name}: pool {teacher_doc.pool}{guess}, windows of "
            f"{teacher_doc.max_length} positions"
        )
