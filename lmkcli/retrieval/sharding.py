"""Sharded search: each task searches one shard of the vectors, and the results are joined into one run.

The joined run equals the run of a single process: the same documents, scores and ties. A shard writes one
piece per batch of queries, with the best rows of each query and their scores. Two kinds of search can be
divided:

- Exact search: documents are divided. Scores are exact, so the k best hits of all shards are the result.
- Inverted lists: the numbers of vectors are divided. Each shard returns the candidates that the index finds
  among its numbers, with the index's own scores. The best candidates of all shards equal the candidates of
  an undivided search. Joining scores them exactly.

The first task encodes the queries for all tasks, because two machines may encode them differently.
"""

from collections.abc import Callable, Iterator
from functools import partial, reduce
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lmkcli.artifact.kinds import RunIdentity
from lmkcli.artifact.shards import Shards
from lmkcli.data.collection import Query, Shard
from lmkcli.data.run import Run
from lmkcli.encoding.encoder import AnyRagged
from lmkcli.errors import DataError, UsageError
from lmkcli.progress import Call, Note, Report
from lmkcli.retrieval.dense.candidates import ApproximateSearch
from lmkcli.retrieval.dense.dense_index import DenseIndex, exact_search
from lmkcli.retrieval.dense.vector_search import Candidates, RowHits
from lmkcli.retrieval.engines.exact.exact_search import top
from lmkcli.retrieval.index import Index
from lmkcli.retrieval.searching import MemoryBudget, batches, parts
from lmkcli.retrieval.sparse.exact_product import exact_product
from lmkcli.retrieval.sparse.sparse_index import SparseIndex
from lmkcli.store.sparse import SparseRagged
from lmkcli.store.vectors import Ragged
from lmkcli.system.atomic import atomic_file

Search = Callable[[Ragged, int], RowHits]


def sharded_search(
    index: Index, queries: list[Query], k: int
) -> "ShardedSearch[Ragged] | ShardedSearch[SparseRagged]":
    """Divide a search among tasks. Raises UsageError for an index that cannot be divided."""
    if isinstance(index, DenseIndex):
        search = index.vector_search
        if not isinstance(search, ApproximateSearch):
            return ShardedSearch(_ExactDivision(index), queries, k)
        if search.nearest.divisible:
            return ShardedSearch(_ApproximateDivision(index, search), queries, k)
    if isinstance(index, SparseIndex) and index.info.kind == "exact":
        return ShardedSearch(_SparseDivision(index), queries, k)
    raise UsageError(
        f"--shard: {index.info.path} ({index.info.kind}) is searched whole; shards are for vectors without "
        "an index, and for FAISS indexes of inverted lists (--kind ivf)"
    )


class ShardedSearch(Generic[AnyRagged]):
    """A search that is divided among tasks."""

    def __init__(self, division: "Division[AnyRagged]", queries: list[Query], k: int) -> None:
        self._division: Division[AnyRagged] = division
        self._queries, self._k = queries, min(k, division.rows)

    def claim(self, output: Path, identity: RunIdentity, count: int, call: Call) -> Shards:
        """Start or join the shards of a run. Raises Mismatch if the shards of another run exist."""
        pieces = [_piece(first) for first, _ in batches(self._queries)]
        return Shards.claim(output, identity, count, pieces, call)

    def search(
        self, shard: Shard, shards: Shards, report: Report, budget: MemoryBudget | None = None
    ) -> None:
        """Search one shard and write its missing pieces; existing pieces are kept.

        Raises DataError if not even one query fits in memory.
        """
        search = self._division.shard_search(shard)
        for first, batch in batches(self._queries):
            path = shards.path(shard.number, _piece(first))
            if not path.exists():
                encoded = self._encoded(first, batch, shards, report.note)
                hits = RowHits([], [])
                for part in parts(len(batch), self._k, budget):
                    rows, scores = search(_subset(encoded, part), self._k)
                    hits.rows.extend(rows)
                    hits.scores.extend(scores)
                with atomic_file(path) as temporary:
                    _write_hits(temporary, hits)
            report.progress(first + len(batch), len(self._queries), "queries")

    def joined(
        self, tag: str, shards: Shards, report: Report, budget: MemoryBudget | None = None
    ) -> Iterator[Run]:
        """Join the shards and yield the run in pieces.

        Raises DataError if shards are missing, or if not even one query fits in memory.
        """
        shards.check_whole()
        for first, batch in batches(self._queries):
            encoded = self._encoded(first, batch, shards, report.note)
            cut = _read_cut(shards.shared(f"queries-{first}.npz"), batch)
            paths = [shards.path(number, _piece(first)) for number in range(shards.count)]
            layout = self._division.layout(encoded)
            for part in parts(len(batch), self._k, budget):
                lists = self._division.lists(encoded, part)
                shard_hits = (_read_hits(path, layout, lists) for path in paths)
                hits = self._division.join(_subset(encoded, part), self._k, shard_hits)
                rankings = self._division.ranked(batch[part], hits, self._k).rankings
                yield Run(rankings, tag, cut=cut.intersection(rankings))
                report.progress(first + part.stop, len(self._queries), "queries")

    def _encoded(self, first: int, batch: list[Query], shards: Shards, note: Note) -> AnyRagged:
        """Return the vectors of a batch of queries. The first task that needs them encodes them for all."""
        path = shards.once(
            f"queries-{first}.npz", lambda path: self._division.encode(batch, path), note
        )
        return self._division.read(path, len(batch))


