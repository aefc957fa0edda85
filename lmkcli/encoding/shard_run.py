"""Run one shard of a job: write a tokens folder or a vectors folder, or continue it.

Three generators are chained, so that each stage works on a few batches while the others run: the token stream
(tokenized in a background thread), the encoder, and the writer of parts.
"""

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from msgspec import structs

from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import (
    EncodingWork,
    TokensExecution,
    TokensFacts,
    TokensManifest,
    VectorsExecution,
    VectorsFacts,
    VectorsIdentity,
    VectorsManifest,
)
from lmkcli.artifact.outputs import rollback_on_error
from lmkcli.data.collection import Shard
from lmkcli.encoding.encoder import (
    DocumentEncoder,
    EncodedBatch,
    Encoder,
    encode_stream,
    open_encoder,
)
from lmkcli.encoding.jobs import CollectionJob, tokens_identity
from lmkcli.encoding.token_stream import token_stream, write_tokens
from lmkcli.errors import DataError, Mismatch, UsageError
from lmkcli.models.devices import peak_bytes
from lmkcli.models.tokenizer_folder import open_tokenizer
from lmkcli.progress import Call, Report
from lmkcli.spec.settings import EncodeSettings
from lmkcli.store import parts, tokens
from lmkcli.store.doctable import DocRows
from lmkcli.store.part_writer import (
    PartTarget,
    PartWriter,
    duplicates_located,
    shard_writer,
)
from lmkcli.store.token_blocks import DocBlock
from lmkcli.store.tokens import Tokens
from lmkcli.vectors.codec import open_codec
from lmkcli.vectors.stored import SPANS


def run_tokenize(job: CollectionJob, folder: Path, report: Report = Report()) -> None:
    """Tokenize one shard into `folder`, and continue after its existing parts."""
    if isinstance(job.source, Tokens):
        raise UsageError(f"{job.source.folder} is already tokenized; give a collection")
    _check_source(job, folder)
    recipe = job.resolved.recipe
    described = TokensManifest(
        identity=tokens_identity(recipe.doc, job.text),
        execution=TokensExecution(source=job.origin, shards=job.shard.count),
        facts=TokensFacts(**manifest.environment(report.call), models=recipe.located()),
    )
    with _rollback(job, folder):
        manifest.claim(folder, described)
        if parts.is_finished(folder, job.shard):
            return
        target = PartTarget(folder, job.shard, tokens.ARRAYS, job.settings.store_text)
        with duplicates_located(job.source), shard_writer(target, report) as writer:
            tokenizer = open_tokenizer(job.resolved.folder, recipe.doc)
            stream = token_stream(job.source, tokenizer, job.shard, writer.row)
            write_tokens(stream, writer, report)
            writer.skipped = job.skipped


def run_encode(job: CollectionJob, folder: Path, report: Report = Report()) -> EncodingWork | None:
    """Encode one shard into `folder`, and continue after its existing parts.

    Returns the work of this process; None if the shard was finished. The manifest of a single shard records
    the work of all processes.
    """
    _check_source(job, folder)
    settings = with_folder_dtype(job.settings, folder)
    encoder = open_job(job, settings)
    if encoder.model.why_padded:
        report.note(f"{job.resolved.folder.name} reads padded inputs: {encoder.model.why_padded}")
    described = vectors_manifest(job, encoder, settings, report.call)
    updated = parts.read_generation(folder) is not None
    with _rollback(job, folder):
        manifest.claim(folder, as_started(described, folder) if updated else described)
        if parts.is_finished(folder, job.shard):
            return None
        target = vectors_target(folder, job.shard, encoder, settings)
        started_at = time.monotonic()
        with duplicates_located(job.source), shard_writer(target, report) as writer:
            workers = settings.tokenizing_processes(encoder.model.device.type)
            stream = token_stream(
                job.source, encoder.document_tokenizer, job.shard, writer.row, workers
            )
            documents = write_vectors(encode_stream(stream, encoder, report), writer, settings)
            writer.skipped = job.skipped
            seconds = time.monotonic() - started_at
            work = EncodingWork(documents=documents, seconds=seconds, peak_memory=peak_bytes())
            if job.shard.count == 1:
                _record(folder, work)
    return work


def _record(folder: Path, work: EncodingWork) -> None:
    """Add the work of this process to that of interrupted ones, in the manifest."""
    if before := manifest.read(folder, VectorsManifest).facts.work:
        work = EncodingWork(
            documents=before.documents + work.documents,
            seconds=before.seconds + work.seconds,
            peak_memory=max(before.peak_memory, work.peak_memory),
        )
    manifest.record_facts(folder, VectorsManifest, work=work)


def open_job(job: CollectionJob, settings: EncodeSettings | None = None) -> Encoder[Any]:
    """Return the encoder of a job's documents."""
    return open_encoder(job.resolved.recipe.doc, job.resolved.folder, settings or job.settings)


def _rollback(job: CollectionJob, folder: Path) -> AbstractContextManager[None]:
    """Remove the claim after an error, except if several shards share the claim."""
    return rollback_on_error(folder) if job.shard.count == 1 else nullcontext()


