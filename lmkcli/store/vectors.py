"""Vectors, in memory (`Ragged`) and in a folder of immutable, memory-mapped parts (`Vectors`).

`StoredVectors` has what dense and sparse vectors share; `sparse.py` has the sparse ones.

A row is a document. With unit doc it has one vector; with unit chunk it has one or more, and with unit
token any number. The vectors of a document follow each other in `vectors.npy` of its part, and
`docs.parquet` contains their number. So there are three kinds of positions:

    row       a live document of the folder, counted over all parts without deleted documents
    document  a document of one part, counted with deleted ones
    vector    a row of the matrix of one part: document i has the vectors starts[i] … starts[i + 1] - 1
"""

import warnings
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lmkcli.artifact import manifest
from lmkcli.artifact.artifact import Artifact, open_artifact
from lmkcli.artifact.kinds import VectorsManifest, plain
from lmkcli.data.collection import Doc
from lmkcli.errors import DataError, UsageError
from lmkcli.store import parts
from lmkcli.store.codes import STORAGES, VECTORS, Floats, is_sparse
from lmkcli.store.doctable import DocRow, DocTable, take
from lmkcli.store.part_reader import (
    Counts,
    check_finite_rows,
    collection_digest,
    doc_table,
    open_array,
    sum_counts,
)
from lmkcli.store.parts import ArrayTypes
from lmkcli.store.ragged import ranges
from lmkcli.text.formatting import shell_line

if TYPE_CHECKING:
    import torch

ID_BYTES = 256 << 20  # the size of the cache of id columns
BLOCK_BYTES = 16 << 20  # float32 vectors in memory at a time, in code that reads all vectors


