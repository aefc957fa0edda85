"""The document table of a part, docs.parquet: one row for each source document, in source order.

Columns:

- id, hash (32 bytes)
- tokens: number of content tokens; lost: content tokens that truncation removed; vectors: number of vectors
- title, text: only if texts are stored
- chunks_lost: number of chunks without a vector, if chunks have vectors
- context_tokens, context_lost: the same counts for all contexts of a document, if its chunks follow contexts
- context: JSON, if texts are stored as well

Row groups are small, so reading the texts of ten hits takes milliseconds. Each page has a checksum, and a
damaged one is an error.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lmkcli.data.collection import Doc
from lmkcli.data.parquet import ColumnReader, parquet_writer
from lmkcli.errors import DataError
from lmkcli.system.input_files import check_finite, parse_json

ROW_GROUP = 1000
_COLUMNS = [
    ("id", pa.string()),
    ("hash", pa.binary(32)),
    ("tokens", pa.int32()),
    ("lost", pa.int32()),
    ("vectors", pa.int32()),
]
_TEXTS = [("title", pa.string()), ("text", pa.large_string())]
_CHUNKS = [("chunks_lost", pa.int32())]
_COUNTS = [("context_tokens", pa.int32()), ("context_lost", pa.int32())]
_CONTEXT = [("context", pa.string())]


def _columns(texts: bool, contexts: bool, chunks: bool) -> list[tuple[str, pa.DataType]]:
    """Return the names and types of the columns of a table."""
    columns = _COLUMNS + (_TEXTS if texts else []) + (_CHUNKS if chunks else [])
    return columns + (_COUNTS + (_CONTEXT if texts else []) if contexts else [])


COUNTS = ("tokens", "lost", "vectors", "chunks_lost", "context_tokens", "context_lost")


@dataclass(frozen=True)
class DocRows:
    """Documents of a part [n], their content hashes [n], and their counts by name [n]. Others are 0."""

    docs: list[Doc]
    hashes: list[bytes]
    counts: Mapping[str, NDArray[np.integer[Any]]]

    def __len__(self) -> int:
        return len(self.docs)

    def count(self, name: str) -> NDArray[np.integer[Any]]:
        """Return a count of all documents, [n]."""
        found = self.counts.get(name)
        return np.zeros(len(self), np.int64) if found is None else found

    def part(self, first: int, stop: int) -> "DocRows":
        """Return the documents `first` to `stop`."""
        counts = {name: values[first:stop] for name, values in self.counts.items()}
        return DocRows(self.docs[first:stop], self.hashes[first:stop], counts)

    def take(self, numbers: NDArray[np.integer[Any]]) -> "DocRows":
        """Return some documents."""
        counts = {name: values[numbers] for name, values in self.counts.items()}
        rows = numbers.tolist()
        return DocRows([self.docs[i] for i in rows], [self.hashes[i] for i in rows], counts)

    def joined(self, later: "DocRows") -> "DocRows":
        """Return these documents and later ones."""
        if not len(self):
            return later
        names = self.counts.keys() | later.counts.keys()
        counts = {name: np.concatenate([self.count(name), later.count(name)]) for name in names}
        return DocRows(self.docs + later.docs, self.hashes + later.hashes, counts)


NO_ROWS = DocRows([], [], {})


class DocTableWriter:
    """Writes docs.parquet; one row group is in memory at a time."""

    def __init__(
        self, path: Path, store_text: bool, contexts: bool = False, chunks: bool = False
    ) -> None:
        self._schema = pa.schema(_columns(store_text, contexts, chunks))
        self._writer = parquet_writer(
            path, self._schema, compression="zstd", write_page_checksum=True
        )
        self._waiting = NO_ROWS  # less than a row group

    def append(self, rows: DocRows) -> None:
        """Add documents."""
        rows = self._waiting.joined(rows)
        full = len(rows) - len(rows) % ROW_GROUP
        for first in range(0, full, ROW_GROUP):
            self._write(rows.part(first, first + ROW_GROUP))
        self._waiting = rows.part(full, len(rows))

    def _write(self, rows: DocRows) -> None:
        """Write a row group."""
        values: dict[str, Callable[[], Sequence[Any]]] = {
            "id": lambda: [doc.id for doc in rows.docs],
            "hash": lambda: rows.hashes,
            "title": lambda: [doc.title for doc in rows.docs],
            "text": lambda: [doc.text for doc in rows.docs],
            "context": lambda: [json.dumps(doc.context) for doc in rows.docs],
        }
        arrays = [
            _numbers(rows.count(field.name))
            if field.name in COUNTS
            else _array(values[field.name](), field.type)
            for field in self._schema
        ]
        table = pa.Table.from_arrays(arrays, schema=self._schema)
        self._writer.write_table(table, row_group_size=ROW_GROUP)

    def close(self) -> None:
        """Write the remaining rows and the footer. A second call does nothing."""
        if len(self._waiting):
            self._write(self._waiting)
            self._waiting = NO_ROWS
        self._writer.close()

    def abandon(self) -> None:
        """Close a file that nobody needs any more, even if the disk is full."""
        try:
            self._writer.close()
        except OSError:
            self._writer.is_open = False  # else its destructor tries again and prints the error


def _context(value: object) -> str | tuple[str, ...]:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return tuple(value)
    raise ValueError("a context is neither a text nor a list of texts")


# `_array` and `take` use buffers: pa.array and to_numpy would import pandas, which takes half a second.


def _numbers(values: NDArray[np.integer[Any]]) -> pa.Array:
    """Return numbers as an Arrow array."""
    buffer = pa.py_buffer(np.ascontiguousarray(values, dtype=np.int32))
    return pa.Array.from_buffers(pa.int32(), len(values), [None, buffer])


def _array(values: Sequence[Any], type_: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Return texts or bytes as an Arrow array of the type of their column.

    Lone surrogates (broken JSON escapes) become '?', because Parquet stores only UTF-8.
    """
    buffers: list[bytes | NDArray[Any]]
    if type_ == pa.binary(32):
        buffers = [b"".join(values)]
    else:
        coded = [value.encode("utf-8", "replace") for value in values]
        ends = np.cumsum([0, *map(len, coded)], dtype=np.int64)
        if type_ == pa.string():
            if ends[-1] > np.iinfo(np.int32).max:
                return pa.array([each.decode() for each in coded], type_)  # in several chunks
            ends = ends.astype(np.int32)
        buffers = [ends, b"".join(coded)]
    return pa.Array.from_buffers(type_, len(values), [None, *map(pa.py_buffer, buffers)])


