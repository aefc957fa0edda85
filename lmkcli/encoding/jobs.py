"""The two jobs that read a whole collection: tokenize and encode. Planned first, then run."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli import manifest
from lmkcli.data.collection import Collection, Shard, open_collection
from lmkcli.data.subset import Selected
from lmkcli.encoding.encoder import Encoder, open_encoder, token_source
from lmkcli.encoding.resolving import Resolved, resolve
from lmkcli.encoding.writer import Target, write_vectors
from lmkcli.errors import Mismatch, UsageError
from lmkcli.manifest import Manifest
from lmkcli.models.tokenizer import Tokenizer, open_tokenizer
from lmkcli.progress import Note, Progress, mute
from lmkcli.recipe import RecipeOptions
from lmkcli.settings import EncodeSettings
from lmkcli.store import parts
from lmkcli.store.outputs import as_it_was
from lmkcli.store.tokens import Report, TokenRow, Tokens, write_tokens
from lmkcli.store.vectors import NUMPY

SAMPLE_TOKENS = 60_000  # encoded by --dry-run to measure the pace


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


def narrowed(job: Job, run: Path) -> Job:
    """The same job over the documents that a run names; UsageError when its source is tokens."""
    if isinstance(job.source, Tokens):
        raise UsageError("--only chooses among the documents of a collection, not of tokens")
    return replace(job, source=Selected(job.source, run))


def absent(job: Job, folder: Path) -> int | None:
    """How many documents a run named that the collection does not have; None while shards are to come."""
    if not isinstance(job.source, Selected):
        return 0
    state = parts.state(folder, job.shard.count)
    return None if state.unfinished else len(job.source.ids) - sum(p.rows for p in state.slices)


def _check_tokens(tokens: Tokens, resolved: Resolved) -> None:
    if tokens.state.unfinished:
        raise UsageError(f"{tokens.folder} is not complete; run its tokenize command again")
    here = {k: tokens.manifest.identity[k] for k in ("tokenizer", "prompt", "splitter")}
    lines = manifest.differences(here, resolved.recipe.doc.tokens_identity())
    if lines:
        raise Mismatch(
            f"{tokens.folder} was tokenized otherwise (there | needed here):\n  "
            + "\n  ".join(lines)
            + "\ntokenize the collection again with these settings"
        )


def run_tokenize(job: Job, folder: Path, progress: Progress, stopping: Callable[[], bool]) -> None:
    """Tokenize one shard into `folder`."""
    if isinstance(job.source, Tokens):
        raise UsageError(f"{job.source.folder} is tokenized already; give a collection")
    _check_source(job, folder)
    side = job.resolved.recipe.doc
    identity = {**side.tokens_identity(), "text": job.text}
    execution = {"source": job.origin, "shards": job.shard.count}
    facts = {**manifest.environment(), "models": job.resolved.recipe.located()}
    with _refusing(job, folder):
        manifest.claim(folder, Manifest("tokens", identity, execution, facts))
        if parts.done_rows(folder, job.shard) is None:
            report = Report(progress, stopping, job.settings.store_text)
            write_tokens(folder, job.shard, job.source.docs(job.shard), job.tokenizer(), report)


def _refusing(job: Job, folder: Path) -> AbstractContextManager[None]:
    """A refused collection leaves no claim; other shards' claims are never touched."""
    return as_it_was(folder) if job.shard.count == 1 else nullcontext()


def run_encode(
    job: Job,
    folder: Path,
    progress: Progress,
    stopping: Callable[[], bool],
    note: Note = mute,
) -> None:
    """Encode one shard into `folder`, continuing after what is there."""
    _check_source(job, folder)
    settings = continued(job.settings, folder)
    encoder = open_encoder(job.resolved.recipe.doc, job.resolved.folder, settings)
    if encoder.model.why_padded:
        note(f"inputs go padded through {job.resolved.folder.name}: {encoder.model.why_padded}")
    made = vectors_manifest(job, encoder, settings)
    updated = parts.generation(folder) is not None
    report = Report(progress, stopping, settings.store_text, note)
    with _refusing(job, folder):
        manifest.claim(folder, as_begun(made, folder) if updated else made)
        if updated or parts.done_rows(folder, job.shard) is not None:
            return
        target = Target(folder, job.shard, settings.store_dtype, settings.on_overflow)
        source = token_source(job.source, encoder.tokenizer, job.shard, target.resume_row())
        write_vectors(source, encoder, target, report)


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
        lines = manifest.differences(began.get("stamp"), now["stamp"])
        if lines:
            raise Mismatch(
                f"{now['name']} has changed since {folder} was begun "
                "(size in bytes, time in ns: then | now):\n  "
                + "\n  ".join(lines)
                + "\nwhat is there cannot be continued: choose another output folder, or "
                "--if-exists overwrite to begin again"
            )


