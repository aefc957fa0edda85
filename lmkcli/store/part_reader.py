"""Reading parts: open arrays and document tables, check them, and sum up what they contain."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmkcli.artifact import manifest
from lmkcli.data.collection import CollectionDigest
from lmkcli.errors import DataError
from lmkcli.store import parts
from lmkcli.store.doctable import DocTable
from lmkcli.store.parts import PartName, PartSlice, part_summary
from lmkcli.system.input_files import check_finite

HASHED_ROWS = 1 << 16  # rows of an array that are hashed at once
_FIX = f"delete this part and {parts.MAKE_AGAIN}"


def map_array(path: Path) -> NDArray[Any]:
    """Return rows of numbers from a .npy file, memory-mapped. Raises DataError if it is damaged."""
    try:
        check_finite(path)  # a named pipe could be opened for ever
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy parses headers as Python, which can fail in any way
        raise DataError(
            f"{path} cannot be read ({error or type(error).__name__}); {_FIX}"
        ) from None
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path} is an archive, not an array; {_FIX}")
    if not array.ndim or array.dtype.kind not in "biuf":  # a damaged header can name any type
        raise DataError(
            f"{path} is {array.dtype.str} {list(array.shape)}, not rows of numbers; {_FIX}"
        )
    return array


def open_array(path: Path, dtype: str, width: tuple[int, ...], rows: int | None) -> NDArray[Any]:
    """Return a .npy file [rows, *width], memory-mapped; with `rows` None its number of rows is not checked.

    Raises DataError if the file is damaged, or has another type or shape.
    """
    array = map_array(path)
    expected = (len(array) if rows is None else rows, *width)
    if array.dtype != np.dtype(dtype).newbyteorder("<") or array.shape != expected:
        raise DataError(
            f"{path} is {array.dtype.str} {list(array.shape)}, expected {dtype} {list(expected)}; {_FIX}"
        )
    return array


def check_finite_rows(array: NDArray[Any], path: Path) -> None:
    """Raise DataError if a sample of up to 8 rows, spread over an array, has values that are not finite."""
    sample = array[np.unique(np.linspace(0, len(array) - 1, min(len(array), 8)).astype(np.int64))]
    if not np.isfinite(sample).all():
        raise DataError(f"{path} contains values that are not finite; {_FIX}")


@dataclass
class Counts:
    """The contents of a part, or of an artifact as the sum of its parts."""

    docs: int = 0
    tokens: int = 0  # content tokens before truncation
    lost: int = 0  # content tokens that truncation removed
    cut: int = 0  # documents that lost tokens
    empty: int = 0  # documents without content tokens
    vectors: int = 0
    context_tokens: int = 0  # tokens of the contexts before chunks, before truncation
    context_lost: int = 0  # tokens of contexts that did not fit
    chunks_lost: int = 0  # chunks that have no vector, because their document was cut

    def as_json(self) -> dict[str, int]:
        """Return the counts; those of contexts and of lost chunks only if they are not 0."""
        optional = ("context_tokens", "context_lost", "chunks_lost")
        return {name: count for name, count in vars(self).items() if count or name not in optional}

    def add(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Add documents, whose counts are columns of their table."""
        for name, column in columns.items():
            setattr(self, name, getattr(self, name) + int(column.sum(dtype=np.int64)))
        self.docs += len(columns["tokens"])
        self.cut += int((columns["lost"] > 0).sum())
        self.empty += int((columns["tokens"] == 0).sum())


def doc_table(folder: Path, name: PartName) -> DocTable:
    """Return the documents of a part. Raises DataError for a damaged table, or a wrong number of rows."""
    return DocTable(folder / parts.PARTS / str(name) / "docs.parquet", name.stop - name.start)


def sum_counts(folder: Path, slices: list[PartSlice]) -> Counts:
    """Return the counts of the live rows. For parts with deleted rows, their documents are read."""
    total = Counts()
    for piece in slices:
        summary = part_summary(folder, piece.name)
        if not piece.deleted:
            for name in vars(total):
                setattr(total, name, getattr(total, name) + getattr(summary, name))
            continue
        table = doc_table(folder, piece.name)
        total.add({name: table.column(name)[piece.live] for name in table.counts})
    return total


def collection_digest(folder: Path, slices: list[PartSlice]) -> str:
    """Return the digest of the live documents, which does not depend on their order."""
    digests = []
    for piece in slices:
        if not piece.deleted:
            digests.append(part_summary(folder, piece.name).collection)
            continue
        digest = CollectionDigest()
        hashes = doc_table(folder, piece.name).hashes()
        for doc_hash, is_live in zip(hashes, piece.live, strict=True):
            if is_live:
                digest.add(doc_hash)
        digests.append(str(digest))
    return str(CollectionDigest.sum(digests))


def check_part(folder: Path, name: PartName) -> None:
    """Raise DataError if any byte of a part differs from the published part.

    Reads all of its arrays, and all columns of its documents, whose pages have checksums.
    """
    path = folder / parts.PARTS / str(name)
    collection = CollectionDigest()
    for rows in doc_table(folder, name).doc_rows():
        collection.add(*rows.hashes)
    hashes = {file.stem: _array_hash(file) for file in path.glob("*.npy")}
    computed = manifest.digest({"arrays": hashes, "collection": str(collection)})
    if computed != part_summary(folder, name).digest:
        raise DataError(
            f"{path} has changed since it was written (its digest differs); restore it from a copy, or "
            f"delete it and {parts.MAKE_AGAIN}"
        )


def _array_hash(file: Path) -> str:
    """Return the sha256 of the numbers of an array; a block of rows is in memory at a time."""
    array = map_array(file)
    digest = hashlib.sha256()
    for start in range(0, len(array) if array.size else 0, HASHED_ROWS):
        rows = np.ascontiguousarray(array[start : start + HASHED_ROWS])
        if rows.dtype.kind == "f" and not np.isfinite(rows).all():
            raise DataError(
                f"{file} contains values that are not finite, in or after row {start}; {_FIX}"
            )
        digest.update(rows.data)
    return digest.hexdigest()
