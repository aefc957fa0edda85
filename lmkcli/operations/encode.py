"""Encode: convert documents to vectors."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from lmkcli.errors import UsageError
from lmkcli.operations.options import (
    CollectionOptions,
    Destination,
    OutputOptions,
    note_differences,
    note_skipped,
    note_vectors,
    output_flag,
)
from lmkcli.progress import Report
from lmkcli.spec.operation import Operation
from lmkcli.spec.recipe import Model, RecipeOptions
from lmkcli.spec.result import Result, Table
from lmkcli.spec.settings import EncodeSettings, Flag
from lmkcli.spec.values import Shard
from lmkcli.text.formatting import counted, duration, size

if TYPE_CHECKING:
    from lmkcli.artifact.kinds import EncodingWork
    from lmkcli.encoding.forecast import Forecast
    from lmkcli.encoding.jobs import CollectionJob
    from lmkcli.encoding.vector_updates import VectorUpdate
    from lmkcli.store.part_reader import Counts
    from lmkcli.store.parts import PartSlice


_MOST_LOST = 0.5  # of the tokens; if more are truncated, the vectors miss most of the collection


@dataclass(frozen=True)
class Encoded(Result):
    """A vectors folder and its counts: documents, tokens, vectors, truncated texts and lost tokens."""

    output: Path
    counts: "Counts"
    skipped: int = 0  # files or rows that could not be read
    work: "EncodingWork | None" = None

    def as_json(self) -> Any:
        """Return the folder and its counts; the number of skipped files or rows if it is not 0.

        Also the work of this command, if it encoded documents: their number, seconds, milliseconds per
        document and peak memory in bytes.
        """
        values: dict[str, Any] = {"output": str(self.output), **self.counts.as_json()}
        if self.skipped:
            values["skipped"] = self.skipped
        if self.work and self.work.documents:
            work = self.work
            values["encoded"] = work.documents
            values["seconds"] = round(work.seconds, 3)
            values["ms_per_document"] = round(1000 * work.seconds / work.documents, 4)
            values["peak_memory"] = work.peak_memory
        return values

    def blocks(self) -> Iterator[Table | str]:
        """Yield the counts on one line."""
        counts = self.counts
        share = counts.lost / counts.tokens if counts.tokens else 0.0
        totals = [counted(counts.docs, "document"), counted(counts.tokens, "token")]
        if counts.vectors != counts.docs:
            totals.append(counted(counts.vectors, "vector"))
        truncated = f"{counted(counts.cut, 'text')} truncated ({share:.1%} of all tokens lost)"
        line = f"{self.output}: {', '.join(totals)}; {truncated}, {counts.empty:,} empty"
        if share > _MOST_LOST:
            line += "; to encode all tokens, use -m mean-minilm, or a window (--window even:512)"
        if counts.context_tokens:
            lost = counts.context_lost / counts.context_tokens
            line += f"; contexts: {counted(counts.context_tokens, 'token')}, {lost:.1%} truncated"
        yield line


@dataclass(frozen=True, kw_only=True)
class EncodedUpdate(Encoded):
    """An updated vectors folder: its generation, and the documents kept, encoded and removed."""

    generation: int
    kept: int
    encoded: int
    removed: int

    def as_json(self) -> Any:
        """Return the folder, its generation, and the numbers of documents."""
        names = ("generation", "kept", "encoded", "removed", "skipped")
        return {"output": str(self.output), **{name: getattr(self, name) for name in names}}

    def blocks(self) -> Iterator[Table | str]:
        """Yield the generation and the numbers of documents."""
        yield (
            f"{self.output}: generation {self.generation}, {self.encoded:,} documents encoded, "
            f"{self.removed:,} removed (a changed one counts as both), {self.kept:,} kept"
        )


@dataclass(frozen=True, kw_only=True)
class EncodePlan(Encoded):
    """Estimated counts, disk, memory and time of an encoding (`--dry-run`). The folder is not written."""

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
            **({"chunks without a vector": plan.chunks_lost} if plan.chunks_lost else {}),
            **({"context tokens": plan.context_tokens} if self.contexts else {}),
            "empty texts": plan.empty,
            "vectors": plan.vectors,
            "disk": plan.disk,
            "memory": plan.memory,
            "seconds": plan.seconds,
        }

    def blocks(self) -> Iterator[Table | str]:
        """Yield the plan with units."""
        facts = self.as_json()
        seconds = facts.pop("seconds")
        facts["disk"] = f"{size(facts['disk'])} at most"
        facts["memory"] = f"about {size(facts['memory'])}"
        facts["time"] = "-" if seconds is None else f"about {duration(seconds)} on this machine"
        yield Table(["dry run", ""], [[key, value] for key, value in facts.items()])


@dataclass(frozen=True, kw_only=True)
class DocumentOptions(CollectionOptions):
    """Which documents are encoded."""

    only: Annotated[
        Path | None, Flag("Encode only the documents in this run.", metavar="RUN", role="run")
    ] = None


@dataclass(frozen=True, kw_only=True)
class VectorsOutput(OutputOptions):
    """The output of an encoding, or a dry run."""

    example: ClassVar[str] = "vectors/"
    output: Annotated[Path | None, output_flag("Folder for the vectors.")] = None
    dry_run: Annotated[
        bool, Flag("Count documents, time a sample and print the plan; write nothing.", role="mode")
    ] = False


@dataclass(frozen=True)
class Encode(
    Operation[Encoded],
    VectorsOutput,
    DocumentOptions,
    EncodeSettings,
    RecipeOptions,
):
    """Encode documents into vectors. Stop it at any time; the same command continues.

    lmk stores the recipe (model, pooling, prompts and lengths, for documents and for queries) with the
    vectors, so lmk search needs none of these flags.
    """

    verb: ClassVar[str] = "encode"
    per_member: ClassVar[tuple[str, str]] = ("source", "")

    source: Annotated[
        str,
        Flag(
            "A collection, or a tokens folder.",
            argument=True,
            metavar="INPUT",
            role="collection",
            suggest_for="--input --corpus --collection --dataset --data",
        ),
    ]
    model: Model = field(kw_only=True)

    def execute(self, report: Report) -> Encoded:
        """Encode the documents, update existing vectors, or estimate the work."""
        if self.device.several and not self.dry_run:
            return self._on_devices(report)
        destination = None if self.dry_run else Destination(self, self.shard.count)
        # Waiting threads should sleep: busy waiting slows other work on the machine. torch reads this
        # variable when it is imported.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        from lmkcli.encoding import jobs

        recipe, settings = self.part(RecipeOptions), self.part(EncodeSettings)
        source = self.spelling(self.source)
        job = jobs.plan(source, recipe, settings, self.shard, self.offline)
        if self.only is not None:
            job = jobs.restricted_to_run(job, self.only)
        for line in jobs.describe_job(job):
            report.note(line)
        if destination is None:
            from lmkcli.encoding.forecast import forecast
            from lmkcli.store.part_reader import Counts

            with report.job("dry run") as running:
                plan = forecast(job, running.progress)
            return EncodePlan(
                self.output or Path(),
                Counts(
                    *(plan.docs, plan.tokens, plan.lost, plan.cut, plan.empty, plan.vectors),
                    context_tokens=plan.context_tokens,
                    chunks_lost=plan.chunks_lost,
                ),
                plan=plan,
                contexts=bool(job.resolved.recipe.doc.context),
            )
        from lmkcli.encoding import (  # imports torch: only after all checks
            shard_run,
            vector_updates,
        )

        if destination.replaces:
            shard_run.open_job(job)
        folder = destination.prepare(report)
        changes: VectorUpdate | None = None
        work: EncodingWork | None = None
        with report.job("encode") as running:
            if destination.updates:
                changes = vector_updates.run_update(job, folder, running)
            else:
                work = shard_run.run_encode(job, folder, running)
        note_skipped(report, job.source)
        if missing := jobs.count_missing(job, folder):
            report.note(f"{self.source} lacks {counted(missing, 'document')} of {self.only}")
        note_lost_chunks(report, job, folder)
        if changes:
            from lmkcli.store.part_reader import sum_counts

            return EncodedUpdate(
                folder,
                sum_counts(folder, _slices(job, folder)),
                job.skipped,
                generation=changes.generation,
                kept=changes.kept,
                encoded=changes.encoded,
                removed=changes.removed,
            )
        from lmkcli.store import parts

        skipped = parts.skipped_count(folder, self.shard.count)
        return Encoded(folder, self._counts(job, folder, report), skipped, work)

    def _on_devices(self, report: Report) -> Encoded:
        """Encode one shard on each device."""
        if self.shard.count > 1 or self.if_exists == "update":
            raise UsageError(
                f"--device {self.device} makes a shard for each device: --shard and --if-exists update use "
                "one device"
            )
        destination = Destination(self)
        from lmkcli.encoding import jobs

        source = self.spelling(self.source)
        settings = self.part(EncodeSettings)
        jobs.plan(source, self.part(RecipeOptions), settings, self.shard, self.offline)
        from lmkcli.models.devices import devices_of
        from lmkcli.operations.device_tasks import run_tasks
        from lmkcli.store import parts
        from lmkcli.store.part_reader import sum_counts

        devices = devices_of(self.device)
        if len(devices) == 1:
            return replace(self, device=devices[0]).execute(report)
        folder = destination.prepare(report)
        tasks = [
            replace(
                self,
                device=device,
                shard=Shard(number, len(devices)),
                if_exists="resume",
                workers=settings.tokenizing_processes(device.partition(":")[0], len(devices)),
            )
            for number, device in enumerate(devices)
        ]
        with report.job("encode") as running:
            run_tasks(tasks, running)
        counts = sum_counts(folder, parts.read_state(folder, len(devices)).slices)
        return Encoded(folder, counts, parts.skipped_count(folder, len(devices)))

    def _counts(self, job: "CollectionJob", folder: Path, report: Report) -> "Counts":
        """Return the counts of this shard, or of the current generation."""
        from lmkcli.store.part_reader import sum_counts

        mine = _slices(job, folder)
        counts = sum_counts(folder, mine)
        note_vectors(report, folder, mine)
        if job.shard.count == 1 and job.origin.only is None:
            note_differences(report, job.origin.name, docs=counts.docs)
        if job.resolved.recipe.doc.splitter == "given" and counts.vectors == counts.docs:
            report.note(
                f"{job.origin.name} provides one chunk per document; several chunks are a list under "
                "`chunks`"
            )
        return counts


def _slices(job: "CollectionJob", folder: Path) -> list["PartSlice"]:
    """Return the parts of this shard, or of the current generation."""
    from lmkcli.store import parts

    updated = parts.read_generation(folder)
    return updated.slices if updated else parts.cover(parts.list_parts(folder), job.shard)


def note_lost_chunks(report: Report, job: "CollectionJob", folder: Path) -> None:
    """Say how many chunks have no vector, because their document was cut."""
    from lmkcli.store.part_reader import sum_counts

    if not job.resolved.recipe.doc.by_chunk:
        return
    counts = sum_counts(folder, _slices(job, folder))
    if counts.chunks_lost:
        report.note(
            f"{counted(counts.chunks_lost, 'chunk')} of {counts.chunks_lost + counts.vectors:,} have no "
            "vector and cannot be found, because their documents are cut; raise --max-length, or read all "
            f"of each document with --window {job.resolved.recipe.doc.max_length}"
        )