def continued(settings: EncodeSettings, folder: Path) -> EncodeSettings:
    """`--dtype auto` continues in the dtype in which the folder was begun."""
    if settings.dtype != "auto" or not (folder / manifest.NAME).is_file():
        return settings
    return replace(settings, dtype=manifest.read(folder).execution.get("dtype", "auto"))


class Forecast(NamedTuple):
    """What --dry-run found out. Seconds are an estimate from a sample; None without documents."""

    docs: int
    tokens: int
    lengths: NDArray[np.int64]  # content tokens of each document
    lost: int
    cut: int
    empty: int
    vectors: int
    disk: int  # bytes of vectors and texts (before compression)
    memory: int  # bytes: weights, buffers, activations
    seconds: float | None


def forecast(job: Job, progress: Progress) -> Forecast:
    """Counts all tokens of the shard, and times a sample through the model."""
    encoder = open_encoder(job.resolved.recipe.doc, job.resolved.folder, job.settings)
    source = token_source(job.source, encoder.tokenizer, job.shard, 0)
    lengths: list[int] = []
    positions = text = vectors = lost = cut = 0
    sample: list[TokenRow] = []
    for batch in source.batches:
        for row, placed in zip(batch, encoder.placed(batch), strict=True):
            lost += len(row.ids) - placed.kept
            cut += placed.kept < len(row.ids)
            positions += sum(len(one.ids) for one in placed.inputs)
            vectors += 1 if encoder.side.unit == "doc" else placed.vectors
            lengths.append(len(row.ids))
            text += len(row.doc.text) + len(row.doc.title)
        sample = _reservoir(sample, batch)
        progress(len(lengths), None, "documents")
    stored = text if job.settings.store_text else 0
    disk = vectors * encoder.dim * np.dtype(NUMPY[job.settings.store_dtype]).itemsize + stored
    made = np.array(lengths, dtype=np.int64)
    pace = _pace(encoder, sample)
    return Forecast(
        len(made), int(made.sum()), made, lost, cut, int((made == 0).sum()), vectors, disk,
        _memory(encoder), positions / pace if pace else None,
    )  # fmt: skip


def _reservoir(sample: list[TokenRow], batch: list[TokenRow]) -> list[TokenRow]:
    """A few documents of every batch, within the sample's budget of tokens."""
    held = sum(len(row.ids) for row in sample)
    room = SAMPLE_TOKENS - held
    for row in batch[:: max(1, len(batch) // 20)]:
        if room <= 0:
            break
        sample.append(row)
        room -= len(row.ids)
    return sample


def _pace(encoder: Encoder, sample: list[TokenRow]) -> float:
    """Positions per second through the model; 0 without a sample."""
    if not sample:
        return 0.0
    encoder(sample[: max(1, len(sample) // 10)], Report())  # warm-up
    start = time.perf_counter()
    encoder(sample, Report())
    seconds = time.perf_counter() - start
    return sum(len(i.ids) for placed in encoder.placed(sample) for i in placed.inputs) / seconds


def _memory(encoder: Encoder) -> int:
    """Weights, one buffer of token rows and the activations of one pack, roughly."""
    weights = encoder.model.weight_bytes
    buffer = encoder.buffer_tokens * 40  # ids, spans and the text itself
    activations = encoder.runner.settings.batch_tokens * encoder.model.dim * 4 * 16
    interpreter = 700 << 20  # Python with torch, what loading takes for a moment, parts
    return int(weights + buffer + activations + interpreter)


def describe(job: Job) -> Iterator[str]:
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
        f"{', normalised' if doc.normalize else ''}{f', first {doc.dim} components' if doc.dim else ''}"
    )
    if doc.prompt or query.prompt:
        yield f"prompts: documents {doc.prompt!r}, queries {query.prompt!r}"
    yield from job.resolved.notes


__all__ = [
    "Forecast",
    "Job",
    "absent",
    "as_begun",
    "continued",
    "describe",
    "forecast",
    "narrowed",
    "plan",
    "run_encode",
    "run_tokenize",
    "vectors_manifest",
]
