"""The encoder: tokenizer, model and pooler of one side of a recipe. Converts text to vectors.

The order of operations is: place the tokens of each text as model inputs; sort the inputs by length and put
them into packs; run the model on each pack and average the marked states; average the windows of a document,
cut to `--dim` and normalise. The inputs of many texts are sorted together, because packs of equal lengths
need no padding.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from lmkcli.catalog import check_installed
from lmkcli.data.collection import Query
from lmkcli.encoding.averaging import Averaging
from lmkcli.encoding.chunk_contexts import ContextTokens, PlacedDocuments, placed_in_context
from lmkcli.encoding.representation import Combination, PooledPack, QueryEncoder
from lmkcli.encoding.resolution import open_pooler, representation_of
from lmkcli.encoding.token_stream import TokenStream, documents_of
from lmkcli.errors import DataError, Mismatch, UsageError
from lmkcli.models.devices import is_out_of_memory
from lmkcli.models.forward import (
    Finish,
    ForwardPass,
    Model,
    ModelOptions,
    packs,
    vector_numbers,
)
from lmkcli.models.lookup import is_local, read_model
from lmkcli.models.model_folder import ModelFolder
from lmkcli.models.tokenizer import Tokenizer
from lmkcli.models.tokenizer_folder import open_tokenizer
from lmkcli.pooling.placement import Expansion, Input, PlacedBlock, Placement, Placer
from lmkcli.pooling.table import SpecialTokens
from lmkcli.progress import Note, Report, estimate_total
from lmkcli.spec.recipe import EncoderConfig, setting_types
from lmkcli.spec.settings import EncodeSettings, ModelSettings
from lmkcli.store.token_blocks import DocBlock, TokenBlock, TokenizedText, TokenRow
from lmkcli.text.formatting import shell_line
from lmkcli.vectors.rows import AnyRows
from lmkcli.vectors.stored import DENSE, Vectors

# Maximum numbers in the states of a pack on a CPU: 4,096 positions of width 384, or 2,048 of width 768.
# Larger packs do not fit into caches, and slow down the allocator.
CPU_STATES = 1_572_864
GPU_POSITIONS = 65_536  # positions of a pack on a GPU: enough to occupy it
BUFFER_PACKS = 32  # inputs of so many packs are sorted by length together
LARGE_PACKS = 4  # the same if vectors take much memory, for instance one for every token
# Bytes of weights times tokens, for about twenty seconds of work. A stop loses at most one buffer, or two on
# a GPU.
BUFFER_WORK = {"cpu": 20e12, "cuda": 2000e12}


class _Launched(NamedTuple):
    """A pack. Its vectors [n, width] may be on their way to the CPU; `copied` marks the end of that copy."""

    inputs: list[int]
    numbers: NDArray[np.int64]
    vectors: torch.Tensor
    copied: torch.cuda.Event | None

    def wait(self) -> PooledPack:
        if self.copied is not None:
            self.copied.synchronize()
        return PooledPack(self.inputs, self.numbers, self.vectors)


@dataclass
class BatchRunner:
    """Runs the forward pass in inference mode on packs of inputs of similar length."""

    forward: ForwardPass
    settings: EncodeSettings
    ahead_bytes: int = 1 << 30
    """How many bytes of vectors a GPU computes before they are fetched. They are in pinned memory, which
    cannot be swapped out. Vectors over a vocabulary need the limit: they are copied with all its terms."""

    def __post_init__(self) -> None:
        if self.settings.batch_tokens:
            return
        if self.model.device.type == "cuda":
            positions = GPU_POSITIONS
        else:
            # the first layers of TITE halve the number of states, so twice as many positions fit
            shrinking = 2 if self.model.one_vector and self.model.packed else 1
            positions = shrinking * max(512, CPU_STATES // self.model.dim)
        self.settings = replace(self.settings, batch_tokens=positions)

    @property
    def model(self) -> Model:
        """The model that computes the states."""
        return self.forward.model

    @property
    def synchronous(self) -> bool:
        """Whether a pack is computed when it is launched. A GPU computes it later."""
        return self.model.device.type != "cuda"

    def __call__(
        self, inputs: list[Input], name: Callable[[int], str], note: Note
    ) -> Iterator[PooledPack]:
        """Return an iterator over the vectors of all inputs, pack by pack.

        On a GPU, packs with `ahead_bytes` of vectors are launched before this returns, which is usually all
        of them. They run while the caller does other work. On a CPU, each step of the iterator computes a
        pack.

        If memory runs out, the remaining inputs go into packs of half the size. `name` returns the name of
        an input's text. The error names this text if a single input does not fit.
        """
        launched = self._launches(inputs, name, note)
        if self.synchronous:
            return (one.wait() for one in launched)
        return _run_ahead(launched, self.ahead_bytes)

    def _launches(
        self, inputs: list[Input], name: Callable[[int], str], note: Note
    ) -> Iterator[_Launched]:
        """Launch pack after pack: one for each step of the iterator."""
        remaining = self._packs(inputs, list(range(len(inputs))))
        while remaining:
            pack, *rest = remaining
            result = self._launch(pack, [inputs[i] for i in pack])
            if result is None:
                lengths = [max(len(inputs[i].ids), self.model.pad_to) for i in pack]
                self._halve(lengths, name(pack[0]), note)
                remaining = self._packs(inputs, sorted(i for p in remaining for i in p))
                continue
            remaining = rest
            yield result

    def _packs(self, inputs: list[Input], selected: list[int]) -> list[list[int]]:
        """Divide the selected inputs into packs, each a list of input numbers."""
        least = self.model.pad_to
        lengths = [max(len(inputs[i].ids), least) for i in selected]
        tokens, size = self.settings.batch_tokens, self.settings.batch_size
        places = packs(lengths, tokens, size, not self.model.packed)
        return [[selected[i] for i in pack] for pack in places]

    def _launch(self, pack: list[int], inputs: list[Input]) -> "_Launched | None":
        """Run a pack, on a GPU without waiting for it. Return None if it does not fit into memory."""
        try:
            with torch.inference_mode():
                vectors, copied = self.forward(inputs).float(), None
                if vectors.is_cuda:
                    on_device = vectors
                    vectors = torch.empty(on_device.shape, dtype=on_device.dtype, pin_memory=True)
                    vectors.copy_(on_device, non_blocking=True)
                    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
                    copied.record(torch.cuda.current_stream(on_device.device))
            return _Launched(pack, vector_numbers(inputs), vectors, copied)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return None  # retry outside of this block: the traceback keeps tensors in memory

    def _halve(self, lengths: list[int], longest: str, note: Note) -> None:
        """Halve the size of packs after a pack of these lengths did not fit."""
        if len(lengths) == 1:
            raise DataError(
                f"{longest} alone, with {lengths[0]} positions, does not fit into the memory of "
                f"{self.model.device}; lower --max-length or --window, or use --dtype bf16 or "
                "another device"
            )
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        taken = sum(lengths) if self.model.packed else max(lengths) * len(lengths)
        budget = max(1, min(taken, self.settings.batch_tokens) // 2)
        note(
            f"out of memory on {self.model.device}: continuing with {budget} positions in a forward pass "
            f"(to start with it, use --batch-tokens {budget})"
        )
        self.settings = replace(self.settings, batch_tokens=budget)


def _run_ahead(launches: Iterator[_Launched], limit: int) -> Iterator[PooledPack]:
    """Launch packs until their vectors take `limit` bytes. The returned iterator launches the rest."""
    pending: deque[_Launched] = deque()
    held = 0  # bytes of the vectors in `pending`

    def launch() -> None:
        nonlocal held
        while held < limit and (one := next(launches, None)):
            pending.append(one)
            held += one.vectors.nbytes

    def fetched() -> Iterator[PooledPack]:
        nonlocal held
        while pending:
            one = pending.popleft()
            held -= one.vectors.nbytes
            launch()
            yield one.wait()

    launch()
    return fetched()


class DocumentVectors(NamedTuple, Generic[AnyRows]):
    """The vectors of some documents.

    kept: how many content tokens of each document were read.
    spans: [vectors, 2], the characters of each chunk in its document's content (unit chunk), else None.
    contexts: the tokens of the contexts of each document's chunks, if they have contexts.
    chunks_lost: how many chunks of each document have no vector (unit chunk), else None.
    """

    vectors: AnyRows
    kept: list[int]
    spans: NDArray[np.int32] | None = None
    contexts: list[ContextTokens] | None = None
    chunks_lost: list[int] | None = None


class EncodedBatch(NamedTuple, Generic[AnyRows]):
    """Some documents and their vectors."""

    rows: DocBlock
    encoded: DocumentVectors[AnyRows]


class Shares(NamedTuple):
    """The shares of a document's chunks in its vector, which is their sum.

    spans: [n, 2], the characters of each chunk in the document's content. vectors: [n, dim] in float64.
    """

    spans: NDArray[np.int32]
    vectors: NDArray[np.float64]


class DocumentEncoder(Protocol[AnyRows]):
    """Converts token rows to vectors; `Encoder` is the implementation.

    dim: the number of dimensions of a vector. spans: whether vectors represent chunks, which have a place in
    the text. contexts: whether chunks follow contexts.
    """

    @property
    def dim(self) -> int: ...

    @property
    def spans(self) -> bool: ...

    @property
    def contexts(self) -> bool: ...

    @property
    def buffer_tokens(self) -> int:
        """How many content tokens are sorted by length together."""

    @property
    def ahead(self) -> int:
        """How many later buffers are started before the vectors of a buffer are fetched."""

    def start(
        self, rows: Sequence[TokenRow], report: Report
    ) -> Callable[[], DocumentVectors[AnyRows]]:
        """Start to compute the vectors of the rows; return a function that returns them, in this order."""


def encode_stream(
    stream: TokenStream, encode: DocumentEncoder[AnyRows], report: Report
) -> Iterator[EncodedBatch[AnyRows]]:
    """Encode all documents of a stream, a buffer of `buffer_tokens` at a time.

    With a GPU, the next buffer is placed and launched before the vectors of the last one are fetched.
    """
    buffer: list[DocBlock] = []
    started: deque[tuple[DocBlock, Callable[[], DocumentVectors[AnyRows]]]] = deque()
    ended = read = rows = 0

    def start(whole: int | None) -> None:
        """Start the buffer. Its progress will be reported as progress of the stream."""
        docs = stream.docs()
        block = DocBlock.join(buffer)
        tokens, before, first = max(1, read - ended), ended, rows

        def progress(done: int, total: int | None, unit: str, detail: str = "") -> None:
            # The inputs of a buffer are sorted by length: its documents end together.
            part = len(block) * done // tokens
            report.progress(before + done, whole, unit, documents_of(first + part, docs))

        started.append((block, encode.start(block, report._replace(progress=progress))))

    def fetched(waiting: int) -> Iterator[EncodedBatch[AnyRows]]:
        """Fetch the vectors of the buffers that were started, but for the last `waiting` ones."""
        while len(started) > waiting:
            block, fetch = started.popleft()
            yield EncodedBatch(block, fetch())

    for batch in stream.batches:
        block = DocBlock.of(batch)
        totals = read + np.cumsum(block.tokens.lengths)  # the tokens up to each document
        total = estimate_total(int(totals[-1]), stream.fraction()) if len(block) else None
        first = 0
        while (full := int(np.searchsorted(totals, ended + encode.buffer_tokens))) < len(block):
            stop = max(full, first) + 1  # this document fills the buffer
            buffer.append(block.rows(first, stop))
            read = int(totals[stop - 1])
            start(total)
            yield from fetched(encode.ahead)
            rows += sum(map(len, buffer))
            buffer, ended, first = [], read, stop
        if first < len(block):
            buffer.append(block.rows(first, len(block)))
            read = int(totals[-1])
    if buffer:
        start(read)
    yield from fetched(0)


@dataclass
class Encoder(Generic[AnyRows]):
    """One side of a recipe, ready to run. A call with token rows returns their vectors."""

    side: EncoderConfig
    tokenizer: Tokenizer
    placer: Placer
    runner: BatchRunner
    combination: Combination[AnyRows]

    @property
    def dim(self) -> int:
        """The number of dimensions of a vector."""
        return self.combination.dim

    @property
    def model(self) -> Model:
        """The model that computes the states."""
        return self.runner.model

    @property
    def spans(self) -> bool:
        """Whether vectors belong to chunks, which have a place in the text."""
        return self.side.by_chunk

    @property
    def contexts(self) -> bool:
        """Whether chunks follow contexts."""
        return bool(self.side.context)

    @property
    def buffer_tokens(self) -> int:
        """How many content tokens are sorted by length together; it limits memory."""
        pack = self.runner.settings.batch_tokens
        buffer_packs = LARGE_PACKS if self.combination.large else BUFFER_PACKS
        return min(pack * buffer_packs, max(pack, self._affordable))

    @cached_property
    def _affordable(self) -> int:
        """The number of tokens for about twenty seconds. A formula gives it, so batches are reproducible."""
        work = BUFFER_WORK.get(self.model.device.type, BUFFER_WORK["cpu"])
        return int(work / max(1, self.model.weight_bytes))

    @property
    def document_tokenizer(self) -> Tokenizer:
        """The tokenizer for documents that only this encoder reads: without spans if it needs none."""
        return replace(self.tokenizer, spans=self.spans or self.contexts)

    def __call__(self, rows: Sequence[TokenRow], report: Report) -> DocumentVectors[AnyRows]:
        """Return the vectors of the rows, in their order."""
        return self.start(rows, report)()

    @property
    def ahead(self) -> int:
        """One on a GPU, which never waits: it computes a buffer while the vectors of the last are fetched."""
        return 0 if self.runner.synchronous else 1

    def start(
        self, rows: Sequence[TokenRow], report: Report
    ) -> Callable[[], DocumentVectors[AnyRows]]:
        """Place the rows, and launch the model on a GPU. Return a function that returns their vectors."""
        block = DocBlock.of(rows)
        placed, contexts = self.documents(block)
        names = [doc.id for doc in block.docs]
        packs = self._packs(placed, block.tokens.lengths, names, report)

        def fetch() -> DocumentVectors[AnyRows]:
            vectors = self.combination(placed, packs)
            spans = lost = None
            if self.spans:
                lost = placed.chunks_lost.tolist()
                texts = np.repeat(np.arange(len(block)), placed.vectors)
                spans = block.tokens.characters(texts, placed.covers)
            return DocumentVectors(vectors, placed.kept.tolist(), spans, contexts, lost)

        return fetch

    def documents(self, rows: Sequence[TokenRow]) -> PlacedDocuments:
        """Place documents. With contexts in the recipe, each chunk follows its context."""
        if self.side.context:
            return placed_in_context(rows, self.side.context, self.tokenizer, self.placer)
        return PlacedDocuments(self.placer.place(DocBlock.of(rows).tokens))

    def queries(self, queries: list[Query]) -> AnyRows:
        """Return the vectors of queries."""
        texts = self.tokenizer([query.text for query in queries])
        return self.texts(texts, [f"query {query.id}" for query in queries])

    def cut(self, queries: list[Query]) -> frozenset[str]:
        """Return the ids of the queries that lose tokens, because they are too long for the recipe."""
        block = TokenBlock.of(self.tokenizer([query.text for query in queries]))
        lost = block.lengths - self.placer.place(block).kept
        return frozenset(query.id for query, n in zip(queries, lost, strict=True) if n > 0)

    def texts(self, texts: Sequence[TokenizedText], names: list[str]) -> AnyRows:
        """Return the vectors of tokenized texts.

        Raises DataError with the name of the text if a vector is not finite.
        """
        block = TokenBlock.of(texts)
        placed = self.placer.place(block)
        vectors = self.combination(placed, self._packs(placed, block.lengths, names, Report()))
        bad = vectors.not_finite()
        if bad is not None:
            raise DataError(
                f"the vector of {names[bad]} has values that are not finite; try --dtype fp32"
            )
        return vectors

    def _packs(
        self, placed: PlacedBlock, lengths: NDArray[np.int64], names: list[str], report: Report
    ) -> Iterator[PooledPack]:
        """Return an iterator over the packs of placed texts of these lengths; a GPU starts with them now."""
        windows = np.bincount(placed.texts, minlength=len(lengths))
        tokens = (lengths / np.maximum(windows, 1))[placed.texts]  # of each input, for progress
        packs = self.runner(placed.inputs, lambda i: names[placed.texts[i]], report.note)

        def reported() -> Iterator[PooledPack]:
            done = 0.0
            for pack in packs:
                yield pack
                done += float(tokens[pack.inputs].sum())
                report.progress(round(done), None, "tokens")
                report.check_stop()

        return reported()

    def placed(self, texts: Sequence[TokenizedText]) -> list[Placement]:
        """Return the inputs of each text, without contexts."""
        return self.placer.place(TokenBlock.of(texts)).split()

    def shares(self, row: TokenRow, positions: int) -> Shares | None:
        """Return the shares of a document's chunks in its vector (unit doc); needs one forward pass.

        The vector is the mean over windows of the mean of the marked states, then normalised. A chunk has
        the share of its marks, for instance of its landmark. Without marks of chunks, a window is a chunk.
        None if the vector is no mean, if its sentence modules are not linear, or if its inputs have
        more than `positions` positions.
        """
        averaging: object = self.combination
        linear = self.runner.forward.pooling.linear
        if self.side.unit != "doc" or not isinstance(averaging, Averaging) or not linear:
            return None
        windows = replace(averaging, finish=Finish(False, averaging.dim, False))
        placer = replace(self.placer, apart=True)
        apart = Encoder(self.side, self.tokenizer, placer, self.runner, windows)
        placed, _ = apart.documents([row])
        if sum(len(one.ids) for one in placed.inputs) > positions:
            return None
        lengths = np.array([len(row.ids)])
        packs = apart._packs(placed, lengths, [row.doc.id], Report())
        vectors = windows(placed, packs).matrix()
        marks = [np.bincount(one.groups - one.groups[0]) for one in placed.inputs]
        weights = np.concatenate([counts / counts.sum() for counts in marks]) / len(marks)
        vectors *= weights[:, None]
        if averaging.finish.normalize:
            vectors /= max(float(np.linalg.norm(vectors.sum(0))), 1e-12)
        # a chunk in the overlap of two windows has a share in both
        spans, chunk = np.unique(row.characters(placed.covers), axis=0, return_inverse=True)
        shares = np.zeros((len(spans), vectors.shape[1]))
        np.add.at(shares, chunk.reshape(-1), vectors)
        return Shares(spans.astype(np.int32), shares)


def make_placer(side: EncoderConfig, special: SpecialTokens) -> Placer:
    """Return the Placer for one side of a recipe: documents or queries."""
    pooler = open_pooler(side.pool)
    if by_module := side.landmark_token is not None:
        pooler = pooler.for_training()  # LandmarkTransformer always has a landmark
    return Placer(
        pooler, special, side.max_length, side.gran, side.include_prompt and not side.prompt_apart,
        side.unit, side.window, side.overlap, frozenset(side.skip),
        None if side.expansion is None else Expansion(side.expansion, side.attend_expansion),
        prompt_in_chunks=by_module,
    )  # fmt: skip


def check_folder(side: EncoderConfig, folder: ModelFolder) -> None:
    """Raise Mismatch if a model folder differs from the model folder of the recipe.

    Raises DataError for a pooler whose package is not installed, and for settings that the pooler does not
    have: another lmk wrote the recipe, or nobody.
    """
    check_installed(side.pool, side.pool_package, f"the recipe of {side.model or folder.name}")
    types = setting_types(side.pool)
    for name, value in sorted(side.settings.items()):
        if type(value) not in types.get(name, ()):
            given = f" with the value {str(value)[:40]!r}" if name in types else ""
            raise DataError(
                f"the recipe has the setting {name[:40]!r}{given}, which the pooler {side.pool} of this lmk "
                "does not have; install the version of lmk that wrote it"
            )
    folder = folder.route(side.weights, side.tokenizer)
    for name, found, expected in (
        ("weights", folder.weights_digest, side.weights),
        ("tokenizer", folder.tokenizer_digest, side.tokenizer),
    ):
        if found != expected:
            raise Mismatch(
                f"the {name} of {folder.name} ({found[:12]}) are not those that made these "
                f"vectors ({expected[:12]}); give the original model with --model"
            )


def open_forward(side: EncoderConfig, folder: ModelFolder, options: ModelOptions) -> ForwardPass:
    """Return the forward pass of one side. Raises UsageError if the model has too few positions."""
    folder = folder.route(side.weights, side.tokenizer)
    model, pooling = representation_of(side.pool).open(side, folder, options)
    folder.check_unchanged()
    if side.max_length > model.limit:
        raise UsageError(
            f"--max-length {side.max_length}: {folder.name} has {model.limit} positions"
        )
    return ForwardPass(model, pooling)


def encoder_of(
    side: EncoderConfig, tokenizer: Tokenizer, runner: BatchRunner, name: str
) -> Encoder[Any]:
    """Return the encoder of one side for an existing forward pass of the model `name`.

    Raises UsageError if the vectors of the model have too few dimensions.
    """
    combination = representation_of(side.pool).combination(side, runner.forward.width, name)
    return Encoder(side, tokenizer, make_placer(side, tokenizer.special), runner, combination)


def open_encoder(
    side: EncoderConfig,
    folder: ModelFolder,
    settings: EncodeSettings,
    loaded: Iterable[Encoder[Any]] = (),
) -> Encoder[Any]:
    """Load the tokenizer and model of one side. An encoder of `loaded` with the same model shares it.

    Raises UsageError or Mismatch if the model folder cannot follow the recipe.
    """
    return encoder_of(side, *_opened(side, folder, settings, loaded), folder.name)


def open_query_encoder(
    side: EncoderConfig,
    folder: ModelFolder,
    settings: EncodeSettings,
    loaded: Iterable[Encoder[Any]] = (),
) -> QueryEncoder[Any]:
    """Load the encoder of queries: a model, or a table. Raises errors as `open_encoder` does."""
    if not side.static:
        return open_encoder(side, folder, settings, loaded)
    check_folder(side, folder)
    table: QueryEncoder[Any] = representation_of(side.pool).open_table(side, folder)
    return table


def require_dense(side: EncoderConfig) -> None:
    """Raise UsageError unless one side of a recipe makes dense vectors."""
    if (kind := representation_of(side.pool).kind) != DENSE:
        raise UsageError(
            f"--pool {side.pool} makes {kind} vectors, which lmk encode stores and lmk search ranks; this "
            "needs dense vectors, such as of --pool mean"
        )


def _opened(
    side: EncoderConfig,
    folder: ModelFolder,
    settings: EncodeSettings,
    loaded: Iterable[Encoder[Any]] = (),
) -> tuple[Tokenizer, BatchRunner]:
    check_folder(side, folder)
    options = ModelOptions(
        settings.dtype, settings.device, side.trust_remote_code, side.extend, side.pad_to_max
    )
    tokenizer = open_tokenizer(folder, side)
    make_placer(side, tokenizer.special)  # report errors of the placement before reading weights
    for other in loaded:
        same = (other.runner.settings.dtype, other.runner.settings.device) == (
            settings.dtype,
            settings.device,
        )
        fits = side.max_length <= other.model.limit
        if same and fits and _of_model(other.side) == _of_model(side):
            return tokenizer, other.runner
    forward = open_forward(side, folder, options)
    return tokenizer, BatchRunner(forward, settings)


def _of_model(side: EncoderConfig) -> tuple[Any, ...]:
    """Return the settings of one side that `open_forward` reads."""
    pooler = open_pooler(side.pool)
    head = (side.pool if pooler.module else "", pooler.reductions)
    model = (side.model, side.revision, side.weights, side.trust_remote_code)
    return (*model, side.extend, side.pad_to_max, head)


# Encoders of artifacts. An artifact can come from another person, and its manifest only names its model.
# lmk does not download this model or run its code, unless the user allows it.


def open_recorded(
    vectors: Vectors[AnyRows], settings: ModelSettings, loaded: Iterable[Encoder[Any]] = ()
) -> Encoder[AnyRows]:
    """Return the encoder of the documents of vectors. It can share the model of a loaded encoder.

    Raises DataError if the model would run code or be downloaded, and `settings` do not allow it.
    """
    recorded = _recorded(vectors, False, settings)
    encoder = open_encoder(*recorded, loaded)
    _check_made(vectors, recorded[0], encoder.dim)
    return encoder


def open_recorded_queries(
    vectors: Vectors[AnyRows], settings: ModelSettings, loaded: Iterable[Encoder[Any]] = ()
) -> QueryEncoder[AnyRows]:
    """Return the encoder of queries for vectors; errors as of `open_recorded`."""
    recorded = _recorded(vectors, True, settings)
    encoder = open_query_encoder(*recorded, loaded)
    _check_made(vectors, recorded[0], encoder.dim)
    return encoder


def _check_made(vectors: Vectors[AnyRows], side: EncoderConfig, dim: int) -> None:
    """Raise DataError unless the recorded model makes vectors of the stored kind and dimensions."""
    kind, made = vectors.kind, representation_of(side.pool).kind
    if (kind, vectors.dim) != (made, dim):
        raise DataError(
            f"{vectors.folder} contains {kind} vectors of {vectors.dim} dimensions, and its recipe makes "
            f"{made} ones of {dim}; its manifest was changed, or is damaged: encode the collection again"
        )


def _recorded(
    vectors: Vectors[Any], query: bool, settings: ModelSettings
) -> tuple[EncoderConfig, ModelFolder, EncodeSettings]:
    recipe = vectors.recipe.moved(settings.model) if settings.model else vectors.recipe
    side = recipe.query if query else recipe.doc
    if side.trust_remote_code and not settings.trust_remote_code:
        refuse_code(str(vectors.folder), side.model)
    if not settings.model and not is_local(side.model, side.revision or None):
        fetch = ["lmk", "fetch", "-m", side.model]
        fetch += ["--revision", side.revision] if side.revision else []
        raise DataError(
            f"{vectors.folder} was made with the model {side.model}, which is not on this machine, and lmk "
            "does not download the models of artifacts unasked: run "
            f"{shell_line(*fetch)} once, or name its folder with --model"
        )
    # a model from the cache is not looked up on the network, nor is its base model
    offline = settings.offline or not settings.model
    folder = read_model(side.model, side.revision or None, offline)
    dtype = settings.dtype or vectors.manifest.execution.dtype
    return side, folder, EncodeSettings(dtype=dtype, device=settings.device)


def refuse_code(artifact: str, model: str) -> None:
    """Raise DataError: the model of an artifact needs its own code, and the user has not allowed that."""
    raise DataError(
        f"{artifact} was made with code that comes with the model {model}. Such code can do anything that "
        "you can: if you trust both, add --trust-remote-code"
    )
