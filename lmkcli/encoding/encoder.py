"""Encoder: tokenizer + model + pooler, described by one side of a Recipe. Text in, vectors out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from lmkcli import catalog
from lmkcli.data.collection import Query
from lmkcli.encoding.asking import open_pooler
from lmkcli.encoding.batches import BatchRunner
from lmkcli.encoding.contexts import ContextTokens, PlacedDocument, placed_in_context
from lmkcli.errors import DataError, Mismatch, UsageError
from lmkcli.models.folder import ModelFolder
from lmkcli.models.forward import Finish, ForwardPass, Model, ModelOptions, Pooling
from lmkcli.models.heads import open_heads, open_token_head
from lmkcli.models.tokenizer import Tokenizer, open_tokenizer
from lmkcli.pooling.placement import Expansion, Input, Ints, Placement, Placer, SpecialTokens
from lmkcli.progress import Report
from lmkcli.recipe import EncoderConfig
from lmkcli.settings import EncodeSettings
from lmkcli.store.tokens import TokenRow, TokenStream, estimate
from lmkcli.store.vectors import Ragged

BUFFER_PACKS = 32  # packs' worth of tokens that are sorted by length together
TOKEN_PACKS = 4  # the same where every token makes a vector
# Bytes of weights times tokens that take about twenty seconds: a stop loses a buffer at most.
BUFFER_WORK = {"cpu": 20e12, "cuda": 2000e12}


class Encoded(NamedTuple):
    """Vectors of some documents, the content tokens that each kept, and where chunks lie.

    `spans` [vectors, 2] are characters in each document's content (unit chunk), else None; `contexts`
    are tokens of the contexts of each document's chunks.
    """

    vectors: Ragged
    kept: list[int]
    spans: NDArray[np.int32] | None = None
    contexts: list[ContextTokens] | None = None


class EncodedBatch(NamedTuple):
    """Some documents and their vectors."""

    rows: list[TokenRow]
    encoded: Encoded


class Encode(Protocol):
    """What turns token rows into vectors (encoder.py)."""

    dim: int

    @property
    def spans(self) -> bool:
        """Whether vectors stand for chunks, which lie somewhere in the text."""

    @property
    def contexts(self) -> bool:
        """Whether chunks stand behind contexts."""

    @property
    def buffer_tokens(self) -> int:
        """Content tokens that are sorted by length together."""

    def __call__(self, rows: list[TokenRow], report: Report) -> Encoded:
        """The vectors of the rows, in their order."""


def encode_stream(stream: TokenStream, encode: Encode, report: Report) -> Iterator[EncodedBatch]:
    """All documents of a stream, encoded as many at a time as the encoder sorts by length together."""
    buffer: list[TokenRow] = []
    done = read = 0
    for batch in stream.batches:
        for row in batch:
            buffer.append(row)
            read += len(row.ids)
            if read - done >= encode.buffer_tokens:
                progress = _of_whole(report, done, estimate(read, stream.fraction()))
                yield EncodedBatch(buffer, encode(buffer, progress))
                buffer, done = [], read
    if buffer:
        yield EncodedBatch(buffer, encode(buffer, _of_whole(report, done, read)))


def _of_whole(report: Report, before: int, total: int | None) -> Report:
    """Reports the progress of one buffer as that of the whole."""
    return report._replace(
        progress=lambda done, _, unit: report.progress(before + done, total, unit)
    )


def make_placer(side: EncoderConfig, special: SpecialTokens) -> Placer:
    """The placement arithmetic of one side."""
    return Placer(
        open_pooler(side.pool), special, side.max_length, side.gran, side.include_prompt,
        side.unit, side.window, side.overlap, frozenset(side.skip),
        None if side.expansion is None else Expansion(side.expansion, side.attend_expansion),
    )  # fmt: skip


def check_folder(side: EncoderConfig, folder: ModelFolder) -> None:
    """Mismatch when a model folder is not the one that a recipe was made with."""
    for what, here, there in (
        ("weights", folder.weights_digest, side.weights),
        ("tokenizer", folder.tokenizer_digest, side.tokenizer),
    ):
        if here != there:
            raise Mismatch(
                f"the {what} of {folder.name} ({here[:12]}) are not those that made these "
                f"vectors ({there[:12]}); give the original model with --model"
            )


class Opener(Protocol):
    """What a row of the catalog of models names."""

    def __call__(self, folder: ModelFolder, options: ModelOptions) -> Model:
        """The model of a folder on a device, ready to run; DataError when it cannot be loaded."""


class Text(Protocol):
    """Tokens of one text: content ids, the prompt's ids, chunk ends where a splitter made them."""

    @property
    def ids(self) -> Ints: ...
    @property
    def prompt(self) -> Ints: ...
    @property
    def ends(self) -> Ints | None: ...


