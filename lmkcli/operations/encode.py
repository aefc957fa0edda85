"""Encode: documents to vectors."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from lmkcli.operations.options import (
    CollectionOptions,
    Destination,
    OutputOptions,
    note_differences,
    note_left_out,
)
from lmkcli.progress import Report
from lmkcli.recipe import Model, RecipeOptions
from lmkcli.settings import EncodeSettings, Flag
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import Result, Table
from lmkcli.text.numbers import duration, size

if TYPE_CHECKING:
    from lmkcli.encoding.forecast import Forecast
    from lmkcli.encoding.planning import Job
    from lmkcli.encoding.updating import Updated
    from lmkcli.store.summary import Counts


@dataclass(frozen=True)
class Encoded(Result):
    """A vectors folder and its counts: documents, tokens, vectors, truncated texts and lost tokens."""

    output: Path
    counts: "Counts"

    def as_json(self) -> Any:
        """The folder and its counts."""
        return {"output": str(self.output), **self.counts.as_json()}

    def __str__(self) -> str:
        counts = self.counts
        share = counts.lost / counts.tokens if counts.tokens else 0.0
        vectors = f", {counts.vectors:,} vectors" if counts.vectors != counts.docs else ""
        contexts = ""
        if counts.context_tokens:
            lost = counts.context_lost / counts.context_tokens
            contexts = (
                f"; contexts: {counts.context_tokens:,} tokens, {lost:.1%} of which did not fit"
            )
        return (
            f"{self.output}: {counts.docs:,} documents, {counts.tokens:,} tokens{vectors}; {counts.cut:,} "
            f"texts were cut and lost {share:.1%} of all tokens; {counts.empty:,} were empty{contexts}"
        )


@dataclass(frozen=True)
class EncodedUpdate(Result):
    """A vectors folder that was brought up to date: its generation, and documents kept, encoded, removed."""

    output: Path
    generation: int
    kept: int
    encoded: int
    removed: int

    def __str__(self) -> str:
        return (
            f"{self.output}: generation {self.generation}, {self.encoded:,} documents encoded, "
            f"{self.removed:,} removed (a changed one counts as both), {self.kept:,} kept"
        )


@dataclass(frozen=True)
class EncodePlan(Result):
    """What an encoding would read, write and take (`--dry-run`)."""

    plan: "Forecast"
    contexts: bool  # whether chunks have a context

    def as_json(self) -> Any:
        """Counts, bytes of disk and memory, and seconds."""
        plan = self.plan
        return {
            "documents": plan.docs,
            "tokens": plan.tokens,
            "texts cut": plan.cut,
            "tokens lost": plan.lost,
            **({"context tokens": plan.context_tokens} if self.contexts else {}),
            "empty texts": plan.empty,
            "vectors": plan.vectors,
            "disk": plan.disk,
            "memory": plan.memory,
            "seconds": plan.seconds,
        }

    def table(self) -> Table:
        """The same in units for people."""
        facts = self.as_json()
        seconds = facts.pop("seconds")
        facts["disk"] = f"{size(facts['disk'])} at most"
        facts["memory"] = f"about {size(facts['memory'])}"
        facts["time"] = "-" if seconds is None else f"about {duration(seconds)} on this machine"
        return Table(["dry run", ""], [[key, value] for key, value in facts.items()])


@dataclass(frozen=True, kw_only=True)
class DocumentOptions(CollectionOptions):
    """Which documents are encoded."""

    only: Annotated[
        Path | None, Flag("Encode only the documents in this run.", metavar="RUN", role="run")
    ] = None


@dataclass(frozen=True, kw_only=True)
class VectorsOutput(OutputOptions):
    """Where the vectors go, unless this is a dry run."""

    example: ClassVar[str] = "vectors/"
    dry_run: Annotated[
        bool, Flag("Count, time a sample, print the plan; write nothing.", role="mode")
    ] = False


@dataclass(frozen=True)
class Encode(
    Operation[Encoded | EncodedUpdate | EncodePlan],
    VectorsOutput,
    DocumentOptions,
    EncodeSettings,
    RecipeOptions,
):
    """Documents to vectors, in immutable parts: stop it at any moment, and the same command continues.

    The recipe (model, pooling, prompts, lengths, for documents and for queries) is stored with the
    vectors, so that searching needs none of these flags.
    """

    verb: ClassVar[str] = "encode"
    per_member: ClassVar[tuple[str, str]] = ("source", "")

    source: Annotated[
        str,
        Flag(
            "A collection, or a tokens folder.", argument=True, metavar="INPUT", role="collection"
        ),
    ]
    model: Model = field(kw_only=True)

    def execute(self, report: Report) -> Encoded | EncodedUpdate | EncodePlan:
        """Encode the documents, or count what that would take."""
        place = None if self.dry_run else Destination(self, self.part_of.count)
        # Let waiting threads sleep: busy waiting takes time from other work on the machine. torch reads
        # this variable when it is imported.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        from lmkcli.encoding import planning

        recipe, settings = self.part(RecipeOptions), self.part(EncodeSettings)
        source = self.spelling(self.source)
        job = planning.plan(source, recipe, settings, self.shard, self.offline)
        if self.only is not None:
            job = planning.restricted_to_run(job, self.only)
        for line in planning.describe_job(job):
            report.note(line)
        if place is None:
            return self._dry_run(job, report)
        from lmkcli.encoding import jobs, updating  # after everything that needs no torch

        if place.replaces:
            jobs.open_job(job)
        folder = place.prepare(report)
        changes: Updated | None = None
        with report.job("encode") as running:
            if place.updates:
                changes = updating.run_update(job, folder, running)
            else:
                jobs.run_encode(job, folder, running)
        note_left_out(report, job.source)
        if absent := planning.count_missing(job, folder):
            report.note(f"documents of {self.only} that {self.source} does not have: {absent:,}")
        if changes:
            return EncodedUpdate(
                folder, changes.generation, changes.kept, changes.encoded, changes.removed
            )
        return Encoded(folder, self._counts(job, folder, report))

    def _counts(self, job: "Job", folder: Path, report: Report) -> "Counts":
        """The counts of this shard, or of the current generation."""
        from lmkcli.store import parts
        from lmkcli.store.summary import sum_counts

        updated = parts.generation(folder)
        mine = updated.slices if updated else parts.cover(parts.list_parts(folder), job.shard)
        counts = sum_counts(folder, mine)
        if job.shard.count == 1 and "only" not in job.origin:
            note_differences(report, job.origin["name"], docs=counts.docs)
        if job.resolved.recipe.doc.splitter == "given" and counts.vectors == counts.docs:
            report.note(
                f"{job.origin['name']} gives no document more than one chunk (a list under `chunks`)"
            )
        return counts

    def _dry_run(self, job: "Job", report: Report) -> EncodePlan:
        from lmkcli.encoding.forecast import forecast

        with report.job("dry run") as running:
            plan = forecast(job, running.progress)
        return EncodePlan(plan, bool(job.resolved.recipe.doc.context))