class Ragged(NamedTuple):
    """The vectors of n texts in one array. Text i has the vectors vectors[starts[i]:starts[i + 1]]."""

    vectors: NDArray[np.floating]
    """[total, dim], float32 unless they are in their stored type."""
    starts: NDArray[np.int64]
    """[n + 1]: the position of the first vector of each text, and the total."""

    @classmethod
    def single(cls, vectors: NDArray[np.floating]) -> "Ragged":
        """Return one vector for each text."""
        return cls(vectors, np.arange(len(vectors) + 1))

    @classmethod
    def of(cls, vectors: NDArray[np.floating], counts: NDArray[np.int64]) -> "Ragged":
        """Return `counts[i]` vectors for text i."""
        return cls(vectors, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of vectors of each text, [n]."""
        return np.diff(self.starts)

    def text(self, number: int) -> NDArray[np.floating]:
        """Return the vectors of one text, [vectors of the text, dim]."""
        return self.vectors[self.starts[number] : self.starts[number + 1]]

    def not_finite(self) -> int | None:
        """Return the first text with a value that is not finite; None if all are finite."""
        bad = np.flatnonzero(~np.isfinite(self.vectors).all(axis=1))
        return int(np.searchsorted(self.starts, bad[0], side="right")) - 1 if len(bad) else None

    def one(self, number: int) -> "Ragged":
        """Return only one text."""
        return Ragged.of(self.text(number), self.counts[number : number + 1])

    def take(self, texts: NDArray[np.int64]) -> "Ragged":
        """Return the vectors of some texts."""
        counts = self.counts[texts]
        return Ragged.of(self.vectors[ranges(self.starts[texts], counts)], counts)


class StoredBlock(NamedTuple):
    """Consecutive documents as they are stored: arrays by name, and the number of vectors of each."""

    arrays: dict[str, NDArray[Any]]
    counts: NDArray[np.int64]


def cut(starts: NDArray[np.int64], size: int) -> Iterator[tuple[int, int]]:
    """Yield ranges (first, stop) of texts with at most `size` vectors, or a single text with more."""
    first = 0
    while first < len(starts) - 1:
        stop = int(np.searchsorted(starts, starts[first] + size, side="right")) - 1
        stop = max(stop, first + 1)
        yield first, stop
        first = stop


class StoredVectors:
    """A vectors folder: rows in a fixed order, their documents, and the recipe that made them.

    A row is a document, numbered from 0.
    """

    sparse: ClassVar[bool]

    def __init__(
        self,
        folder: str | Path | Artifact[VectorsManifest],
        slices: list[parts.PartSlice] | None = None,
    ) -> None:
        """Open all parts, or the `slices` that an index recorded.

        Raises DataError if shards are missing, and UsageError for sparse vectors instead of dense ones.
        """
        folder = Path(folder) if isinstance(folder, str) else folder
        self.artifact = open_artifact(folder, VectorsManifest)
        self.folder = folder = self.artifact.folder
        self.manifest = self.artifact.manifest
        self.recipe = self.manifest.recipe
        if is_sparse(self.manifest) != self.sparse:
            how, needed = ("dense", "sparse") if self.sparse else ("sparse", "dense")
            raise UsageError(
                f"{folder} contains {how} vectors, and this needs {needed} ones; lmk search ranks them "
                f"without an index{'' if self.sparse else ', or with one of --kind inverted or seismic'}"
            )
        self.slices = self._all_slices() if slices is None else slices
        self.unfinished: list[int] = []
        self._firsts = np.cumsum(
            [0, *(piece.rows for piece in self.slices)]
        )  # first row of each slice
        self._tables: dict[int, DocTable] = {}
        self._arrays: dict[tuple[int, str], NDArray[Any]] = {}
        self._starts: dict[int, NDArray[np.int64]] = {}
        self._ids: dict[int, pa.ChunkedArray] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.folder}: {self.rows} rows of {self.dim} dimensions>"

    def _all_slices(self) -> list[parts.PartSlice]:
        shards = self.manifest.execution.shards
        state = parts.read_state(self.folder, shards)
        if state.unfinished:
            numbers = ", ".join(map(str, state.unfinished[:20]))
            show = shell_line("lmk", "show", str(self.folder))
            raise DataError(
                f"{self.folder} is not complete: of {shards} shards (numbered from 0), not finished: "
                f"{numbers}; run their encode command again ({show} prints it)"
            )
        return state.slices

    @classmethod
    def open_incomplete(cls, folder: Path | Artifact[VectorsManifest]) -> Self:
        """Open the existing parts of a folder. `unfinished` lists the numbers of its missing shards."""
        artifact = open_artifact(folder, VectorsManifest)
        state = parts.read_state(artifact.folder, artifact.manifest.execution.shards)
        vectors = cls(artifact, state.slices)
        vectors.unfinished = state.unfinished
        return vectors

    def share(self, rows: range) -> Self:
        """Return consecutive documents of the folder as a new object."""
        shares = [
            piece.between(rows.start - first, rows.stop - first)
            for first, piece in zip(self._firsts.tolist(), self.slices, strict=False)
        ]
        return type(self)(self.artifact, [piece for piece in shares if piece.rows])

    @property
    def rows(self) -> int:
        """The number of documents."""
        return int(self._firsts[-1])

    @property
    def single(self) -> bool:
        """Whether each document has exactly one vector (unit doc)."""
        return self.recipe.doc.unit == "doc"

    @property
    def total(self) -> int:
        """The number of vectors."""
        return self.rows if self.single else int(self.starts[-1])

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """[rows + 1]: row i has the vectors starts[i] … starts[i + 1] - 1. Takes 8 bytes for each row."""
        counts = [np.diff(self._part_starts(n))[piece.live] for n, piece in enumerate(self.slices)]
        return np.concatenate([[0], *counts]).cumsum().astype(np.int64)

    @property
    def dim(self) -> int:
        """The number of dimensions of a vector."""
        return self.manifest.identity.dim

    def counts(self) -> Counts:
        """Return the numbers of documents, tokens, truncated and empty texts."""
        return sum_counts(self.folder, self.slices)

    def collection_digest(self) -> str:
        """Return the digest of the encoded documents, which does not depend on their order."""
        return collection_digest(self.folder, self.slices)

    def digest(self) -> str:
        """Return the digest of the identity, the parts and the deleted rows; indexes and runs record it."""
        digests = []
        for piece in self.slices:
            digest = self.part_digest(piece.name)
            digests.append(manifest.digest([digest, piece.deleted]) if piece.deleted else digest)
        return manifest.digest(
            {"identity": plain(self.manifest.identity), "parts": sorted(digests)}
        )

    def part_digest(self, name: parts.PartName) -> str:
        """Return the digest of all contents of a part."""
        return parts.part_summary(self.folder, name).digest

    def _part(self, number: int) -> Path:
        return self.folder / parts.PARTS / str(self.slices[number].name)

    def open_files(self, kept: int = 0) -> None:
        """Open all files now. Then the object needs no names, which a compaction may remove.

        Up to `kept` bytes of the texts that were read last stay in memory.
        """
        for number in range(len(self.slices)):
            self._table(number).keep_recent(kept // len(self.slices))
            self.arrays(number)
            if self.recipe.doc.unit == "chunk":
                self._array(number, "spans")

    def arrays(self, number: int) -> dict[str, NDArray[Any]]:
        """Return the stored arrays of slice `number` by name, memory-mapped, including deleted vectors."""
        return {stem: self._array(number, stem) for stem in self.types}

    @property
    def types(self) -> ArrayTypes:
        """The arrays of the vectors of a part: dtype and width of each, by name."""
        raise NotImplementedError

    def _array_rows(self, number: int, stem: str) -> int:
        """Return the length of a stored array of slice `number`: the number of its vectors."""
        name = self.slices[number].name
        return name.stop - name.start if self.single else int(self._part_starts(number)[-1])

    def _array(self, number: int, stem: str) -> NDArray[Any]:
        if (number, stem) in self._arrays:
            return self._arrays[number, stem]
        path = self._part(number) / f"{stem}.npy"
        dtype, width = {"spans": ("int32", (2,)), **self.types}[stem]
        array = open_array(path, dtype, width, self._array_rows(number, stem))
        check_finite_rows(array, path)
        self._arrays[number, stem] = array
        return array

    def _part_starts(self, number: int) -> NDArray[np.int64]:
        """Return [documents of the part + 1]: document i has the vectors starts[i] … starts[i + 1] - 1."""
        if self.single:
            name = self.slices[number].name
            return np.arange(name.stop - name.start + 1)
        if number not in self._starts:
            counts = self._table(number).column("vectors")
            total = parts.part_summary(self.folder, self.slices[number].name).vectors
            least = 1 if self.recipe.doc.unit == "chunk" else 0
            if counts.min(initial=least) < least or counts.sum() != total:
                raise DataError(
                    f"{self._part(number) / 'docs.parquet'} contains impossible numbers of vectors; "
                    f"delete this part and {parts.MAKE_AGAIN}"
                )
            self._starts[number] = np.concatenate([[0], np.cumsum(counts)])
        return self._starts[number]

    def stored(self, stem: str) -> Iterator[tuple[list[DocRow], NDArray[Any]]]:
        """Yield all documents and their rows of a stored array, about 1,000 documents at a time."""
        for number, piece in enumerate(self.slices):
            array, live, first = self._array(number, stem), piece.live, 0
            starts = self._part_starts(number)
            for docs in self._table(number).doc_rows():
                kept = first + np.flatnonzero(live[first : first + len(docs)])
                positions = ranges(starts[kept], np.diff(starts)[kept])
                yield [docs[i - first] for i in kept], array[positions]
                first += len(docs)

    def _positions(
        self, number: int, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return for rows of slice `number` their first vectors in its matrix, and how many they have."""
        documents = self._documents(number, rows)
        if self.single:
            return documents, np.ones(len(documents), np.int64)
        starts = self._part_starts(number)
        return starts[documents], starts[documents + 1] - starts[documents]

    def part_counts(self, name: parts.PartName) -> NDArray[np.int64] | None:
        """Return the number of vectors of each document of a part, including deleted ones.

        Returns None for a part that is not open.
        """
        number = next((n for n, piece in enumerate(self.slices) if piece.name == name), None)
        return None if number is None else np.diff(self._part_starts(number))

    def part_totals(self) -> list[int]:
        """Return the number of live vectors of each slice."""
        if self.single:
            return [piece.rows for piece in self.slices]
        return [int(total) for total in np.diff(self.starts[self._firsts])]

    def spans(self, row: int) -> NDArray[np.int32]:
        """Return the character ranges of the chunks of a row in its content (unit chunk), [chunks, 2]."""
        number = int(self._owners(np.array([row]))[0])
        starts, counts = self._positions(number, np.array([row]))
        return self._array(number, "spans")[starts[0] : starts[0] + counts[0]]

    def ids(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the document ids of some rows.

        Many rows of a part read its whole id column. Columns of up to ID_BYTES are kept in memory.
        """
        names = np.empty(len(rows), dtype=object)
        owners = self._owners(rows)
        for number in np.unique(owners):
            mine = np.flatnonzero(owners == number)
            names[mine] = self._part_ids(number, self._documents(number, rows[mine]))
        return names.tolist()

    def _part_ids(self, number: int, documents: NDArray[np.int64]) -> list[str]:
        if number not in self._ids and len(documents) < 100:
            return self._table(number).ids_at(documents)
        if number not in self._ids:
            column = self._table(number).ids()
            if column.nbytes + sum(each.nbytes for each in self._ids.values()) > ID_BYTES:
                self._ids.clear()
            self._ids[number] = column
        return take(self._ids[number], documents)

    def numbers(self) -> dict[str, int]:
        """Return the rows of all documents by id. Takes about 100 bytes for each document."""
        names = (name for number in range(len(self.slices)) for name in self._part_names(number))
        return {name: row for row, name in enumerate(names)}

    def _part_names(self, number: int) -> list[str]:
        live = pa.array(self.slices[number].live)
        return self._table(number).ids().filter(live).to_pylist()  # type: ignore[no-any-return]

    def docs(self, rows: NDArray[np.int64]) -> list[Doc]:
        """Return the documents of some rows, with title and text if they are stored."""
        by_row: dict[int, Doc] = {}
        owners = self._owners(rows)
        for number in np.unique(owners):
            mine = rows[owners == number]
            docs = self._table(number).docs_at(self._documents(number, mine))
            by_row |= zip(mine.tolist(), docs, strict=True)
        return [by_row[row] for row in rows.tolist()]

    def rows_of(self, ids: list[str]) -> dict[str, int]:
        """Return document id -> row for the given ids. Reads the ids of all parts."""
        row_of: dict[str, int] = {}
        for number, piece in enumerate(self.slices):
            rows = self._table(number).rows_by_ids(ids)
            rows = rows[piece.live[rows]]
            live_rows = np.cumsum(piece.live)[rows] - 1 + self._firsts[number]
            row_of |= zip(self._table(number).ids_at(rows), live_rows.tolist(), strict=True)
        return row_of

    def by_ids(self, ids: list[str]) -> list[Doc]:
        """Return the documents with the given ids, in row order."""
        docs = []
        for number, piece in enumerate(self.slices):
            rows = self._table(number).rows_by_ids(ids)
            docs += self._table(number).docs_at(rows[piece.live[rows]])
        return docs

    def _documents(self, number: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Convert rows of slice `number` to documents of its part."""
        return self.slices[number].at(rows - self._firsts[number])

    def _owners(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the slice of each row."""
        return np.asarray(np.searchsorted(self._firsts, rows, side="right") - 1, dtype=np.int64)

    def _table(self, number: int) -> DocTable:
        if number not in self._tables:
            self._tables[number] = doc_table(self.folder, self.slices[number].name)
        return self._tables[number]


class Vectors(StoredVectors):
    """Dense vectors. Iteration yields all rows in order, in blocks (`Ragged`, float32)."""

    sparse = False

    def __init__(
        self,
        folder: str | Path | Artifact[VectorsManifest],
        slices: list[parts.PartSlice] | None = None,
    ) -> None:
        super().__init__(folder, slices)
        self.storage = STORAGES[self.manifest.execution.store_dtype]
        self._tensors: dict[int, torch.Tensor] = {}

    @property
    def types(self) -> ArrayTypes:
        """The arrays of the vectors of a part: dtype and width of each, by name."""
        return self.storage.arrays(self.dim)

    def __iter__(self) -> Iterator[Ragged]:
        return self.blocks()

    def blocks(self, most: int = BLOCK_BYTES) -> Iterator[Ragged]:
        """Yield all rows in order, in blocks of at most `most` bytes, or of one larger document."""
        size = max(1, most // (4 * self.dim))
        for number, piece in enumerate(self.slices):
            starts = self._part_starts(number)
            live = np.flatnonzero(piece.live)
            counts = np.diff(starts)[live]
            for first, stop in cut(np.concatenate([[0], np.cumsum(counts)]), size):
                positions = ranges(starts[live[first:stop]], counts[first:stop])
                yield Ragged.of(self._float32(number, _as_slice(positions)), counts[first:stop])

    def stored_blocks(self, most: int) -> Iterator[StoredBlock]:
        """Yield all rows as they are stored, in blocks of at most `most` vectors or one larger document."""
        for number, piece in enumerate(self.slices):
            starts, arrays = self._part_starts(number), self.arrays(number)
            live = np.flatnonzero(piece.live)
            counts = np.diff(starts)[live]
            for first, stop in cut(np.concatenate([[0], np.cumsum(counts)]), most):
                positions = _as_slice(ranges(starts[live[first:stop]], counts[first:stop]))
                block = {stem: array[positions] for stem, array in arrays.items()}
                yield StoredBlock(block, counts[first:stop])

    def decoded(self) -> Iterator[tuple[list[DocRow], NDArray[np.float32]]]:
        """Yield all documents and their vectors, about 1,000 documents at a time."""
        stems = list(self.storage.arrays(self.dim))
        for blocks in zip(*map(self.stored, stems), strict=True):
            stored = (array for _, array in blocks)
            yield (
                blocks[0][0],
                self.storage.decoded(dict(zip(stems, stored, strict=True)), self.dim),
            )

    def at(self, rows: NDArray[np.int64]) -> Ragged:
        """Return the vectors of some rows, in their order, in float32."""
        owners = self._owners(rows)
        numbers = np.unique(owners)
        if len(numbers) == 1:
            starts, counts = self._positions(numbers[0], rows)
            positions = starts if self.single else ranges(starts, counts)
            return Ragged.of(self._float32(numbers[0], positions), counts)
        # rows of several slices: allocate the result, then copy the vectors of each slice to their places
        starts, counts = np.empty((2, len(rows)), np.int64)
        for number in numbers:
            mine = owners == number
            starts[mine], counts[mine] = self._positions(number, rows[mine])
        gathered = Ragged.of(np.empty((int(counts.sum()), self.dim), np.float32), counts)
        for number in numbers:
            mine = owners == number
            targets = ranges(gathered.starts[:-1][mine], counts[mine])
            gathered.vectors[targets] = self._float32(number, ranges(starts[mine], counts[mine]))
        return gathered

    def _float32(self, number: int, positions: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        """Copy vectors of a slice. torch gathers and converts fp16 many times faster than NumPy."""
        if not isinstance(self.storage, Floats):
            stored = {stem: array[positions] for stem, array in self.arrays(number).items()}
            return self.storage.decoded(stored, self.dim)
        import torch  # here, because most commands only read tables and digests

        if number not in self._tensors:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # the map is not writable
                self._tensors[number] = torch.from_numpy(self._array(number, VECTORS))
        whole = self._tensors[number]
        if isinstance(positions, slice):
            return whole[positions].to(torch.float32, copy=True).numpy()
        return whole.index_select(0, torch.from_numpy(positions)).float().numpy()


def _as_slice(positions: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """Convert ascending positions without gaps to a slice, which selects without a copy."""
    if not len(positions):
        return slice(0, 0)
    if positions[-1] - positions[0] + 1 == len(positions):
        return slice(int(positions[0]), int(positions[-1]) + 1)
    return positions
