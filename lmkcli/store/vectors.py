"""Vectors: document ids and vectors in immutable parts, memory-mapped.

A row is a document. With unit doc each has one vector; with chunk or token one or more, which follow
each other in `vectors.npy`, and `docs.parquet` says how many.
"""

import warnings
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lmkcli import manifest
from lmkcli.data.collection import Doc
from lmkcli.errors import DataError
from lmkcli.recipe import Recipe
from lmkcli.store import parts
from lmkcli.store.arrays import check_finite_rows, open_array
from lmkcli.store.codes import STORAGES, VECTORS, Floats
from lmkcli.store.doctable import DocRow, DocTable, take
from lmkcli.store.ragged import Ragged as Ragged
from lmkcli.store.ragged import cut, ranges
from lmkcli.store.summary import (
    Counts,
    collection_digest,
    doc_table,
    part_summary,
    sum_counts,
)

if TYPE_CHECKING:
    import torch

ID_BYTES = 256 << 20  # of ids that are kept after they were read
BLOCK_BYTES = 16 << 20  # of float32 rows at a time, in whatever reads all vectors


class Vectors:
    """A vectors folder: rows in a frozen order, their documents, and the recipe that made them.

    A row is a document, numbered from 0. Iterating gives all rows in order, in blocks (`Ragged`, float32).
    """

    def __init__(self, folder: str | Path, slices: list[parts.PartSlice] | None = None) -> None:
        """Opens all parts, or the `slices` that an index froze. DataError when shards are missing."""
        self.folder = folder = Path(folder)
        self.manifest = manifest.read(folder, "vectors")
        self.recipe = Recipe.read(self.manifest.identity["recipe"], self.manifest.facts["models"])
        self.storage = STORAGES[self.manifest.execution["store_dtype"]]
        self.slices = self._whole() if slices is None else slices
        self.unfinished: list[int] = []
        self._firsts = np.cumsum([0, *(piece.rows for piece in self.slices)])
        self._tables: dict[int, DocTable] = {}
        self._arrays: dict[tuple[int, str], NDArray[Any]] = {}
        self._tensors: dict[int, torch.Tensor] = {}
        self._starts: dict[int, NDArray[np.int64]] = {}
        self._ids: dict[int, pa.ChunkedArray] = {}

    def __repr__(self) -> str:
        return f"<Vectors {self.folder}: {self.rows} rows of {self.dim} dimensions>"

    def _whole(self) -> list[parts.PartSlice]:
        shards = int(self.manifest.execution["shards"])
        state = parts.state(self.folder, shards)
        if state.unfinished:
            numbers = ", ".join(map(str, state.unfinished[:20]))
            raise DataError(
                f"{self.folder} is not complete: of {shards} shards (numbered from 0), not finished: "
                f"{numbers}; run their encode command again (lmk show {self.folder} prints it)"
            )
        return state.slices

    @classmethod
    def open_incomplete(cls, folder: Path) -> "Vectors":
        """What there is of a folder that need not be complete; `unfinished` names its shards to come."""
        shards = int(manifest.read(folder, "vectors").execution["shards"])
        state = parts.state(folder, shards)
        vectors = cls(folder, state.slices)
        vectors.unfinished = state.unfinished
        return vectors

    def share(self, rows: range) -> "Vectors":
        """Some consecutive documents of the folder, as a folder of their own."""
        near = zip(self._firsts.tolist(), self.slices, strict=False)
        cut = [piece.between(rows.start - first, rows.stop - first) for first, piece in near]
        return Vectors(self.folder, [piece for piece in cut if piece.rows])

    @property
    def rows(self) -> int:
        """How many documents there are."""
        return int(self._firsts[-1])

    @property
    def single(self) -> bool:
        """Whether each document has one vector."""
        return self.recipe.doc.unit == "doc"

    @property
    def total(self) -> int:
        """How many vectors there are."""
        return self.rows if self.single else int(self.starts[-1])

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The vectors of row i are starts[i] to starts[i + 1] of all; 8 bytes a document."""
        counts = [np.diff(self._part_starts(n))[piece.live] for n, piece in enumerate(self.slices)]
        return np.concatenate([[0], *counts]).cumsum().astype(np.int64)

    @property
    def dim(self) -> int:
        """Dimensions of a vector."""
        return int(self.manifest.identity["dim"])

    def counts(self) -> Counts:
        """Documents, tokens, cut and empty texts, summed over the parts."""
        return sum_counts(self.folder, self.slices)

    def collection_digest(self) -> str:
        """The order-free digest of the documents that were encoded."""
        return collection_digest(self.folder, self.slices)

    def digest(self) -> str:
        """What an index or a run records of these vectors: identity, the parts' digests, deleted rows."""
        digests = sorted(self._digest(piece) for piece in self.slices)
        return manifest.digest({"identity": self.manifest.identity, "parts": digests})

    def _digest(self, piece: parts.PartSlice) -> str:
        whole = self.part_digest(piece.name)
        return manifest.digest([whole, piece.deleted]) if piece.deleted else whole

    def part_digest(self, name: parts.PartName) -> str:
        """The digest of all that is in a part."""
        return str(part_summary(self.folder, name)["digest"])

    def _part(self, number: int) -> Path:
        return self.folder / parts.PARTS / str(self.slices[number].name)

    def arrays(self, number: int) -> dict[str, NDArray[Any]]:
        """All vectors of the part of slice `number`, deleted ones too, memory-mapped, as stored."""
        return {stem: self._array(number, stem) for stem in self.storage.arrays(self.dim)}

    def _array(self, number: int, stem: str) -> NDArray[Any]:
        if (number, stem) in self._arrays:
            return self._arrays[number, stem]
        path, name = self._part(number) / f"{stem}.npy", self.slices[number].name
        rows = name.stop - name.start if self.single else int(self._part_starts(number)[-1])
        dtype, width = {"spans": ("int32", (2,)), **self.storage.arrays(self.dim)}[stem]
        array = open_array(path, dtype, width, rows)
        check_finite_rows(array, path)
        self._arrays[number, stem] = array
        return array

    def _part_starts(self, number: int) -> NDArray[np.int64]:
        """The vectors of document i of the part are starts[i] to starts[i + 1] of its matrix."""
        if self.single:
            name = self.slices[number].name
            return np.arange(name.stop - name.start + 1)
        if number not in self._starts:
            counts = self._table(number).column("vectors")
            self._starts[number] = np.concatenate([[0], np.cumsum(counts)])
        return self._starts[number]

    def __iter__(self) -> Iterator[Ragged]:
        """All documents in row order, in blocks of bounded size; a larger document is one alone."""
        size = max(1, BLOCK_BYTES // (4 * self.dim))
        for number, piece in enumerate(self.slices):
            starts = self._part_starts(number)
            live = np.flatnonzero(piece.live)
            counts = np.diff(starts)[live]
            for first, stop in cut(np.concatenate([[0], np.cumsum(counts)]), size):
                at = ranges(starts[live[first:stop]], counts[first:stop])
                yield Ragged.of(self._float32(number, _together(at)), counts[first:stop])

    def decoded(self) -> Iterator[tuple[list[DocRow], NDArray[np.float32]]]:
        """All documents and their vectors, about 1,000 documents at a time."""
        stems = list(self.storage.arrays(self.dim))
        for blocks in zip(*map(self.stored, stems), strict=True):
            stored = (array for _, array in blocks)
            yield (
                blocks[0][0],
                self.storage.decoded(dict(zip(stems, stored, strict=True)), self.dim),
            )

    def stored(self, stem: str) -> Iterator[tuple[list[DocRow], NDArray[Any]]]:
        """All documents and their rows of an array as they are stored, about 1,000 documents at a time."""
        for number, piece in enumerate(self.slices):
            array, live, first = self._array(number, stem), piece.live, 0
            starts = self._part_starts(number)
            for docs in self._table(number).doc_rows():
                at = first + np.flatnonzero(live[first : first + len(docs)])
                yield [docs[i - first] for i in at], array[ranges(starts[at], np.diff(starts)[at])]
                first += len(docs)

    def at(self, rows: NDArray[np.int64]) -> Ragged:
        """The vectors of some documents, in float32."""
        owners = self._owners(rows)
        numbers = np.unique(owners)
        if len(numbers) == 1:
            begins, counts = self._where(numbers[0], rows)
            at = begins if self.single else ranges(begins, counts)
            return Ragged.of(self._float32(numbers[0], at), counts)
        places = np.empty((2, len(rows)), np.int64)
        for number in numbers:
            mine = owners == number
            places[:, mine] = self._where(number, rows[mine])
        begins, counts = places
        gathered = Ragged.of(np.empty((int(counts.sum()), self.dim), np.float32), counts)
        for number in numbers:
            mine = owners == number
            to = ranges(gathered.starts[:-1][mine], counts[mine])
            gathered.vectors[to] = self._float32(number, ranges(begins[mine], counts[mine]))
        return gathered

    def _float32(self, number: int, at: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        """Copies of vectors of a part; torch gathers and converts fp16 many times quicker than NumPy."""
        if not isinstance(self.storage, Floats):
            stored = {stem: array[at] for stem, array in self.arrays(number).items()}
            return self.storage.decoded(stored, self.dim)
        import torch  # here: most commands read tables and digests alone

        if number not in self._tensors:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # the map is read-only, and only read
                self._tensors[number] = torch.from_numpy(self._array(number, VECTORS))
        whole = self._tensors[number]
        if isinstance(at, slice):
            return whole[at].to(torch.float32, copy=True).numpy()
        return whole.index_select(0, torch.from_numpy(at)).float().numpy()

    def _where(
        self, number: int, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where in the matrix of slice `number` the vectors of its rows begin, and how many there are."""
        local = self._local(number, rows)
        if self.single:
            return local, np.ones(len(local), np.int64)
        starts = self._part_starts(number)
        return starts[local], starts[local + 1] - starts[local]

    def part_counts(self, name: parts.PartName) -> NDArray[np.int64] | None:
        """Vectors of each document of a part, deleted ones too; None when it is none of these."""
        number = next((n for n, piece in enumerate(self.slices) if piece.name == name), None)
        return None if number is None else np.diff(self._part_starts(number))

    def part_totals(self) -> list[int]:
        """How many vectors of each slice count."""
        if self.single:
            return [piece.rows for piece in self.slices]
        return [int(total) for total in np.diff(self.starts[self._firsts])]

    def spans(self, row: int) -> NDArray[np.int32]:
        """Where the chunks of a document are (unit chunk), [chunks, 2]: characters of its content."""
        number = int(self._owners(np.array([row]))[0])
        begins, counts = self._where(number, np.array([row]))
        return self._array(number, "spans")[begins[0] : begins[0] + counts[0]]

    def ids(self, rows: NDArray[np.int64]) -> list[str]:
        """The document ids of some rows; whole id columns are read only for many rows, ID_BYTES are kept."""
        names = np.empty(len(rows), dtype=object)
        owners = self._owners(rows)
        for number in np.unique(owners):
            mine = np.flatnonzero(owners == number)
            names[mine] = self._part_ids(number, self._local(number, rows[mine]))
        return names.tolist()

    def _part_ids(self, number: int, local: NDArray[np.int64]) -> list[str]:
        if number not in self._ids and len(local) < 100:
            return self._table(number).ids_at(local)
        if number not in self._ids:
            column = self._table(number).ids()
            if column.nbytes + sum(each.nbytes for each in self._ids.values()) > ID_BYTES:
                self._ids.clear()
            self._ids[number] = column
        return take(self._ids[number], local)

    def numbers(self) -> dict[str, int]:
        """Document id -> row, for all documents (about 100 bytes each)."""
        names = (name for number in range(len(self.slices)) for name in self._part_names(number))
        return {name: row for row, name in enumerate(names)}

    def _part_names(self, number: int) -> list[str]:
        live = pa.array(self.slices[number].live)
        return self._table(number).ids().filter(live).to_pylist()  # type: ignore[no-any-return]

    def docs(self, rows: NDArray[np.int64]) -> list[Doc]:
        """The documents of some rows, with title and text where they are stored."""
        by_row: dict[int, Doc] = {}
        owners = self._owners(rows)
        for number in np.unique(owners):
            mine = rows[owners == number]
            docs = self._table(number).docs_at(self._local(number, mine))
            by_row |= zip(mine.tolist(), docs, strict=True)
        return [by_row[row] for row in rows.tolist()]

    def rows_of(self, ids: list[str]) -> dict[str, int]:
        """The rows of the documents with some ids; reads the ids of all parts through."""
        row_of: dict[str, int] = {}
        for number, piece in enumerate(self.slices):
            rows = self._table(number).rows_by_ids(ids)
            rows = rows[piece.live[rows]]
            before = np.cumsum(piece.live)[rows] - 1 + self._firsts[number]
            row_of |= zip(self._table(number).ids_at(rows), before.tolist(), strict=True)
        return row_of

    def by_ids(self, ids: list[str]) -> list[Doc]:
        """The documents with some ids, in row order."""
        docs = []
        for number, piece in enumerate(self.slices):
            rows = self._table(number).rows_by_ids(ids)
            docs += self._table(number).docs_at(rows[piece.live[rows]])
        return docs

    def _local(self, number: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where in the files of slice `number` some of its rows are."""
        return self.slices[number].at(rows - self._firsts[number])

    def _owners(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.asarray(np.searchsorted(self._firsts, rows, side="right") - 1, dtype=np.int64)

    def _table(self, number: int) -> DocTable:
        if number not in self._tables:
            self._tables[number] = doc_table(self.folder, self.slices[number].name)
        return self._tables[number]


def _together(rows: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """Ascending rows as a slice where none is missing between them: nothing is copied then."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows
