"""Forecasting a job: all its tokens are counted, and a sample goes through the model."""

import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.encoding.encoder import Encoder, open_encoder
from lmkcli.encoding.planning import Job
from lmkcli.progress import Progress, Report
from lmkcli.store.tokens import TokenRow, token_stream
from lmkcli.store.vectors import NUMPY

SAMPLE_TOKENS = 60_000  # encoded to measure the pace


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


def forecast(job: Job, progress: Progress) -> Forecast:
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
        sample = _reservoir(sample, batch)
        progress(len(lengths), None, "documents")
    stored = text if job.settings.store_text else 0
    disk = vectors * encoder.dim * np.dtype(NUMPY[job.settings.store_dtype]).itemsize + stored
    tokens = np.array(lengths, dtype=np.int64)
    pace = _pace(encoder, sample)
    return Forecast(
        len(tokens), int(tokens.sum()), tokens, lost, cut, int((tokens == 0).sum()), contexts, vectors, disk,
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
    inputs = (one for placed in encoder.documents(sample) for one in placed.placement.inputs)
    return sum(len(one.ids) for one in inputs) / seconds


def _memory(encoder: Encoder) -> int:
    """Weights, one buffer of token rows and the activations of one pack, roughly."""
    weights = encoder.model.weight_bytes
    buffer = encoder.buffer_tokens * 40  # ids, spans and the text itself
    activations = encoder.runner.settings.batch_tokens * encoder.model.dim * 4 * 16
    interpreter = 700 << 20  # Python with torch, what loading takes for a moment, parts
    return int(weights + buffer + activations + interpreter)
