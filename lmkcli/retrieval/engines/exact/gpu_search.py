"""Exact search on a GPU: large blocks, half precision, and a proof.

The scores are those of `exact_search.py`. On a GPU the time goes into copies and into the selection of the
best scores, so the steps are others than on a CPU:

1. Vectors travel as they are stored, through pinned memory, while the block before is searched. They stay on
   the device if they fit.
2. Products in float16 give the best k + spare rows of each query. No step waits for the CPU.
3. These rows are scored in float64 on the device.
4. Any other row has a product of at most the worst one of the kept rows. If even the largest possible error
   leaves it below the k-th best exact score, the k best rows are complete. Queries without this proof are
   searched again with more spare rows, and at last by `Exact`.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from lmkcli.models.gpu_layers import kernels, kernels_run
from lmkcli.retrieval.engines.exact.exact_search import Exact
from lmkcli.retrieval.engines.exact.topk import SAFE
from lmkcli.retrieval.vectors.vector_search import Matrix, RowHits, VectorSearch, check_finite
from lmkcli.store.ragged import cut, ranges
from lmkcli.system.hardware import free_memory
from lmkcli.vectors.rows import Ragged
from lmkcli.vectors.stored import StoredBlock

HALF = 2.0**-11  # unit roundoff of float16
# Tensor cores sum in float32, but they truncate where IEEE rounds, and the order is theirs. So each addition
# counts as four unit roundoffs (2**-24).
ADDITION = 2.0**-22
LENGTH = 16.0  # vectors are scaled by powers of two to norms up to 16, where float16 is precise
STAGED = 32 << 20  # bytes of a pinned buffer


class GpuSizes(NamedTuple):
    """Sizes of blocks. They change time and memory, and never the results."""

    tile: int = 1024  # query vectors that are scored together
    block: int = 1 << 17  # vectors of a block; with a tile of queries 256 MB of scores
    scored: int = 1 << 28  # bytes of float64 vectors in memory, in step 3
    resident: int | None = (
        None  # bytes of vectors that may stay on the device; None: by its free memory
    )

    def spare(self, k: int) -> tuple[int, int]:
        """Return how many rows are kept in addition to k, first, and for queries without a proof."""
        return 128 + k // 8, 1024 + 8 * k


GPU_SIZES = GpuSizes()


class DeviceDecoder(Protocol):
    """Converts stored vectors on a device."""

    def on_device(self, stored: Mapping[str, torch.Tensor], dim: int) -> torch.Tensor:
        """Return vectors [n, dim], exactly, in any floating-point type."""


@runtime_checkable
class AsStored(Protocol):
    """A Matrix that can be read as it is stored."""

    @property
    def codec(self) -> DeviceDecoder: ...

    def stored_blocks(self, most: int) -> Iterator[StoredBlock]:
        """Yield all rows in order, in blocks of at most `most` vectors, or of one row with more."""


class _Float32:
    """The decoder of vectors that were decoded before."""

    def on_device(self, stored: Mapping[str, torch.Tensor], dim: int) -> torch.Tensor:
        return stored["vectors"]


def _blocks(matrix: Matrix, most: int) -> Iterator[StoredBlock]:
    if isinstance(matrix, AsStored):
        yield from matrix.stored_blocks(most)
        return
    for block in matrix:
        for first, stop in cut(block.starts, most):
            part = block.vectors[block.starts[first] : block.starts[stop]]
            yield StoredBlock({"vectors": part}, block.counts[first:stop])


class GpuExact(VectorSearch):
    """Exact search over a Matrix on a GPU. Tests run it on a CPU, with the same results."""

    def __init__(
        self,
        matrix: Matrix,
        device: torch.device,
        sizes: GpuSizes = GPU_SIZES,
        dtype: torch.dtype = torch.float16,
    ) -> None:
        self._matrix, self._device, self._sizes, self._dtype = matrix, device, sizes, dtype
        self._vectors = DeviceVectors(matrix, device, sizes, dtype)

    def search(self, queries: Ragged, k: int) -> RowHits:
        """Return the k best rows of each query, and every row that ties with the last of them in float32."""
        count, k = len(queries.counts), min(k, self._matrix.rows)
        hits = RowHits([np.zeros(0, np.int64)] * count, [np.zeros(0)] * count)
        pending = np.arange(count if k else 0)
        for spare in self._sizes.spare(k):
            if len(pending):
                pending = self._search(queries, pending, k, spare, hits)
        if len(pending):
            whole = Exact(self._matrix, self._device).search(queries.take(pending), k)
            for number, rows, scores in zip(pending.tolist(), *whole, strict=True):
                hits.rows[number], hits.scores[number] = rows, scores
        return hits

    def _search(
        self, queries: Ragged, numbers: NDArray[np.int64], k: int, spare: int, hits: RowHits
    ) -> NDArray[np.int64]:
        """Search some queries in one pass, and return the numbers of those without a proof."""
        width = min(self._matrix.rows, k + spare)
        with _full_sums(self._device):
            tiles = list(self._tiles(queries.take(numbers), width))
            for block in self._vectors:
                for tile in tiles:
                    tile.offer(block)
        norms, scale = self._vectors.norms(), self._vectors.scale
        missing = []
        for tile in tiles:
            mine = numbers[tile.queries]
            exact = self._exact(queries.take(mine), tile.rows)
            singles = exact.float()
            kth = singles.topk(k, dim=1, sorted=False).values.amin(1)
            kept = singles >= kth[:, None]
            proved = np.ones(len(mine), np.bool_)
            if width < self._matrix.rows:
                proved = (tile.others(*norms, scale) < kth).cpu().numpy()
            ends = np.cumsum(kept.sum(dim=1).cpu().numpy())[:-1]
            rows, scores = (each[kept].cpu().numpy() for each in (tile.rows, exact))
            found = zip(np.split(rows, ends), np.split(scores, ends), strict=True)
            for number, proof, own in zip(mine.tolist(), proved.tolist(), found, strict=True):
                if proof:
                    hits.rows[number], hits.scores[number] = own
            missing.append(mine[~proved])
        return np.concatenate(missing)

    def _tiles(self, queries: Ragged, width: int) -> Iterator["GpuTile"]:
        for first, stop in cut(queries.starts, self._sizes.tile):
            part = queries.take(np.arange(first, stop))
            yield GpuTile(part, slice(first, stop), width, self._vectors, self._dtype)

    def _exact(self, queries: Ragged, rows: torch.Tensor) -> torch.Tensor:
        """Return the float64 scores [queries, n] of each query with its own rows [queries, n]."""
        matrix, size = self._matrix, max(1, self._sizes.scored // (8 * self._matrix.dim))
        scores = torch.empty(rows.shape, dtype=torch.float64, device=self._device)
        if matrix.single:
            totals = _totals(queries, self._device)
            step = max(1, size // rows.shape[1])
            for first in range(0, len(rows), step):
                part = slice(first, first + step)
                vectors = self._vectors.single_at(rows[part].flatten())
                _products(vectors, totals[part], scores[part])
            return scores
        for number, own in enumerate(rows.cpu().numpy()):
            query = torch.from_numpy(queries.text(number)).to(self._device).double()
            for first, stop in cut(self._vectors.starts_of(own), size):
                vectors, counts = self._vectors.at(own[first:stop])
                products = vectors.double() @ query.T
                scores[number, first:stop] = _maxima(products, counts).sum(1)
        return scores


def _products(rows: torch.Tensor, queries: torch.Tensor, out: torch.Tensor) -> None:
    """Set out[q, i], in float64, to the product of rows[q * n + i] and queries[q]; out is [queries, n]."""
    if kernels_run(rows.device):
        kernels().row_products(rows, queries, out)
    else:
        torch.bmm(rows.double().view(*out.shape, -1), queries[:, :, None], out=out[:, :, None])


class GpuTile:
    """Some queries on the device, and the best rows that they have found.

    With one vector for each row, the score is the dot product with the sum of the query's vectors, so each
    query has one vector here.
    """

    def __init__(
        self,
        queries: Ragged,
        numbers: slice,
        width: int,
        vectors: "DeviceVectors",
        dtype: torch.dtype,
    ) -> None:
        self.queries, self._width = numbers, width
        device = vectors.device
        counts = torch.from_numpy(queries.counts).to(device)
        if vectors.single:
            exact, counts = _totals(queries, device), torch.ones_like(counts)
        else:
            exact = torch.from_numpy(queries.vectors).to(device).double()
        self._counts = counts
        owners = torch.repeat_interleave(counts)
        # A power of two changes no digits. All vectors of a query have the same one.
        longest = torch.zeros(len(counts), dtype=torch.float64, device=device)
        longest.scatter_reduce_(0, owners, torch.linalg.vector_norm(exact, dim=1), "amax")
        self._scale = _scale_of(longest)
        exact = exact * self._scale[owners, None]
        self._low = exact.to(dtype)
        self._error = _error(exact, self._low, owners, len(counts))
        self._single = vectors.single
        self._scores = torch.empty((len(counts), 0), dtype=dtype, device=device)
        self.rows = torch.empty((len(counts), 0), dtype=torch.int64, device=device)

    def offer(self, block: "DeviceBlock") -> None:
        """Keep the best rows of the earlier ones and of a block."""
        if block.counts is None:
            scores = self._low @ block.vectors.T
        else:
            maxima = _maxima(block.vectors @ self._low.T, block.counts)
            scores = _sums(maxima.T.float(), self._counts).to(maxima.dtype)
        best, rows = scores.topk(min(self._width, scores.shape[1]), dim=1, sorted=False)
        self._scores = torch.cat([self._scores, best], 1)
        self.rows = torch.cat([self.rows, rows + block.first], 1)
        if self._scores.shape[1] > self._width:
            self._scores, places = self._scores.topk(self._width, dim=1, sorted=False)
            self.rows = self.rows.gather(1, places)

    def others(self, norm: float, rounding_norm: float, scale: float) -> torch.Tensor:
        """Return what the exact scores [queries] of all other rows cannot exceed, in float32.

        `norm` and `rounding_norm` are those of the vectors after they were multiplied by `scale`.
        """
        least = self._scores.amin(1).double()
        error = self._error[0] * norm + self._error[1] * rounding_norm
        # The stored score is rounded, also below the smallest normal number of float16.
        return ((least + error + HALF * least.abs() + 2.0**-24) / self._scale / scale).float()


def _scale_of(norms: torch.Tensor) -> torch.Tensor:
    """Return the powers of two that bring norms to LENGTH / 2 … LENGTH; 1 for a norm of zero."""
    scales = torch.exp2(torch.log2(LENGTH / norms.double()).floor())
    return torch.where(torch.isfinite(scales) & (scales > 0), scales, 1.0)


def _error(
    exact: torch.Tensor, low: torch.Tensor, owners: torch.Tensor, queries: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return coefficients [queries] of a bound on the error of products, as in `topk.py`.

    The first one belongs to the largest norm of a vector, the second to the largest norm of what a vector
    loses by rounding. Products of several vectors are rounded to float16 before they are summed.
    """
    norms = torch.linalg.vector_norm(low.double(), dim=1) * SAFE
    lost = torch.linalg.vector_norm(exact - low.double(), dim=1) * SAFE
    several = (torch.bincount(owners, minlength=queries) > 1).double()[owners]
    sums = (exact.shape[1] + 8) * ADDITION + 2 * HALF * several
    first = torch.zeros(queries, dtype=torch.float64, device=exact.device)
    return first.index_add(0, owners, norms * sums + lost), first.index_add(0, owners, norms)


