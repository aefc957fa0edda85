"""Forecasts of jobs: count all tokens, and encode a sample."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import WHOLE, Collection, Doc, Shard
from lmkcli.data.known_collections import facts_of
from lmkcli.encoding.encoder import BatchRunner, Encoder, open_encoder
from lmkcli.encoding.jobs import CollectionJob, tokens_identity
from lmkcli.encoding.shard_run import open_job
from lmkcli.encoding.token_stream import token_stream, tokenized
from lmkcli.progress import Progress, Report
from lmkcli.spec.recipe import EncoderConfig
from lmkcli.store.token_blocks import DocBlock, TokenRow
from lmkcli.store.tokens import Tokens
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


class _Counted(NamedTuple):
    """The counts of some documents that were placed, and a sample of them."""

    lengths: list[int]
    positions: int
    text: int  # characters
    vectors: int
    lost: int
    cut: int
    contexts: int
    chunks_lost: int
    sample: list[TokenRow]


class Estimator:
    """Estimates of many jobs, from a shard of each collection, with about `quick_bytes` of its files.

    Each collection is read once. Jobs of one model should follow each other: they share the loaded model, the
    tokens of a sample if their prompts and splitters are the same, and the pace of the model on inputs of
    about the same length. The other settings of a job only change what is counted.
    """

    def __init__(self, quick_bytes: int = QUICK_BYTES) -> None:
        self._quick_bytes = quick_bytes
        self._samples: dict[str, _Sample] = {}
        self._last: Encoder[Any] | None = None
        # of the model of the last job:
        self._tokens: dict[str, list[DocBlock]] = {}
        self._paces: dict[tuple[int, ...], float] = {}  # positions per second
        self._sizes: dict[tuple[EncoderConfig, str], float] = {}  # bytes of a stored vector

    def __call__(self, job: CollectionJob) -> Estimate:
        """Estimate the costs of the whole collection of a job. Faster and less exact than `forecast`."""
        encoder = self._opened(job)
        blocks, shards = self._read(job, encoder)
        counted = _count(encoder, blocks, _QUICK_TOKENS)
        if not (sample := counted.sample):
            return Estimate(0, 0.0)
        # Attention takes a time for each position that grows with the length of its input.
        inputs = [len(one.ids) for one in encoder.documents(sample).placed.inputs]
        length = sum(n * n for n in inputs) // max(1, sum(inputs))
        work = (length.bit_length(), job.settings.batch_size, job.settings.batch_tokens)
        if work not in self._paces:
            self._paces[work] = _pace(encoder, sample)
        side, dtype = encoder.side, job.settings.store_dtype
        stored = (side, dtype)  # sparse vectors have more terms in some settings
        if stored not in self._sizes:
            self._sizes[stored] = _vector_bytes(encoder, sample[: 1 + len(sample) // 10], dtype)
        disk, pace = _disk(job, counted, self._sizes[stored]), self._paces[work]
        return Estimate(disk * shards, counted.positions / pace * shards if pace else 0.0)

    def _opened(self, job: CollectionJob) -> Encoder[Any]:
        """Return the encoder of a job, with the model of the last job if it is the same."""
        side, loaded = job.resolved.recipe.doc, [self._last] if self._last else []
        encoder = open_encoder(side, job.resolved.folder, job.settings, loaded)
        forward = encoder.runner.forward
        if self._last is None or forward is not self._last.runner.forward:
            for known in (self._tokens, self._paces, self._sizes):
                known.clear()
        self._last = replace(encoder, runner=BatchRunner(forward, job.settings))
        return self._last

    def _read(self, job: CollectionJob, encoder: Encoder[Any]) -> tuple[Iterable[DocBlock], int]:
        """Return the tokens of a sample, and the number of shards of the collection; the sample is one of
        them.
        """
        if isinstance(job.source, Tokens):
            shard, name = Shard(0, 1 + job.source.docs // _QUICK_DOCS), str(job.source.folder)
            if name not in self._tokens:
                stream = token_stream(job.source, encoder.tokenizer, shard, 0)
                self._tokens[name] = [*map(DocBlock.of, stream.batches)]
            return self._tokens[name], shard.count
        name = str((job.source.name, job.text))
        if name not in self._samples:
            self._samples[name] = _sample(job.source, self._quick_bytes)
        sample = self._samples[name]
        if sample.docs is None:
            return tokenized(job.source.docs(WHOLE), encoder.tokenizer), sample.shards
        tokens = str((name, tokens_identity(encoder.side, {})))
        if tokens not in self._tokens:
            self._tokens[tokens] = [*tokenized(sample.docs, encoder.tokenizer)]
        return self._tokens[tokens], sample.shards


class _Sample(NamedTuple):
    """The documents of one of so many shards of a collection; None if they are too many to be kept."""

    docs: list[Doc] | None
    shards: int


def _sample(collection: Collection, quick_bytes: int) -> _Sample:
    """Read the first shard of a collection. It is empty if there are fewer blocks than shards."""
    shard = Shard(0, _quick_shards(collection, quick_bytes))
    size = sum(facts[0] for facts in collection.file_stats().values())
    kept = shard != WHOLE or 0 < size <= quick_bytes
    docs = [*collection.docs(shard)] if kept else None
    return _Sample(docs, shard.count) if docs or shard == WHOLE else _Sample(None, 1)


def _quick_shards(collection: Collection, quick_bytes: int) -> int:
    """Return a number of shards so that one of them is read quickly; 1 if the size is unknown."""
    files = collection.file_stats()
    if any(name.endswith(".gz") for name in files):  # every shard reads a gzip file from its start
        return 1
    if files:
        return 1 + sum(facts[0] for facts in files.values()) // quick_bytes
    facts = facts_of(collection.name)
    return 1 + (facts.docs or 0) // _QUICK_DOCS if facts else 1


def forecast(job: CollectionJob, progress: Progress) -> Forecast:
    """Count all tokens of the shard, and measure the time of a sample in the model."""
    encoder = open_job(job)
    stream = token_stream(job.source, encoder.tokenizer, job.shard, 0)
    counted = _count(
        encoder,
        stream.batches,
        SAMPLE_TOKENS,
        lambda done: progress(done, stream.docs(), "documents"),
    )
    tokens = np.array(counted.lengths, dtype=np.int64)
    seconds, vector_bytes = None, 0.0
    if counted.sample:
        seconds = counted.positions / _pace(encoder, counted.sample)
        vector_bytes = _vector_bytes(encoder, counted.sample, job.settings.store_dtype)
    return Forecast(
        len(tokens), int(tokens.sum()), tokens, counted.lost, counted.chunks_lost, counted.cut,
        int((tokens == 0).sum()), counted.contexts, counted.vectors, _disk(job, counted, vector_bytes),
        _memory(encoder), seconds,
    )  # fmt: skip


def _count(
    encoder: Encoder[Any],
    batches: Iterable[Sequence[TokenRow]],
    sample_tokens: int,
    progress: Callable[[int], None] = lambda _: None,
) -> _Counted:
    """Place documents, and count what the encoder would read and make."""
    lengths: list[int] = []
    positions = text = vectors = lost = cut = contexts = chunks = 0
    sample: list[TokenRow] = []
    for batch in batches:
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
        progress(len(lengths))
    return _Counted(lengths, positions, text, vectors, lost, cut, contexts, chunks, sample)


def _disk(job: CollectionJob, counted: _Counted, vector_bytes: float) -> int:
    """Return the bytes of the vectors and texts of the documents that were counted."""
    stored = counted.text if job.settings.store_text else 0
    return round(stored + counted.vectors * vector_bytes)


def _extend_sample(sample: list[TokenRow], batch: Sequence[TokenRow], budget: int) -> None:
    """Add up to 20 documents of a batch to the sample, until it has `budget` tokens."""
    remaining = budget - sum(len(row.ids) for row in sample)
    for number in range(0, len(batch), max(1, len(batch) // 20)):
        if remaining <= 0:
            break
        sample.append(batch[number])
        remaining -= len(batch[number].ids)


def _pace(encoder: Encoder[Any], sample: list[TokenRow]) -> float:
    """Return the positions per second of the model."""
    encoder(sample[: max(1, len(sample) // 10)], Report())  # warm-up
    start = time.perf_counter()
    encoder(sample, Report())
    seconds = time.perf_counter() - start
    return sum(len(one.ids) for one in encoder.documents(sample).placed.inputs) / seconds


def _vector_bytes(encoder: Encoder[Any], sample: list[TokenRow], store_dtype: str) -> float:
    """Return the bytes of a stored vector, the mean over a sample."""
    encoded = encoder(sample, Report()).vectors
    # as if the vectors followed others: a part may have an array with a row more than vectors
    stored = open_codec(store_dtype).coded(encoded, lambda _: 1)
    return sum(array.nbytes for array in stored.values()) / max(1, int(encoded.starts[-1]))


def _memory(encoder: Encoder[Any]) -> int:
    """Return the approximate memory of weights, one buffer of token rows and the activations of one pack."""
    weights = encoder.model.weight_bytes
    buffer = encoder.buffer_tokens * 40  # ids, spans and the text itself
    activations = encoder.runner.settings.batch_tokens * encoder.model.dim * 4 * 16
    interpreter = 700 << 20  # Python with torch, temporary memory of loading, growing parts
    return int(weights + buffer + activations + interpreter)
