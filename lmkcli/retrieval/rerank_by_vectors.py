"""Reranking by stored vectors: documents scored exactly, as dense search would score them."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import Query
from lmkcli.encoding.encoder import Encoder
from lmkcli.retrieval.dense import open_query_encoder
from lmkcli.retrieval.index import IndexInfo, Passage
from lmkcli.retrieval.indexes.exact_scorer import ExactScorer
from lmkcli.retrieval.passages import best_passages
from lmkcli.retrieval.reranking import Scorer
from lmkcli.retrieval.views import RankedUnits
from lmkcli.settings import OpenSettings
from lmkcli.store.ragged import Ragged
from lmkcli.store.vectors import Vectors


class VectorReranker:
    """A vectors folder that scores documents in float64; NaN for documents without a vector."""

    def __init__(self, path: Path, settings: OpenSettings) -> None:
        vectors = Vectors(path)
        self._settings = settings
        self._units = RankedUnits(
            vectors, aggregate="" if vectors.single else settings.aggregate or ""
        )
        identity = self._units.identity
        self.info = IndexInfo(str(path.absolute()), "vectors", vectors.digest(), identity)

    def scorer(self, queries: list[Query]) -> Scorer:
        """Encodes the queries together."""
        encoded = self._encode(queries)
        places = {query.id: place for place, query in enumerate(queries)}
        exact = ExactScorer(self._units.matrix)

        def score(query: Query, doc_ids: Sequence[str]) -> NDArray[np.float64]:
            rows = np.array([self._rows.get(name, -1) for name in doc_ids], dtype=np.int64)
            scores = np.full(len(rows), np.nan)
            (scores[rows >= 0],) = exact(encoded.one(places[query.id]), [rows[rows >= 0]])
            return scores

        return score

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage] | None:
        """The best chunk of each document, where these are vectors of chunks."""
        if self._units.vectors.recipe.doc.unit != "chunk":
            return None
        return best_passages(self._units.vectors, self._encode([query]).vectors, ids)

    def _encode(self, queries: list[Query]) -> Ragged:
        encoded = self._encoder.queries(queries)
        self._units.check(encoded)
        return encoded

    @cached_property
    def _encoder(self) -> Encoder:
        return open_query_encoder(self._units.vectors, self._settings)

    @cached_property
    def _rows(self) -> dict[str, int]:
        """Document id -> row."""
        return self._units.vectors.numbers()
