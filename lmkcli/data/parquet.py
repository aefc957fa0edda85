"""Parquet files by paths of this machine only, and within bounds that follow from their size.

Arrow reads a path such as run:1/docs.parquet as a URI. So lmk opens and creates parquet files only here, by
absolute paths in the local file system.

A few kilobytes of parquet can stand for gigabytes: a dictionary repeats one long value for each row. Texts
are therefore read with their dictionaries, and decoded only after their sizes are known.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from lmkcli.errors import DataError
from lmkcli.text.formatting import size

_LEAST_GROUP = 32  # bytes that the description of a row group takes in the file
_MOST_ROWS = 1_000  # rows for each byte of a file with more than a million rows
_MILLION = 1_000_000
_MOST_TIMES = 1_000  # a file's texts may have this multiple of its size …
_ALWAYS = 1 << 30  # … or this number of bytes in an artifact, which may repeat a long text …
_ALWAYS_READ = 64 << 20  # … and this number in a collection, which takes a minute to tokenize
_SMALL = 64 << 20  # bytes of a file in which `ColumnReader` first looks at the dictionaries
_TEXT = "BYTE_ARRAY"


def open_parquet(path: Path, dictionaries: bool = False) -> pq.ParquetFile:
    """Open a file. With `dictionaries`, its columns of text are dictionary arrays, at every depth.

    ValueError if the file describes more row groups or rows than it can contain.
    """
    options: dict[str, Any] = {"filesystem": LocalFileSystem()}
    file = pq.ParquetFile(os.path.abspath(path), **options)
    try:
        _check_counts(file.metadata, path.stat().st_size)
    except ValueError:
        file.close()
        raise
    if not dictionaries:
        return file
    texts = _texts(file.metadata)
    file.close()
    return pq.ParquetFile(os.path.abspath(path), read_dictionary=texts, **options)


def _check_counts(facts: pq.FileMetaData, length: int) -> None:
    """Raise ValueError if a file of `length` bytes describes more row groups or rows than it can contain."""
    if facts.num_row_groups * _LEAST_GROUP > length:
        raise ValueError(f"it describes {facts.num_row_groups:,} row groups in {size(length)}")
    if facts.num_rows > max(_MILLION, _MOST_ROWS * length):
        raise ValueError(f"it describes {facts.num_rows:,} rows in {size(length)}")


def _texts(facts: pq.FileMetaData) -> list[str]:
    """Return the columns of text, at every depth."""
    columns = (facts.schema.column(number) for number in range(facts.num_columns))
    return [column.path for column in columns if column.physical_type == _TEXT]


def parquet_writer(path: Path, schema: pa.Schema, **options: Any) -> pq.ParquetWriter:
    """Create a file on this machine, whatever its path looks like."""
    return pq.ParquetWriter(os.path.abspath(path), schema, filesystem=LocalFileSystem(), **options)


class ColumnReader:
    """Reads columns of one file within bounds. The file stays open, so its name may be removed meanwhile."""

    def __init__(self, path: Path, checksums: bool = False) -> None:
        """Raise OSError or ValueError if the file cannot be read, or describes more than it can contain."""
        self._source = LocalFileSystem(use_mmap=True).open_input_file(os.path.abspath(path))
        self._size: int = self._source.size()
        options: dict[str, Any] = {"page_checksum_verification": checksums}
        self._file = pq.ParquetFile(self._source, **options)
        self.metadata: pq.FileMetaData = self._file.metadata
        self.schema: pa.Schema = self._file.schema_arrow
        _check_counts(self.metadata, self._size)
        if self._size <= _SMALL:  # look at the dictionaries before they are decoded
            texts = _texts(self.metadata)
            self._file = pq.ParquetFile(
                self._source, read_dictionary=texts, metadata=self.metadata, **options
            )

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def read(self, name: str, group: int | None = None) -> pa.ChunkedArray:
        """Return a column, or its part in a row group, decoded.

        ValueError for a small file whose texts have far more bytes than the file.
        """
        if group is None:
            column = self._file.read(columns=[name]).column(name)
        else:
            column = self._file.read_row_group(group, columns=[name]).column(name)
        if not pa.types.is_dictionary(column.type):
            return column
        needed = sum(map(decoded_bytes, column.chunks))
        if needed > max(_ALWAYS, _MOST_TIMES * self._size):
            raise ValueError(f"'{name}' has {size(needed)} of text in a file of {size(self._size)}")
        chunks = [chunk.dictionary_decode() for chunk in column.chunks]
        return pa.chunked_array(chunks, type=column.type.value_type)


class Decoder:
    """Decodes the batches of one file, and counts their bytes."""

    def __init__(self, path: Path) -> None:
        self._path, self._size, self._decoded = path, path.stat().st_size, 0

    def pieces(self, batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
        """Yield a batch, decoded, in pieces that have at most `most` bytes, or a single row.

        DataError for a file whose texts have far more bytes than the file.
        """
        needed = sum(map(decoded_bytes, batch.columns))
        if needed > most and len(batch) > 1:
            half = len(batch) // 2
            yield from self.pieces(batch.slice(0, half), most)
            yield from self.pieces(batch.slice(half), most)
            return
        self._decoded += needed
        if self._decoded > max(_ALWAYS_READ, _MOST_TIMES * self._size):
            raise DataError(
                f"{self._path} has {size(self._size)}, and more than {size(self._decoded)} of text, mostly "
                "copies of the same values; write the file again without them, or as jsonl"
            )
        columns = (
            each.dictionary_decode() if pa.types.is_dictionary(each.type) else each
            for each in batch.columns
        )
        yield pa.RecordBatch.from_arrays(list(columns), names=batch.schema.names)


def decoded_bytes(array: pa.Array) -> int:
    """Return the bytes of the values of an array without its dictionaries."""
    import pyarrow.compute as pc  # takes 0.08 s, and many commands read no parquet

    kind = array.type
    if pa.types.is_dictionary(kind):
        lengths = pc.binary_length(array.dictionary)
        return int(pc.sum(lengths.take(array.indices)).as_py() or 0)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return decoded_bytes(array.flatten())
    if pa.types.is_struct(kind):
        return sum(map(decoded_bytes, array.flatten()))
    return int(array.nbytes)
