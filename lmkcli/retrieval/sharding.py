"""Sharded search: each task searches a slice of the vectors, and what they found is joined to the run that
one process makes: the same documents, scores and ties.

A piece of a shard holds, for as many queries as are searched together, the best rows of its slice with
their scores: exact ones, or an index's own, by which candidates are chosen among those of all slices
before they are scored. Queries are encoded once for all: two machines need not encode them alike.
"""

from collections.abc import Callable, Iterator
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import Query, Shard
from lmkcli.data.run import Run
from lmkcli.errors import DataError, UsageError
from lmkcli.progress import Call, Note, Report
from lmkcli.retrieval.approximate import ApproximateSearch
from lmkcli.retrieval.dense import DenseIndex, exact_search
from lmkcli.retrieval.index import Index
from lmkcli.retrieval.indexes.exact_scorer import top
from lmkcli.retrieval.kinds import Candidates, Hits
from lmkcli.retrieval.room import Room, parts
from lmkcli.retrieval.searching import batches
from lmkcli.store.ragged import Ragged
from lmkcli.store.shards import Shards
from lmkcli.system.atomic import atomic_file

Search = Callable[[Ragged, int], Hits]


class ShardedSearch:
    """A search that tasks do in slices; UsageError for an index that is searched whole."""

    def __init__(self, index: Index, queries: list[Query], k: int) -> None:
        self._index, self._slices = _divided(index)
        self._queries, self._k = queries, min(k, self._index.units.matrix.rows)

    def claim(self, output: Path, identity: dict[str, Any], count: int, call: Call) -> Shards:
        """Begin or join the shards of the run of that identity; Mismatch where others are there."""
        pieces = [_piece(first) for first, _ in batches(self._queries)]
        return Shards.claim(output, identity, count, pieces, call)

    def search(
        self, shard: Shard, shards: Shards, report: Report, room: Room | None = None
    ) -> None:
        """Write the pieces that a shard lacks; what is there stays. DataError without room for a query."""
        search = self._slices.of(shard)
        for first, asked in batches(self._queries):
            path = shards.path(shard.number, _piece(first))
            if not path.exists():
                encoded = self._encoded(first, asked, shards, report.note)
                hits = Hits([], [])
                for part in parts(len(asked), self._k, room):
                    rows, scores = search(_part_of(encoded, part), self._k)
                    hits.rows.extend(rows)
                    hits.scores.extend(scores)
                with atomic_file(path) as temporary:
                    _write_hits(temporary, hits)
            report.progress(first + len(asked), len(self._queries), "queries")

    def joined(
        self, tag: str, shards: Shards, report: Report, room: Room | None = None
    ) -> Iterator[Run]:
        """The run that all shards together are, in pieces; DataError where some are missing, or no room."""
        shards.check_whole()
        for first, asked in batches(self._queries):
            encoded = self._encoded(first, asked, shards, report.note)
            paths = [shards.path(number, _piece(first)) for number in range(shards.count)]
            expected = self._slices.expected(encoded)
            for part in parts(len(asked), self._k, room):
                lists = self._slices.lists(encoded, part)
                found = (_read_hits(path, expected, lists) for path in paths)
                hits = self._slices.join(_part_of(encoded, part), self._k, found)
                yield Run(self._index.ranked(asked[part], hits, self._k).rankings, tag)
                report.progress(first + part.stop, len(self._queries), "queries")

    def _encoded(self, first: int, asked: list[Query], shards: Shards, note: Note) -> Ragged:
        """The vectors of some queries, as the first task to need them encoded them."""

        def encode(path: Path) -> None:
            made = self._index.encoded(asked)
            _save(path, vectors=made.vectors, counts=made.counts)

        path = shards.once(f"queries-{first}.npz", encode, note)
        return _read_queries(path, len(asked), self._index.units.matrix.dim)


class _Expected(NamedTuple):
    """What a piece holds: so many lists of rows, these rows, and whether all lists are equally long."""

    lists: int
    rows: range
    even: bool = False


class Slices(Protocol):
    """How a search is divided among tasks, and how their parts are joined."""

    def expected(self, queries: Ragged) -> _Expected:
        """What a piece for these queries holds."""

    def lists(self, queries: Ragged, part: slice) -> slice:
        """Where in a piece the lists of some of the queries are."""

    def of(self, shard: Shard) -> Search:
        """The search of one shard's slice, with rows as the whole numbers them."""

    def join(self, queries: Ragged, k: int, found: Iterator[Hits]) -> Hits:
        """What a search of the whole finds, from what was found in each slice."""


class _ExactSlices:
    """Documents, in consecutive slices."""

    def __init__(self, index: DenseIndex) -> None:
        self._units, self._settings = index.units, index.settings

    def expected(self, queries: Ragged) -> _Expected:
        return _Expected(len(queries.counts), range(self._units.matrix.rows))

    def lists(self, queries: Ragged, part: slice) -> slice:
        return part

    def of(self, shard: Shard) -> Search:
        units, first = self._units.share(shard)
        exact = exact_search(units.matrix, self._settings)

        def search(queries: Ragged, k: int) -> Hits:
            rows, scores = exact.search(queries, k)
            return Hits([each + first for each in rows], scores)

        return search

    def join(self, queries: Ragged, k: int, found: Iterator[Hits]) -> Hits:
        return reduce(partial(_better, k), found)


