"""Exact search: every vector is compared, block by block, in bounded memory; no index is built.

Runs through torch on the CPU or a GPU alike. Candidates come from float32 products; what is
returned is rescored in float64 and proven complete by an error bound, so the order is that of exact
arithmetic.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

QUERY_TILE = 1024
BLOCK_ROWS = 4096  # with a tile of queries: 16 MB of scores at a time, which caches help with
SAMPLE_ROWS = 8192  # rows that tell roughly how high the k-th score lies
MARGIN = 32
HELD = 4 << 20  # candidates of a tile that may wait before the best are picked out


class Matrix(Protocol):
    """All vectors: blocks of rows in order, and any rows at once as float32."""

    @property
    def rows(self) -> int: ...

    @property
    def dim(self) -> int: ...

    def __iter__(self) -> Iterator[NDArray[np.float32]]: ...

    def at(self, rows: NDArray[np.int64]) -> NDArray[np.float32]: ...


class Hits(NamedTuple):
    """Per query: vector rows and their float64 scores, unordered, the top k and all ties with it."""

    rows: list[NDArray[np.int64]]
    scores: list[NDArray[np.float64]]


class Candidates(NamedTuple):
    """Rows of each query, the float32 score that no other row exceeds, and the largest norm."""

    rows: list[NDArray[np.int64]]
    floors: NDArray[np.float32]
    norm: float


class Exact:
    """Brute force over a Matrix."""

    def __init__(self, matrix: Matrix, device: torch.device) -> None:
        self._matrix = matrix
        self._device = device

    def search(self, queries: NDArray[np.float32], k: int) -> Hits:
        """The k best rows of each query [n, dim], with every row that ties with the last of them.

        A row is left out only when its float32 score lies below the k-th float64 score by more than
        the rounding error of a float32 dot product, dim * 2**-24 * |q| * |d|.
        """
        rows: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * len(queries)
        scores: list[NDArray[np.float64]] = [np.zeros(0)] * len(queries)
        k = min(k, self._matrix.rows)
        wanted = min(k + MARGIN, self._matrix.rows)
        left = np.arange(len(queries))
        sampled = self._matrix.rows >= 8 * SAMPLE_ROWS
        while len(left) and k:
            found = self._candidates(queries[left], wanted, sampled)
            exact = rescore_all(self._matrix, queries[left], found.rows)
            again = []
            for i, number in enumerate(left):
                if not self._complete(exact[i], queries[number], (found, i), k):
                    again.append(number)
                    continue
                rows[number], scores[number] = top(found.rows[i], exact[i], k)
            # ties at the cut-off, or a sample that misled: look deeper, without it
            left, sampled = np.array(again, dtype=np.int64), False
            wanted = min(wanted * 4, self._matrix.rows)
        return Hits(rows, scores)

    def _complete(
        self,
        exact: NDArray[np.float64],
        query: NDArray[np.float32],
        of: tuple[Candidates, int],
        k: int,
    ) -> bool:
        """Whether no row outside the candidates can reach the k-th exact score."""
        found, number = of
        if len(exact) == self._matrix.rows:
            return True
        if len(exact) < k:
            return False
        error = len(query) * 2.0**-24 * float(np.linalg.norm(query)) * found.norm
        kth = np.partition(exact, -k)[-k]
        return bool(found.floors[number] + error < np.float32(kth))

    def _candidates(self, queries: NDArray[np.float32], k: int, sampled: bool) -> Candidates:
        tiles = [torch.from_numpy(t).to(self._device) for t in _tiles(queries)]
        sample = self._sample() if sampled else None
        tops = [Top(tile, k, sample, self._matrix.rows) for tile in tiles]
        first, norm = 0, 0.0
        for vectors in self._blocks():
            norm = max(norm, float(torch.linalg.vector_norm(vectors, dim=1).max()))
            for best in tops:
                best.offer(vectors, first)
            first += len(vectors)
        made = [best.result() for best in tops]
        rows = [row for some, _ in made for row in some]
        return Candidates(rows, np.concatenate([floors for _, floors in made]), norm)

    def _blocks(self) -> Iterator[torch.Tensor]:
        for block in self._matrix:
            for start in range(0, len(block), BLOCK_ROWS):
                part = block[start : start + BLOCK_ROWS]
                # torch warns of read-only maps, which it would leave alone here
                yield torch.from_numpy(np.require(part, requirements="W")).to(self._device)

    def _sample(self) -> torch.Tensor:
        """Rows spread evenly over the whole."""
        rows = np.linspace(0, self._matrix.rows - 1, SAMPLE_ROWS).astype(np.int64)
        return torch.from_numpy(self._matrix.at(rows)).to(self._device)


def _tiles(queries: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    return [queries[i : i + QUERY_TILE] for i in range(0, len(queries), QUERY_TILE)]


class Top:
    """The running k best of each query of a tile; only scores above a query's bar are looked at.

    The bar comes from a sample of all rows, low enough to let about twice k pass; where it was too
    high, fewer than k candidates come out, and the caller asks again without a sample.
    """

    def __init__(self, tile: torch.Tensor, k: int, sample: torch.Tensor | None, rows: int) -> None:
        self._tile, self._k = tile, k
        self._scores = tile.new_empty(len(tile), BLOCK_ROWS)
        self._passed = torch.empty_like(self._scores, dtype=torch.bool)
        self._bar = tile.new_full((len(tile),), -torch.inf)
        self._open = sample is None
        if sample is not None:
            mean = k * len(sample) / rows
            rank = min(int(mean + 4 * mean**0.5 + 4), len(sample))
            self._bar = (tile @ sample.T).topk(rank, dim=1).values[:, -1]
        self._held: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self._count = 0

    def offer(self, vectors: torch.Tensor, first: int) -> None:
        """Score the vectors of rows `first` onwards, BLOCK_ROWS of them at most."""
        scores, passed = self._scores, self._passed
        if len(vectors) < BLOCK_ROWS:
            scores, passed = (
                x.flatten()[: len(x) * len(vectors)].view(len(x), -1) for x in (scores, passed)
            )
        torch.mm(self._tile, vectors.T, out=scores)
        if self._open:
            self._offer_all(scores, first)
            return
        torch.gt(scores, self._bar[:, None], out=passed)
        query, column = torch.nonzero(passed, as_tuple=True)
        self._hold(query, column + first, scores[query, column])

    def _offer_all(self, scores: torch.Tensor, first: int) -> None:
        """Without a bar nearly everything would pass: the block's k best are enough."""
        best, at = scores.topk(min(self._k, scores.shape[1]), dim=1)
        query = torch.arange(len(scores), device=scores.device)[:, None].expand_as(at)
        self._hold(query.flatten(), at.flatten() + first, best.flatten())
        self._pick()

    def _hold(self, query: torch.Tensor, rows: torch.Tensor, scores: torch.Tensor) -> None:
        self._held.append((query, rows, scores))
        self._count += len(rows)
        if self._count > max(HELD, 4 * self._k * len(self._bar)):
            self._pick()

    def _pick(self) -> None:
        """Keep the k best of each query; the k-th becomes the bar."""
        if not self._count:
            return
        query, rows, scores = (torch.cat(parts) for parts in zip(*self._held, strict=True))
        order = torch.argsort(scores, descending=True)
        order = order[torch.argsort(query[order], stable=True)]
        query, rows, scores = query[order], rows[order], scores[order]
        counts = torch.bincount(query, minlength=len(self._bar))
        starts = counts.cumsum(0) - counts
        rank = torch.arange(len(query), device=query.device) - starts[query]
        full = counts >= self._k
        last = scores[(starts + self._k - 1).clamp(max=len(scores) - 1)]
        self._bar = torch.where(full, torch.maximum(last, self._bar), self._bar)
        self._open = self._open and not bool(full.all())
        kept = rank < self._k
        self._held = [(query[kept], rows[kept], scores[kept])]
        self._count = int(kept.sum())

    def result(self) -> tuple[list[NDArray[np.int64]], NDArray[np.float32]]:
        """The rows of each query, and the score that no row left out exceeds."""
        self._pick()
        if not self._held:
            return [np.zeros(0, np.int64)] * len(self._bar), self._bar.cpu().numpy()
        query, rows, _ = (part.cpu().numpy() for part in self._held[0])
        ends = np.cumsum(np.bincount(query, minlength=len(self._bar)))
        return np.split(rows, ends[:-1]), self._bar.cpu().numpy()


def rescore_all(
    matrix: Matrix, queries: NDArray[np.float32], rows: list[NDArray[np.int64]]
) -> list[NDArray[np.float64]]:
    """float64 dot products of each query with its rows."""
    longest = max((len(some) for some in rows), default=0)
    work = torch.empty(longest, matrix.dim, dtype=torch.float64)  # once: fresh pages are dear
    made: list[NDArray[np.float64]] = []
    for some, query in zip(rows, torch.from_numpy(queries).double(), strict=True):
        vectors = work[: len(some)].copy_(torch.from_numpy(matrix.at(some)))
        made.append((vectors @ query).numpy())
    return made


def rescore(
    matrix: Matrix, query: NDArray[np.float32], rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """float64 dot products of one query with some rows."""
    return rescore_all(matrix, query[None], [rows])[0]


def top(
    rows: NDArray[np.int64], exact: NDArray[np.float64], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The k best and what ties with the last of them in float32, the precision of a run."""
    if len(rows) <= k:
        return rows, exact
    rounded = exact.astype(np.float32)
    kept = rounded >= np.partition(rounded, -k)[-k]
    return rows[kept], exact[kept]
