"""Vectors: document ids and vectors in immutable parts, memory-mapped."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from lmkcli import manifest, parts
from lmkcli.building import Builder, Counts, collection_digest, finish, part_summary, seen_ids
from lmkcli.collection import Doc, Shard
from lmkcli.doctable import DocRow, DocTable
from lmkcli.errors import DataError, Stopped
from lmkcli.recipe import Recipe
from lmkcli.tokens import Report, TokenRow, estimate, sum_counts

NUMPY = {"fp16": "float16", "fp32": "float32"}
BLOCK_BYTES = 64 << 20  # of float32 rows at a time, in whatever reads all vectors


class Encoded(NamedTuple):
    """Vectors [n, dim] float32 of some documents, one each, and the content tokens that each kept."""

    vectors: NDArray[np.float32]
    kept: list[int]


class Encode(Protocol):
    """What turns token rows into vectors (encoder.py)."""

    dim: int

    @property
    def buffer_tokens(self) -> int:
        """Content tokens that are sorted by length together."""

    def __call__(self, rows: list[TokenRow], report: Report) -> Encoded:
        """The vectors of the rows, in their order."""


class Source(NamedTuple):
    """Batches of token rows of one shard, and how much of the shard has been read."""

    batches: Iterable[list[TokenRow]]
    fraction: "Fraction"


class Fraction(Protocol):
    """The share of the shard that has been read; None when the end cannot be known."""

    def __call__(self) -> float | None: ...


class Target(NamedTuple):
    """Where vectors go: a claimed folder, the shard, and how they are stored."""

    folder: Path
    shard: Shard
    store_dtype: str
    on_overflow: str
    first: int | None = None  # where an update begins; None continues after what is there

    def done(self) -> list[parts.PartSlice]:
        """The parts of the shard that are there already; none belong to an update."""
        if self.first is not None:
            return []
        return parts.cover(parts.list_parts(self.folder), self.shard)

    def resume_row(self) -> int:
        """The first row of the shard that is not there yet."""
        return parts.covered_rows(self.done()) if self.first is None else self.first


def write_vectors(source: Source, encode: Encode, target: Target, report: Report) -> None:
    """Encode one shard from `target.resume_row()` on, and say that it is complete."""
    rows = append_vectors(source, encode, target, report)
    finish(target.folder, target.shard, rows)


def append_vectors(source: Source, encode: Encode, target: Target, report: Report) -> int:
    """Encode documents into parts from `target.resume_row()` on; returns the row after the last.

    Every published part is whole.
    """
    job = _Job(encode, target, report)
    read = 0
    buffer: list[TokenRow] = []
    try:
        for batch in source.batches:
            for row in batch:
                buffer.append(row)
                read += len(row.ids)
                if read - job.tokens >= encode.buffer_tokens:
                    job.total = estimate(read, source.fraction())
                    job.encode(buffer)
                    buffer = []
        job.total = read
        job.encode(buffer)
        return job.finish()
    finally:
        job.builder.abandon()


class _Job:
    """The state of one shard's encoding: the growing part, ids seen, tokens done."""

    def __init__(self, encode: Encode, target: Target, report: Report) -> None:
        self._encode, self._target, self._report = encode, target, report
        self._seen = seen_ids(target.folder, target.done())
        self._row = target.resume_row()
        self.tokens = 0
        self.total: int | None = None
        self.builder = self._new()

    def _new(self) -> Builder:
        arrays = {"vectors": (NUMPY[self._target.store_dtype], (self._encode.dim,))}
        return Builder(
            self._target.folder, self._target.shard, self._row, arrays, self._report.store_text
        )

    def encode(self, rows: list[TokenRow]) -> None:
        """Encode a buffer; publish when it is time, or when a signal asks to stop."""
        if not rows:
            return
        self._seen.add((row.doc.id for row in rows), "this collection")
        before = self.tokens
        progress = self._report.progress
        inner = self._report._replace(
            progress=lambda done, _, unit: progress(before + done, self.total, unit)
        )
        try:
            made = self._encode(rows, inner)
        except Stopped:
            self._publish()
            raise
        self._append(rows, made)
        self.tokens += sum(len(row.ids) for row in rows)
        if self.builder.full or self._report.stopping():
            self._publish()
            self._report.check_stop()
            self.builder = self._new()

    def _append(self, rows: list[TokenRow], made: Encoded) -> None:
        stored = made.vectors.astype(NUMPY[self._target.store_dtype])
        _check_finite(stored, rows, self._target.store_dtype)
        for row, kept in zip(rows, made.kept, strict=True):
            lost = len(row.ids) - kept
            if lost and self._target.on_overflow == "error":
                raise DataError(
                    f"document {row.doc.id} has {len(row.ids)} tokens and {lost} of them do not fit; "
                    "raise --max-length or allow --on-overflow truncate"
                )
            self.builder.add_doc(DocRow(row.doc, row.hash, len(row.ids), lost, 1))
        self.builder.add_array("vectors", stored)

    def _publish(self) -> None:
        if not self.builder.empty:
            self._row = self.builder.publish()

    def finish(self) -> int:
        """Publish the last part; returns the row after it."""
        self._publish()
        return self._row


