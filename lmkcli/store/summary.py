"""What the parts of an artifact say of themselves, and what that adds up to."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np

from lmkcli import manifest
from lmkcli.data.collection import Doc
from lmkcli.data.digest import CollectionDigest
from lmkcli.errors import DataError
from lmkcli.reading import read_json
from lmkcli.store import parts
from lmkcli.store.arrays import map_array
from lmkcli.store.doctable import DocRow, DocTable
from lmkcli.store.parts import PartName, PartSlice

HASHED_ROWS = 1 << 16  # of an array, at once


@dataclass
class Counts:
    """What is in a part or in a whole artifact; summed when it is read."""

    docs: int = 0
    tokens: int = 0  # content tokens before anything was cut
    lost: int = 0  # content tokens that were cut
    cut: int = 0  # documents that lost tokens
    empty: int = 0  # documents without content tokens
    vectors: int = 0
    context_tokens: int = 0  # tokens of the contexts before chunks, before anything was cut
    context_lost: int = 0  # of these, how many did not fit

    def as_json(self) -> dict[str, int]:
        """The counts, those of contexts only where there are any."""
        return {name: count for name, count in vars(self).items() if count or "context" not in name}

    def add(self, row: DocRow) -> None:
        """Count one document in."""
        self.docs += 1
        self.tokens += row.tokens
        self.lost += row.lost
        self.cut += row.lost > 0
        self.empty += row.tokens == 0
        self.vectors += row.vectors
        self.context_tokens += row.context_tokens
        self.context_lost += row.context_lost


class PartSummary(TypedDict):
    """What part.json says: Counts, the digest of the documents, the bytes of text and arrays, the digest
    of all that is in the part."""

    docs: int
    tokens: int
    lost: int
    cut: int
    empty: int
    vectors: int
    context_tokens: NotRequired[int]
    context_lost: NotRequired[int]
    collection: str
    bytes: NotRequired[int]
    digest: str


def part_summary(folder: Path, name: PartName) -> PartSummary:
    """The part.json of one part; DataError where it is not there, or is of a part of other rows."""
    path = folder / parts.PARTS / str(name) / "part.json"
    fix = "delete this part and run the same command again"
    try:
        summary = read_json(path, PartSummary, fix)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); {fix}") from None
    if summary["docs"] != name.stop - name.start:
        raise DataError(f"{path} is of {summary['docs']} documents, and its part of others; {fix}")
    return summary


def doc_table(folder: Path, name: PartName) -> DocTable:
    """The documents of one part; DataError where they are damaged, or not as many as its name says."""
    return DocTable(folder / parts.PARTS / str(name) / "docs.parquet", name.stop - name.start)


def sum_counts(folder: Path, slices: list[PartSlice]) -> Counts:
    """Counts over the live rows; parts with deleted rows are counted row by row."""
    total = Counts()
    for piece in slices:
        summary = part_summary(folder, piece.name)
        if not piece.deleted:
            for name in vars(total):
                setattr(total, name, getattr(total, name) + summary.get(name, 0))
            continue
        table = doc_table(folder, piece.name)
        names = ["tokens", "lost", "vectors"]
        names += ["context_tokens", "context_lost"] if table.has_contexts else []
        columns = (table.column(name)[piece.live].tolist() for name in names)
        for counts in zip(*columns, strict=True):
            total.add(DocRow(Doc("", ""), b"", *counts))
    return total


def collection_digest(folder: Path, slices: list[PartSlice]) -> str:
    """The order-free digest of the live documents."""
    return str(CollectionDigest.sum(_collection(folder, piece) for piece in slices))


def _collection(folder: Path, piece: PartSlice) -> str:
    if not piece.deleted:
        return str(part_summary(folder, piece.name)["collection"])
    digest = CollectionDigest()
    hashes = doc_table(folder, piece.name).hashes()
    for doc_hash, counts in zip(hashes, piece.live, strict=True):
        if counts:
            digest.add(doc_hash)
    return str(digest)


def check_part(folder: Path, name: PartName) -> None:
    """DataError where a part is not, to the last byte, what was published under its name.

    Reads all of its arrays and the hashes of its documents.
    """
    path = folder / parts.PARTS / str(name)
    digest = CollectionDigest()
    for doc_hash in doc_table(folder, name).hashes():
        digest.add(doc_hash)
    hashes = {file.stem: _array_hash(file) for file in path.glob("*.npy")}
    computed = manifest.digest({"arrays": hashes, "collection": str(digest)})
    if computed != part_summary(folder, name)["digest"]:
        raise DataError(
            f"{path} is not what was written there (its digest differs): restore it from a copy, or "
            "delete it and run the same command again"
        )


def _array_hash(file: Path) -> str:
    """sha256 of an array's numbers, read in pieces."""
    array = map_array(file)
    digest = hashlib.sha256()
    for start in range(0, len(array), HASHED_ROWS):
        rows = np.ascontiguousarray(array[start : start + HASHED_ROWS])
        if rows.dtype.kind == "f" and not np.isfinite(rows).all():
            raise DataError(
                f"{file} holds values that are not finite, from row {start} on; delete this part and run "
                "the same command again"
            )
        digest.update(rows.data)
    return digest.hexdigest()