def _better(k: int, one: Hits, other: Hits) -> Hits:
    """For each query the k best of both, and what ties with the last of them."""
    joined = Hits([], [])
    for rows, more, scores, as_many in zip(
        one.rows, other.rows, one.scores, other.scores, strict=True
    ):
        best = top(np.concatenate([rows, more]), np.concatenate([scores, as_many]), k)
        joined.rows.append(best[0])
        joined.scores.append(best[1])
    return joined


class _ApproximateSlices:
    """The numbers of an index, in consecutive slices: each gives candidates for the whole."""

    def __init__(self, search: ApproximateSearch) -> None:
        self._search = search

    def expected(self, queries: Ragged) -> _Expected:
        # for each vector of a query as many, filled up with -1
        return _Expected(len(queries.vectors), range(-1, self._search.kind.rows), even=True)

    def lists(self, queries: Ragged, part: slice) -> slice:
        return slice(int(queries.starts[part.start]), int(queries.starts[part.stop]))

    def of(self, shard: Shard) -> Search:
        numbers = shard.rows(self._search.kind.rows)

        def search(queries: Ragged, k: int) -> Hits:
            scores, rows = self._search.first_candidates(queries, k, numbers)
            return Hits(list(rows), list(scores.astype(np.float64)))

        return search

    def join(self, queries: Ragged, k: int, found: Iterator[Hits]) -> Hits:
        stacked = (Candidates(np.array(scores), np.array(rows)) for rows, scores in found)
        return self._search.search(queries, k, reduce(_nearer, stacked))


def _nearer(one: Candidates, other: Candidates) -> Candidates:
    """The best candidates of both, as many as each has."""
    scores = np.concatenate([one.scores, other.scores], axis=1)
    rows = np.concatenate([one.rows, other.rows], axis=1)
    order = np.lexsort((rows, -scores))[:, : one.rows.shape[1]]
    return Candidates(np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1))


def _divided(index: Index) -> tuple[DenseIndex, Slices]:
    if isinstance(index, DenseIndex):
        search = index.vector_search
        if not isinstance(search, ApproximateSearch):
            return index, _ExactSlices(index)
        if search.kind.divisible:
            return index, _ApproximateSlices(search)
    raise UsageError(
        f"--shard: {index.info.path} ({index.info.kind}) is searched whole; shards are for vectors, and "
        "for FAISS indexes of inverted lists (--kind ivf)"
    )


def _piece(first: int) -> str:
    """The name of the piece for the queries that begin with number `first`."""
    return f"{first}.npz"


def _write_hits(path: Path, hits: Hits) -> None:
    counts = np.array([len(rows) for rows in hits.rows], np.int64)
    _save(path, rows=np.concatenate(hits.rows), scores=np.concatenate(hits.scores), counts=counts)


def _part_of(queries: Ragged, part: slice) -> Ragged:
    return queries.take(np.arange(part.start, part.stop))


def _read_hits(path: Path, expected: _Expected, lists: slice) -> Hits:
    """Some lists of what a shard found; DataError where it is not what a piece of this search can be."""
    rows, scores, counts = _load(path, rows=np.int64, scores=np.float64, counts=np.int64)
    whole = _is_divided(counts, expected.lists, len(rows)) and rows.shape == scores.shape == (
        len(rows),
    )
    outside = (rows < expected.rows.start) | (rows >= expected.rows.stop)
    uneven = expected.even and len(np.unique(counts)) > 1
    if not whole or uneven or outside.any() or np.isnan(scores).any():
        raise _damaged(path, "its numbers do not fit together")
    starts = np.concatenate([[0], np.cumsum(counts)])[lists.start : lists.stop + 1]
    mine, ends = slice(starts[0], starts[-1]), starts[1:-1] - starts[0]
    return Hits(np.split(rows[mine], ends), np.split(scores[mine], ends))


def _save(path: Path, **arrays: Any) -> None:
    with open(path, "wb") as file:  # a name without .npz would get it
        np.savez(file, **arrays)


def _read_queries(path: Path, queries: int, dim: int) -> Ragged:
    """The vectors of some queries; DataError where they cannot be that."""
    vectors, counts = _load(path, vectors=np.float32, counts=np.int64)
    whole = _is_divided(counts, queries, len(vectors)) and vectors.shape == (len(vectors), dim)
    if not whole or not np.isfinite(vectors).all():
        raise _damaged(path, "its numbers do not fit together")
    return Ragged.of(vectors, counts)


def _is_divided(counts: NDArray[np.int64], parts: int, total: int) -> bool:
    """Whether `counts` are those of `parts` parts of `total` things."""
    return counts.shape == (parts,) and bool((counts >= 0).all() and counts.sum() == total)


def _load(path: Path, **types: type[np.generic]) -> list[NDArray[Any]]:
    """The arrays of a file, which have these types; DataError where it is damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = [file[name] for name in types]
    except Exception:  # numpy's own message would advise loading pickles
        raise _damaged(path, "it is no archive of arrays") from None
    if any(
        each.dtype != kind or not each.ndim
        for each, kind in zip(arrays, types.values(), strict=True)
    ):
        raise _damaged(path, "its numbers are of other types")
    return arrays


def _damaged(path: Path, why: str) -> DataError:
    return DataError(f"{path} cannot be read ({why}); remove it and run its shard again")
