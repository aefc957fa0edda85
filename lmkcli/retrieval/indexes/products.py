"""Rough scores, and how far from the exact ones they can be: products in float32 or bfloat16.

Through torch, on the CPU or a GPU alike; queries in tiles and rows in pieces, in bounded memory.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from lmkcli.retrieval.indexes.topk import ErrorBound
from lmkcli.retrieval.kinds import check_finite
from lmkcli.store.ragged import Ragged, cut

QUERY_TILE = 1024  # query vectors that are scored together
BLOCK_ROWS = 4096  # with a tile of queries: 16 MB of scores at a time, which caches help with
LOW_FROM = 32  # query vectors from which bfloat16 pays for converting the others
CACHED = 512  # vectors whose rounding is measured together, while caches hold them
SAFE = 1.02  # for the higher orders of the error bounds, and norms that are rounded themselves


class Tile(NamedTuple):
    """Whole queries: their vectors, which they are, and which vector is whose.

    `groups` [vectors, queries] is one where a vector is a query's; None if each has one.
    """

    vectors: torch.Tensor
    queries: slice
    groups: torch.Tensor | None


class Piece(NamedTuple):
    """Whole rows: their vectors, how many rows, and the row of each vector (None if each has one).

    `norm` is the largest norm of a vector, `rounding_norm` that of what the dtype's rounding took away.
    """

    vectors: torch.Tensor
    rows: int
    owners: torch.Tensor | None
    norm: float
    rounding_norm: float


class Pieces:
    """Makes pieces of blocks, on a device and in a dtype."""

    def __init__(self, device: torch.device, dtype: torch.dtype, single: bool) -> None:
        self._device, self._dtype, self._single = device, dtype, single
        self._lost: torch.Tensor | None = None  # reused: touching new memory would cost more

    def of(self, blocks: Iterable[Ragged]) -> Iterator[Piece]:
        """Pieces of at most BLOCK_ROWS vectors, or of one row that has more."""
        for block in blocks:
            for first, stop in cut(block.starts, BLOCK_ROWS):
                part = block.vectors[block.starts[first] : block.starts[stop]]
                yield self.piece(Ragged.of(part, block.counts[first:stop]))

    def piece(self, of: Ragged) -> Piece:
        """All rows in one."""
        # torch warns of read-only maps, which it would leave alone here
        whole = torch.from_numpy(np.require(of.vectors, requirements="W")).to(self._device)
        low = whole.to(self._dtype)
        owners = None
        if not self._single:
            owners = owners_of(torch.from_numpy(of.counts).to(self._device))
        rounding_norm, norm = self._rounding_norm(whole, low), _norm(whole)
        check_finite(norm)
        return Piece(low, len(of.counts), owners, norm, rounding_norm)

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
    """The row of each vector."""
    return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)


class QueryTiles:
    """Queries on the device, in tiles, and how far their scores can be from the exact ones."""

    def __init__(self, queries: Ragged, device: torch.device, dtype: torch.dtype) -> None:
        self.dtype = dtype
        whole = torch.from_numpy(queries.vectors).to(device)
        low = whole.to(dtype)
        starts, counts = queries.starts, torch.from_numpy(queries.counts).to(device)
        single = bool((counts == 1).all())
        self._tiles = []
        for first, stop in cut(starts, QUERY_TILE):
            groups = None if single else _groups(counts[first:stop])
            vectors = low[int(starts[first]) : int(starts[stop])]
            self._tiles.append(Tile(vectors, slice(first, stop), groups))
        self.vectors, self.error = low, _error(whole, low, counts)
        self._room = low.new_empty(0)  # reused: touching new memory would cost more

    def __iter__(self) -> Iterator[Tile]:
        return iter(self._tiles)

    def scores(self, tile: Tile, piece: Piece) -> torch.Tensor:
        """[queries, rows]; holds until the next call."""
        if piece.owners is None:
            products = self.products(tile.vectors, piece.vectors)
            return products if tile.groups is None else tile.groups.T @ products.float()
        most = tile.vectors.new_full((piece.rows, len(tile.vectors)), -torch.inf)
        for first in range(0, len(piece.vectors), BLOCK_ROWS):
            products = self.products(piece.vectors[first : first + BLOCK_ROWS], tile.vectors)
            owners = piece.owners[first : first + BLOCK_ROWS, None].expand_as(products)
            most.scatter_reduce_(0, owners, products, "amax")
        return (most if tile.groups is None else most.float() @ tile.groups).T.contiguous()

    def products(self, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """[rows, columns]; holds until the next call."""
        size = len(rows) * len(columns)
        if len(self._room) < size:
            self._room = self._room.new_empty(size)
        return torch.mm(rows, columns.T, out=self._room[:size].view(len(rows), len(columns)))


def _groups(counts: torch.Tensor) -> torch.Tensor:
    """[vectors, queries]: sums over query vectors are products with it."""
    return torch.nn.functional.one_hot(owners_of(counts), len(counts)).float()


def _error(whole: torch.Tensor, low: torch.Tensor, counts: torch.Tensor) -> ErrorBound:
    """The bound for each query, summed over its vectors.

    A product of dim terms, and a sum of as many as there are query vectors, err by one unit roundoff
    of float32 per addition. Rounded factors: <q, d> - <q', d'> = <q - q', d> + <q', d - d'>. Products
    in bfloat16 are rounded once more when they are stored.
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