def _integers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return a column of numbers."""
    return np.concatenate([np.zeros(0, np.int64), *map(np.from_dlpack, column.chunks)])


def take(column: pa.ChunkedArray, rows: NDArray[np.int64]) -> list[str]:
    """Return the values of some rows."""
    numbers = pa.py_buffer(np.ascontiguousarray(rows, dtype=np.int64))
    return list(
        column.take(pa.Array.from_buffers(pa.int64(), len(rows), [None, numbers])).to_pylist()
    )


class DocTable:
    """Reads one docs.parquet: whole columns (`column`), a few rows (`docs_at`), or all rows (`docs`)."""

    def __init__(self, path: Path, rows: int | None = None) -> None:
        """Raise DataError if the file is damaged, or does not contain `rows` documents."""
        self._path = path
        with self._reading():
            check_finite(path)  # a named pipe could be opened for ever
            self._file = ColumnReader(path, checksums=True)
        self._kept: OrderedDict[tuple[str, int], pa.ChunkedArray] = OrderedDict()
        self._kept_bytes = self._most_bytes = 0
        self.rows: int = self._file.metadata.num_rows
        if rows not in (None, self.rows):
            raise DataError(
                f"{path} contains {self.rows} documents, expected {rows}; make the artifact again"
            )
        schema = self._file.schema
        self.has_text = "text" in schema.names
        self.has_contexts = "context_tokens" in schema.names
        self._has_chunks = "chunks_lost" in schema.names
        for name, kind in _columns(self.has_text, self.has_contexts, self._has_chunks):
            if schema.names.count(name) != 1 or schema.field(name).type != kind:
                raise DataError(f"{path} has no column '{name}' of {kind}; make the artifact again")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Convert the errors of Arrow for damaged files, which have many classes, to DataError."""
        try:
            yield
        except (OSError, pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DataError(
                f"{self._path} cannot be read ({first}); make the artifact again"
            ) from None

    def _column(self, name: str, group: int | None = None) -> pa.ChunkedArray:
        """Read a column, or its part in one row group. Missing values and invalid UTF-8 are errors."""
        with self._reading():
            column = self._file.read(name, group)
            rows = self.rows if group is None else min(ROW_GROUP, self.rows - group * ROW_GROUP)
            if len(column) != rows:
                raise ValueError(f"'{name}' has {len(column)} values instead of {rows}")
            column.validate(full=True)
            if column.null_count:
                raise ValueError(f"values of '{name}' are missing")
        return column

    def keep_recent(self, size: int) -> None:
        """Keep up to `size` bytes of the row groups that were read last in memory, for a server."""
        self._most_bytes = size

    def _group(self, name: str, group: int) -> pa.ChunkedArray:
        """Return a column in one row group, which may be in memory already."""
        if (name, group) in self._kept:
            self._kept.move_to_end((name, group))
            return self._kept[name, group]
        column = self._column(name, group)
        if column.nbytes <= self._most_bytes:
            self._kept[name, group] = column
            self._kept_bytes += column.nbytes
        while self._kept_bytes > self._most_bytes:
            self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes
        return column

    def ids(self) -> pa.ChunkedArray:
        """Return all ids as an Arrow array. Each takes about 10 bytes more than its text."""
        return self._column("id")

    def ids_at(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the ids of a few rows. Reads only their row groups."""
        return [str(value) for value in self._at("id", rows)]

    @property
    def counts(self) -> list[str]:
        """The names of the columns of counts."""
        chunks = ["chunks_lost"] if self._has_chunks else []
        contexts = [name for name, _ in _COUNTS] if self.has_contexts else []
        return ["tokens", "lost", "vectors", *chunks, *contexts]

    def column(self, name: str) -> NDArray[np.int64]:
        """Return an integer column (tokens, lost, vectors) as int64."""
        return _integers(self._column(name))

    def hashes(self) -> list[bytes]:
        """Return the content hash of every document."""
        return [bytes(value) for value in self._column("hash").to_pylist()]

    def docs_at(self, rows: NDArray[np.int64]) -> list[Doc]:
        """Return the documents of a few rows. If texts are not stored, they have only ids."""
        ids = self.ids_at(rows)
        if not self.has_text:
            return [Doc(identifier, "") for identifier in ids]
        columns = [self._at(name, rows) for name in ("text", "title")]
        if self.has_contexts:
            columns.append(self._parsed(self._at("context", rows)))
        return [Doc(*values) for values in zip(ids, *columns, strict=True)]

    def docs_by_ids(self, ids: list[str]) -> Iterator[Doc]:
        """Yield the documents with the given ids in row order; one row group is in memory at a time."""
        rows = self.rows_by_ids(ids)
        for group in np.split(rows, np.flatnonzero(np.diff(rows // ROW_GROUP)) + 1):
            yield from self.docs_at(group)

    def rows_by_ids(self, ids: list[str]) -> NDArray[np.int64]:
        """Return the rows of the documents with the given ids, ascending. Reads all ids."""
        import pyarrow.compute as pc  # takes 0.08 s, and few commands need it

        rows = pc.indices_nonzero(pc.is_in(self.ids(), value_set=_array(ids, pa.string())))
        return np.from_dlpack(rows).astype(np.int64)

    def _parsed(self, values: list[str]) -> list[str | tuple[str, ...]]:
        """Parse the contexts of some documents. Raises DataError for invalid values."""
        with self._reading():
            return [_context(parse_json(value)) for value in values]

    def _at(self, name: str, rows: NDArray[np.int64]) -> list[Any]:
        """Return the values of a column in a few rows. Reads each row group once."""
        groups: dict[int, pa.ChunkedArray] = {}
        values = []
        for row in rows.tolist():
            group, place = divmod(row, ROW_GROUP)
            if group not in groups:
                groups[group] = self._group(name, group)
            values.append(groups[group][place].as_py())
        return values

    def doc_rows(self) -> Iterator[DocRows]:
        """Yield all documents with their counts, one row group at a time."""
        docs = self.docs()
        for group in range(self._file.metadata.num_row_groups):
            hashes = [bytes(each) for each in self._column("hash", group).to_pylist()]
            counts = {name: _integers(self._column(name, group)) for name in self.counts}
            yield DocRows(list(islice(docs, len(hashes))), hashes, counts)

    def docs(self) -> Iterator[Doc]:
        """Yield all documents in order, one row group at a time."""
        for group in range(self._file.metadata.num_row_groups):
            ids = self._column("id", group).to_pylist()
            if not self.has_text:
                yield from (Doc(identifier, "") for identifier in ids)
                continue
            columns = [self._column(name, group).to_pylist() for name in ("text", "title")]
            if self.has_contexts:
                columns.append(self._parsed(self._column("context", group).to_pylist()))
            yield from (Doc(*values) for values in zip(ids, *columns, strict=True))
