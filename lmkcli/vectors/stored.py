"""A folder of vectors, in immutable, memory-mapped parts.

A row is a document. With unit doc it has one vector; with unit chunk it has one or more, and with unit
token any number. The vectors of a document follow each other in the arrays of its part, and `docs.parquet`
contains their number. So there are three kinds of positions:

    row       a live document of the folder, counted over all parts without deleted documents
    document  a document of one part, counted with deleted ones
    vector    a vector of one part: document i has the vectors starts[i] … starts[i + 1] - 1

The codec of the folder reads vectors from the arrays of a part. Nothing here knows what they are.
"""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lmkcli import catalog
from lmkcli.artifact import manifest
from lmkcli.artifact.artifact import Artifact, open_artifact
from lmkcli.artifact.kinds import VectorsManifest, plain
from lmkcli.data.collection import Doc
from lmkcli.errors import DataError, UsageError
from lmkcli.store import parts
from lmkcli.store.doctable import DocRows, DocTable, take
from lmkcli.store.part_reader import (
    Counts,
    check_finite_rows,
    collection_digest,
    doc_table,
    open_array,
    sum_counts,
)
from lmkcli.store.parts import ArrayTypes
from lmkcli.store.ragged import Longs, cut, ranges
from lmkcli.text.formatting import shell_line
from lmkcli.vectors.codec import Codec, CodedVectors, PartArrays, RowsBefore, open_codec
from lmkcli.vectors.rows import AnyRows, Ragged

ID_BYTES = 256 << 20  # the size of the cache of id columns
BLOCK_BYTES = 16 << 20  # vectors in memory at a time, in code that reads all vectors
DENSE = "dense"  # the kind of `Ragged` in the catalog
SPANS: ArrayTypes = {"spans": ("int32", (2,))}  # the characters of chunks


class StoredBatch(NamedTuple, Generic[AnyRows]):
    """Some documents and their vectors.

    spans: the characters of each chunk in the content of its document, [vectors, 2], with unit chunk.
    """

    docs: DocRows
    texts: AnyRows
    spans: NDArray[np.int32] | None


class StoredBlock(NamedTuple):
    """Consecutive documents as they are stored: arrays by name, and the number of vectors of each."""

    arrays: dict[str, NDArray[Any]]
    counts: NDArray[np.int64]


