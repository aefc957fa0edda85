"""Dense indexes: exact search over vectors, or an approximate index with exactly scored candidates.

The query side of the vectors' recipe encodes the queries. Passages are the chunks that answer a query best.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lmkcli.artifact.artifact import Artifact
from lmkcli.artifact.kinds import VectorsManifest
from lmkcli.data.collection import Doc, Query
from lmkcli.data.run import Run, ranked
from lmkcli.encoding.encoder import Encoder, open_recorded
from lmkcli.errors import DataError, UsageError
from lmkcli.models.devices import choose_device, native_dtype
from lmkcli.progress import Progress, silent
from lmkcli.retrieval.dense.candidates import ApproximateSearch
from lmkcli.retrieval.dense.division import ApproximateDivision, ExactDivision
from lmkcli.retrieval.dense.rows import RankedUnits, read_numbering
from lmkcli.retrieval.dense.vector_search import (
    Division,
    Matrix,
    OpenedEngine,
    RowHits,
    VectorSearch,
)
from lmkcli.retrieval.engines.exact.exact_search import Exact
from lmkcli.retrieval.engines.exact.gpu_search import GpuExact
from lmkcli.retrieval.index import IndexInfo, Passage, ScoredChunk
from lmkcli.retrieval.index_folder import BuiltIndex
from lmkcli.retrieval.index_input import notes_of
from lmkcli.retrieval.settings import OpenSettings
from lmkcli.spec.values import is_digits
from lmkcli.store.tokens import TokenRow
from lmkcli.store.vectors import Ragged, StoredVectors, Vectors

_QUERIES = 256  # queries that are encoded at once for their passages
LONGEST = (
    16_384  # positions of a document that is encoded again for its contributions: some seconds
)


def open_vectors(folder: Path | Artifact[VectorsManifest], settings: OpenSettings) -> "DenseIndex":
    """Open vectors without an index, for exact search."""
    vectors = Vectors(folder)
    units = RankedUnits(vectors, settings.level or "", settings.aggregate or "")
    info = IndexInfo(str(vectors.folder.absolute()), "exact", vectors.digest(), units.identity)
    return DenseIndex(info, units, exact_search(units.matrix, settings), settings)


def approximate_index(
    index: BuiltIndex,
    kind: str,
    vectors: Vectors,
    opened: OpenedEngine,
    settings: OpenSettings,
) -> "DenseIndex":
    """Return the index of an engine over the vectors that it was built from.

    Raises UsageError for `--level chunk` with encodings of whole documents.
    """
    nearest, note, encoding = opened
    units = RankedUnits(vectors, settings.level or "", settings.aggregate or "")
    if encoding and units.level == "chunk":
        raise UsageError(
            f"--level chunk: {index.folder} contains one encoding for each document (--muvera); search the "
            "vectors themselves, or build an index without --muvera"
        )
    exact = exact_search(units.matrix, settings)
    search = ApproximateSearch(nearest, units, read_numbering(index.of), exact, encoding)
    search_info: dict[str, Any] = {"ef_search": settings.ef_search, "nprobe": settings.nprobe}
    info = IndexInfo(
        str(index.folder.absolute()),
        kind,
        index.built["digest"],
        search_info | units.identity,
        (*notes_of(index, vectors), *([note] if note else [])),
    )
    return DenseIndex(info, units, search, settings)


def exact_search(matrix: Matrix, settings: OpenSettings) -> VectorSearch:
    """Return exact search over vectors, on the device that encodes the queries.

    A CPU with native bfloat16 multiplies in bfloat16 first.
    """
    device = choose_device(settings.device)
    if device.type == "cuda":
        return GpuExact(matrix, device)
    low = native_dtype(device) == "bf16"
    return Exact(matrix, device, torch.bfloat16 if low else torch.float32)


class DenseIndex:
    """Vectors, a search over them, and the encoder of their queries."""

    def __init__(
        self,
        info: IndexInfo,
        units: RankedUnits,
        vector_search: VectorSearch,
        settings: OpenSettings,
    ) -> None:
        self.info = info
        self.units, self.vector_search, self.settings = units, vector_search, settings
        self._encoder: Encoder | None = None
        self._recent: dict[
            str, NDArray[np.floating]
        ] = {}  # the vectors of the last queries, by text

    def search(self, queries: list[Query], k: int) -> Run:
        """Encode and search queries. Documents are ranked by exact scores, ties by document id."""
        matrix = self.units.matrix
        if not queries or not matrix.rows:
            return Run({query.id: ranked([], np.zeros(0, np.float32)) for query in queries})
        hits = self.vector_search.search(self.encoded(queries), min(k, matrix.rows))
        return replace(self.ranked(queries, hits, k), cut=self.encoder().cut(queries))

    def encoded(self, queries: list[Query]) -> Ragged:
        """Encode queries. Raises UsageError if their vectors do not fit the aggregate of the search."""
        encoded = self.encoder().queries(queries)
        self.units.check(encoded)
        self._recent = {query.text: encoded.text(n) for n, query in enumerate(queries)}
        return encoded

    def _encoded_query(self, query: Query) -> NDArray[np.floating]:
        """The vectors of one query, which the search just before may have encoded."""
        vectors = self._recent.get(query.text)
        return self.encoder().queries([query]).vectors if vectors is None else vectors

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

    def encoder(self) -> Encoder:
        """Return the encoder of the query side, which is loaded at the first call."""
        if self._encoder is None:
            self._encoder = open_query_encoder(self.units.vectors, self.settings)
        return self._encoder

    def use_encoder(self, encoder: Encoder) -> None:
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
    def dense(self) -> Vectors:
        """The vectors, with their recipe."""
        return self.units.vectors

    @property
    def unit(self) -> str:
        """What one vector represents: doc, chunk or token."""
        return self.dense.recipe.doc.unit

    @property
    def documents(self) -> int:
        """The number of documents."""
        return self.dense.rows

    @property
    def dimensions(self) -> int:
        """The dimensions of the vectors."""
        return self.dense.dim

    def open_files(self, text_bytes: int = 0) -> None:
        """Open all files now. Then the object needs no names, which an update may remove.

        Up to `text_bytes` of stored texts stay in memory.
        """
        self.dense.open_files(text_bytes)

    def division(self) -> Division[Ragged] | None:
        """Return how a search is divided: by documents, or by numbers in inverted lists."""
        search = self.vector_search
        if not isinstance(search, ApproximateSearch):
            return ExactDivision(self, lambda matrix: exact_search(matrix, self.settings))
        return ApproximateDivision(self, search) if search.nearest.divisible else None

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

    def contributions(self, query: Query, doc: Doc, encoder: Encoder) -> list[ScoredChunk]:
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
        scores = (shares.vectors @ self._encoded_query(query).astype(np.float64).T).sum(1)
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
        if vectors.recipe.doc.unit != "chunk":
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
                        else best_chunk(vectors, row, encoded.text(number))
                    )
                    spans = vectors.spans(row)
                    if chunk < len(spans):  # the vectors may be newer than the run
                        begin, end = map(int, spans[chunk])
                        found[query.id, name] = Passage(chunk, len(spans), begin, end, "")
            progress(first + len(batch), len(queries), "queries")
        return found


def open_query_encoder(vectors: Vectors, settings: OpenSettings) -> Encoder:
    """Open the encoder of the query side of the vectors' recipe."""
    return open_recorded(vectors, True, settings)


