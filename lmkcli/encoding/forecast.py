"""Forecasts of jobs: count all tokens, and encode a sample."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import WHOLE, Collection, Shard
from lmkcli.data.known_collections import facts_of
from lmkcli.encoding.artifacts import open_job
from lmkcli.encoding.encoder import Encoder
from lmkcli.encoding.jobs import CollectionJob
from lmkcli.encoding.token_stream import token_stream
from lmkcli.progress import Progress, Report, silent
from lmkcli.store.tokens import TokenRow, Tokens
from lmkcli.vectors.codec import open_codec

SAMPLE_TOKENS = 60_000  # encoded to measure the pace
_QUICK_TOKENS = 15_000  # the same if many jobs are estimated
QUICK_BYTES = (
    4_000_000  # the part of a collection that such an estimate reads, if its size is known
)
_QUICK_DOCS = 2_000  # the same by the number of documents


class Forecast(NamedTuple):
    """The result of --dry-run. Seconds are estimated from a sample; None without documents."""

    docs: int
    tokens: int
    lengths: NDArray[np.int64]  # content tokens of each document
    lost: int  # tokens that truncation removes
    chunks_lost: int  # chunks that get no vector
    cut: int  # documents that lose tokens
    empty: int  # documents without tokens
    context_tokens: int  # tokens of the contexts before chunks
    vectors: int
    disk: int  # bytes of vectors and texts (before compression)
    memory: int  # bytes: weights, buffers, activations
    seconds: float | None


class Estimate(NamedTuple):
    """The expected costs of a job: bytes of vectors and texts, and seconds on this machine."""

    disk: int
    seconds: float


def estimate(job: CollectionJob, quick_bytes: int = QUICK_BYTES) -> Estimate:
    """Estimate the costs of the whole collection from a shard of it: about `quick_bytes` of its files.

    Faster and less exact than `forecast`.
    """
    shard = Shard(0, _quick_shards(job.source, quick_bytes))
    counted = forecast(replace(job, shard=shard), silent, _QUICK_TOKENS)
    if not counted.docs and shard != WHOLE:  # the source has fewer blocks of documents than shards
        shard = WHOLE
        counted = forecast(replace(job, shard=shard), silent, _QUICK_TOKENS)
    return Estimate(counted.disk * shard.count, (counted.seconds or 0.0) * shard.count)


def _quick_shards(source: Collection | Tokens, quick_bytes: int) -> int:
    """Return a number of shards so that one of them is read quickly; 1 if the size is unknown."""
    if isinstance(source, Tokens):
        return 1 + source.docs // _QUICK_DOCS
    files = source.file_stats()
    if any(name.endswith(".gz") for name in files):  # every shard reads a gzip file from its start
        return 1
    if files:
        return 1 + sum(facts[0] for facts in files.values()) // quick_bytes
    facts = facts_of(source.name)
    return 1 + (facts.docs or 0) // _QUICK_DOCS if facts else 1


def forecast(
    job: CollectionJob, progress: Progress, sample_tokens: int = SAMPLE_TOKENS
) -> Forecast:
    """Count all tokens of the shard, and measure the time of a sample in the model."""
    encoder = open_job(job)
    stream = token_stream(job.source, encoder.tokenizer, job.shard, 0)
    lengths: list[int] = []
    positions = text = vectors = lost = cut = contexts = chunks = 0
    sample: list[TokenRow] = []
    for batch in stream.batches:
        placed, of_contexts = encoder.documents(batch)
        contexts += sum(context.tokens for context in of_contexts or ())
        chunks += int(placed.chunks_lost.sum())
        positions += sum(len(one.ids) for one in placed.inputs)
        vectors += len(batch) if encoder.side.unit == "doc" else int(placed.vectors.sum())
        for row, kept in zip(batch, placed.kept.tolist(), strict=True):
            lost += len(row.ids) - kept
            cut += kept < len(row.ids)
            lengths.append(len(row.ids))
            text += len(row.doc.text) + len(row.doc.title)
        _extend_sample(sample, batch, sample_tokens)
        progress(len(lengths), stream.docs(), "documents")
    stored = text if job.settings.store_text else 0
    tokens = np.array(lengths, dtype=np.int64)
    pace, vector_bytes = _measured(encoder, sample, job.settings.store_dtype)
    disk = round(stored + vectors * vector_bytes)
    return Forecast(
        len(tokens), int(tokens.sum()), tokens, lost, chunks, cut, int((tokens == 0).sum()), contexts,
        vectors, disk, _memory(encoder), positions / pace if pace else None,
    )  # fmt: skip


def _extend_sample(sample: list[TokenRow], batch: Sequence[TokenRow], budget: int) -> None:
    """Add up to 20 documents of a batch to the sample, until it has `budget` tokens."""
    remaining = budget - sum(len(row.ids) for row in sample)
    for number in range(0, len(batch), max(1, len(batch) // 20)):
        if remaining <= 0:
            break
        sample.append(batch[number])
        remaining -= len(batch[number].ids)


def _measured(
    encoder: Encoder[Any], sample: list[TokenRow], store_dtype: str
) -> tuple[float, float]:
    """Return the positions per second of the model, and the bytes of a stored vector; 0 without a sample."""
    if not sample:
        return 0.0, 0.0
    encoder(sample[: max(1, len(sample) // 10)], Report())  # warm-up
    start = time.perf_counter()
    encoded = encoder(sample, Report()).vectors
    seconds = time.perf_counter() - start
    placed = encoder.documents(sample).placed
    # as if the vectors followed others: a part may have an array with a row more than vectors
    stored = open_codec(store_dtype).coded(encoded, lambda _: 1)
    size = sum(array.nbytes for array in stored.values()) / max(1, int(encoded.starts[-1]))
    return sum(len(one.ids) for one in placed.inputs) / seconds, size


def _memory(encoder: Encoder[Any]) -> int:
    """Return the approximate memory of weights, one buffer of token rows and the activations of one pack."""
    weights = encoder.model.weight_bytes
    buffer = encoder.buffer_tokens * 40  # ids, spans and the text itself
    activations = encoder.runner.settings.batch_tokens * encoder.model.dim * 4 * 16
    interpreter = 700 << 20  # Python with torch, temporary memory of loading, growing parts
    return int(weights + buffer + activations + interpreter)