def _check_finite(stored: NDArray[np.floating], rows: list[TokenRow], dtype: str) -> None:
    bad = np.flatnonzero(~np.isfinite(stored).all(axis=1))
    if len(bad):
        advice = (
            "try --store-dtype fp32, then --dtype fp32" if dtype == "fp16" else "try --dtype fp32"
        )
        raise DataError(
            f"the vector of document {rows[bad[0]].doc.id} has values that are not finite; {advice}"
        )


def _float32(rows: NDArray[np.floating]) -> NDArray[np.float32]:
    """A float32 copy; torch converts fp16 many times quicker than NumPy does."""
    return torch.from_numpy(np.array(rows)).float().numpy()


class Vectors:
    """A vectors folder: rows in a frozen order, their documents, and the recipe that made them."""

    def __init__(self, folder: Path, slices: list[parts.PartSlice] | None = None) -> None:
        """Opens all parts, or the `slices` that an index froze. DataError when shards are missing."""
        self.folder = folder
        self.manifest = manifest.read(folder, "vectors")
        self.recipe = Recipe.read(self.manifest.identity["recipe"], self.manifest.facts["models"])
        self.slices = self._whole() if slices is None else slices
        self.unfinished: list[int] = []
        self._firsts = np.cumsum([0, *(piece.rows for piece in self.slices)])
        self._tables: dict[int, DocTable] = {}
        self._matrices: dict[int, NDArray[np.floating]] = {}
        self._ids: dict[int, pa.ChunkedArray] = {}

    def _whole(self) -> list[parts.PartSlice]:
        shards = int(self.manifest.execution["shards"])
        state = parts.state(self.folder, shards)
        if state.unfinished:
            numbers = ", ".join(map(str, state.unfinished[:20]))
            raise DataError(
                f"{self.folder} is not complete: of {shards} shards, {numbers} are not finished; "
                f"run their encode command again (lmk show {self.folder} prints it)"
            )
        return state.slices

    @classmethod
    def so_far(cls, folder: Path) -> "Vectors":
        """What there is of a folder that need not be complete; `unfinished` names its shards to come."""
        shards = int(manifest.read(folder, "vectors").execution["shards"])
        state = parts.state(folder, shards)
        made = cls(folder, state.slices)
        made.unfinished = state.unfinished
        return made

    @property
    def rows(self) -> int:
        """How many documents (and, with unit doc, vectors) there are."""
        return int(self._firsts[-1])

    @property
    def dim(self) -> int:
        """Components of a vector."""
        return int(self.manifest.identity["dim"])

    def counts(self) -> Counts:
        """Documents, tokens, cut and empty texts, summed over the parts."""
        return sum_counts(self.folder, self.slices)

    def collection_digest(self) -> str:
        """The order-free digest of the documents that were encoded."""
        return collection_digest(self.folder, self.slices)

    def digest(self) -> str:
        """What an index or a run records of these vectors: identity, the parts' digests, dead rows."""
        digests = sorted(self._digest(piece) for piece in self.slices)
        return manifest.digest({"identity": self.manifest.identity, "parts": digests})

    def _digest(self, piece: parts.PartSlice) -> str:
        made = self.part_digest(piece.name)
        return manifest.digest([made, piece.dead]) if piece.dead else made

    def part_digest(self, name: parts.PartName) -> str:
        """The digest of all that is in a part."""
        return str(part_summary(self.folder, name)["digest"])

    def _part(self, number: int) -> Path:
        return self.folder / parts.PARTS / str(self.slices[number].name)

    def matrix(self, number: int) -> NDArray[np.floating]:
        """The whole part of slice `number`, dead rows too, memory-mapped, in the stored dtype."""
        if number in self._matrices:
            return self._matrices[number]
        path = self._part(number) / "vectors.npy"
        try:
            self._matrices[number] = np.load(path, mmap_mode="r")
            return self._matrices[number]
        except (OSError, ValueError) as error:
            raise DataError(
                f"{path} cannot be read ({error}); delete this part and encode again"
            ) from None

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        """All vectors in row order, in float32 blocks of bounded size."""
        size = max(1, BLOCK_BYTES // (4 * self.dim))
        for number, piece in enumerate(self.slices):
            matrix = self.matrix(number)
            for start in range(0, piece.rows, size):
                at = piece.at(np.arange(start, min(start + size, piece.rows)))
                yield _float32(matrix[_together(at)])

    def stored(self) -> Iterator[tuple[list[DocRow], NDArray[np.floating]]]:
        """All documents and their vectors as they are stored, in row order, about 1,000 at a time."""
        for number, piece in enumerate(self.slices):
            matrix, alive, first = self.matrix(number), piece.alive, 0
            for docs in self._table(number).doc_rows():
                at = np.flatnonzero(alive[first : first + len(docs)])
                yield [docs[i] for i in at], matrix[first + at]
                first += len(docs)

    def at(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors of some rows, [len(rows), dim] float32."""
        owners = self._owners(rows)
        found = np.unique(owners)
        if len(found) == 1:
            return _float32(self.matrix(found[0])[self._local(found[0], rows)])
        made = np.empty((len(rows), self.dim), np.float32)
        for number in found:
            mine = owners == number
            made[mine] = _float32(self.matrix(number)[self._local(number, rows[mine])])
        return made

    def ids(self, rows: NDArray[np.int64]) -> list[str]:
        """The document ids of some rows; whole id columns are read, once, only for many rows."""
        made = np.empty(len(rows), dtype=object)
        owners = self._owners(rows)
        for number in np.unique(owners):
            mine = np.flatnonzero(owners == number)
            made[mine] = self._part_ids(number, self._local(number, rows[mine]))
        return made.tolist()

    def _part_ids(self, number: int, local: NDArray[np.int64]) -> list[str]:
        if number not in self._ids and len(local) < 100:
            return self._table(number).ids_at(local)
        if number not in self._ids:
            self._ids[number] = self._table(number).ids()
        return [str(value) for value in self._ids[number].take(pa.array(local)).to_pylist()]

    def numbers(self) -> dict[str, int]:
        """Document id -> row, for all documents (about 100 bytes each)."""
        names = (name for number in range(len(self.slices)) for name in self._part_names(number))
        return {name: row for row, name in enumerate(names)}

    def _part_names(self, number: int) -> list[str]:
        alive = pa.array(self.slices[number].alive)
        return self._table(number).ids().filter(alive).to_pylist()  # type: ignore[no-any-return]

    def docs(self, rows: NDArray[np.int64]) -> list[Doc]:
        """The documents of some rows, with title and text where they are stored."""
        made: dict[int, Doc] = {}
        owners = self._owners(rows)
        for number in np.unique(owners):
            mine = rows[owners == number]
            found = self._table(number).docs_at(self._local(number, mine))
            made |= zip(mine.tolist(), found, strict=True)
        return [made[row] for row in rows.tolist()]

    def by_ids(self, ids: list[str]) -> list[Doc]:
        """The documents with some ids, in row order."""
        docs = []
        for number, piece in enumerate(self.slices):
            rows = self._table(number).rows_by_ids(ids)
            docs += self._table(number).docs_at(rows[piece.alive[rows]])
        return docs

    def _local(self, number: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where in the files of slice `number` some of its rows are."""
        return self.slices[number].at(rows - self._firsts[number])

    def _owners(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.asarray(np.searchsorted(self._firsts, rows, side="right") - 1, dtype=np.int64)

    def _table(self, number: int) -> DocTable:
        if number not in self._tables:
            self._tables[number] = DocTable(self._part(number) / "docs.parquet")
        return self._tables[number]


def _together(rows: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """Ascending rows as a slice where none is missing between them: nothing is copied then."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows
