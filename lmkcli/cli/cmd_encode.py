"""lmk encode: documents to vectors."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmkcli.cli import console, options, tables
from lmkcli.cli.groups import note_differences, over_groups
from lmkcli.cli.options import DtypeName, IfExistsUpdate, OverflowName, StoreName
from lmkcli.recipe import RecipeOptions
from lmkcli.settings import EncodeSettings

if TYPE_CHECKING:
    from lmkcli.encoding.jobs import Job
    from lmkcli.encoding.updating import Updated

_DEFAULT = EncodeSettings()


@over_groups("source")
def encode(
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="A collection, or a tokens folder.")
    ],
    model: options.Model,
    output: options.Output = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    pool: options.Pool = "auto",
    gran: options.Gran = None,
    unit: options.Unit = None,
    window: options.Window = None,
    overlap: options.Overlap = None,
    extend: options.Extend = None,
    pad_to_max: options.PadToMax = None,
    max_length: options.MaxLength = None,
    query_max_length: options.QueryMaxLength = None,
    query_prompt: options.QueryPrompt = None,
    doc_prompt: options.DocPrompt = None,
    dim: options.Dim = None,
    normalize: options.Normalize = None,
    only: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Encode only the documents that this run names."),
    ] = None,
    fields: options.Fields = "",
    map_ids: options.MapIds = False,
    dtype: options.Dtype = DtypeName(_DEFAULT.dtype),
    store_dtype: options.StoreDtype = StoreName(_DEFAULT.store_dtype),
    device: options.Device = _DEFAULT.device,
    batch_tokens: options.BatchTokens = _DEFAULT.batch_tokens,
    batch_size: options.BatchSize = _DEFAULT.batch_size,
    on_overflow: options.OnOverflow = OverflowName(_DEFAULT.on_overflow),
    store_text: options.StoreText = _DEFAULT.store_text,
    shard: options.ShardOption = "0/1",
    offline: options.Offline = False,
    if_exists: options.IfExistsUpdateOption = IfExistsUpdate.resume,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count, time a sample, print the plan; write nothing.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Documents to vectors, in immutable parts: stop it at any moment, and the same command continues.

    The recipe (model, pooling, prompts, lengths, for documents and for queries) is stored with the
    vectors, so that nothing of it has to be said again when searching.
    """
    # Threads that wait asleep: where other work runs beside, waiting at full speed takes half the
    # machine. It counts from the import of torch, which follows.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from lmkcli.encoding import jobs, updating

    wishes = RecipeOptions(
        model, revision, trust_remote_code, pool, gran, unit, window, overlap, extend, pad_to_max,
        max_length, query_max_length, query_prompt, doc_prompt, dim, normalize,
    )  # fmt: skip
    settings = EncodeSettings(
        dtype.value,
        store_dtype.value,
        device,
        batch_tokens,
        batch_size,
        on_overflow.value,
        store_text,
    )
    spelling = options.with_fields(source, fields, map_ids)
    job = jobs.plan(spelling, wishes, settings, shard, offline)
    if only is not None:
        job = jobs.narrowed(job, only)
    for line in jobs.describe(job):
        console.note(line)
    if dry_run:
        return _dry_run(job, json)
    folder = options.need(output, "-o/--output", "vectors/")
    options.prepare_output(folder, if_exists, job.shard.count)
    with console.progress("encode") as progress, console.stoppable() as stopping:
        if if_exists is IfExistsUpdate.update:
            updated = updating.run_update(job, folder, progress, stopping, console.note)
        else:
            jobs.run_encode(job, folder, progress, stopping, console.note)
    if absent := jobs.absent(job, folder):
        console.note(f"documents of {only} that {source} does not have: {console.number(absent)}")
    if if_exists is IfExistsUpdate.update:
        return _changes(folder, updated, json)
    _summary(folder, job, json)


def _changes(folder: Path, made: "Updated", json: bool) -> None:
    if json:
        return console.plain_json({"output": str(folder), **made._asdict()})
    print(
        f"{folder}: generation {made.generation}, {console.number(made.encoded)} documents encoded, "
        f"{console.number(made.removed)} removed (a changed one counts as both), "
        f"{console.number(made.kept)} kept"
    )


def _summary(folder: Path, job: "Job", json: bool) -> None:
    from dataclasses import asdict

    from lmkcli.store import parts
    from lmkcli.store.tokens import sum_counts

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
        return console.plain_json({"output": str(folder), **asdict(counts)})
    share = counts.lost / counts.tokens if counts.tokens else 0.0
    vectors = f", {console.number(counts.vectors)} vectors" if counts.vectors != counts.docs else ""
    print(
        f"{folder}: {console.number(counts.docs)} documents, {console.number(counts.tokens)} tokens"
        f"{vectors}; {console.number(counts.cut)} texts were cut and lost {share:.1%} of all tokens; "
        f"{console.number(counts.empty)} were empty"
    )


def _dry_run(job: "Job", json: bool) -> None:
    from lmkcli.encoding import jobs

    with console.progress("dry run") as progress:
        plan = jobs.forecast(job, progress)
    facts = {
        "documents": plan.docs,
        "tokens": plan.tokens,
        "texts cut": plan.cut,
        "tokens lost": plan.lost,
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
