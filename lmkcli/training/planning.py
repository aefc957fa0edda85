"""Planning a training: everything read and checked that needs no weights."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from lmkcli import catalog
from lmkcli.encoding.asking import granularity
from lmkcli.encoding.resolving import Resolved, resolve
from lmkcli.encoding.sentence_folder import check_trainable
from lmkcli.errors import DataError, UsageError
from lmkcli.recipe import ROTARY, RecipeOptions, is_count
from lmkcli.training.contextual import read_documents
from lmkcli.training.examples import Examples
from lmkcli.training.job import TrainJob, published
from lmkcli.training.matryoshka import Matryoshka
from lmkcli.training.objective import Objective
from lmkcli.training.running import check_installed
from lmkcli.training.settings import TrainSettings
from lmkcli.training.sources import parse_source, read_sources


def plan(
    sources: Sequence[str], options: RecipeOptions, settings: TrainSettings, offline: bool = False
) -> TrainJob:
    """Reads everything but the model; UsageError and DataError for what cannot be trained."""
    check_installed(settings, "lmk train")
    grans = tuple(filter(None, (options.gran or "").split(",")))
    resolved = resolve(replace(options, gran=grans[0] if grans else None), offline)
    doc = resolved.recipe.doc
    grans = tuple(granularity(doc.pool, each, doc.unit) for each in grans)
    check_trainable(published(resolved))  # what has no model folder to end in
    _check_positions(resolved)
    _check_chunks(resolved)
    objective = open_objective(settings, doc.normalize)
    _check_objective(objective, settings, doc.unit == "chunk")
    parsed = tuple(parse_source(each) for each in sources)
    read = read_documents if doc.unit == "chunk" else read_sources
    examples, tallies = read(parsed)
    if not len(examples):
        raise DataError(f"{', '.join(sources)}: no example was found to train on")
    if "teacher" in objective.needs and not (isinstance(examples, Examples) and examples.scored):
        raise DataError(
            f"--loss {settings.loss} learns from teacher scores, and {', '.join(sources)} has none; "
            "give them (teacher=RUN, or pos_scores and neg_scores), or use --loss infonce"
        )
    settings = settings.counted(len(examples))
    return TrainJob(resolved, grans, parsed, examples, tuple(tallies), objective, settings)


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


def _check_positions(resolved: Resolved) -> None:
    how = resolved.recipe.doc.extend.partition(":")[0]
    if how in ROTARY:
        raise UsageError(
            f"--extend {how} has no effect on training: rotary positions have no end; drop it, and say how "
            "far with --max-length"
        )


def _check_chunks(resolved: Resolved) -> None:
    doc = resolved.recipe.doc
    if doc.unit == "chunk" and doc.gran != "given":
        raise UsageError("--unit chunk trains on the chunks that documents bring: add --gran given")


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
