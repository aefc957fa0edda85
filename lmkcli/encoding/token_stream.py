"""The stream of a collection's tokens: read, tokenized in the background, and passed on in blocks.

The tokens of a tokens folder come as the same stream.
"""

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from lmkcli.data.collection import Collection, Doc, Shard, doc_hash
from lmkcli.progress import Report, estimate_total
from lmkcli.store import tokens
from lmkcli.store.doctable import DocRows
from lmkcli.store.part_writer import PartWriter
from lmkcli.store.token_blocks import DocBlock, TextTokens, TokenBlock, TokenRow
from lmkcli.store.tokens import Tokens
from lmkcli.system.item_streams import batched, prefetch
from lmkcli.system.workers import in_order, in_process
from lmkcli.text.formatting import counted

WORKER_CHARACTERS = 1 << 16  # per call of one process of several: they should end at the same time
# of a block from another process: each takes several turns of Python's lock here, which others hold for
# milliseconds
MOVED_CHARACTERS = 1 << 20


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

    A thread reads ahead. With `workers`, a process of its own reads the source, and `workers` others tokenize
    for it; so the thread that starts the model shares Python's lock with none of this. A source that
    another process cannot read is read in the thread.
    """
    reading = _Reading(source, tokenize, shard, skip, workers)
    last: _Step | None = None

    def batches() -> Iterator[DocBlock]:
        nonlocal last
        for step in prefetch(
            in_process(reading.moved) if reading.can_move() else reading.steps(), 2
        ):
            if isinstance(step, Collection):
                # what its copy in another process found out, such as the files that it left out
                vars(source).update(vars(step))
            else:
                last = step
                yield step.block

    return TokenStream(
        batches(), lambda: last.fraction if last else None, lambda: last.total if last else None
    )


class _Step(NamedTuple):
    """A block of a stream, the share of the work that ends with it, and the number of documents."""

    block: DocBlock
    fraction: float | None
    total: int | None


def _characters(step: _Step) -> int:
    """Return the characters of a block, or its tokens if there are more: a tokens folder
    may have no texts.
    """
    docs = step.block.docs
    characters = sum(len(doc.text) + len(doc.title) for doc in docs)
    return max(characters, len(step.block.tokens.ids)) + 64 * len(docs)


@dataclass(frozen=True)
class _Reading:
    """Reads a source; in another process, if it can move there."""

    source: Collection | Tokens
    tokenize: TextTokenizer
    shard: Shard
    skip: int
    workers: int

    def can_move(self) -> bool:
        """Return whether another process should read the source, and can."""
        here = isinstance(self.source, Collection) and not self.source.can_move()
        if here or not self.workers:
            return False
        try:
            pickle.dumps(self.source)
        except Exception:  # of any class of a source: it has a connection, or a function
            return False
        return True

    def steps(self) -> Iterator[_Step]:
        """Yield the blocks of the source."""
        if isinstance(self.source, Tokens):
            return self._stored(self.source)
        return self._tokenized(self.source)

    def moved(self) -> Iterator["_Step | Collection"]:
        """Yield larger blocks, and then the source, which now knows what it left out."""
        for steps in batched(self.steps(), _characters, MOVED_CHARACTERS):
            yield steps[-1]._replace(block=DocBlock.join([step.block for step in steps]))
        if isinstance(self.source, Collection):
            yield self.source

    def _stored(self, source: Tokens) -> Iterator[_Step]:
        rows = self.shard.rows(source.docs)
        read, total = 0, max(0, len(rows) - self.skip)
        for block in source.rows(rows.start + self.skip, rows.stop):
            read += len(block)
            yield _Step(block, read / total if total else None, total)

    def _tokenized(self, source: Collection) -> Iterator[_Step]:
        docs = source.docs(self.shard)
        # documents are read before they are tokenized, so each keeps the share that ends with it
        shares: deque[float | None] = deque()
        skipped = 0.0

        def rest() -> Iterator[Doc]:
            nonlocal skipped
            for number, doc in enumerate(docs, 1):
                if number > self.skip:
                    shares.append(docs.fraction)
                    yield doc
                elif number == self.skip:
                    skipped = docs.fraction or 0.0

        for block in tokenized(rest(), self.tokenize, self.workers):
            share = [shares.popleft() for _ in range(len(block))][-1]
            if share is not None:
                share = (share - skipped) / (1 - skipped) if skipped < 1 else None
            # a JSON array knows its number only after its start
            total = None if docs.total is None else max(0, docs.total - self.skip)
            yield _Step(block, share, total)


def write_tokens(stream: TokenStream, writer: PartWriter, report: Report) -> None:
    """Append the documents of a stream to the parts of a tokens folder."""
    count = rows = 0
    for batch in stream.batches:
        block = DocBlock.of(batch)
        lengths = block.tokens.lengths
        count += int(lengths.sum())
        rows += len(block)
        total = estimate_total(count, stream.fraction())
        report.progress(count, total, "tokens", documents_of(rows, stream.docs()))
        docs = DocRows(block.docs, block.hashes, {"tokens": lengths})
        writer.append(docs, tokens.arrays_of(block.tokens, writer))


def documents_of(done: int, total: int | None) -> str:
    """Return the documents of a job for people: '12 of 80 documents', or '12 documents' if 80 is unknown."""
    return counted(done, "document") if total is None else f"{done:,} of {total:,} documents"