def _totals(queries: Ragged, device: torch.device) -> torch.Tensor:
    """Return the sum of the vectors of each query in float64, [queries, dim]."""
    vectors = torch.from_numpy(queries.vectors).to(device).double()
    if len(vectors) == len(queries.counts):
        return vectors
    owners = torch.repeat_interleave(torch.from_numpy(queries.counts).to(device))
    return vectors.new_zeros(len(queries.counts), vectors.shape[1]).index_add_(0, owners, vectors)


def _maxima(products: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the largest product [rows, columns] of the vectors of each row; -inf for a row without any."""
    return torch.segment_reduce(
        products, "max", lengths=counts, axis=0, initial=-torch.inf, unsafe=True
    )


def _sums(values: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return sums [groups, columns] of consecutive lines; group i has `counts[i]` of them."""
    return torch.segment_reduce(values, "sum", lengths=counts, axis=0, initial=0.0, unsafe=True)


@contextmanager
def _full_sums(device: torch.device) -> Iterator[None]:
    """Let cuBLAS sum products of float16 in float32, also where it divides a sum."""
    if device.type != "cuda":
        yield
        return
    settings = torch.backends.cuda.matmul
    before = settings.allow_fp16_reduced_precision_reduction
    settings.allow_fp16_reduced_precision_reduction = False
    try:
        yield
    finally:
        settings.allow_fp16_reduced_precision_reduction = before


class DeviceBlock(NamedTuple):
    """Consecutive rows on the device, rounded to the dtype of products.

    first: the number of the first row. counts: the number of vectors of each row; None for one each.
    """

    first: int
    vectors: torch.Tensor
    counts: torch.Tensor | None


class DeviceVectors:
    """The vectors of a matrix on a device: all of them if they fit, else one block after the other."""

    def __init__(
        self, matrix: Matrix, device: torch.device, sizes: GpuSizes, dtype: torch.dtype
    ) -> None:
        self._matrix, self._sizes, self._dtype = matrix, sizes, dtype
        self.device, self.single = device, matrix.single
        self._decoder: DeviceDecoder = matrix.codec if isinstance(matrix, AsStored) else _Float32()
        self._resident: dict[str, torch.Tensor] | None = None  # [vectors, …], while they are read
        self._counts: list[NDArray[np.int64]] = []  # of the vectors in each row, by block
        self._norms: list[torch.Tensor] = []  # [norm, rounding norm], by block
        self._complete = False
        self.scale = (
            1.0  # a power of two by which all vectors are multiplied before they are rounded
        )
        self._starts = np.zeros(1, np.int64)
        self._upload = Upload(device)

    def __iter__(self) -> Iterator[DeviceBlock]:
        """Yield all rows in blocks. The first pass keeps them on the device if they fit."""
        if self._complete and self._resident is not None:
            yield from self._kept(self._resident)
            return
        first, vector = 0, 0
        counts, norms = [], []
        for number, block in enumerate(_blocks(self._matrix, self._sizes.block)):
            total = int(block.counts.sum())
            if number == 0 and not self._complete:
                self._resident = self._room(block)
            targets = self._targets(block, vector, vector + total)
            self._upload(block.arrays, targets)
            if number == 0 and not self._complete:
                self.scale = self._scale(targets)
            made = self._block(first, targets, block.counts)
            if not self._complete:
                counts.append(block.counts)
                norms.append(self._norms_of(targets, made.vectors))
            yield made
            first, vector = first + len(block.counts), vector + total
        if not self._complete:
            self._counts, self._norms, self._complete = counts, norms, True
            if not self.single:
                self._starts = np.concatenate([[0], *counts]).cumsum().astype(np.int64)

    def _kept(self, resident: dict[str, torch.Tensor]) -> Iterator[DeviceBlock]:
        first, vector = 0, 0
        for counts in self._counts:
            stop = vector + int(counts.sum())
            stored = {stem: array[vector:stop] for stem, array in resident.items()}
            yield self._block(first, stored, counts)
            first, vector = first + len(counts), stop

    def _block(
        self, first: int, stored: Mapping[str, torch.Tensor], counts: NDArray[np.int64]
    ) -> DeviceBlock:
        vectors = self._scaled(stored).to(self._dtype)
        on_device = None if self.single else torch.from_numpy(counts).to(self.device)
        return DeviceBlock(first, vectors, on_device)

    def _scaled(self, stored: Mapping[str, torch.Tensor]) -> torch.Tensor:
        exact = self._decoder.on_device(stored, self._matrix.dim)
        return exact if self.scale == 1 else _wide(exact) * self.scale

    def _scale(self, stored: Mapping[str, torch.Tensor]) -> float:
        """Return the scale by the first block: 1 for usual norms, so that nothing is converted."""
        exact = self._decoder.on_device(stored, self._matrix.dim)
        if not len(exact):
            return 1.0
        norm = torch.linalg.vector_norm(_wide(exact), dim=1).amax()
        scale = float(_scale_of(norm))
        return 1.0 if 1 <= scale <= LENGTH**2 else scale

    def _room(self, block: StoredBlock) -> dict[str, torch.Tensor] | None:
        """Return memory on the device for all vectors; None if they do not fit."""
        shapes = {stem: (self._matrix.total, *a.shape[1:]) for stem, a in block.arrays.items()}
        size = sum(int(np.prod(s)) * block.arrays[stem].itemsize for stem, s in shapes.items())
        most = self._sizes.resident
        if most is None:
            on_gpu = self.device.type == "cuda"
            free = torch.cuda.mem_get_info(self.device)[0] if on_gpu else free_memory()
            most = free - free // 4 - 8 * 2 * self._sizes.tile * self._sizes.block
        if size > most:
            return None
        return {
            stem: torch.empty(shape, dtype=_tensor(block.arrays[stem]).dtype, device=self.device)
            for stem, shape in shapes.items()
        }

    def _targets(self, block: StoredBlock, first: int, stop: int) -> dict[str, torch.Tensor]:
        if self._resident is not None:
            return {stem: array[first:stop] for stem, array in self._resident.items()}
        return {stem: self._upload.empty(array) for stem, array in block.arrays.items()}

    def _norms_of(self, stored: Mapping[str, torch.Tensor], low: torch.Tensor) -> torch.Tensor:
        """Return the largest norm of a scaled vector, and of what one loses by rounding, [2]."""
        exact = self._scaled(stored)
        norms = torch.linalg.vector_norm(_wide(exact), dim=1)
        lost = torch.zeros_like(norms)
        if exact.dtype != low.dtype:
            lost = torch.linalg.vector_norm(exact - low.to(exact.dtype), dim=1)
        if not len(norms):
            return torch.zeros(2, device=self.device)
        return torch.stack([norms.amax(), lost.amax()]).float()

    def norms(self) -> tuple[float, float]:
        """Return the largest norm of a scaled vector, and of what one loses by rounding.

        Raises DataError if a vector is not finite.
        """
        norm, lost = torch.stack(self._norms).amax(0).tolist()
        check_finite(norm)
        return norm * SAFE, lost * SAFE

    def starts_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first vector of each of some rows if they followed each other, and the total."""
        counts = self._starts[rows + 1] - self._starts[rows]
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    def at(self, rows: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the exact vectors of some rows, and the number of vectors of each."""
        if self._resident is None:
            block = self._matrix.at(rows)
            vectors = torch.from_numpy(block.vectors).to(self.device)
            return vectors, torch.from_numpy(block.counts).to(self.device)
        starts, counts = self._starts[rows], self._starts[rows + 1] - self._starts[rows]
        places = torch.from_numpy(ranges(starts, counts)).to(self.device)
        return self._kept_at(places, self._resident), torch.from_numpy(counts).to(self.device)

    def single_at(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the exact vectors of some rows [n] that have one vector each."""
        if self._resident is None:
            return torch.from_numpy(self._matrix.at(rows.cpu().numpy()).vectors).to(self.device)
        return self._kept_at(rows, self._resident)

    def _kept_at(self, places: torch.Tensor, resident: dict[str, torch.Tensor]) -> torch.Tensor:
        stored = {stem: array.index_select(0, places) for stem, array in resident.items()}
        return self._decoder.on_device(stored, self._matrix.dim)


class Upload:
    """Copies arrays to a device through two pinned buffers, while it computes.

    The copies have a stream of their own. The stream that computes waits for the copies before it, so the
    copies of the next block run beside the search of this one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._turn = device, 0
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._buffers: list[tuple[torch.Tensor, torch.cuda.Event]] = []

    def empty(self, array: NDArray[Any]) -> torch.Tensor:
        """Return memory on the device for an array, which may be used again when nobody needs it."""
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            made = torch.empty_like(_tensor(array), device=self._device)
        if self._stream:
            made.record_stream(torch.cuda.current_stream(self._device))
        return made

    def __call__(
        self, arrays: Mapping[str, NDArray[Any]], targets: Mapping[str, torch.Tensor]
    ) -> None:
        """Copy arrays to their targets."""
        if self._stream is None:
            for stem, array in arrays.items():
                targets[stem].copy_(_tensor(array))
            return
        current = torch.cuda.current_stream(self._device)
        for stem, array in arrays.items():
            source = _tensor(array).view(-1).view(torch.uint8)
            target = targets[stem].view(-1).view(torch.uint8)
            for first in range(0, len(source), STAGED):
                self._copy(source[first : first + STAGED], target[first : first + STAGED])
        current.wait_stream(self._stream)

    def _copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        assert self._stream is not None
        if not self._buffers:
            self._buffers = [
                (torch.empty(STAGED, dtype=torch.uint8, pin_memory=True), torch.cuda.Event())  # type: ignore[no-untyped-call]
                for _ in range(2)
            ]
        buffer, copied = self._buffers[self._turn]
        self._turn = 1 - self._turn
        copied.synchronize()  # the copy before the last one, from this buffer
        staged = buffer[: len(source)].copy_(source)
        with torch.cuda.stream(self._stream):
            target.copy_(staged, non_blocking=True)
            copied.record(self._stream)


def _wide(vectors: torch.Tensor) -> torch.Tensor:
    """Return vectors in float32 or a wider type."""
    return vectors.to(torch.promote_types(vectors.dtype, torch.float32))


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    """Return a contiguous array as a tensor, without a copy and without a warning about memory maps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(np.ascontiguousarray(array))
