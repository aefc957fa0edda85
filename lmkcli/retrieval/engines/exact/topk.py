"""Candidates of an exact top k, from scores with a bounded error.

Scores are computed in float32 or bfloat16, and each differs from the exact score by at most `error`. The
idea:

- If k rows have scores of at least s, their exact scores are at least s - error. So s - error is a lower
  bound of the exact k-th best score.
- A row with a score below (lower bound - error) cannot be among the best k, and is dropped.

The lower bound rises while blocks of rows arrive. Until it is high, it drops few rows, so a guess of the k-th
best score may replace it. At the end the lower bound is compared with the guess. If the guess was too high,
rows were dropped that might belong to the best k, and the query fails: it is searched again without a guess.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lmkcli.retrieval.searching import SPARE
from lmkcli.retrieval.vectors.vector_search import check_finite
from lmkcli.store.ragged import cut
from lmkcli.vectors.rows import Ragged


class Sizes(NamedTuple):
    """Sizes of blocks. They change the time and memory of exact search, and never its results."""

    tile: int = 1024  # query vectors that are scored together
    block: int = (
        4096  # vectors per block; with a tile of queries 16 MB of scores, which fit in caches
    )
    spare: int = SPARE  # candidates in the buffer of a query in addition to 2k
    low_from: int = (
        32  # query vectors from which bfloat16 saves more than converting the rows costs
    )
    sample: int = 16384  # vectors in the sample that estimates the k-th best score
    exact_rows: int = 256  # vectors per float64 product: few enough for the caches of a core
    exact_pairs: int = 1024  # pairs of vectors per float64 product, for the same reason
    shared: float = (
        0.25  # share of wanted pairs of queries and rows from which scoring all is faster
    )


SIZES = Sizes()


class ErrorBound(NamedTuple):
    """A bound on the error of scores, with float64 coefficients [queries].

    |score - exact| <= norm * N + rounding_norm * R + relative * |score|

    N is the largest norm of the row's vectors, R the largest norm of their rounding errors (vector minus
    rounded vector). `relative` is zero for float32.
    """

    norm: torch.Tensor
    rounding_norm: torch.Tensor
    relative: torch.Tensor

    def absolute(self, norm: float, rounding_norm: float) -> torch.Tensor:
        """Return the part [queries] of the bound that does not depend on scores, for rows of these norms."""
        return self.norm * norm + self.rounding_norm * rounding_norm

    def part(self, queries: slice) -> "ErrorBound":
        """Return the bound of some of the queries."""
        return ErrorBound(*(coefficients[queries] for coefficients in self))

    def lowered(self, scores: torch.Tensor) -> torch.Tensor:
        """Subtract the relative part of the bound from scores. -inf is unchanged."""
        return torch.where(scores.isneginf(), scores, scores - self.relative * scores.abs())


class TopKBuffer:
    """Candidates of each query: row numbers and scores [queries, 2k + spare].

    When the buffer of a query is full, the lower bound is raised and rows below it are dropped, so about k
    rows remain. If very many rows tie, no row can be dropped. Then the query fails. If it is the only query,
    its buffer grows instead.
    """

    def __init__(
        self, error: ErrorBound, k: int, guess: torch.Tensor | None, spare: int = SPARE
    ) -> None:
        self._error, self._k = error, k
        # A lower bound [queries] of the exact k-th best score.
        self._lower_bound = torch.full_like(error.norm, -torch.inf)
        self._guess = self._lower_bound if guess is None else guess
        self._max_error = torch.zeros_like(error.norm)  # the largest absolute error so far
        count, device = len(error.norm), error.norm.device
        self._filled = torch.zeros(count, dtype=torch.int64, device=device)
        self._scores = torch.empty((count, 2 * k + spare), dtype=torch.float32, device=device)
        self._rows = torch.empty_like(self._scores, dtype=torch.int64)
        self._passed = torch.empty(0, dtype=torch.bool, device=device)

    def offer(self, scores: torch.Tensor, queries: slice, first: int, error: torch.Tensor) -> None:
        """Add the rows that may be among the best k.

        `scores` [queries, n] belong to the rows from `first` on; `error` is the absolute error of all
        queries.
        """
        self._free_space(queries, scores.shape[1])
        self._max_error = torch.maximum(self._max_error, error)
        threshold = torch.maximum(self._lower_bound - error, self._guess)
        # bfloat16 scores were rounded when they were stored. Rounding the threshold in the same way keeps
        # every score that reached it. Float32 scores need the relative part of the bound instead.
        if scores.dtype == torch.float32:
            threshold = self._error.lowered(threshold)
        threshold = threshold[queries]
        if len(self._passed) < scores.numel():  # reused, because new memory would cost more
            self._passed = torch.empty(scores.numel(), dtype=torch.bool, device=scores.device)
        passed = self._passed[: scores.numel()].view(scores.shape)
        threshold, bits = threshold.to(scores.dtype), scores
        if scores.dtype == torch.bfloat16 and bool((threshold > 0).all()):
            # Positive floats have the order of their bits, and integers are compared faster.
            threshold, bits = threshold.view(torch.int16), scores.view(torch.int16)
        at = true_places(torch.ge(bits, threshold[:, None], out=passed))
        query, column = at // scores.shape[1], at % scores.shape[1]
        self._append(query + queries.start, scores.flatten()[at].float(), column + first)

    def _free_space(self, queries: slice, n: int) -> None:
        if int(self._filled[queries].max()) + n <= self._scores.shape[1]:
            return
        self._raise_bound()
        full = self._filled + n > self._scores.shape[1]
        if len(full) > 1:  # an infinite guess marks these queries as failed
            self._filled[full] = 0
            self._guess = torch.where(full, torch.inf, self._guess)
        elif bool(full):
            self._scores = _widened(self._scores, 2 * self._scores.shape[1] + n)
            self._rows = _widened(self._rows, self._scores.shape[1])

    def _append(self, query: torch.Tensor, scores: torch.Tensor, rows: torch.Tensor) -> None:
        """Append entries [n], sorted by query, to the buffers of their queries.

        Entry i goes to position filled[query] + i - (number of entries of earlier queries).
        """
        counts = torch.bincount(query, minlength=len(self._filled))
        offsets = self._filled - (counts.cumsum(0) - counts)
        position = offsets[query] + torch.arange(len(query), device=query.device)
        position += query * self._scores.shape[1]
        self._scores.view(-1)[position] = scores
        self._rows.view(-1)[position] = rows
        self._filled += counts

    def _raise_bound(self) -> None:
        """Raise the lower bound to the k-th best score so far, less its error, and drop rows below it."""
        width = int(self._filled.max())
        scores = self._scores[:, :width]
        valid = torch.arange(width, device=scores.device) < self._filled[:, None]
        if width >= self._k:
            valid_scores = torch.where(valid, scores, -torch.inf)
            kth = valid_scores.topk(self._k, dim=1, sorted=False).values.amin(1).double()
            bound = self._error.lowered(kth) - self._max_error
            # Exact scores that are equal in float32 are ties in a run, so the bound is lowered by the
            # resolution of float32.
            bound = torch.where(kth.isneginf(), kth, bound - bound.abs() * 2.0**-23 - 2.0**-149)
            self._lower_bound = torch.maximum(self._lower_bound, bound)
        threshold = self._error.lowered(self._lower_bound - self._max_error).float()
        query, column = torch.nonzero(valid & (scores >= threshold[:, None]), as_tuple=True)
        kept, rows = scores[query, column], self._rows[query, column]
        self._filled.zero_()
        self._append(query, kept, rows)

    def result(self) -> tuple[list[NDArray[np.int64]], NDArray[np.bool_]]:
        """Return the candidate rows of each query, and a mask [queries] of failed queries.

        A query failed if its guess was too high: then candidates are missing.
        """
        self._raise_bound()
        failed = (self._guess + self._max_error > self._lower_bound).cpu().numpy()
        rows, filled = self._rows.cpu().numpy(), self._filled.tolist()
        return [row[:count].copy() for row, count in zip(rows, filled, strict=True)], failed


def true_places(mask: torch.Tensor) -> torch.Tensor:
    """Return the flat positions of True in a mask that is rarely true.

    Eight booleans at a time are read as one int64. Only words that are not zero are then examined.
    """
    if mask.numel() % 8:
        return torch.nonzero(mask.flatten()).squeeze(1)
    words = mask.view(-1, 8)
    hit = torch.nonzero(words.view(torch.int64).flatten()).squeeze(1)
    at = torch.nonzero(words[hit].flatten()).squeeze(1)
    return hit[at >> 3] * 8 + (at & 7)


def _widened(old: torch.Tensor, width: int) -> torch.Tensor:
    wider = old.new_empty((len(old), width))
    wider[:, : old.shape[1]] = old
    return wider


CACHED = 512  # vectors whose rounding errors are computed together, few enough for the caches
SAFE = 1.02  # factor on norms: covers higher-order terms of the bound, and the rounding of norms


class Tile(NamedTuple):
    """Some queries with all their vectors [vectors, dim]; `queries` is their range.

    `groups` [vectors, queries] is 1 if the vector belongs to the query; None if each query has one vector.
    """

    vectors: torch.Tensor
    queries: slice
    groups: torch.Tensor | None


class Piece(NamedTuple):
    """Some rows with all their vectors [vectors, dim].

    owners: the row of each vector [vectors]; None if each row has one vector.
    norm: the largest norm of a vector.
    rounding_norm: the largest norm of a rounding error (vector minus rounded vector).
    """

    vectors: torch.Tensor
    rows: int
    owners: torch.Tensor | None
    norm: float
    rounding_norm: float


Norms = dict[int, tuple[float, float]]  # number of a piece -> its norm and rounding_norm


class Pieces:
    """Divides blocks into pieces, on a device and in a dtype."""

    def __init__(
        self, device: torch.device, dtype: torch.dtype, single: bool, block: int = SIZES.block
    ) -> None:
        self._device, self._dtype, self._single, self._size = device, dtype, single, block
        self._lost: torch.Tensor | None = None  # reused, because new memory would cost more

    def of(self, blocks: Iterable[Ragged], norms: Norms | None = None) -> Iterator[Piece]:
        """Yield pieces of at most `block` vectors. A row with more vectors is a piece of its own.

        `norms` receives the norms of all pieces. If the same blocks are read again, they are taken from it.
        """
        norms, number = {} if norms is None else norms, 0
        for block in blocks:
            for first, stop in cut(block.starts, self._size):
                part = block.vectors[block.starts[first] : block.starts[stop]]
                piece = self.piece(Ragged.of(part, block.counts[first:stop]), norms.get(number))
                norms[number] = piece.norm, piece.rounding_norm
                number += 1
                yield piece

    def piece(self, block: Ragged, norms: tuple[float, float] | None = None) -> Piece:
        """Return all rows of a block as one piece; `norms` are its norm and rounding_norm, if known."""
        # np.require copies read-only memory maps, for which torch would print a warning.
        whole = torch.from_numpy(np.require(block.vectors, requirements="W")).to(self._device)
        low = whole.to(self._dtype)
        owners = None
        if not self._single:
            owners = owners_of(torch.from_numpy(block.counts).to(self._device))
        if norms is None:
            norms = _norm(whole), self._rounding_norm(whole, low)
            check_finite(norms[0])
        return Piece(low, len(block.counts), owners, *norms)

    def _rounding_norm(self, whole: torch.Tensor, low: torch.Tensor) -> float:
        if low is whole:
            return 0.0
        if self._lost is None:
            self._lost = whole.new_empty(CACHED, whole.shape[1])
        largest = 0.0
        for first in range(0, len(whole), CACHED):
            part = whole[first : first + CACHED]
            lost = torch.sub(part, low[first : first + CACHED], out=self._lost[: len(part)])
            largest = max(largest, _norm(lost))
        return largest


def _norm(vectors: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(vectors, dim=1).max()) if len(vectors) else 0.0


def owners_of(counts: torch.Tensor) -> torch.Tensor:
    """Return the row of each vector, given the number of vectors of each row."""
    return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)


class QueryTiles:
    """Queries on the device, in tiles of whole queries, and the error bound of their scores."""

    def __init__(
        self, queries: Ragged, device: torch.device, dtype: torch.dtype, sizes: Sizes = SIZES
    ) -> None:
        self.dtype, self._sizes = dtype, sizes
        whole = torch.from_numpy(queries.vectors).to(device)
        low = whole.to(dtype)
        starts, counts = queries.starts, torch.from_numpy(queries.counts).to(device)
        single = bool((counts == 1).all())
        self._tiles = []
        for first, stop in cut(starts, sizes.tile):
            groups = None if single else _groups(counts[first:stop])
            vectors = low[int(starts[first]) : int(starts[stop])]
            self._tiles.append(Tile(vectors, slice(first, stop), groups))
        self.vectors, self.error = low, _error(whole, low, counts)
        self._products = low.new_empty(0)  # reused, because new memory would cost more

    def __iter__(self) -> Iterator[Tile]:
        return iter(self._tiles)

    def scores(self, tile: Tile, piece: Piece) -> torch.Tensor:
        """Return scores [queries, rows], which are valid until the next call.

        With several vectors per row: products [vectors, query vectors] are reduced to maxima
        [rows, query vectors], which are summed over the vectors of each query.
        """
        if piece.owners is None:
            products = self.products(tile.vectors, piece.vectors)
            return products if tile.groups is None else tile.groups.T @ products.float()
        maxima = tile.vectors.new_full((piece.rows, len(tile.vectors)), -torch.inf)
        block = self._sizes.block
        for first in range(0, len(piece.vectors), block):
            products = self.products(piece.vectors[first : first + block], tile.vectors)
            owners = piece.owners[first : first + block, None].expand_as(products)
            maxima.scatter_reduce_(0, owners, products, "amax")
        return (maxima if tile.groups is None else maxima.float() @ tile.groups).T.contiguous()

    def products(self, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """Return dot products [rows, columns], which are valid until the next call."""
        size = len(rows) * len(columns)
        if len(self._products) < size:
            self._products = self._products.new_empty(size)
        return torch.mm(rows, columns.T, out=self._products[:size].view(len(rows), len(columns)))


def _groups(counts: torch.Tensor) -> torch.Tensor:
    """Return the matrix [vectors, queries] that sums over the vectors of each query."""
    return torch.nn.functional.one_hot(owners_of(counts), len(counts)).float()


def _error(whole: torch.Tensor, low: torch.Tensor, counts: torch.Tensor) -> ErrorBound:
    """Return the error bound of each query, summed over its vectors.

    q and d are exact vectors, q' and d' the rounded ones that are multiplied. The error has these parts:

    - Rounded factors: <q, d> - <q', d'> = <q - q', d> + <q', d - d'>, so at most
      |q - q'| * |d| + |q'| * |d - d'|. The first term is in `norm`, the second in `rounding_norm`.
    - Float32 sums: a dot product has dim additions, and a score has one per query vector. Each addition adds
      at most one unit roundoff of float32, 2**-24, times |q'| * |d|. This is in `norm`.
    - bfloat16 products are rounded to 8 bits when they are stored, at most 2**-8 of their value. This is
      `relative` for queries with one vector. Products of several vectors may cancel in their sum, so the
      bound uses 2**-8 * |q'| * |d| for each, in `norm`.
    """
    owners = owners_of(counts)
    norms = torch.linalg.vector_norm(low.float(), dim=1).double() * SAFE
    lost = torch.linalg.vector_norm(whole - low, dim=1).double() * SAFE
    stored = 0.0 if low.dtype == torch.float32 else 2.0**-8
    alone = (counts == 1).double()
    steps = (whole.shape[1] + counts) * 2.0**-24 + (1 - alone) * stored
    norm = torch.zeros_like(alone).index_add_(0, owners, norms * steps[owners] + lost)
    rounding_norm = torch.zeros_like(alone).index_add_(0, owners, norms)
    return ErrorBound(norm, rounding_norm, alone * stored)
