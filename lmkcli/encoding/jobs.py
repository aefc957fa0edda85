"""The two jobs that read a whole collection: tokenize and encode. Planned first, then run."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lmkcli import manifest
from lmkcli.data.collection import Collection, Shard, open_collection
from lmkcli.data.subset import Selected
from lmkcli.encoding.encoder import Encoder, encode_stream, open_encoder
from lmkcli.encoding.resolving import Resolved, resolve
from lmkcli.encoding.writer import vectors_target, write_vectors
from lmkcli.errors import Mismatch, UsageError
from lmkcli.manifest import Manifest
from lmkcli.models.tokenizer import Tokenizer, open_tokenizer
from lmkcli.progress import Report
from lmkcli.recipe import RecipeOptions
from lmkcli.settings import EncodeSettings
from lmkcli.store import parts, tokens
from lmkcli.store.outputs import rollback_on_error
from lmkcli.store.part_writer import Target, shard_writer
from lmkcli.store.tokens import Tokens, token_stream, write_tokens


@dataclass(frozen=True)
class Job:
    """What will be read, how, and which slice of it."""

    source: Collection | Tokens
    resolved: Resolved
    settings: EncodeSettings
    shard: Shard

    @property
    def origin(self) -> dict[str, Any]:
        """Where the text comes from: name, stamp; the same whether tokens were made before or not."""
        if isinstance(self.source, Tokens):
            return dict(self.source.manifest.execution["source"])
        origin = {"name": self.source.name, "stamp": self.source.stamp()}
        if isinstance(self.source, Selected):
            named = {"documents": len(self.source.ids), "digest": self.source.digest}
            return {**origin, "only": named}
        return origin

    @property
    def text(self) -> dict[str, str]:
        """What decides the text of a document besides the data."""
        if isinstance(self.source, Tokens):
            return dict(self.source.manifest.identity["text"])
        return self.source.settings

    def tokenizer(self) -> Tokenizer:
        """The document side's tokenizer."""
        return open_tokenizer(self.resolved.folder, self.resolved.recipe.doc)


def plan(
    source: str, wishes: RecipeOptions, settings: EncodeSettings, slice_: str, offline: bool = False
) -> Job:
    """A job over a collection or a tokens folder. `slice_` is a shard such as '3/16'.

    Mismatch when tokens were made with another tokenizer, prompt or splitter.
    """
    resolved = resolve(wishes, offline)
    given: Collection | Tokens
    if (Path(source) / manifest.NAME).is_file():
        given = Tokens(Path(source))
        _check_tokens(given, resolved)
    else:
        given = open_collection(source)
    return Job(given, resolved, settings, Shard.parse(slice_))


def restricted_to_run(job: Job, run: Path) -> Job:
    """The same job over the documents that a run names; UsageError when its source is tokens."""
    if isinstance(job.source, Tokens):
        raise UsageError("--only chooses among the documents of a collection, not of tokens")
    return replace(job, source=Selected(job.source, run))


def count_missing(job: Job, folder: Path) -> int | None:
    """How many documents a run named that the collection does not have; None while shards are to come."""
    if not isinstance(job.source, Selected):
        return 0
    state = parts.state(folder, job.shard.count)
    return None if state.unfinished else len(job.source.ids) - sum(p.rows for p in state.slices)


def _check_tokens(given: Tokens, resolved: Resolved) -> None:
    if given.state.unfinished:
        raise UsageError(f"{given.folder} is not complete; run its tokenize command again")
    here = {k: given.manifest.identity[k] for k in ("tokenizer", "prompt", "splitter")}
    lines = manifest.json_differences(here, resolved.recipe.doc.tokens_identity())
    if lines:
        raise Mismatch(
            f"{given.folder} was tokenized otherwise (there | needed here):\n  "
            + "\n  ".join(lines)
            + "\ntokenize the collection again with these settings"
        )


def run_tokenize(job: Job, folder: Path, report: Report = Report()) -> None:
    """Tokenize one shard into `folder`, continuing after what is there."""
    if isinstance(job.source, Tokens):
        raise UsageError(f"{job.source.folder} is tokenized already; give a collection")
    _check_source(job, folder)
    with _refusing(job, folder):
        manifest.claim(folder, _tokens_manifest(job))
        if parts.done_rows(folder, job.shard) is None:
            target = Target(folder, job.shard, tokens.ARRAYS, job.settings.store_text)
            with shard_writer(target, report) as writer:
                stream = token_stream(job.source, job.tokenizer(), job.shard, writer.row)
                write_tokens(stream, writer, report)