def best_passages(
    vectors: Vectors, query: NDArray[np.floating], ids: list[str]
) -> dict[str, Passage]:
    """Return the best chunk of each document for the vectors [n, dim] of a query.

    It has the largest sum of dot products with the query vectors.
    """
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


def _scored(
    vectors: Vectors, query: NDArray[np.floating], ids: list[str]
) -> Iterator[_ScoredDocument]:
    """Yield documents with the scores of their chunks: the sum of dot products with the query vectors."""
    for name, row, doc in rows_and_docs(vectors, ids):
        yield _ScoredDocument(name, row, doc, chunk_sums(vectors, row, query))


def chunk_sums(vectors: Vectors, row: int, query: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the score of each chunk of a document, [chunks], for the vectors [n, dim] of a query."""
    chunks = vectors.at(np.array([row])).vectors.astype(np.float64)
    sums: NDArray[np.float64] = (chunks @ query.astype(np.float64).T).sum(1)
    return sums


def best_chunk(vectors: Vectors, row: int, query: NDArray[np.floating]) -> int:
    """Return the number of the best chunk of a document for the vectors [n, dim] of a query."""
    return int(chunk_sums(vectors, row, query).argmax())


def passages_of(vectors: StoredVectors, ids: list[str]) -> dict[str, tuple[Doc, Passage]]:
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


def passage(vectors: StoredVectors, row: int, doc: Doc, chunk: int) -> Passage:
    """Return one chunk of a document."""
    spans = vectors.spans(row)
    begin, end = map(int, spans[chunk])
    return Passage(chunk, len(spans), begin, end, doc.content[begin:end])


def rows_and_docs(vectors: StoredVectors, ids: list[str]) -> list[tuple[str, int, Doc]]:
    """Return the id, the row and the document of each of the ids."""
    rows = vectors.rows_of(ids)
    docs = vectors.docs(np.array(list(rows.values()), np.int64))
    return [(name, row, doc) for (name, row), doc in zip(rows.items(), docs, strict=True)]
