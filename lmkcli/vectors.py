"""Vectors: document ids and vectors in immutable parts, memory-mapped."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from lmkcli import manifest, parts
from lmkcli.building import Counts, collection_digest, part_summary
from lmkcli.collection import Doc
from lmkcli.doctable import DocRow, DocTable
from lmkcli.errors import DataError
from lmkcli.recipe import Recipe
from lmkcli.tokens import sum_counts

NUMPY = {"fp16": "float16", "fp32": "float32"}
BLOCK_BYTES = 64 << 20  # of float32 rows at a time, in whatever reads all vectors


class Ragged(NamedTuple):
    """Vectors of n texts, one after another: [total, dim] float32; text i has starts[i]:starts[i+1]."""

    vectors: NDArray[np.float32]
    starts: NDArray[np.int64]

    @classmethod
    def single(cls, vectors: NDArray[np.float32]) -> "Ragged":
        """One vector a text."""
        return cls(vectors, np.arange(len(vectors) + 1))

    @classmethod
    def of(cls, vectors: NDArray[np.float32], counts: NDArray[np.int64]) -> "Ragged":
        """`counts[i]` vectors for text i."""
        return cls(vectors, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many vectors each text has."""
        return np.diff(self.starts)


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
