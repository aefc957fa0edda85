"""Vectors as an index: exact search, or an engine, with the encoder of their queries.

The query side of the vectors' recipe encodes the queries. Passages are the chunks that answer a query best.
Nothing here depends on the codec of the vectors.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.artifact.artifact import Artifact
from lmkcli.artifact.kinds import VectorsManifest
from lmkcli.data.collection import Doc, Query
from lmkcli.data.run import Run, ranked
from lmkcli.encoding.encoder import Encoder, open_recorded_queries
from lmkcli.encoding.representation import QueryEncoder
from lmkcli.errors import DataError
from lmkcli.progress import Progress, silent
from lmkcli.retrieval.index import IndexInfo, Passage, ScoredChunk
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.vectors.division import division_of
from lmkcli.retrieval.vectors.ranked_units import RankedUnits
from lmkcli.retrieval.vectors.vector_search import Division, RowHits, RowSearch, scoring_of
from lmkcli.spec.values import is_digits
from lmkcli.store.token_blocks import TokenRow
from lmkcli.vectors.rows import AnyRows, Ragged
from lmkcli.vectors.stored import DENSE, DenseVectors, Vectors

COSINE = "cosine similarity"
_QUERIES = 256  # queries that are encoded at once for their passages
LONGEST = (
    16_384  # positions of a document that is encoded again for its contributions: some seconds
)


def open_vectors(
    folder: Path | Artifact[VectorsManifest], settings: OpenSettings
) -> "VectorIndex[Any]":
    """Open vectors without an index, for exact search."""
    vectors: Vectors[Any] = Vectors(folder)
    units = RankedUnits(vectors, settings.level or "", settings.aggregate or "")
    info = IndexInfo(str(vectors.folder.absolute()), "exact", vectors.digest(), units.identity)
    search = scoring_of(vectors.codec_name).search(units.matrix, settings)
    return VectorIndex(info, units, search, settings)


def meaning_of(vectors: Vectors[Any]) -> str:
    """Return what a score is, for people."""
    if vectors.recipe.query.unit != "doc":
        return "sum of the similarities of query tokens"
    cosine = vectors.kind == DENSE and vectors.recipe.doc.normalize
    return COSINE if cosine else "dot product"


class VectorIndex(Generic[AnyRows]):
    """Vectors, a search over them, and the encoder of their queries."""

    def __init__(
        self,
        info: IndexInfo,
        units: RankedUnits[AnyRows],
        vector_search: RowSearch[AnyRows],
        settings: OpenSettings,
    ) -> None:
        self.info = info._replace(meaning=meaning_of(units.vectors))
        self.units, self.vector_search, self.settings = units, vector_search, settings
        self._encoder: QueryEncoder[AnyRows] | None = None
        # the last queries that were encoded: the number of each by its text, and their vectors
        self._recent: tuple[dict[str, int], AnyRows] | None = None

    def search(self, queries: list[Query], k: int) -> Run:
        """Encode and search queries. Documents are ranked by exact scores, ties by document id."""
        matrix = self.units.matrix
        if not queries or not matrix.rows:
            return Run({query.id: ranked([], np.zeros(0, np.float32)) for query in queries})
        hits = self.vector_search.search(self.encoded(queries), min(k, matrix.rows))
        return replace(self.ranked(queries, hits, k), cut=self.encoder().cut(queries))

    def encoded(self, queries: list[Query]) -> AnyRows:
        """Encode queries. Raises UsageError if their vectors do not fit the aggregate of the search."""
        encoded = self.encoder().queries(queries)
        self.units.check(encoded)
        self._recent = {query.text: number for number, query in enumerate(queries)}, encoded
        return encoded

    def _encoded_query(self, query: Query) -> AnyRows:
        """Return the vectors of one query, which the search just before may have encoded."""
        if self._recent is not None:
            numbers, encoded = self._recent
            if query.text in numbers:
                return encoded.one(numbers[query.text])
        return self.encoder().queries([query])

    def ranked(self, queries: list[Query], hits: RowHits, k: int) -> Run:
        """Rank the k best hits of each query, ties by document id. Requires at least one query."""
        ids = self.units.matrix.ids(np.concatenate(hits.rows))
        starts = np.cumsum([0, *(len(rows) for rows in hits.rows)])
        rankings = {}
        for query, start, stop, scores in zip(
            queries, starts[:-1], starts[1:], hits.scores, strict=True
        ):
            ranking = ranked(ids[start:stop], scores)
            if len(set(ranking.doc_ids)) < len(ranking.doc_ids):
                raise DataError(
                    f"{self.info.path}: a document id occurs in two shards; encode again"
                )
            rankings[query.id] = ranking.cut(k)
        return Run(rankings)

    def greatest_score(self, query: Query) -> float | None:
        """Return 1 for cosine similarities; None for other scores, which have no such limit."""
        return 1.0 if self.info.meaning == COSINE else None

    def encoder(self) -> QueryEncoder[AnyRows]:
        """Return the encoder of the query side, which is loaded at the first call."""
        if self._encoder is None:
            self._encoder = open_query_encoder(self.units.vectors, self.settings)
        return self._encoder

    def use_encoder(self, encoder: QueryEncoder[AnyRows]) -> None:
        """Use a loaded encoder of the query side of the same recipe."""
        self._encoder = encoder

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """Return documents by id, or chunks with their own text. The ids of all parts are read once."""
        if self.units.level == "doc":
            return {doc.id: doc for doc in self.units.vectors.by_ids(ids)}
        chunks = passages_of(self.units.vectors, ids)
        return {name: Doc(name, chunk.text, doc.title) for name, (doc, chunk) in chunks.items()}

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """Return the best chunk of each document, or the chunks that the ids name."""
        vectors = self.units.vectors
        if self.units.level == "chunk":
            return {name: chunk for name, (_, chunk) in passages_of(vectors, ids).items()}
        if vectors.recipe.doc.unit != "chunk":
            return {}
        return best_passages(vectors, self._encoded_query(query), ids)

    @property
    def dense(self) -> DenseVectors | None:
        """The vectors, with their recipe; None if they are not dense."""
        vectors: Any = self.units.vectors
        return vectors if vectors.kind == DENSE else None

    @property
    def unit(self) -> str:
        """What one vector represents: doc, chunk or token."""
        return self.units.vectors.recipe.doc.unit

    @property
    def documents(self) -> int:
        """The number of documents."""
        return self.units.vectors.rows

    @property
    def dimensions(self) -> int | None:
        """The dimensions of the vectors; None if they are not dense."""
        return self.dense.dim if self.dense else None

    def open_files(self, text_bytes: int = 0) -> None:
        """Open all files now. Then the object needs no names, which an update may remove.

        Up to `text_bytes` of stored texts stay in memory.
        """
        self.units.vectors.open_files(text_bytes)
        if (
            not self.dense
        ):  # several dense indexes may share the encoder that they get from the caller
            self.encoder()

    @property
    def exact(self) -> bool:
        """Whether all vectors are compared with a query, without an index."""
        return self.info.kind == "exact"

    def division(self) -> Division[AnyRows] | None:
        """Return how a search is divided among tasks; None if the engine searches whole."""
        return division_of(self)

    def existing(self, ids: Sequence[str]) -> list[str]:
        """Return those ids that `texts` accepts; of a ranking of chunks, the ids of existing chunks."""
        if self.units.level != "chunk":
            return [*ids]
        vectors = self.units.vectors
        names = {name: name.rpartition("#") for name in ids}
        rows = vectors.rows_of([doc_id for doc_id, *_ in names.values()])
        return [
            name
            for name, (doc_id, _, chunk) in names.items()
            if doc_id in rows and is_digits(chunk) and int(chunk) < len(vectors.spans(rows[doc_id]))
        ]

    def unfindable(self, ids: Sequence[str]) -> list[str]:
        """Return those ids that have no vector. The ids of all parts are read once."""
        if self.units.level == "chunk":
            found = {*self.existing(ids)}
        else:
            vectors = self.units.vectors
            rows = vectors.rows_of([*ids])
            counts = None if vectors.single else np.diff(vectors.starts)
            found = {name for name, row in rows.items() if counts is None or counts[row]}
        return [name for name in ids if name not in found]

    def chunk_scores(self, query: Query, name: str) -> list[ScoredChunk]:
        """Return all chunks of a document with their scores for a query; nothing without chunks."""
        vectors = self.units.vectors
        if vectors.recipe.doc.unit != "chunk" or self.units.level == "chunk":
            return []
        found = _scored(vectors, self._encoded_query(query), [name])
        return [
            ScoredChunk(int(begin), int(end), float(score))
            for scored in found
            for (begin, end), score in zip(vectors.spans(scored.row), scored.scores, strict=True)
        ]

    def contributions(self, query: Query, doc: Doc, encoder: Encoder[Any]) -> list[ScoredChunk]:
        """Return what each chunk of a document with one vector contributes to its score for a query.

        A contribution is the dot product of the query with the chunk's share of the vector; the sum is the
        score. `encoder` encodes documents, here once. Empty if the vector does not divide among chunks
        (`Encoder.shares`), if the document is too long, or if its text is not stored.
        """
        if not doc.text or self.units.level == "chunk" or not self.units.vectors.single:
            return []
        (tokens,) = encoder.tokenizer([doc.content])
        shares = encoder.shares(TokenRow(doc, b"", *tokens), LONGEST)
        if shares is None:
            return []
        asked: Any = self._encoded_query(query)  # as dense as the shares
        scores = Ragged.single(shares.vectors).products(asked)
        return [
            ScoredChunk(int(begin), int(end), float(score))
            for (begin, end), score in zip(shares.spans, scores, strict=True)
        ]

    def best_chunks(
        self,
        queries: Sequence[Query],
        ids: Mapping[str, list[str]],
        progress: Progress = silent,
    ) -> dict[tuple[str, str], Passage]:
        """Return (query id, document id) -> the passage, for the documents `ids` of each query.

        The passages are those of `passages`, without their texts. The ids of the vectors are read once, so
        this is fast for many queries. Empty if a document has one vector.
        """
        vectors, by_chunk = self.units.vectors, self.units.level == "chunk"
        if vectors.recipe.doc.unit != "chunk" and not by_chunk:
            return {}
        names = dict.fromkeys(name for each in ids.values() for name in each)
        owner_of = {name: name.rpartition("#")[0] if by_chunk else name for name in names}
        row_of = vectors.rows_of([*dict.fromkeys(owner_of.values())])
        found: dict[tuple[str, str], Passage] = {}
        for first in range(0, len(queries), _QUERIES):
            batch = list(queries[first : first + _QUERIES])
            encoded = None if by_chunk else self.encoder().queries(batch)
            for number, query in enumerate(batch):
                for name in ids.get(query.id, ()):
                    row, place = row_of.get(owner_of[name]), name.rpartition("#")[2]
                    if row is None or (by_chunk and not is_digits(place)):
                        continue
                    chunk = (
                        int(place)
                        if encoded is None
                        else best_chunk(vectors, row, encoded.one(number))
                    )
                    spans = vectors.spans(row)
                    if chunk < len(spans):  # the vectors may be newer than the run
                        begin, end = map(int, spans[chunk])
                        found[query.id, name] = Passage(chunk, len(spans), begin, end, "")
            progress(first + len(batch), len(queries), "queries")
        return found


def open_query_encoder(vectors: Vectors[AnyRows], settings: OpenSettings) -> QueryEncoder[AnyRows]:
    """Open the encoder of the query side of the vectors' recipe."""
    return open_recorded_queries(vectors, settings)


