"""Contexts: batches of documents in chunks, whose chunks are embedded within their documents.

Late chunking in training (InSeNT, Conti et al. 2025, §4): a document is one input, and makes a vector
for each chunk that is not cut off.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lmkcli.data.collection import CHUNK, WHOLE, Shard
from lmkcli.errors import DataError
from lmkcli.pooling.placement import Placement
from lmkcli.training.contextual import ChunkQuery, Document, Documents, facts
from lmkcli.training.examples import Ints
from lmkcli.training.feeding import SourceSides, TrainBatch
from lmkcli.training.placing import Placed, TrainingSide
from lmkcli.training.sampling import Batch


@dataclass(frozen=True)
class Contexts:
    """Places documents and the queries that their chunks answer.

    Every process places the whole batch, since what is cut off decides its facts, and runs its slice.
    """

    documents: Documents
    sides: Sequence[SourceSides]  # one for each source
    shard: Shard = WHOLE

    def __call__(self, batch: Batch) -> TrainBatch:
        """Its slice; DataError where no query of the batch has a chunk within the length."""
        placed = [self._placed(int(number)) for number in batch.examples]
        kept = [document for document, _ in placed]
        if not any(document.queries for document in kept):
            raise DataError(
                f"step {batch.step}: every chunk that answers a query is cut off; raise --max-length"
            )
        rows = self.shard.rows(len(placed))
        mine = slice(rows.start, rows.stop)
        sources = self.documents.sources[batch.examples][mine]
        queries = [
            placement
            for document, source in zip(kept[mine], sources, strict=True)
            for placement in self._queries(document, self.sides[source].query)
        ]
        return TrainBatch(
            batch.step,
            [document.id for document in kept[mine]],
            Placed.of(queries, [""] * len(queries)),
            _by_chunk([placement for _, placement in placed[mine]]),
            facts(kept),
        )

    def _placed(self, number: int) -> tuple[Document, Placement]:
        """The document with the chunks that have a vector, and its inputs."""
        document, side = self.documents[number], self.sides[self.documents.sources[number]].passage
        written = np.flatnonzero([bool(chunk.strip()) for chunk in document.chunks])
        text = CHUNK.join(document.chunks[i] for i in written)
        ((placement, numbers),) = side.chunked([text])
        return _left(document, written[numbers]), placement

    def _queries(self, document: Document, side: TrainingSide) -> list[Placement]:
        texts = [asked.query for asked in document.queries]
        return side.placements(texts, [None] * len(texts), [0] * len(texts)) if texts else []


def _left(document: Document, numbers: Ints) -> Document:
    """The document without the chunks that were cut off or empty, and what is asked of them."""
    places = {int(number): place for place, number in enumerate(numbers)}
    queries = [
        ChunkQuery(asked.query, places[asked.chunk])
        for asked in document.queries
        if asked.chunk in places
    ]
    chunks = tuple(document.chunks[int(number)] for number in numbers)
    return Document(document.id, chunks, tuple(queries))


def _by_chunk(placements: Sequence[Placement]) -> Placed:
    """The documents side by side, every chunk a text of its own."""
    placed = Placed.of(placements, [""] * len(placements))
    chunks = int(placed.counts.sum())
    return placed._replace(counts=torch.ones(chunks, dtype=torch.long), grans=["given"] * chunks)