class _Layout(NamedTuple):
    """The layout of a piece: number of lists, range of rows, and whether lists have equal lengths."""

    lists: int
    rows: range
    equal_lengths: bool = False


class Division(Protocol[AnyRagged]):
    """Divides a search among tasks, and joins their results."""

    @property
    def rows(self) -> int:
        """The number of ranked documents or chunks."""

    def encode(self, queries: list[Query], path: Path) -> None:
        """Encode queries and write their vectors into a file."""

    def read(self, path: Path, queries: int) -> AnyRagged:
        """Read the vectors of queries. Raises DataError for impossible values."""

    def layout(self, queries: AnyRagged) -> _Layout:
        """Return the layout of a piece for these queries."""

    def lists(self, queries: AnyRagged, part: slice) -> slice:
        """Return the range of lists in a piece that belong to some of the queries."""

    def shard_search(self, shard: Shard) -> Callable[[AnyRagged, int], RowHits]:
        """Return the search of one shard. Its rows are numbered as in the undivided search."""

    def join(self, queries: AnyRagged, k: int, shard_hits: Iterator[RowHits]) -> RowHits:
        """Join the hits of all shards to the hits of an undivided search."""

    def ranked(self, queries: list[Query], hits: RowHits, k: int) -> Run:
        """Rank the k best hits of each query, ties by document id."""


class _DenseDivision:
    """What both divisions of a dense index share."""

    def __init__(self, index: DenseIndex) -> None:
        self._index, self._units = index, index.units

    @property
    def rows(self) -> int:
        return self._units.matrix.rows

    def encode(self, queries: list[Query], path: Path) -> None:
        encoded = self._index.encoded(queries)
        cut = _mask(queries, self._index.encoder().cut(queries))
        _save(path, vectors=encoded.vectors, counts=encoded.counts, cut=cut)

    def read(self, path: Path, queries: int) -> Ragged:
        return _read_queries(path, queries, self._units.matrix.dim)

    def ranked(self, queries: list[Query], hits: RowHits, k: int) -> Run:
        return self._index.ranked(queries, hits, k)


class _ExactDivision(_DenseDivision):
    """Exact search: each shard has a range of consecutive documents. A piece has one list per query."""

    def layout(self, queries: Ragged) -> _Layout:
        return _Layout(len(queries.counts), range(self._units.matrix.rows))

    def lists(self, queries: Ragged, part: slice) -> slice:
        return part

    def shard_search(self, shard: Shard) -> Search:
        units, first = self._units.share(shard)
        exact = exact_search(units.matrix, self._index.settings)

        def search(queries: Ragged, k: int) -> RowHits:
            rows, scores = exact.search(queries, k)
            return RowHits([query_rows + first for query_rows in rows], scores)

        return search

    def join(self, queries: Ragged, k: int, shard_hits: Iterator[RowHits]) -> RowHits:
        return reduce(partial(_merge_hits, k), shard_hits)