class _Work(NamedTuple):
    """All inputs of some texts; marks are grouped by vectors numbered over all texts."""

    inputs: list[Input]
    owners: list[int]  # the text of each input
    tokens: list[float]  # the content tokens that an input stands for, for progress
    vectors: NDArray[np.int64]  # how many each text makes, its windows counted apart

    @classmethod
    def of(cls, texts: Sequence[Text], placements: list[Placement]) -> "_Work":
        vectors = np.array([placement.vectors for placement in placements], np.int64)
        firsts = np.cumsum(vectors) - vectors
        work = cls([], [], [], vectors)
        for number, (text, placement) in enumerate(zip(texts, placements, strict=True)):
            for one in placement.inputs:
                work.inputs.append(one._replace(groups=one.groups + firsts[number]))
                work.owners.append(number)
                work.tokens.append(len(text.ids) / len(placement.inputs))
        return work


@dataclass
class Encoder:
    """One side of a recipe, ready to run. Called with token rows, it returns their vectors."""

    side: EncoderConfig
    tokenizer: Tokenizer
    placer: Placer
    runner: BatchRunner
    finish: Finish
    dim: int

    @property
    def model(self) -> Model:
        """What makes the states."""
        return self.runner.model

    @property
    def spans(self) -> bool:
        """Whether vectors stand for chunks, which lie somewhere in the text."""
        return self.side.unit == "chunk"

    @property
    def contexts(self) -> bool:
        """Whether chunks stand behind contexts."""
        return bool(self.side.context)

    @property
    def buffer_tokens(self) -> int:
        """Content tokens that are sorted by length together; what memory is bounded by."""
        pack = self.runner.settings.batch_tokens
        packs = TOKEN_PACKS if self.side.unit == "token" else BUFFER_PACKS
        return min(pack * packs, max(pack, self._affordable))

    @cached_property
    def _affordable(self) -> int:
        """Tokens that take some twenty seconds; by a rule, not a clock, so that batches repeat."""
        work = BUFFER_WORK.get(self.model.device.type, BUFFER_WORK["cpu"])
        return int(work / max(1, self.model.weight_bytes))

    def __call__(self, rows: list[TokenRow], report: Report) -> Encoded:
        """The vectors of the rows, in their order, the tokens kept of each, and spans of chunks."""
        placed = self.documents(rows)
        placements = [one.placement for one in placed]
        vectors = self._encoded(_Work.of(rows, placements), [row.doc.id for row in rows], report)
        spans = None
        if self.spans:
            covered = [
                row.characters(placement.covers)
                for row, placement in zip(rows, placements, strict=True)
            ]
            spans = np.concatenate(covered)
        contexts = [one.contexts for one in placed] if self.contexts else None
        return Encoded(vectors, [placement.kept for placement in placements], spans, contexts)

    def documents(self, rows: list[TokenRow]) -> list[PlacedDocument]:
        """The inputs of each document, its chunks behind their contexts where the recipe has any."""
        if self.side.context:
            return placed_in_context(rows, self.side.context, self.tokenizer, self.placer)
        return [PlacedDocument(placement) for placement in self.placed(rows)]

    def queries(self, queries: list[Query]) -> Ragged:
        """The vectors of query texts."""
        texts = self.tokenizer([query.text for query in queries])
        return self.texts(texts, [f"query {query.id}" for query in queries])

    def texts(self, texts: Sequence[Text], names: list[str]) -> Ragged:
        """The vectors of tokenized texts; DataError, with its name, for one whose vector is not finite."""
        vectors = self._encoded(_Work.of(texts, self.placed(texts)), names, Report())
        _check_finite(vectors, names)
        return vectors

    def placed(self, texts: Sequence[Text]) -> list[Placement]:
        """The inputs of each text."""
        contents = (self.placer.content(text.ids, text.prompt, text.ends) for text in texts)
        return [self.placer.place(content) for content in contents]

    def _encoded(self, work: _Work, ids: list[str], report: Report) -> Ragged:
        pooled = np.empty((int(work.vectors.sum()), self.runner.forward.width), np.float32)
        done = 0.0
        for one in self.runner(work.inputs, lambda i: ids[work.owners[i]], report.note):
            pooled[one.numbers] = one.vectors
            done += sum(work.tokens[i] for i in one.inputs)
            report.progress(round(done), None, "tokens")
            report.check_stop()
        return self._finished(pooled, work.vectors)

    def _finished(self, pooled: NDArray[np.float32], counts: NDArray[np.int64]) -> Ragged:
        vectors = self.finish(torch.from_numpy(pooled), torch.from_numpy(counts))
        one_each = np.ones_like(counts) if self.finish.average else counts
        return Ragged.of(vectors.contiguous().numpy(), one_each)


