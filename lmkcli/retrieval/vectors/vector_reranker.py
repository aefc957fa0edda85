"""Reranking by stored vectors: documents get the exact scores of a search over the vectors."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lmkcli.artifact.artifact import Artifact
from lmkcli.artifact.kinds import VectorsManifest
from lmkcli.data.collection import Query
from lmkcli.data.run import Scored
from lmkcli.encoding.representation import QueryEncoder
from lmkcli.retrieval.index import IndexInfo, Passage
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.reranking import Scorer
from lmkcli.retrieval.vectors.ranked_units import RankedUnits
from lmkcli.retrieval.vectors.vector_index import best_passages, open_query_encoder
from lmkcli.retrieval.vectors.vector_search import scoring_of
from lmkcli.vectors.stored import Vectors


class VectorReranker:
    """A vectors folder that scores documents in float64; NaN for documents without a vector."""

    def __init__(
        self,
        path: Path | Artifact[VectorsManifest],
        settings: OpenSettings,
        encoder: QueryEncoder[Any] | None = None,
    ) -> None:
        """Open the vectors; `encoder` is the encoder of their queries if it is loaded already."""
        vectors: Vectors[Any] = Vectors(path)
        self._settings, self._loaded = settings, encoder
        self._units = RankedUnits(
            vectors, aggregate="" if vectors.single else settings.aggregate or ""
        )
        identity = self._units.identity
        self.info = IndexInfo(str(vectors.folder.absolute()), "vectors", vectors.digest(), identity)

    def scorer(self, queries: list[Query]) -> Scorer:
        """Encode the queries in one batch and return their scorer."""
        encoded = self._encode(queries)
        positions = {query.id: position for position, query in enumerate(queries)}
        exact = scoring_of(self._units.vectors.codec_name).scorer(self._units.matrix)

        def score(query: Query, doc_ids: Sequence[str]) -> Scored:
            rows = np.array([self._rows.get(name, -1) for name in doc_ids], dtype=np.int64)
            scores = np.full(len(rows), np.nan)
            (scores[rows >= 0],) = exact(encoded.one(positions[query.id]), [rows[rows >= 0]])
            return Scored(scores)

        return score

    def cut(self, queries: list[Query]) -> frozenset[str]:
        """Return the ids of the queries that are longer than the limit of the vectors."""
        return self._encoder.cut(queries)

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage] | None:
        """Return the best chunk of each document; None if these are not vectors of chunks."""
        if self._units.vectors.recipe.doc.unit != "chunk":
            return None
        return best_passages(self._units.vectors, self._encode([query]), ids)

    def _encode(self, queries: list[Query]) -> Any:
        encoded = self._encoder.queries(queries)
        self._units.check(encoded)
        return encoded

    @cached_property
    def _encoder(self) -> QueryEncoder[Any]:
        return self._loaded or open_query_encoder(self._units.vectors, self._settings)

    @cached_property
    def _rows(self) -> dict[str, int]:
        """Rows by document id."""
        return self._units.vectors.numbers()
