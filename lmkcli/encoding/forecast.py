"""Forecasting a job: all its tokens are counted, and a sample goes through the model."""

import math
import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import WHOLE, Collection, Shard
from lmkcli.data.known import facts_of
from lmkcli.encoding.encoder import Encoder, open_encoder
from lmkcli.encoding.planning import Job
from lmkcli.progress import Progress, Report, silent
from lmkcli.store.codes import STORAGES
from lmkcli.store.tokens import TokenRow, Tokens, token_stream

SAMPLE_TOKENS = 60_000  # encoded to measure the pace
_QUICK_TOKENS = 15_000  # the same where many jobs are estimated
_QUICK_BYTES, _QUICK_DOCS = 4_000_000, 2_000  # of a collection, read for such an estimate


class Forecast(NamedTuple):
    """What --dry-run found out. Seconds are an estimate from a sample; None without documents."""

    docs: int
    tokens: int
    lengths: NDArray[np.int64]  # content tokens of each document
    lost: int
    cut: int
    empty: int
    context_tokens: int  # of the contexts before chunks
    vectors: int
    disk: int  # bytes of vectors and texts (before compression)
    memory: int  # bytes: weights, buffers, activations
    seconds: float | None


class Estimate(NamedTuple):
    """What a job is expected to take: bytes of vectors and texts, and seconds on this machine."""

    disk: int
    seconds: float


def estimate(job: Job) -> Estimate:
    """What the whole collection takes, from its first documents: quicker than `forecast`, and rougher."""
    shard = Shard(0, _slices(job.source))
    counted = forecast(replace(job, shard=shard), silent, _QUICK_TOKENS)
    if not counted.docs and shard != WHOLE:  # dealt in blocks, of which this slice has none
        shard = WHOLE
        counted = forecast(replace(job, shard=shard), silent, _QUICK_TOKENS)
    return Estimate(counted.disk * shard.count, (counted.seconds or 0.0) * shard.count)


def _slices(source: Collection | Tokens) -> int:
    """Into how many slices a source is cut so that one of them is read quickly; 1 where nobody knows."""
    if isinstance(source, Tokens):
        return 1 + source.docs // _QUICK_DOCS
    files = source.stamp()
    if any(name.endswith(".gz") for name in files):  # which is read from its beginning in any case
        return 1
    if files:
        return 1 + sum(facts[0] for facts in files.values()) // _QUICK_BYTES
    facts = facts_of(source.name)
    return 1 + (facts.docs or 0) // _QUICK_DOCS if facts else 1


def forecast(job: Job, progress: Progress, sample_tokens: int = SAMPLE_TOKENS) -> Forecast:
    """Counts all tokens of the shard, and times a sample through the model."""
    encoder = open_encoder(job.resolved.recipe.doc, job.resolved.folder, job.settings)
    stream = token_stream(job.source, encoder.tokenizer, job.shard, 0)
    lengths: list[int] = []
    positions = text = vectors = lost = cut = contexts = 0
    sample: list[TokenRow] = []
    for batch in stream.batches:
        for row, (placed, context) in zip(batch, encoder.documents(batch), strict=True):
            contexts += context.tokens
            lost += len(row.ids) - placed.kept
            cut += placed.kept < len(row.ids)
            positions += sum(len(one.ids) for one in placed.inputs)
            vectors += 1 if encoder.side.unit == "doc" else placed.vectors
            lengths.append(len(row.ids))
            text += len(row.doc.text) + len(row.doc.title)
        sample = _reservoir(sample, batch, sample_tokens)
        progress(len(lengths), None, "documents")
    stored = text if job.settings.store_text else 0
    arrays = STORAGES[job.settings.store_dtype].arrays(encoder.dim).values()
    disk = stored + vectors * sum(np.dtype(kind).itemsize * math.prod(w) for kind, w in arrays)
    tokens = np.array(lengths, dtype=np.int64)
    pace = _pace(encoder, sample)
    return Forecast(
        len(tokens), int(tokens.sum()), tokens, lost, cut, int((tokens == 0).sum()), contexts, vectors, disk,
        _memory(encoder), positions / pace if pace else None,
    )  # fmt: skip


def _reservoir(sample: list[TokenRow], batch: list[TokenRow], most: int) -> list[TokenRow]:
    """A few documents of every batch, within the sample's budget of tokens."""
    room = most - sum(len(row.ids) for row in sample)
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
    inputs = (one for placed in encoder.documents(sample) for one in placed.placement.inputs)
    return sum(len(one.ids) for one in inputs) / seconds


def _memory(encoder: Encoder) -> int:
    """Weights, one buffer of token rows and the activations of one pack, roughly."""
    weights = encoder.model.weight_bytes
    buffer = encoder.buffer_tokens * 40  # ids, spans and the text itself
    activations = encoder.runner.settings.batch_tokens * encoder.model.dim * 4 * 16
    interpreter = 700 << 20  # Python with torch, what loading takes for a moment, parts
    return int(weights + buffer + activations + interpreter)