def best_passages(vectors: Vectors[AnyRows], query: AnyRows, ids: list[str]) -> dict[str, Passage]:
    """Return the best chunk of each document for a query: the one with the largest score."""
    return {
        scored.name: passage(vectors, scored.row, scored.doc, int(scored.scores.argmax()))
        for scored in _scored(vectors, query, ids)
    }


class _ScoredDocument(NamedTuple):
    """A document with the score of each of its chunks, [chunks]."""

    name: str
    row: int
    doc: Doc
    scores: NDArray[np.float64]


def _scored(vectors: Vectors[AnyRows], query: AnyRows, ids: list[str]) -> Iterator[_ScoredDocument]:
    """Yield documents with the scores of their chunks for a query."""
    for name, row, doc in rows_and_docs(vectors, ids):
        yield _ScoredDocument(name, row, doc, chunk_scores(vectors, row, query))


def chunk_scores(vectors: Vectors[AnyRows], row: int, query: AnyRows) -> NDArray[np.float64]:
    """Return the score of each chunk of a document for a query, [chunks]."""
    return vectors.at(np.array([row])).products(query)


def best_chunk(vectors: Vectors[AnyRows], row: int, query: AnyRows) -> int:
    """Return the number of the best chunk of a document for a query."""
    return int(chunk_scores(vectors, row, query).argmax())