def run_encode(job: Job, folder: Path, report: Report = Report()) -> None:
    """Encode one shard into `folder`, continuing after what is there."""
    _check_source(job, folder)
    settings = with_folder_dtype(job.settings, folder)
    encoder = open_encoder(job.resolved.recipe.doc, job.resolved.folder, settings)
    if encoder.model.why_padded:
        report.note(
            f"inputs go padded through {job.resolved.folder.name}: {encoder.model.why_padded}"
        )
    described = vectors_manifest(job, encoder, settings)
    updated = parts.generation(folder) is not None
    with _refusing(job, folder):
        manifest.claim(folder, as_begun(described, folder) if updated else described)
        if updated or parts.done_rows(folder, job.shard) is not None:
            return
        target = vectors_target(folder, job.shard, encoder, settings)
        with shard_writer(target, report) as writer:
            stream = token_stream(job.source, encoder.tokenizer, job.shard, writer.row)
            write_vectors(encode_stream(stream, encoder, report), writer, settings)


def _refusing(job: Job, folder: Path) -> AbstractContextManager[None]:
    """A refused collection leaves no claim; other shards' claims are never touched."""
    return rollback_on_error(folder) if job.shard.count == 1 else nullcontext()


def _tokens_manifest(job: Job) -> Manifest:
    """What the tokens of a job are."""
    recipe = job.resolved.recipe
    identity = {**recipe.doc.tokens_identity(), "text": job.text}
    execution = {"source": job.origin, "shards": job.shard.count}
    facts = {**manifest.environment(), "models": recipe.located()}
    return Manifest("tokens", identity, execution, facts)


def vectors_manifest(job: Job, encoder: Encoder, settings: EncodeSettings) -> Manifest:
    """What the vectors of a job are, and how they are made."""
    recipe = job.resolved.recipe
    identity = {"recipe": recipe.identity(), "dim": encoder.dim, "text": job.text}
    execution = {
        "source": job.origin,
        "shards": job.shard.count,
        "dtype": encoder.model.dtype,
        "store_dtype": settings.store_dtype,
        "attention": "packed" if encoder.model.packed else "padded",
        "store_text": settings.store_text,
    }
    facts = {
        **manifest.environment(),
        "models": recipe.located(),
        "device": str(encoder.model.device),
    }
    return Manifest("vectors", identity, execution, facts)


def as_begun(made: Manifest, folder: Path) -> Manifest:
    """`made`, with what an update leaves as it was taken from the folder: shards, and the first stamp."""
    if not (folder / manifest.NAME).is_file():
        return made
    began = manifest.read(folder).execution
    source = {**made.execution["source"], "stamp": began.get("source", {}).get("stamp")}
    frozen = {"source": source, "shards": began.get("shards")}
    return replace(made, execution={**made.execution, **frozen})


def _check_source(job: Job, folder: Path) -> None:
    """Mismatch when the source is not as it was when the folder was begun."""
    if not (folder / manifest.NAME).is_file():
        return
    updated = parts.generation(folder)
    began = updated.source if updated else manifest.read(folder).execution.get("source", {})
    now = job.origin
    if began.get("name") == now["name"]:
        lines = manifest.json_differences(began.get("stamp"), now["stamp"])
        if lines:
            raise Mismatch(
                f"{now['name']} has changed since {folder} was begun "
                "(size in bytes, time in ns: then | now):\n  "
                + "\n  ".join(lines)
                + "\nwhat is there cannot be continued: choose another output folder, or "
                "--if-exists overwrite to begin again"
            )


def with_folder_dtype(settings: EncodeSettings, folder: Path) -> EncodeSettings:
    """`--dtype auto` continues in the dtype in which the folder was begun."""
    if settings.dtype != "auto" or not (folder / manifest.NAME).is_file():
        return settings
    return replace(settings, dtype=manifest.read(folder).execution.get("dtype", "auto"))


def describe_job(job: Job) -> Iterator[str]:
    """What was resolved, in lines for people."""
    doc, query = job.resolved.recipe.doc, job.resolved.recipe.query
    gran = f" gran {doc.gran}" if doc.gran else ""
    unit = f", a vector for each {doc.unit}" if doc.unit != "doc" else ""
    window = f", window {doc.window}" if doc.window != "full" else ""
    window += f" overlap {doc.overlap}" if doc.overlap else ""
    yield (
        f"{job.resolved.folder.name}: pool {doc.pool}{gran}{unit}{window}, "
        f"max length {doc.max_length}{f' (positions {doc.extend})' if doc.extend else ''}"
        f"{', padded to full length' if doc.pad_to_max else ''}, {doc.similarity}"
        f"{', normalised' if doc.normalize else ''}{f', first {doc.dim} dimensions' if doc.dim else ''}"
    )
    if doc.prompt or query.prompt:
        yield f"prompts: documents {doc.prompt!r}, queries {query.prompt!r}"
    yield from job.resolved.notes
