"""Exact search: every vector is compared, block by block, in bounded memory; no index is built.

Runs through torch on the CPU or a GPU alike. Candidates come from float32 products; what is returned
is rescored in float64 and proven complete by an error bound, so the order is that of exact arithmetic.
"""

import warnings
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

QUERY_TILE = 1024
BLOCK_ROWS = 16384  # with a tile of queries: 64 MB of scores at a time
MARGIN = 32


class Matrix(Protocol):
    """All vectors: blocks of float32 rows in order, and any rows at once."""

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
        left = np.arange(len(queries))
        wanted = min(k + MARGIN, self._matrix.rows)
        while len(left):
            found = self._candidates(queries[left], wanted)
            again = []
            for i, number in enumerate(left):
                exact = rescore(self._matrix, queries[number], found.rows[i])
                if wanted < self._matrix.rows and not _complete(
                    exact, found, i, queries[number], k
                ):
                    again.append(number)
                rows[number], scores[number] = top(found.rows[i], exact, k)
            left = np.array(again, dtype=np.int64)
            wanted = min(wanted * 4, self._matrix.rows)  # many ties at the cut-off: look deeper
        return Hits(rows, scores)

    def _candidates(self, queries: NDArray[np.float32], k: int) -> "Candidates":
        tiles = [torch.from_numpy(t).to(self._device) for t in _tiles(queries)]
        tops = [Top(len(tile), k, self._device) for tile in tiles]
        first, norm = 0, 0.0
        for block in _blocks(self._matrix):
            vectors = _shared(block).to(self._device)
            norm = max(norm, float(torch.linalg.vector_norm(vectors, dim=1).max()))
            for tile, top in zip(tiles, tops, strict=True):
                top.offer(tile @ vectors.T, first)
            first += len(block)
        made = [top.result() for top in tops]
        return Candidates(
            np.concatenate([scores for scores, _ in made]),
            np.concatenate([rows for _, rows in made]),
            norm,
        )


class Candidates(NamedTuple):
    """float32 scores and rows [n, k], best first, and the largest norm of any vector."""

    scores: NDArray[np.float32]
    rows: NDArray[np.int64]
    norm: float


def _tiles(queries: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    return [queries[i : i + QUERY_TILE] for i in range(0, len(queries), QUERY_TILE)]


def _blocks(matrix: Matrix) -> Iterable[NDArray[np.float32]]:
    for block in matrix:
        for start in range(0, len(block), BLOCK_ROWS):
            yield block[start : start + BLOCK_ROWS]


def _shared(block: NDArray[np.float32]) -> torch.Tensor:
    """The block as a tensor on the same memory; that of a read-only map is never written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(block)


class Top:
    """The running k best of each query; later blocks are filtered by the k-th score so far."""

    def __init__(self, queries: int, k: int, device: torch.device) -> None:
        self._k = k
        self._scores = torch.full((queries, k), -torch.inf, device=device)
        self._rows = torch.full((queries, k), -1, dtype=torch.long, device=device)

    def offer(self, scores: torch.Tensor, first: int) -> None:
        """Take in the scores [queries, rows] of rows `first` onwards."""
        bar = self._scores[:, -1:]
        query, column = torch.nonzero(scores > bar, as_tuple=True)
        counts = torch.bincount(query, minlength=len(scores))
        widest = int(counts.max())
        if widest == 0:
            return
        if widest > scores.shape[1] // 4:  # early blocks: nearly everything passes
            best, at = scores.topk(min(self._k, scores.shape[1]), dim=1)
            self._merge(best, at + first)
            return
        slot = torch.arange(len(query), device=query.device) - (counts.cumsum(0) - counts)[query]
        passed = scores.new_full((len(scores), widest), -torch.inf)
        rows = torch.full_like(passed, -1, dtype=torch.long)
        passed[query, slot] = scores[query, column]
        rows[query, slot] = column + first
        self._merge(passed, rows)

    def _merge(self, scores: torch.Tensor, rows: torch.Tensor) -> None:
        both = torch.cat([self._scores, scores], dim=1)
        self._scores, at = both.topk(self._k, dim=1)
        self._rows = torch.cat([self._rows, rows], dim=1).gather(1, at)

    def result(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Scores and rows, best first."""
        return self._scores.cpu().numpy(), self._rows.cpu().numpy()


def rescore(
    matrix: Matrix, query: NDArray[np.float32], rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """float64 dot products of one query with some rows."""
    return np.asarray(matrix.at(rows), dtype=np.float64) @ query.astype(np.float64)


def _complete(
    exact: NDArray[np.float64], found: Candidates, number: int, query: NDArray[np.float32], k: int
) -> bool:
    """Whether no row outside the candidates can reach the k-th exact score."""
    error = len(query) * 2.0**-24 * float(np.linalg.norm(query)) * found.norm
    kth = np.partition(exact, -k)[-k]
    return bool(found.scores[number, -1] + error < np.float32(kth))


def top(
    rows: NDArray[np.int64], exact: NDArray[np.float64], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The k best and what ties with the last of them in float32, the precision of a run."""
    if len(rows) <= k:
        return rows, exact
    rounded = exact.astype(np.float32)
    kept = rounded >= np.partition(rounded, -k)[-k]
    return rows[kept], exact[kept]