def _merge_hits(k: int, left: RowHits, right: RowHits) -> RowHits:
    """For each query, merge the hits of two shards: the k best, and all ties with the last of them.

    The result has only k hits and the ties, so joining shards one after the other takes the memory of two
    shards.
    """
    merged = RowHits([], [])
    for i in range(len(left.rows)):
        rows = np.concatenate([left.rows[i], right.rows[i]])
        rows, scores = top(rows, np.concatenate([left.scores[i], right.scores[i]]), k)
        merged.rows.append(rows)
        merged.scores.append(scores)
    return merged


class _SparseDivision:
    """Exact search over sparse vectors, divided as `_ExactDivision`."""

    def __init__(self, index: SparseIndex) -> None:
        self._index, self._vectors = index, index.vectors

    @property
    def rows(self) -> int:
        return self._vectors.total if self._index.by_chunk else self._vectors.rows

    def encode(self, queries: list[Query], path: Path) -> None:
        encoded = self._index.encoded(queries)
        arrays = {"lengths": encoded.lengths, "terms": encoded.terms, "weights": encoded.weights}
        _save(path, **arrays, cut=_mask(queries, self._index.encoder.cut(queries)))

    def read(self, path: Path, queries: int) -> SparseRagged:
        lengths, terms, weights = _load(path, lengths=np.int64, terms=np.int32, weights=np.float32)
        if not _sums_to(lengths, queries, len(terms)) or weights.shape != terms.shape:
            raise _damaged(path, "its arrays do not fit together")
        ones = np.ones(queries, np.int64)
        encoded = SparseRagged.of(lengths, terms, weights, ones, self._vectors.dim)
        if fault := encoded.fault():
            raise _damaged(path, fault)
        return encoded

    def layout(self, queries: SparseRagged) -> _Layout:
        return _Layout(len(queries.counts), range(self.rows))

    def lists(self, queries: SparseRagged, part: slice) -> slice:
        return part

    def shard_search(self, shard: Shard) -> Callable[[SparseRagged, int], RowHits]:
        documents, by_chunk = shard.rows(self._vectors.rows), self._index.by_chunk
        share = self._vectors.share(documents)
        first = int(self._vectors.starts[documents.start]) if by_chunk else documents.start

        def search(queries: SparseRagged, k: int) -> RowHits:
            rows, scores = exact_product(share, queries, k, by_chunk)
            return RowHits([query_rows + first for query_rows in rows], scores)

        return search

    def join(self, queries: SparseRagged, k: int, shard_hits: Iterator[RowHits]) -> RowHits:
        return reduce(partial(_merge_hits, k), shard_hits)

    def ranked(self, queries: list[Query], hits: RowHits, k: int) -> Run:
        return self._index.ranked(queries, hits, k)


class _ApproximateDivision(_DenseDivision):
    """Inverted lists: each shard has a range of consecutive vector numbers. A piece has one list per
    looked-up vector, with the candidates of the index."""

    def __init__(self, index: DenseIndex, search: ApproximateSearch) -> None:
        super().__init__(index)
        self._search = search

    def layout(self, queries: Ragged) -> _Layout:
        # Lists of candidates have equal lengths, padded with row -1.
        rows = range(-1, self._search.nearest.rows)
        return _Layout(int(self._search.starts(queries)[-1]), rows, equal_lengths=True)

    def lists(self, queries: Ragged, part: slice) -> slice:
        starts = self._search.starts(queries)
        return slice(int(starts[part.start]), int(starts[part.stop]))

    def shard_search(self, shard: Shard) -> Search:
        numbers = shard.rows(self._search.nearest.rows)

        def search(queries: Ragged, k: int) -> RowHits:
            scores, rows = self._search.first_candidates(queries, k, numbers)
            return RowHits(list(rows), list(scores.astype(np.float64)))

        return search

    def join(self, queries: Ragged, k: int, shard_hits: Iterator[RowHits]) -> RowHits:
        candidates = (Candidates(np.array(scores), np.array(rows)) for rows, scores in shard_hits)
        return self._search.search(queries, k, reduce(_merge_candidates, candidates))


