"""The stream of a collection's tokens: read, tokenized in the background, and passed on in blocks.

The tokens of a tokens folder come as the same stream.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from lmkcli.data.collection import Collection, Doc, DocStream, Shard, doc_hash
from lmkcli.progress import Report, estimate_total
from lmkcli.store import tokens
from lmkcli.store.doctable import DocRow
from lmkcli.store.part_writer import PartWriter
from lmkcli.store.token_blocks import TextTokens, TokenBlock
from lmkcli.store.tokens import DocBlock, TokenRow, Tokens
from lmkcli.system.item_streams import batched, prefetch
from lmkcli.system.workers import in_order
from lmkcli.text.formatting import counted

WORKER_CHARACTERS = 1 << 16  # per call of one process of several: they should end at the same time


class TextTokenizer(Protocol):
    """Converts texts to token ids (models/tokenizer.py)."""

    def __call__(self, texts: list[str]) -> Sequence[TextTokens]: ...


def tokenized(docs: Iterable[Doc], tokenize: TextTokenizer, workers: int = 0) -> Iterator[DocBlock]:
    """Yield the documents and their tokens in source order, in blocks.

    With `workers`, so many processes tokenize. The tokens are the same.
    """
    waiting: deque[list[Doc]] = deque()

    def texts() -> Iterator[list[str]]:
        most = WORKER_CHARACTERS if workers else tokens.BATCH_CHARACTERS
        for batch in batched(docs, lambda doc: len(doc.text) + len(doc.title) + 64, most):
            waiting.append(batch)
            yield [doc.content for doc in batch]

    made = in_order(tokenize, texts(), workers) if workers else map(tokenize, texts())
    for found in made:
        batch = waiting.popleft()
        yield DocBlock(batch, [doc_hash(doc) for doc in batch], TokenBlock.of(found))


class TokenStream(NamedTuple):
    """Blocks of one shard, and how much of it they are."""

    batches: Iterable[Sequence[TokenRow]]
    fraction: Callable[[], float | None]
    """The share of the work that ends with the last batch; None if it is unknown."""
    docs: Callable[[], int | None] = lambda: None
    """The number of documents; None if it is unknown."""


def token_stream(
    source: "Collection | Tokens",
    tokenize: TextTokenizer,
    shard: Shard,
    skip: int,
    workers: int = 0,
) -> TokenStream:
    """Return the token rows of one shard without the first `skip`.

    A collection is read in a background thread, and tokenized there or in `workers` processes; tokens are
    read from their folder.
    """
    if isinstance(source, Tokens):
        return _stored_stream(source, shard, skip)
    read = _Reading(source.docs(shard), tokenize, skip, workers)
    return TokenStream(read.batches(), read.fraction, read.total)


class _Reading:
    """The batches of a collection without its first documents, and the share of the batches.

    A thread is ahead of the reader of the batches, and reads documents before it tokenizes them. So each
    document keeps its own share.
    """

    def __init__(self, docs: DocStream, tokenize: TextTokenizer, skip: int, workers: int) -> None:
        self._docs, self._tokenize, self._skip = docs, tokenize, skip
        self._workers = workers
        self._shares: deque[float | None] = deque()  # of the documents in the current batch
        self._skipped = 0.0
        self._last: float | None = None

    def batches(self) -> Iterator[DocBlock]:
        for batch, share in prefetch(self._shared(), 2):
            self._last = share
            yield batch

    def fraction(self) -> float | None:
        if self._last is None or self._skipped >= 1:
            return None
        return (self._last - self._skipped) / (1 - self._skipped)

    def total(self) -> int | None:
        return None if self._docs.total is None else max(0, self._docs.total - self._skip)

    def _shared(self) -> Iterator[tuple[DocBlock, float | None]]:
        for batch in tokenized(self._rest(), self._tokenize, self._workers):
            yield batch, [self._shares.popleft() for _ in range(len(batch))][-1]

    def _rest(self) -> Iterator[Doc]:
        for number, doc in enumerate(self._docs, 1):
            if number > self._skip:
                self._shares.append(self._docs.fraction)
                yield doc
            elif number == self._skip:
                self._skipped = self._docs.fraction or 0.0


def _stored_stream(source: "Tokens", shard: Shard, skip: int) -> TokenStream:
    """The rows of a tokens folder."""
    rows = shard.rows(source.docs)
    read, total = 0, max(0, len(rows) - skip)

    def batches() -> Iterator[DocBlock]:
        nonlocal read
        for batch in prefetch(source.rows(rows.start + skip, rows.stop), 2):
            read += len(batch)
            yield batch

    return TokenStream(batches(), lambda: read / total if total else None, lambda: total)


def write_tokens(stream: TokenStream, writer: PartWriter, report: Report) -> None:
    """Append the documents of a stream to the parts of a tokens folder."""
    count = rows = 0
    for batch in stream.batches:
        block = DocBlock.of(batch)
        lengths = block.tokens.lengths.tolist()
        count += sum(lengths)
        rows += len(block)
        total = estimate_total(count, stream.fraction())
        report.progress(count, total, "tokens", documents_of(rows, stream.docs()))
        docs = [
            DocRow(doc, digest, length, 0, 0)
            for doc, digest, length in zip(block.docs, block.hashes, lengths, strict=True)
        ]
        writer.append(docs, tokens.arrays_of(block.tokens, writer))


def documents_of(done: int, total: int | None) -> str:
    """The documents of a job for people: '12 of 80 documents', or '12 documents' if 80 is unknown."""
    return counted(done, "document") if total is None else f"{done:,} of {total:,} documents"