def started(folder: Path) -> TokensExecution | VectorsExecution | None:
    """Return how the tokens or vectors in a folder were started; None for another or no artifact."""
    if not (folder / manifest.NAME).is_file():
        return None
    described = manifest.read(folder)
    return described.execution if isinstance(described, TokensManifest | VectorsManifest) else None


def _check_source(job: CollectionJob, folder: Path) -> None:
    """Raise Mismatch if the collection has changed since the folder was started."""
    if not (execution := started(folder)):
        return
    updated = parts.read_generation(folder)
    then = updated.source if updated else execution.source
    now = job.origin
    if then.name == now.name:
        lines = manifest.json_differences(then.stamp, now.stamp)
        if lines:
            raise Mismatch(
                f"{now.name} has changed since {folder} was started "
                "(size in bytes, time in ns: then | now):\n  "
                + "\n  ".join(lines)
                + "\nthe folder cannot be continued: choose another output folder, or use "
                "--if-exists overwrite to start again"
            )


def with_folder_dtype(settings: EncodeSettings, folder: Path) -> EncodeSettings:
    """Replace `--dtype auto` by the dtype that the folder was started with."""
    execution = started(folder) if settings.dtype == "auto" else None
    if not isinstance(execution, VectorsExecution):
        return settings
    return replace(settings, dtype=execution.dtype)


def vectors_manifest(
    job: CollectionJob, encoder: Encoder[Any], settings: EncodeSettings, call: Call
) -> VectorsManifest:
    """Return the manifest of the vectors of a job."""
    recipe = job.resolved.recipe
    return VectorsManifest(
        identity=VectorsIdentity(recipe=recipe, dim=encoder.dim, text=job.text),
        execution=VectorsExecution(
            source=job.origin,
            shards=job.shard.count,
            dtype=cast(Literal["fp32", "bf16", "fp16"], encoder.model.dtype),
            store_dtype=settings.store_dtype,
            attention="packed" if encoder.model.packed else "padded",
            store_text=settings.store_text,
        ),
        facts=VectorsFacts(
            **manifest.environment(call),
            models=recipe.located(),
            device=str(encoder.model.device),
        ),
    )


def as_started(described: VectorsManifest, folder: Path) -> VectorsManifest:
    """Return the manifest with the number of shards and the source's stamp from the start of the folder."""
    if not (then := started(folder)):
        return described
    source = structs.replace(described.execution.source, stamp=then.source.stamp)
    execution = structs.replace(described.execution, source=source, shards=then.shards)
    return structs.replace(described, execution=execution)


def vectors_target(
    folder: Path, shard: Shard, encoder: DocumentEncoder[Any], settings: EncodeSettings
) -> PartTarget:
    """Return the destination of the vectors of an encoder."""
    arrays = open_codec(settings.store_dtype).types(encoder.dim)
    spans = SPANS if encoder.spans else {}
    return PartTarget(folder, shard, {**arrays, **spans}, settings.store_text, encoder.contexts)


def write_vectors(
    batches: Iterable[EncodedBatch[Any]], writer: PartWriter, settings: EncodeSettings
) -> int:
    """Append encoded documents to the parts of a vectors folder. Returns their number.

    Raises DataError for a vector that is not finite in its stored form. With `on_overflow` error, raises
    DataError for a document that lost tokens.
    """
    codec, written = open_codec(settings.store_dtype), 0
    for rows, encoded in batches:
        written += len(rows)
        stored = codec.coded(encoded.vectors, writer.array_rows)
        if (bad := codec.not_finite(encoded.vectors, stored)) is not None:
            half = "--store-dtype fp32, then " if settings.store_dtype == "fp16" else ""
            raise DataError(
                f"the vector of document {rows.docs[bad].id} has values that are not finite; try {half}"
                "--dtype fp32"
            )
        if settings.on_overflow == "error":
            _check_nothing_lost(rows, encoded.kept)
        lengths = rows.tokens.lengths
        counts = {
            "tokens": lengths,
            "lost": lengths - np.array(encoded.kept, np.int64),
            "vectors": encoded.vectors.counts,
        }
        if encoded.contexts:
            read, left_out = zip(*encoded.contexts, strict=True)
            counts |= {"context_tokens": np.array(read), "context_lost": np.array(left_out)}
        if encoded.chunks_lost is not None:
            counts["chunks_lost"] = np.array(encoded.chunks_lost, np.int64)
        docs = DocRows(rows.docs, rows.hashes, counts)
        spans = {} if encoded.spans is None else {"spans": encoded.spans}
        writer.append(docs, {**stored, **spans})
    return written


def _check_nothing_lost(rows: DocBlock, kept: list[int]) -> None:
    lengths = rows.tokens.lengths
    for number in np.flatnonzero(lengths != np.array(kept))[:1]:
        raise DataError(
            f"document {rows.docs[number].id} has {lengths[number]} tokens and "
            f"{lengths[number] - kept[number]} of them do not fit; "
            "raise --max-length or allow --on-overflow truncate"
        )