class Vectors(Generic[AnyRows]):
    """A vectors folder: rows in a fixed order, their documents, and the recipe that made them.

    A row is a document, numbered from 0. Iteration yields all rows in order, in blocks.
    """

    def __init__(
        self,
        folder: str | Path | Artifact[VectorsManifest],
        slices: list[parts.PartSlice] | None = None,
    ) -> None:
        """Open all parts, or the `slices` that an index recorded.

        Raises DataError if shards are missing.
        """
        folder = Path(folder) if isinstance(folder, str) else folder
        self.artifact = open_artifact(folder, VectorsManifest)
        self.folder = folder = self.artifact.folder
        self.manifest = self.artifact.manifest
        self.recipe = self.manifest.recipe
        self.codec_name = self.manifest.execution.store_dtype
        self.codec: Codec[AnyRows] = open_codec(self.codec_name)
        self.slices = self._all_slices() if slices is None else slices
        self.unfinished: list[int] = []
        self._firsts = np.cumsum(
            [0, *(piece.rows for piece in self.slices)]
        )  # first row of each slice
        self._tables: dict[int, DocTable] = {}
        self._coded: dict[int, CodedVectors[AnyRows]] = {}
        self._spans: dict[int, NDArray[np.int32]] = {}
        self._starts: dict[int, NDArray[np.int64]] = {}
        self._ids: dict[int, pa.ChunkedArray] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.folder}: {self.rows} rows of {self.dim} dimensions>"

    def __len__(self) -> int:
        """Return the number of rows (documents)."""
        return self.rows

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

    @property
    def kind(self) -> str:
        """The kind of the vectors, such as 'dense' (`CodecRow.rows`)."""
        return catalog.CODECS[self.codec_name].rows

    def require(self, kind: str) -> None:
        """Raise UsageError unless the vectors are of this kind."""
        if (found := self.kind) != kind:
            engines = [row.name for row in catalog.vector_engines(found)]
            raise UsageError(
                f"{self.folder} contains {found} vectors, and this needs {kind} ones; lmk search ranks them "
                f"without an index, or with one of --kind {' or '.join(engines)}"
            )

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
            self.coded(number)
            if self.recipe.doc.by_chunk:
                self._part_spans(number)

    @property
    def types(self) -> ArrayTypes:
        """The arrays of a part: dtype and width of each, by name."""
        spans = SPANS if self.recipe.doc.by_chunk else {}
        return {**self.codec.types(self.dim), **spans}

    def coded(self, number: int) -> CodedVectors[AnyRows]:
        """Return the stored vectors of slice `number`, including deleted ones."""
        if number not in self._coded:
            arrays = PartArrays(self._part(number), self._part_vectors(number))
            self._coded[number] = self.codec.open(arrays, self.dim)
        return self._coded[number]

    def _part_spans(self, number: int) -> NDArray[np.int32]:
        if number not in self._spans:
            path = self._part(number) / "spans.npy"
            spans = open_array(path, *SPANS["spans"], self._part_vectors(number))
            check_finite_rows(spans, path)
            self._spans[number] = spans
        return self._spans[number]

    def _part_vectors(self, number: int) -> int:
        """Return the number of vectors of slice `number`, including deleted ones."""
        name = self.slices[number].name
        return name.stop - name.start if self.single else int(self._part_starts(number)[-1])

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

    def __iter__(self) -> Iterator[AnyRows]:
        return self.blocks(BLOCK_BYTES)

    def numpy(self) -> NDArray[np.float32]:
        """Return all vectors in the order of the rows, float32 [vectors, dim]."""
        blocks = [np.asarray(block.matrix(), np.float32) for block in self]
        return np.concatenate([np.zeros((0, self.dim), np.float32), *blocks])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return all vectors, as `numpy` returns them."""
        if copy is False:
            raise ValueError("the vectors are in files, so an array of them is a copy")
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def blocks(self, most: int) -> Iterator[AnyRows]:
        """Yield all rows in order, in blocks of at most `most` bytes, or of one larger document."""
        for number, piece in enumerate(self.slices):
            starts, coded = self._part_starts(number), self.coded(number)
            live = np.flatnonzero(piece.live)
            firsts, counts = starts[live], np.diff(starts)[live]
            sizes = np.concatenate([[0], np.cumsum(coded.sizes(firsts, counts))])
            for first, stop in cut(sizes, most):
                vectors = ranges(firsts[first:stop], counts[first:stop])
                yield coded.read(_as_slice(vectors), counts[first:stop])

    def stored_blocks(self, most: int) -> Iterator[StoredBlock]:
        """Yield all rows as they are stored, in blocks of at most `most` vectors or one larger document."""
        for number, piece in enumerate(self.slices):
            starts, coded = self._part_starts(number), self.coded(number)
            live = np.flatnonzero(piece.live)
            firsts, counts = starts[live], np.diff(starts)[live]
            for first, stop in cut(np.concatenate([[0], np.cumsum(counts)]), most):
                vectors = _as_slice(ranges(firsts[first:stop], counts[first:stop]))
                yield StoredBlock(coded.copied(vectors, lambda _: 0), counts[first:stop])

    def batches(self) -> "Iterator[StoredBatch[AnyRows]]":
        """Yield all documents and their vectors, about 1,000 documents at a time."""
        for number, docs, vectors, counts in self._batches():
            spans = self._part_spans(number)[vectors] if "spans" in self.types else None
            yield StoredBatch(docs, self.coded(number).read(vectors, counts), spans)

    def copies(self, before: RowsBefore) -> Iterator[tuple[DocRows, dict[str, NDArray[Any]]]]:
        """Yield all documents and their stored arrays, to append to a part with `before(array)` rows."""
        for number, docs, vectors, _ in self._batches():
            copied = self.coded(number).copied(vectors, before)
            spans = {"spans": self._part_spans(number)[vectors]} if "spans" in self.types else {}
            yield docs, {**copied, **spans}

    def _batches(self) -> Iterator[tuple[int, DocRows, Longs, Longs]]:
        """Yield about 1,000 live documents of slice `number` at a time, with the numbers of their vectors
        in its part, and how many vectors each has."""
        for number, piece in enumerate(self.slices):
            starts, live, first = self._part_starts(number), piece.live, 0
            for docs in self._table(number).doc_rows():
                kept = first + np.flatnonzero(live[first : first + len(docs)])
                counts = np.diff(starts)[kept]
                yield number, docs.take(kept - first), ranges(starts[kept], counts), counts
                first += len(docs)

    def at(self, rows: NDArray[np.int64]) -> AnyRows:
        """Return the vectors of some rows, in their order."""
        owners = self._owners(rows)
        numbers = np.unique(owners)
        if len(numbers) == 1:
            starts, counts = self._positions(numbers[0], rows)
            vectors = starts if self.single else ranges(starts, counts)
            return self.coded(numbers[0]).read(vectors, counts)
        # rows of several slices: the vectors of each slice are copied to their places
        starts, counts = np.empty((2, len(rows)), np.int64)
        for number in numbers:
            mine = owners == number
            starts[mine], counts[mine] = self._positions(number, rows[mine])
        pieces = (
            (mine, self.coded(number).read(ranges(starts[mine], counts[mine]), counts[mine]))
            for number in numbers.tolist()
            for mine in [np.flatnonzero(owners == number)]
        )
        return self.codec.rows.gathered(counts, pieces, self.dim)

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
        """Return the character ranges of the chunks of a row in its content, [chunks, 2].

        The vectors belong to chunks (`EncoderConfig.by_chunk`); with unit token, several to each.
        """
        number = int(self._owners(np.array([row]))[0])
        starts, counts = self._positions(number, np.array([row]))
        spans = self._part_spans(number)[starts[0] : starts[0] + counts[0]]
        return spans[chunk_starts(spans)] if self.recipe.doc.unit == "token" else spans

    def live_spans(self) -> Iterator[NDArray[np.int32]]:
        """Yield the spans of the vectors of the documents, of one part after another."""
        for number, piece in enumerate(self.slices):
            starts, kept = self._part_starts(number), np.flatnonzero(piece.live)
            places = _as_slice(ranges(starts[kept], np.diff(starts)[kept]))
            yield self._part_spans(number)[places]

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


DenseVectors = Vectors[Ragged]


def open_dense(
    folder: str | Path | Artifact[VectorsManifest], slices: list[parts.PartSlice] | None = None
) -> DenseVectors:
    """Open a folder of dense vectors. Raises DataError if shards are missing, UsageError for others."""
    vectors: Vectors[Any] = Vectors(folder, slices)
    vectors.require(DENSE)
    return vectors


def chunk_starts(spans: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return which vectors [n] are the first of their chunk; `spans` [n, 2] are the places of the chunks."""
    first = np.ones(len(spans), bool)
    first[1:] = (spans[1:] != spans[:-1]).any(axis=1)
    return first


def _as_slice(positions: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """Convert ascending positions without gaps to a slice, which selects without a copy."""
    if not len(positions):
        return slice(0, 0)
    if positions[-1] - positions[0] + 1 == len(positions):
        return slice(int(positions[0]), int(positions[-1]) + 1)
    return positions