def passages_of(vectors: Vectors[Any], ids: list[str]) -> dict[str, tuple[Doc, Passage]]:
    """Return the documents and passages of ids such as `doc#12`, but for chunks that do not exist."""
    names = {name: name.rpartition("#") for name in ids}
    doc_ids = [doc_id for doc_id, *_ in names.values()]
    docs = {doc.id: (row, doc) for _, row, doc in rows_and_docs(vectors, doc_ids)}
    passages = {}
    for name, (doc_id, _, chunk) in names.items():
        if doc_id not in docs or not is_digits(chunk):
            continue
        row, doc = docs[doc_id]
        if int(chunk) < len(vectors.spans(row)):
            passages[name] = (doc, passage(vectors, row, doc, int(chunk)))
    return passages


def passage(vectors: Vectors[Any], row: int, doc: Doc, chunk: int) -> Passage:
    """Return one chunk of a document."""
    spans = vectors.spans(row)
    begin, end = map(int, spans[chunk])
    return Passage(chunk, len(spans), begin, end, doc.content[begin:end])


def rows_and_docs(vectors: Vectors[Any], ids: list[str]) -> list[tuple[str, int, Doc]]:
    """Return the id, the row and the document of each of the ids."""
    rows = vectors.rows_of(ids)
    docs = vectors.docs(np.array(list(rows.values()), np.int64))
    return [(name, row, doc) for (name, row), doc in zip(rows.items(), docs, strict=True)]
