"""The two jobs that read a whole collection, as planned: tokenize and encode."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from lmkcli import manifest
from lmkcli.encoding.encoder import Encoder, encode_stream, open_encoder
from lmkcli.encoding.planning import Job
from lmkcli.encoding.writer import vectors_target, write_vectors
from lmkcli.errors import Mismatch, UsageError
from lmkcli.manifest import Manifest
from lmkcli.models.tokenizer import open_tokenizer
from lmkcli.progress import Call, Report
from lmkcli.settings import EncodeSettings
from lmkcli.store import parts, tokens
from lmkcli.store.outputs import rollback_on_error
from lmkcli.store.part_writer import Target, shard_writer
from lmkcli.store.tokens import Tokens, token_stream, write_tokens


def run_tokenize(job: Job, folder: Path, report: Report = Report()) -> None:
    """Tokenize one shard into `folder`, continuing after what is there."""
    if isinstance(job.source, Tokens):
        raise UsageError(f"{job.source.folder} is tokenized already; give a collection")
    _check_source(job, folder)
    with _refusing(job, folder):
        manifest.claim(folder, _tokens_manifest(job, report.call))
        if parts.done_rows(folder, job.shard) is None:
            target = Target(folder, job.shard, tokens.ARRAYS, job.settings.store_text)
            with shard_writer(target, report) as writer:
                stream = token_stream(
                    job.source,
                    open_tokenizer(job.resolved.folder, job.resolved.recipe.doc),
                    job.shard,
                    writer.row,
                )
                write_tokens(stream, writer, report)


def run_encode(job: Job, folder: Path, report: Report = Report()) -> None:
    """Encode one shard into `folder`, continuing after what is there."""
    _check_source(job, folder)
    settings = with_folder_dtype(job.settings, folder)
    encoder = open_job(job, settings)
    if encoder.model.why_padded:
        report.note(
            f"inputs go padded through {job.resolved.folder.name}: {encoder.model.why_padded}"
        )
    described = vectors_manifest(job, encoder, settings, report.call)
    updated = parts.generation(folder) is not None
    with _refusing(job, folder):
        manifest.claim(folder, as_begun(described, folder) if updated else described)
        if updated or parts.done_rows(folder, job.shard) is not None:
            return
        target = vectors_target(folder, job.shard, encoder, settings)
        with shard_writer(target, report) as writer:
            stream = token_stream(job.source, encoder.tokenizer, job.shard, writer.row)
            write_vectors(encode_stream(stream, encoder, report), writer, settings)


def open_job(job: Job, settings: EncodeSettings | None = None) -> Encoder:
    """The encoder of a job's documents; what cannot be opened is refused."""
    return open_encoder(job.resolved.recipe.doc, job.resolved.folder, settings or job.settings)


def _refusing(job: Job, folder: Path) -> AbstractContextManager[None]:
    """A refused collection leaves no claim; other shards' claims are never touched."""
    return rollback_on_error(folder) if job.shard.count == 1 else nullcontext()


def _tokens_manifest(job: Job, call: Call) -> Manifest:
    """What the tokens of a job are."""
    recipe = job.resolved.recipe
    identity = {**recipe.doc.tokens_identity(), "text": job.text}
    execution = {"source": job.origin, "shards": job.shard.count}
    facts = {**manifest.environment(call), "models": recipe.located()}
    return Manifest("tokens", identity, execution, facts)


def vectors_manifest(job: Job, encoder: Encoder, settings: EncodeSettings, call: Call) -> Manifest:
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
        **manifest.environment(call),
        "models": recipe.located(),
        "device": str(encoder.model.device),
    }
    return Manifest("vectors", identity, execution, facts)


def as_begun(described: Manifest, folder: Path) -> Manifest:
    """The manifest, with the shards and the source's stamp that the folder began with."""
    if not (folder / manifest.NAME).is_file():
        return described
    began = manifest.read(folder).execution
    source = {**described.execution["source"], "stamp": began.get("source", {}).get("stamp")}
    frozen = {"source": source, "shards": began.get("shards")}
    return replace(described, execution={**described.execution, **frozen})


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