def _merge_candidates(left: Candidates, right: Candidates) -> Candidates:
    """The n best of the candidates [query vectors, n] of two shards, equal scores by row number."""
    scores = np.concatenate([left.scores, right.scores], axis=1)
    rows = np.concatenate([left.rows, right.rows], axis=1)
    order = np.lexsort((rows, -scores))[:, : left.rows.shape[1]]
    return Candidates(np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1))


def _piece(first: int) -> str:
    """The file name of the piece for the batch of queries with first number `first`."""
    return f"{first}.npz"


def _write_hits(path: Path, hits: RowHits) -> None:
    counts = np.array([len(rows) for rows in hits.rows], np.int64)
    _save(path, rows=np.concatenate(hits.rows), scores=np.concatenate(hits.scores), counts=counts)


def _subset(queries: AnyRagged, part: slice) -> AnyRagged:
    return queries.take(np.arange(part.start, part.stop))


def _read_hits(path: Path, layout: _Layout, lists: slice) -> RowHits:
    """Read some lists of a piece. Raises DataError if the piece cannot belong to this search."""
    rows, scores, counts = _load(path, rows=np.int64, scores=np.float64, counts=np.int64)
    one_axis = rows.shape == scores.shape == (len(rows),)
    valid = one_axis and _sums_to(counts, layout.lists, len(rows))
    outside = (rows < layout.rows.start) | (rows >= layout.rows.stop)
    uneven = layout.equal_lengths and len(np.unique(counts)) > 1
    if not valid or uneven or outside.any() or np.isnan(scores).any():
        raise _damaged(path, "its arrays do not fit together")
    starts = np.concatenate([[0], np.cumsum(counts)])[lists.start : lists.stop + 1]
    span, ends = slice(starts[0], starts[-1]), starts[1:-1] - starts[0]
    return RowHits(np.split(rows[span], ends), np.split(scores[span], ends))


def _save(path: Path, **arrays: Any) -> None:
    with open(path, "wb") as file:  # np.savez would append .npz to the name of a temporary file
        np.savez(file, **arrays)


def _mask(queries: list[Query], cut: frozenset[str]) -> NDArray[np.int64]:
    """1 for each query that was cut, else 0."""
    return np.array([query.id in cut for query in queries], np.int64)


def _read_cut(path: Path, queries: list[Query]) -> frozenset[str]:
    """Read which queries of a batch were cut."""
    (mask,) = _load(path, cut=np.int64)
    if mask.shape != (len(queries),):
        raise _damaged(path, "its arrays do not fit together")
    return frozenset(query.id for query, cut in zip(queries, mask, strict=True) if cut)


def _read_queries(path: Path, queries: int, dim: int) -> Ragged:
    """Read the vectors of a batch of queries. Raises DataError for impossible values."""
    vectors, counts = _load(path, vectors=np.float32, counts=np.int64)
    valid = _sums_to(counts, queries, len(vectors)) and vectors.shape == (len(vectors), dim)
    if not valid or not np.isfinite(vectors).all():
        raise _damaged(path, "its arrays do not fit together")
    return Ragged.of(vectors, counts)


def _sums_to(counts: NDArray[np.int64], length: int, total: int) -> bool:
    """Whether `counts` has `length` values, none negative, with the sum `total`."""
    return counts.shape == (length,) and bool((counts >= 0).all() and counts.sum() == total)


def _load(path: Path, **types: type[np.generic]) -> list[NDArray[Any]]:
    """Read the named arrays of a file. Raises DataError if it is damaged or has other types."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = [file[name] for name in types]
    except Exception:  # numpy's own message would advise loading pickles
        raise _damaged(path, "it is not an archive of arrays") from None
    if any(
        array.dtype != dtype or not array.ndim
        for array, dtype in zip(arrays, types.values(), strict=True)
    ):
        raise _damaged(path, "its arrays have other types")
    return arrays


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(f"{path} cannot be read ({reason}); remove it and run its shard again")
