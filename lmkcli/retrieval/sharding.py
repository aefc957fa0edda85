"""Sharded search: each task searches one shard of the vectors, and the results are joined into one run.

The joined run equals the run of a single process: the same documents, scores and ties. A shard writes one
piece per batch of queries, with the best rows of each query and their scores. Two kinds of search can be
divided; an index of another package may add its own `Division`:

- Exact search: documents are divided. Scores are exact, so the k best hits of all shards are the result.
- Inverted lists: the numbers of vectors are divided. Each shard returns the candidates that the index finds
  among its numbers, with the index's own scores. The best candidates of all shards equal the candidates of
  an undivided search. Joining scores them exactly.

The first task encodes the queries for all tasks, because two machines may encode them differently.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from lmkcli.artifact.kinds import RunIdentity
from lmkcli.artifact.shards import Shards
from lmkcli.data.collection import Query, Shard
from lmkcli.data.run import Run
from lmkcli.errors import DataError, UsageError
from lmkcli.progress import Call, Note, Report
from lmkcli.retrieval.engines.exact.exact_search import top
from lmkcli.retrieval.index import Divisible, Index
from lmkcli.retrieval.searching import MemoryBudget, batches, parts
from lmkcli.retrieval.vectors.vector_search import Division, PieceLayout, RowHits
from lmkcli.system.atomic import atomic_file
from lmkcli.vectors.rows import AnyRows


def sharded_search(index: Index, queries: list[Query], k: int) -> "ShardedSearch[Any]":
    """Divide a search among tasks. Raises UsageError for an index that cannot be divided."""
    division = index.division() if isinstance(index, Divisible) else None
    if division is None:
        raise UsageError(
            f"--shard: {index.info.path} ({index.info.kind}) is searched whole; shards are for vectors "
            "without an index, and for FAISS indexes of inverted lists (--kind ivf)"
        )
    return ShardedSearch(division, queries, k)


class ShardedSearch(Generic[AnyRows]):
    """A search that is divided among tasks."""

    def __init__(self, division: Division[AnyRows], queries: list[Query], k: int) -> None:
        self._division: Division[AnyRows] = division
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

    def _encoded(self, first: int, batch: list[Query], shards: Shards, note: Note) -> AnyRows:
        """Return the vectors of a batch of queries. The first task that needs them encodes them for all."""
        path = shards.once(
            f"queries-{first}.npz", lambda path: self._division.encode(batch, path), note
        )
        return self._division.read(path, len(batch))


def merge_hits(k: int, left: RowHits, right: RowHits) -> RowHits:
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


def _piece(first: int) -> str:
    """Return the file name of the piece for the batch of queries with first number `first`."""
    return f"{first}.npz"


def _write_hits(path: Path, hits: RowHits) -> None:
    counts = np.array([len(rows) for rows in hits.rows], np.int64)
    save_arrays(
        path, rows=np.concatenate(hits.rows), scores=np.concatenate(hits.scores), counts=counts
    )


def _subset(queries: AnyRows, part: slice) -> AnyRows:
    return queries.take(np.arange(part.start, part.stop))


def _read_hits(path: Path, layout: PieceLayout, lists: slice) -> RowHits:
    """Read some lists of a piece. Raises DataError if the piece cannot belong to this search."""
    rows, scores, counts = load_arrays(path, rows=np.int64, scores=np.float64, counts=np.int64)
    one_axis = rows.shape == scores.shape == (len(rows),)
    valid = one_axis and sums_to(counts, layout.lists, len(rows))
    outside = (rows < layout.rows.start) | (rows >= layout.rows.stop)
    uneven = layout.equal_lengths and len(np.unique(counts)) > 1
    if not valid or uneven or outside.any() or np.isnan(scores).any():
        raise damaged(path, "its arrays do not fit together")
    starts = np.concatenate([[0], np.cumsum(counts)])[lists.start : lists.stop + 1]
    span, ends = slice(starts[0], starts[-1]), starts[1:-1] - starts[0]
    return RowHits(np.split(rows[span], ends), np.split(scores[span], ends))


def save_arrays(path: Path, **arrays: Any) -> None:
    """Write arrays into a file, which `load_arrays` reads."""
    with open(path, "wb") as file:  # np.savez would append .npz to the name of a temporary file
        np.savez(file, **arrays)


def mask_of(queries: list[Query], cut: frozenset[str]) -> NDArray[np.int64]:
    """Return 1 for each query that was cut, else 0, as `Division.encode` stores it with the vectors."""
    return np.array([query.id in cut for query in queries], np.int64)


def _read_cut(path: Path, queries: list[Query]) -> frozenset[str]:
    """Read which queries of a batch were cut."""
    (mask,) = load_arrays(path, cut=np.int64)
    if mask.shape != (len(queries),):
        raise damaged(path, "its arrays do not fit together")
    return frozenset(query.id for query, cut in zip(queries, mask, strict=True) if cut)


def sums_to(counts: NDArray[np.int64], length: int, total: int) -> bool:
    """Return whether `counts` has `length` values, none negative, with the sum `total`."""
    return counts.shape == (length,) and bool((counts >= 0).all() and counts.sum() == total)


def load_arrays(path: Path, **types: np.dtype[Any] | type[np.generic]) -> list[NDArray[Any]]:
    """Read the named arrays of a file. Raises DataError if it is damaged or has other types."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = [file[name] for name in types]
    except Exception:  # numpy's own message would advise loading pickles
        raise damaged(path, "it is not an archive of arrays") from None
    if any(
        array.dtype != dtype or not array.ndim
        for array, dtype in zip(arrays, types.values(), strict=True)
    ):
        raise damaged(path, "its arrays have other types")
    return arrays


def damaged(path: Path, reason: str) -> DataError:
    """Return the error for a file of a shard that cannot be read."""
    return DataError(f"{path} cannot be read ({reason}); remove it and run its shard again")
