"""lmk encode: documents to vectors."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmkcli.cli import completion, console, recording, tables
from lmkcli.cli.flags import Subset, with_flags
from lmkcli.cli.groups import note_differences, note_left_out, over_groups
from lmkcli.cli.options import CollectionOptions, OutputOptions
from lmkcli.recipe import RecipeOptions
from lmkcli.settings import EncodeSettings, Flag

if TYPE_CHECKING:
    from lmkcli.encoding.planning import Job
    from lmkcli.encoding.updating import Updated
    from lmkcli.store.summary import Counts


@dataclass(frozen=True)
class DocumentOptions(CollectionOptions):
    """Which documents are encoded."""

    only: Annotated[Path | None, Flag("Encode only the documents in this run.", metavar="RUN")] = (
        None
    )


@dataclass(frozen=True)
class VectorsOutput(OutputOptions):
    """Where the vectors go, unless nothing is written."""

    dry_run: Annotated[bool, Flag("Count, time a sample, print the plan; write nothing.")] = False


@over_groups("source")
@with_flags
def encode(
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A collection, or a tokens folder.",
            autocompletion=completion.collections,
        ),
    ],
    recipe: Annotated[RecipeOptions, Subset(required=("model",))],
    settings: EncodeSettings,
    documents: DocumentOptions,
    output: VectorsOutput,
) -> None:
    """Documents to vectors, in immutable parts: stop it at any moment, and the same command continues.

    The recipe (model, pooling, prompts, lengths, for documents and for queries) is stored with the
    vectors, so that searching needs none of these flags.
    """
    if not output.dry_run:
        output.path("vectors/", documents.shards)
    from lmkcli.encoding import planning

    job = _job(documents.spelling(source), recipe, settings, documents)
    if output.dry_run:
        return _dry_run(job, output.json)
    if output.replaces:
        from lmkcli.encoding import jobs  # here: torch is not needed to say what was wrong above

        jobs.open_job(job)
    folder = output.prepared("vectors/", job.shard.count)
    changes = _write(job, folder, output.if_exists == "update")
    note_left_out(job.source)
    if absent := planning.count_missing(job, folder):
        run = documents.only
        console.note(f"documents of {run} that {source} does not have: {console.number(absent)}")
    if changes:
        return _changes(folder, changes, output.json)
    _summary(folder, job, output.json)


def _job(
    source: str, recipe: RecipeOptions, settings: EncodeSettings, documents: DocumentOptions
) -> "Job":
    """What is to be done; UsageError and DataError say, without torch, what cannot be."""
    # Let waiting threads sleep: busy-waiting takes time from other work on the machine. torch reads
    # this variable when it is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from lmkcli.encoding import planning

    job = planning.plan(source, recipe, settings, documents.shard, documents.offline)
    if documents.only is not None:
        job = planning.restricted_to_run(job, documents.only)
    for line in planning.describe_job(job):
        console.note(line)
    return job


def _write(job: "Job", folder: Path, update: bool) -> "Updated | None":
    """The vectors of the job; what changed, where a folder is brought up to date."""
    from lmkcli.encoding import jobs, updating

    with console.reporting("encode", recording.call()) as report:
        if update:
            return updating.run_update(job, folder, report)
        jobs.run_encode(job, folder, report)
    return None


def _changes(folder: Path, changes: "Updated", json: bool) -> None:
    if json:
        return console.plain_json({"output": str(folder), **changes._asdict()})
    console.say(
        f"{folder}: generation {changes.generation}, {console.number(changes.encoded)} documents encoded, "
        f"{console.number(changes.removed)} removed (a changed one counts as both), "
        f"{console.number(changes.kept)} kept"
    )


def _summary(folder: Path, job: "Job", json: bool) -> None:
    from lmkcli.store import parts
    from lmkcli.store.summary import sum_counts

    updated = parts.generation(folder)
    mine = updated.slices if updated else parts.cover(parts.list_parts(folder), job.shard)
    counts = sum_counts(folder, mine)
    if job.shard.count == 1 and "only" not in job.origin:
        note_differences(job.origin["name"], docs=counts.docs)
    if job.resolved.recipe.doc.splitter == "given" and counts.vectors == counts.docs:
        console.note(
            f"{job.origin['name']} gives no document more than one chunk (a list under `chunks`)"
        )
    if json:
        return console.plain_json({"output": str(folder), **counts.as_json()})
    share = counts.lost / counts.tokens if counts.tokens else 0.0
    vectors = f", {console.number(counts.vectors)} vectors" if counts.vectors != counts.docs else ""
    console.say(
        f"{folder}: {console.number(counts.docs)} documents, {console.number(counts.tokens)} tokens"
        f"{vectors}; {console.number(counts.cut)} texts were cut and lost {share:.1%} of all tokens; "
        f"{console.number(counts.empty)} were empty" + _of_contexts(counts)
    )


def _of_contexts(counts: "Counts") -> str:
    """What to say of the contexts before chunks."""
    if not counts.context_tokens:
        return ""
    share = counts.context_lost / counts.context_tokens
    said = console.number(counts.context_tokens)
    return f"; contexts: {said} tokens, {share:.1%} of which did not fit"


def _dry_run(job: "Job", json: bool) -> None:
    from lmkcli.encoding.forecast import forecast

    with console.progress("dry run") as progress:
        plan = forecast(job, progress)
    facts = {
        "documents": plan.docs,
        "tokens": plan.tokens,
        "texts cut": plan.cut,
        "tokens lost": plan.lost,
        **({"context tokens": plan.context_tokens} if job.resolved.recipe.doc.context else {}),
        "empty texts": plan.empty,
        "vectors": plan.vectors,
        "disk": plan.disk,
        "memory": plan.memory,
        "seconds": plan.seconds,
    }
    if json:
        return console.plain_json(facts)
    shown = {
        **facts,
        "disk": f"{console.size(plan.disk)} at most",
        "memory": f"about {console.size(plan.memory)}",
        "time": "-"
        if plan.seconds is None
        else f"about {console.duration(plan.seconds)} on this machine",
    }
    del shown["seconds"]
    tables.table(
        ["dry run", ""], [[key, value] for key, value in shown.items()], tables.Format.table
    )
