"""Exact search: every vector is compared, block by block, in bounded memory; no index is built.

score(q, d) = sum over query vectors of the max over document vectors of their dot product: MaxSim,
which with one vector on either side is a dot product, and with one query vector MaxP.

Runs through torch on the CPU or a GPU alike. Products in float32, or in bfloat16 where that is much
quicker, choose candidates; a bound on their error proves that no other row can be among the best; and
the candidates are scored again in float64. So the order is that of exact arithmetic.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from lmkcli.indexes.best import Best, Error
from lmkcli.ragged import Ragged, cut

QUERY_TILE = 1024  # query vectors that are scored together
BLOCK_ROWS = 4096  # with a tile of queries: 16 MB of scores at a time, which caches help with
SAMPLE = 16384  # vectors that tell roughly how high the k-th score lies
LOW_FROM = 32  # query vectors from which bfloat16 pays for converting the others
AGAIN = 512  # vectors at a time that are scored in float64
SAFE = 1.02  # for the higher orders of the error bounds, and norms that are rounded themselves


class Matrix(Protocol):
    """Rows of one vector or more: all in blocks of whole rows, in order, and any at once."""

    @property
    def rows(self) -> int: ...

    @property
    def total(self) -> int:
        """How many vectors there are."""

    @property
    def dim(self) -> int: ...

    @property
    def single(self) -> bool:
        """Whether each row has one vector."""

    def __iter__(self) -> Iterator[Ragged]: ...

    def at(self, rows: NDArray[np.int64]) -> Ragged: ...


class Hits(NamedTuple):
    """Per query: rows and their float64 scores, unordered, the top k and all ties with it."""

    rows: list[NDArray[np.int64]]
    scores: list[NDArray[np.float64]]


class Tile(NamedTuple):
    """Whole queries: their vectors, which they are, and which vector is whose.

    `groups` [vectors, queries] is one where a vector is a query's; None if each has one.
    """

    vectors: torch.Tensor
    queries: slice
    groups: torch.Tensor | None


class Piece(NamedTuple):
    """Whole rows: their vectors, how many rows, and the row of each vector (None if each has one).

    `norm` is the largest norm, `off` that of what the dtype's rounding took away.
    """

    vectors: torch.Tensor
    rows: int
    owners: torch.Tensor | None
    norm: float
    off: float


class Exact:
    """Brute force over a Matrix on a device, with products in float32 or in bfloat16."""

    def __init__(
        self, matrix: Matrix, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> None:
        self._matrix, self._device, self._dtype = matrix, device, dtype

    def search(self, queries: Ragged, k: int) -> Hits:
        """The k best rows of each query, with every row that ties with the last of them in float32."""
        count, k = len(queries.counts), min(k, self._matrix.rows)
        made = Hits([np.zeros(0, np.int64)] * count, [np.zeros(0)] * count)
        left = self._search(queries, np.arange(count if k else 0), k, made, first=True)
        left = self._search(queries, left, k, made)
        for query in left.tolist():  # with more ties than there is room for beside other queries
            self._search(queries, np.array([query]), k, made)
        return made

    def _search(
        self, queries: Ragged, numbers: NDArray[np.int64], k: int, made: Hits, first: bool = False
    ) -> NDArray[np.int64]:
        """Find the k best of some queries in one pass; returns those for which that did not do.

        The first pass may go by a guess and by rough products; what they fail at is left to the next.
        """
        if not len(numbers):
            return numbers
        guessing = first and self._matrix.total >= 8 * SAMPLE
        dtype = self._dtype if first and len(queries.vectors) >= LOW_FROM else torch.float32
        asked = Asked(queries.take(numbers), self._device, dtype)
        best = Best(asked.error, k, self._guess(asked, k) if guessing else None)
        self._offer_all(asked, best)
        found, failed = best.result()
        rescore = Rescore(self._matrix)
        for number, rows, fails in zip(numbers.tolist(), found, failed, strict=True):
            if not fails:
                exact = rescore(queries.text(number), rows)
                made.rows[number], made.scores[number] = top(rows, exact, k)
        return numbers[failed]

    def _offer_all(self, asked: "Asked", best: Best) -> None:
        first = 0
        for piece in self._pieces(self._matrix, asked.dtype):
            error = asked.error.of(piece.norm, piece.off)
            for tile in asked.tiles:
                best.offer(asked.scores(tile, piece), tile.queries, first, error)
            first += piece.rows

    def _pieces(self, blocks: "Matrix | list[Ragged]", dtype: torch.dtype) -> Iterator[Piece]:
        for block in blocks:
            for first, stop in cut(block.starts, BLOCK_ROWS):
                part = block.vectors[block.starts[first] : block.starts[stop]]
                # torch warns of read-only maps, which it would leave alone here
                whole = torch.from_numpy(np.require(part, requirements="W")).to(self._device)
                low = whole.to(dtype)
                off = 0.0 if low is whole else _norm(whole - low)
                counts = torch.from_numpy(block.counts[first:stop]).to(self._device)
                owners = None if self._matrix.single else _owners(counts)
                yield Piece(low, stop - first, owners, _norm(whole), off)

    def _guess(self, asked: "Asked", k: int) -> torch.Tensor:
        """A score that, going by a sample of the rows, a good k of them reach with all their error."""
        matrix = self._matrix
        size = max(1, SAMPLE * matrix.rows // matrix.total)
        mean = k * size / matrix.rows
        rank = min(int(mean + 4 * mean**0.5 + 4), size)
        rows = np.linspace(0, matrix.rows - 1, size).astype(np.int64)
        pieces = list(self._pieces([matrix.at(rows)], asked.dtype))
        norm, off = max(piece.norm for piece in pieces), max(piece.off for piece in pieces)
        values = []
        for tile in asked.tiles:
            scores = torch.cat([asked.scores(tile, piece).float().clone() for piece in pieces], 1)
            values.append(scores.topk(rank, dim=1, sorted=False).values.amin(1).double())
        error = asked.error.of(norm, off)
        return asked.error.lowered(torch.cat(values)) - 2 * error


def _norm(vectors: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(vectors, dim=1).max()) if len(vectors) else 0.0


def _owners(counts: torch.Tensor) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)


class Asked:
    """Queries on the device, in tiles, and how far their scores can be from the exact ones."""

    def __init__(self, queries: Ragged, device: torch.device, dtype: torch.dtype) -> None:
        self.dtype = dtype
        whole = torch.from_numpy(queries.vectors).to(device)
        low = whole.to(dtype)
        starts, counts = queries.starts, torch.from_numpy(queries.counts).to(device)
        single = bool((counts == 1).all())
        self.tiles = []
        for first, stop in cut(starts, QUERY_TILE):
            groups = None if single else _groups(counts[first:stop])
            vectors = low[int(starts[first]) : int(starts[stop])]
            self.tiles.append(Tile(vectors, slice(first, stop), groups))
        self.error = _error(whole, low, counts)
        longest = max((len(tile.vectors) for tile in self.tiles), default=0)
        # once: fresh pages are dear
        self._room = low.new_empty(longest * BLOCK_ROWS)

    def scores(self, tile: Tile, piece: Piece) -> torch.Tensor:
        """[queries, rows]; holds until the next call."""
        if piece.owners is None:
            made = self._product(tile.vectors, piece.vectors)
            return made if tile.groups is None else tile.groups.T @ made.float()
        most = tile.vectors.new_full((piece.rows, len(tile.vectors)), -torch.inf)
        for first in range(0, len(piece.vectors), BLOCK_ROWS):
            made = self._product(piece.vectors[first : first + BLOCK_ROWS], tile.vectors)
            owners = piece.owners[first : first + BLOCK_ROWS, None].expand_as(made)
            most.scatter_reduce_(0, owners, made, "amax")
        return (most if tile.groups is None else most.float() @ tile.groups).T.contiguous()

    def _product(self, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        room = self._room[: len(rows) * len(columns)].view(len(rows), len(columns))
        return torch.mm(rows, columns.T, out=room)


def _groups(counts: torch.Tensor) -> torch.Tensor:
    """[vectors, queries]: sums over query vectors are products with it."""
    return torch.nn.functional.one_hot(_owners(counts), len(counts)).float()


def _error(whole: torch.Tensor, low: torch.Tensor, counts: torch.Tensor) -> Error:
    """The bound for each query, summed over its vectors.

    A product of dim terms, and a sum of as many as there are query vectors, err by one unit roundoff
    of float32 per addition. Rounded factors: <q, d> - <q', d'> = <q - q', d> + <q', d - d'>. Products
    in bfloat16 are rounded once more when they are stored.
    """
    owners = _owners(counts)
    norms = torch.linalg.vector_norm(low.float(), dim=1).double() * SAFE
    lost = torch.linalg.vector_norm(whole - low, dim=1).double() * SAFE
    stored = 0.0 if low.dtype == torch.float32 else 2.0**-8
    alone = (counts == 1).double()
    steps = (whole.shape[1] + counts) * 2.0**-24 + (1 - alone) * stored
    norm = torch.zeros_like(alone).index_add_(0, owners, norms * steps[owners] + lost)
    off = torch.zeros_like(alone).index_add_(0, owners, norms)
    return Error(norm, off, alone * stored)


class Rescore:
    """Scores in float64 of one query, [vectors, dim], with some rows."""

    def __init__(self, matrix: Matrix) -> None:
        self._matrix = matrix
        self._step = max(1, AGAIN * matrix.rows // max(1, matrix.total))
        self._room = torch.empty(0, matrix.dim, dtype=torch.float64)  # kept: fresh pages are dear

    def __call__(self, query: NDArray[np.floating], rows: NDArray[np.int64]) -> NDArray[np.float64]:
        asked = torch.from_numpy(query).double()
        made = np.empty(len(rows))
        for first in range(0, len(rows), self._step):
            found = self._matrix.at(rows[first : first + self._step])
            made[first : first + self._step] = self._maxsim(asked, found)
        return made

    def _maxsim(self, asked: torch.Tensor, found: Ragged) -> NDArray[np.float64]:
        if len(self._room) < len(found.vectors):
            self._room = self._room.new_empty(len(found.vectors), self._matrix.dim)
        vectors = self._room[: len(found.vectors)].copy_(torch.from_numpy(found.vectors))
        if len(asked) == 1:
            products: NDArray[np.float64] = torch.mv(vectors, asked[0]).numpy()
            return products if self._matrix.single else _most(products, found)
        scores: NDArray[np.float64] = _most((vectors @ asked.T).numpy(), found).sum(1)
        return scores


def _most(products: NDArray[np.float64], of: Ragged) -> NDArray[np.float64]:
    """The maximum of the vectors of each row."""
    most: NDArray[np.float64] = np.maximum.reduceat(products, of.starts[:-1], axis=0)
    return most


def top(
    rows: NDArray[np.int64], exact: NDArray[np.float64], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The k best and what ties with the last of them in float32, the precision of a run."""
    if len(rows) <= k:
        return rows, exact
    rounded = exact.astype(np.float32)
    kept = rounded >= np.partition(rounded, -k)[-k]
    return rows[kept], exact[kept]