def _check_finite(vectors: Ragged, names: list[str]) -> None:
    bad = np.flatnonzero(~np.isfinite(vectors.vectors).all(axis=1))
    if len(bad):
        text = int(np.searchsorted(vectors.starts, bad[0], side="right")) - 1
        raise DataError(
            f"the vector of {names[text]} has values that are not finite; try --dtype fp32"
        )


def open_encoder(side: EncoderConfig, folder: ModelFolder, settings: EncodeSettings) -> Encoder:
    """Loads what one side needs; UsageError or Mismatch when it cannot work as the recipe says."""
    check_folder(side, folder)
    options = ModelOptions(
        settings.dtype, settings.device, side.trust_remote_code, side.extend, side.pad_to_max
    )
    tokenizer = open_tokenizer(folder, side)
    make_placer(side, tokenizer.special)  # what cannot be placed is said before weights are read
    forward = open_forward(side, folder, options)
    return encoder_of(side, tokenizer, BatchRunner(forward, settings), folder.name)


def encoder_of(
    side: EncoderConfig, tokenizer: Tokenizer, runner: BatchRunner, name: str
) -> Encoder:
    """One side over a forward pass that is there; UsageError where that of `name` is too narrow."""
    width = runner.forward.width
    if side.dim > width:
        raise UsageError(f"--dim {side.dim}: {name} makes vectors of {width} dimensions")
    dim = side.dim or width
    finish = Finish(side.unit == "doc", dim, side.normalize)
    return Encoder(side, tokenizer, make_placer(side, tokenizer.special), runner, finish, dim)


def open_forward(side: EncoderConfig, folder: ModelFolder, options: ModelOptions) -> ForwardPass:
    """The forward pass of one side; UsageError when the model has too few positions for it."""
    opened: Opener = catalog.load(catalog.MODELS, folder.kind, "model kind")
    model = opened(folder, options)
    if side.max_length > model.limit:
        raise UsageError(
            f"--max-length {side.max_length}: {folder.name} has {model.limit} positions"
        )
    head = open_token_head(folder, side.pool, model.device)
    return ForwardPass(model, Pooling(head, open_heads(folder, model.device)))
