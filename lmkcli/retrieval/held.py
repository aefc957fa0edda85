"""Vectors that are held in memory, with the ids of their documents, to be searched exactly."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from lmkcli.data.run import Ranking, ranked
from lmkcli.retrieval.indexes.exact import Exact
from lmkcli.store.ragged import Ragged


class Held:
    """A Matrix of documents, one row each, of one vector or more."""

    def __init__(self, ids: Sequence[str], vectors: Ragged) -> None:
        self.ids, self._vectors = list(ids), vectors
        self.rows, self.total = len(self.ids), len(vectors.vectors)
        self.dim = vectors.vectors.shape[1]
        self.single = self.rows == self.total

    def __iter__(self) -> Iterator[Ragged]:
        """All in one block."""
        yield self._vectors

    def at(self, rows: NDArray[np.int64]) -> Ragged:
        """The vectors of some rows."""
        return self._vectors.take(rows)

    def search(self, queries: Ragged, k: int, device: torch.device) -> list[Ranking]:
        """The k best documents of each query, by the one score, ties by id."""
        hits = Exact(self, device).search(queries, min(k, self.rows))
        return [
            ranked([self.ids[row] for row in rows], scores).cut(k)
            for rows, scores in zip(hits.rows, hits.scores, strict=True)
        ]
