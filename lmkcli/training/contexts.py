"""Contexts: batches of documents in chunks, for late chunking in training (InSeNT, Conti et al. 2025, §4).

A document is one input of the model. It gives one vector for each chunk that is not truncated.
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

    Every process places the whole batch, because truncation changes the batch facts, but runs only its
    slice.
    """

    documents: Documents
    sides: Sequence[SourceSides]  # one for each source
    shard: Shard = WHOLE

    def __call__(self, batch: Batch) -> TrainBatch:
        """Return this process's slice. Raises DataError if every gold chunk of the batch is truncated."""
        placed = [self._placed(int(number)) for number in batch.examples]
        kept = [document for document, _ in placed]
        if not any(document.queries for document in kept):
            raise DataError(
                f"step {batch.step}: every chunk that answers a query is truncated; raise --max-length"
            )
        rows = self.shard.rows(len(placed))
        local = slice(rows.start, rows.stop)
        sources = self.documents.sources[batch.examples][local]
        queries = [
            placement
            for document, source in zip(kept[local], sources, strict=True)
            for placement in self._queries(document, self.sides[source].query)
        ]
        return TrainBatch(
            batch.step,
            [document.id for document in kept[local]],
            Placed.of(queries, [""] * len(queries)),
            _by_chunk([placement for _, placement in placed[local]]),
            facts(kept),
        )

    def _placed(self, number: int) -> tuple[Document, Placement]:
        """Return the document with only the chunks that have a vector, and its inputs."""
        document, side = self.documents[number], self.sides[self.documents.sources[number]].passage
        nonempty = np.flatnonzero([bool(chunk.strip()) for chunk in document.chunks])
        text = CHUNK.join(document.chunks[i] for i in nonempty)
        ((placement, numbers),) = side.place_chunks([text])
        return _selected(document, nonempty[numbers]), placement

    def _queries(self, document: Document, side: TrainingSide) -> list[Placement]:
        texts = [each.query for each in document.queries]
        return side.placements(texts, [None] * len(texts), [0] * len(texts)) if texts else []


def _selected(document: Document, numbers: Ints) -> Document:
    """Return the document with only the chunks `numbers`, and the queries that they answer."""
    places = {int(number): place for place, number in enumerate(numbers)}
    queries = [
        ChunkQuery(each.query, places[each.chunk])
        for each in document.queries
        if each.chunk in places
    ]
    chunks = tuple(document.chunks[int(number)] for number in numbers)
    return Document(document.id, chunks, tuple(queries))


def _by_chunk(placements: Sequence[Placement]) -> Placed:
    """Combine the documents; count every chunk as one text with one vector."""
    placed = Placed.of(placements, [""] * len(placements))
    chunks = int(placed.counts.sum())
    return placed._replace(counts=torch.ones(chunks, dtype=torch.long), grans=["given"] * chunks)
