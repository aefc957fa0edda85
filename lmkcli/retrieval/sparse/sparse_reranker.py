"""Reranking by stored sparse vectors: documents get the scores of exact sparse search."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmkcli.artifact.artifact import Artifact, open_artifact
from lmkcli.artifact.kinds import VectorsManifest
from lmkcli.data.collection import Query
from lmkcli.retrieval.index import Passage
from lmkcli.retrieval.reranking import Scorer
from lmkcli.retrieval.settings import OpenSettings
from lmkcli.retrieval.sparse.sparse_index import open_sparse_vectors


class SparseReranker:
    """Sparse vectors that score documents in float64; NaN for documents without a vector.

    A document that shares no term with the query has the score 0.
    """

    def __init__(self, path: Path | Artifact[VectorsManifest], settings: OpenSettings) -> None:
        opened = open_artifact(path, VectorsManifest)
        single = opened.manifest.identity.recipe.doc.unit == "doc"
        aggregate = None if single else settings.aggregate
        self._index = open_sparse_vectors(
            opened, replace(settings, level=None, aggregate=aggregate)
        )
        self.info = self._index.info._replace(kind="vectors")

    def scorer(self, queries: list[Query]) -> Scorer:
        """Encode the queries in one batch and return their scorer."""
        encoded = self._index.encoded(queries)
        positions = {query.id: position for position, query in enumerate(queries)}

        def score(query: Query, doc_ids: Sequence[str]) -> NDArray[np.float64]:
            rows = np.array([self._rows.get(name, -1) for name in doc_ids], dtype=np.int64)
            scores = np.full(len(rows), np.nan)
            if (rows >= 0).any():
                weights = encoded.take(np.array([positions[query.id]])).dense()[0]
                found = self._index.vectors.at(rows[rows >= 0])
                products = found.products(weights)
                scores[rows >= 0] = np.maximum.reduceat(products, found.starts[:-1])
            return scores

        return score

    def cut(self, queries: list[Query]) -> frozenset[str]:
        """Return the ids of the queries that are longer than the limit of the vectors."""
        return self._index.encoder.cut(queries)

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage] | None:
        """Return the best chunk of each document; None if these are not vectors of chunks."""
        return None if self._index.vectors.single else self._index.passages(query, ids)

    @cached_property
    def _rows(self) -> dict[str, int]:
        """Rows by document id."""
        return self._index.vectors.numbers()
