"""Sparse vectors as an index: the query side of their recipe encodes the queries, and products rank."""

from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmkcli.artifact.artifact import Artifact
from lmkcli.artifact.kinds import VectorsManifest
from lmkcli.data.collection import Doc, Query
from lmkcli.data.run import Run, ranked
from lmkcli.encoding.encoder import SparseEncoder, open_recorded_sparse_queries
from lmkcli.encoding.static_queries import StaticQueries
from lmkcli.errors import Mismatch, UsageError
from lmkcli.retrieval.dense.dense_index import passage, passages_of, rows_and_docs
from lmkcli.retrieval.dense.vector_search import Division, RowHits, SparseProduct
from lmkcli.retrieval.index import IndexInfo, Passage
from lmkcli.retrieval.settings import OpenSettings
from lmkcli.retrieval.sparse.division import SparseDivision
from lmkcli.retrieval.sparse.exact_product import exact_product
from lmkcli.store.sparse import SparseRagged, SparseVectors


def open_sparse_vectors(
    folder: Path | Artifact[VectorsManifest], settings: OpenSettings
) -> "SparseIndex":
    """Open sparse vectors for exact search. Raises UsageError for settings without an effect."""
    vectors = SparseVectors(folder)
    info = IndexInfo(str(vectors.folder.absolute()), "exact", vectors.digest(), {})
    return open_ranked(info, vectors, settings, exact_product)


def open_ranked(
    info: IndexInfo, vectors: SparseVectors, settings: OpenSettings, product: SparseProduct
) -> "SparseIndex":
    """Return sparse vectors with a search over them. Raises UsageError for settings without an effect."""
    if vectors.single and (settings.level or settings.aggregate):
        raise UsageError(
            f"{vectors.folder} holds one vector for each document, so that --aggregate and --level have no "
            "effect; drop them, or encode with --unit chunk"
        )
    if settings.aggregate not in (None, "max"):
        raise UsageError(
            f"--aggregate {settings.aggregate}: the score of a document with several sparse vectors is their "
            "maximum; drop it"
        )
    search = dict(info.search)
    if not vectors.single:
        search |= {"level": "chunk"} if settings.level == "chunk" else {"aggregate": "max"}
    return SparseIndex(info._replace(search=search), vectors, settings, product)


class SparseIndex:
    """Sparse vectors, a search over them, and the encoder of their queries."""

    def __init__(
        self,
        info: IndexInfo,
        vectors: SparseVectors,
        settings: OpenSettings,
        product: SparseProduct,
    ) -> None:
        self.info, self.vectors = info, vectors
        self._settings, self.by_chunk = settings, settings.level == "chunk"
        self._product = product

    def search(self, queries: list[Query], k: int) -> Run:
        """Encode and search queries. Documents that share no term with a query are left out."""
        rankings = {query.id: ranked([], np.zeros(0, np.float32)) for query in queries}
        if queries and self.vectors.rows:
            hits = self._product(self.vectors, self.encoded(queries), k, self.by_chunk)
            return replace(self.ranked(queries, hits, k), cut=self.encoder.cut(queries))
        return Run(rankings)

    def ranked(self, queries: list[Query], hits: RowHits, k: int) -> Run:
        """Rank the k best hits of each query, ties by document id."""
        found = zip(queries, hits.rows, hits.scores, strict=True)
        return Run(
            {query.id: ranked(self._ids(rows), scores).cut(k) for query, rows, scores in found}
        )

    def encoded(self, queries: list[Query]) -> SparseRagged:
        """Return the sparse vectors of queries. Raises Mismatch for another vocabulary."""
        encoded = self.encoder.queries(queries)
        if encoded.dim != self.vectors.dim:
            raise Mismatch(
                f"the queries have {encoded.dim} terms, and the vocabulary of {self.vectors.folder} has "
                f"{self.vectors.dim}; give the original model with --model"
            )
        return encoded

    def division(self) -> Division[SparseRagged] | None:
        """Return how an exact search is divided; an index is searched whole."""
        return SparseDivision(self) if self.info.kind == "exact" else None

    @property
    def unit(self) -> str:
        """What one vector represents: doc or chunk."""
        return self.vectors.recipe.doc.unit

    @property
    def documents(self) -> int:
        """The number of documents."""
        return self.vectors.rows

    dimensions = None  # sparse vectors have terms

    @cached_property
    def encoder(self) -> SparseEncoder | StaticQueries:
        """The encoder of the query side."""
        return open_recorded_sparse_queries(self.vectors, self._settings)

    def open_files(self, text_bytes: int = 0) -> None:
        """Open all files and the model now. Then the object needs no names, which a compaction may remove.

        Up to `text_bytes` of stored texts stay in memory.
        """
        self.vectors.open_files(text_bytes)
        _ = self.encoder

    def _ids(self, rows: NDArray[np.int64]) -> list[str]:
        if not self.by_chunk:
            return self.vectors.ids(rows)
        documents = np.searchsorted(self.vectors.starts, rows, side="right") - 1
        numbers = rows - self.vectors.starts[documents]
        names = self.vectors.ids(documents)
        return [f"{name}#{number}" for name, number in zip(names, numbers.tolist(), strict=True)]

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """Return documents by id, or chunks with their own text."""
        if not self.by_chunk:
            return {doc.id: doc for doc in self.vectors.by_ids(ids)}
        chunks = passages_of(self.vectors, ids)
        return {name: Doc(name, chunk.text, doc.title) for name, (doc, chunk) in chunks.items()}

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """Return the best chunk of each document, or the chunks that the ids name."""
        if self.by_chunk:
            return {name: chunk for name, (_, chunk) in passages_of(self.vectors, ids).items()}
        if self.vectors.single:
            return {}
        weights = self.encoded([query]).dense()[0]
        found = {}
        for name, row, doc in rows_and_docs(self.vectors, ids):
            products = self.vectors.at(np.array([row])).products(weights)
            found[name] = passage(self.vectors, row, doc, int(products.argmax()))
        return found
