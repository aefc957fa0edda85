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
_ALWAYS = 1 << 30  # … or this number of bytes
_SMALL = 64 << 20  # bytes of a file in which `read_column` first looks at the dictionaries
_TEXT = "BYTE_ARRAY"


def open_parquet(
    path: Path, dictionaries: bool = False, mapped: bool = False, checksums: bool = False
) -> pq.ParquetFile:
    """Open a file. With `dictionaries`, its columns of text are dictionary arrays, at every depth.

    ValueError if the file describes more row groups or rows than it can contain.
    """
    options: dict[str, Any] = {
        "filesystem": LocalFileSystem(use_mmap=mapped),
        "page_checksum_verification": checksums,
    }
    file = pq.ParquetFile(os.path.abspath(path), **options)
    facts, length = file.metadata, path.stat().st_size
    if facts.num_row_groups * _LEAST_GROUP > length:
        file.close()
        raise ValueError(f"it describes {facts.num_row_groups:,} row groups in {size(length)}")
    if facts.num_rows > max(_MILLION, _MOST_ROWS * length):
        file.close()
        raise ValueError(f"it describes {facts.num_rows:,} rows in {size(length)}")
    if not dictionaries:
        return file
    columns = (facts.schema.column(number) for number in range(facts.num_columns))
    texts = [column.path for column in columns if column.physical_type == _TEXT]
    file.close()
    return pq.ParquetFile(os.path.abspath(path), read_dictionary=texts, **options)


def parquet_writer(path: Path, schema: pa.Schema, **options: Any) -> pq.ParquetWriter:
    """Create a file on this machine, whatever its path looks like."""
    return pq.ParquetWriter(os.path.abspath(path), schema, filesystem=LocalFileSystem(), **options)


def read_column(
    file: pq.ParquetFile,
    path: Path,
    name: str,
    group: int | None = None,
    checksums: bool = False,
) -> pa.ChunkedArray:
    """Return a column of text of a file, or its part in a row group, decoded.

    ValueError for a small file whose texts have far more bytes than the file.
    """

    def read(opened: pq.ParquetFile) -> pa.ChunkedArray:
        if group is None:
            return opened.read(columns=[name]).column(name)
        return opened.read_row_group(group, columns=[name]).column(name)

    if path.stat().st_size > _SMALL:
        return read(file)
    with open_parquet(path, dictionaries=True, checksums=checksums) as small:
        column = read(small)
    if not pa.types.is_dictionary(column.type):
        return column
    needed = sum(map(decoded_bytes, column.chunks))
    if needed > _limit(path):
        raise ValueError(f"'{name}' has {size(needed)} of text in a file of {_size(path)}")
    chunks = [chunk.dictionary_decode() for chunk in column.chunks]
    return pa.chunked_array(chunks, type=column.type.value_type)


class Decoder:
    """Decodes the batches of one file, and counts their bytes."""

    def __init__(self, path: Path) -> None:
        self._path, self._decoded = path, 0

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
        if self._decoded > _limit(self._path):
            raise DataError(
                f"{self._path} has {_size(self._path)}, and more than {size(self._decoded)} of text, mostly "
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


def _limit(path: Path) -> int:
    return max(_ALWAYS, _MOST_TIMES * path.stat().st_size)


def _size(path: Path) -> str:
    return size(path.stat().st_size)
