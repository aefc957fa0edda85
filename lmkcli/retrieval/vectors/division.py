"""How a search over vectors is divided among tasks.

The first task encodes the queries for all tasks. It stores their vectors with a codec that loses nothing,
as those of a part.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any, Generic, Protocol

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import Query, Shard
from lmkcli.data.run import Run
from lmkcli.encoding.representation import QueryEncoder
from lmkcli.errors import DataError
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.sharding import (
    damaged,
    load_arrays,
    mask_of,
    merge_hits,
    save_arrays,
    sums_to,
)
from lmkcli.retrieval.vectors.candidates import ApproximateSearch
from lmkcli.retrieval.vectors.ranked_units import RankedUnits
from lmkcli.retrieval.vectors.vector_search import (
    Candidates,
    Division,
    PieceLayout,
    RowHits,
    RowSearch,
    scoring_of,
)
from lmkcli.vectors.codec import Codec
from lmkcli.vectors.rows import AnyRows, Ragged


class DividedIndex(Protocol[AnyRows]):
    """What the divisions need of an index."""

    units: RankedUnits[AnyRows]
    vector_search: RowSearch[AnyRows]
    settings: OpenSettings

    @property
    def exact(self) -> bool:
        """Whether all vectors are compared with a query."""

    def encoder(self) -> QueryEncoder[AnyRows]: ...

    def encoded(self, queries: list[Query]) -> AnyRows: ...

    def ranked(self, queries: list[Query], hits: RowHits, k: int) -> Run: ...


def division_of(index: DividedIndex[Any]) -> Division[Any] | None:
    """Return how a search is divided: by documents, or by numbers in inverted lists."""
    if index.exact:
        return ExactDivision(index)
    search = index.vector_search
    if isinstance(search, ApproximateSearch) and search.nearest.divisible:
        return ApproximateDivision(index, search)
    return None


class _Division(Generic[AnyRows]):
    """What both divisions share."""

    def __init__(self, index: DividedIndex[AnyRows]) -> None:
        self._index, self._units = index, index.units
        self._codec: Codec[AnyRows] = index.units.vectors.codec.exact

    @property
    def rows(self) -> int:
        return self._units.matrix.rows

    def encode(self, queries: list[Query], path: Path) -> None:
        encoded = self._index.encoded(queries)
        cut = mask_of(queries, self._index.encoder().cut(queries))
        arrays = self._codec.coded(encoded, lambda _: 0)
        save_arrays(path, **arrays, counts=encoded.counts, cut=cut)

    def read(self, path: Path, queries: int) -> AnyRows:
        types = {name: np.dtype(kind) for name, (kind, _) in self._codec.types(self._dim).items()}
        *arrays, counts = load_arrays(path, **types, counts=np.dtype(np.int64))
        source = _QueryArrays(path, dict(zip(types, arrays, strict=True)), int(counts.sum()))
        if not sums_to(counts, queries, source.vectors):
            raise source.damaged("its arrays do not fit together")
        encoded = self._codec.open(source, self._dim).read(slice(None), counts)
        if encoded.not_finite() is not None:
            raise source.damaged("its arrays do not fit together")
        return encoded

    @property
    def _dim(self) -> int:
        return self._units.vectors.dim

    def ranked(self, queries: list[Query], hits: RowHits, k: int) -> Run:
        return self._index.ranked(queries, hits, k)


@dataclass(frozen=True)
class _QueryArrays:
    """The stored vectors of queries (`vectors.codec.ArraySource`)."""

    path: Path
    arrays: Mapping[str, NDArray[Any]]
    vectors: int

    def array(self, name: str, dtype: str, width: tuple[int, ...], rows: int) -> NDArray[Any]:
        found = self.arrays[name]
        if found.shape != (rows, *width):
            raise self.damaged("its arrays do not fit together")
        return found

    def damaged(self, reason: str) -> DataError:
        return damaged(self.path, reason)


class ExactDivision(_Division[AnyRows]):
    """Exact search: each shard has a range of consecutive documents. A piece has one list per query."""

    def layout(self, queries: AnyRows) -> PieceLayout:
        return PieceLayout(len(queries.counts), range(self._units.matrix.rows))

    def lists(self, queries: AnyRows, part: slice) -> slice:
        return part

    def shard_search(self, shard: Shard) -> Callable[[AnyRows, int], RowHits]:
        units, first = self._units.share(shard)
        exact = scoring_of(units.vectors.codec_name).search(units.matrix, self._index.settings)

        def search(queries: AnyRows, k: int) -> RowHits:
            rows, scores = exact.search(queries, k)
            return RowHits([query_rows + first for query_rows in rows], scores)

        return search

    def join(self, queries: AnyRows, k: int, shard_hits: Iterator[RowHits]) -> RowHits:
        return reduce(partial(merge_hits, k), shard_hits)


class ApproximateDivision(_Division[Ragged]):
    """Inverted lists: each shard has a range of consecutive vector numbers. A piece has one list per
    looked-up vector, with the candidates of the index."""

    def __init__(self, index: DividedIndex[Ragged], search: ApproximateSearch) -> None:
        super().__init__(index)
        self._search = search

    def layout(self, queries: Ragged) -> PieceLayout:
        # Lists of candidates have equal lengths, padded with row -1.
        rows = range(-1, self._search.nearest.rows)
        return PieceLayout(int(self._search.starts(queries)[-1]), rows, equal_lengths=True)

    def lists(self, queries: Ragged, part: slice) -> slice:
        starts = self._search.starts(queries)
        return slice(int(starts[part.start]), int(starts[part.stop]))

    def shard_search(self, shard: Shard) -> Callable[[Ragged, int], RowHits]:
        numbers = shard.rows(self._search.nearest.rows)

        def search(queries: Ragged, k: int) -> RowHits:
            scores, rows = self._search.first_candidates(queries, k, numbers)
            return RowHits(list(rows), list(scores.astype(np.float64)))

        return search

    def join(self, queries: Ragged, k: int, shard_hits: Iterator[RowHits]) -> RowHits:
        candidates = (Candidates(np.array(scores), np.array(rows)) for rows, scores in shard_hits)
        return self._search.search(queries, k, reduce(_merge_candidates, candidates))


def _merge_candidates(left: Candidates, right: Candidates) -> Candidates:
    """Return the n best of the candidates [query vectors, n] of two shards, equal scores by row number."""
    scores = np.concatenate([left.scores, right.scores], axis=1)
    rows = np.concatenate([left.rows, right.rows], axis=1)
    order = np.lexsort((rows, -scores))[:, : left.rows.shape[1]]
    return Candidates(np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1))
