"""Exporting: vectors in the files that other tools read.

An export is a folder with a manifest that says which vectors it was made of. It is written beside its
place and put there whole. To add a format: write one function, and one row of FORMATS.
"""

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lmkcli import manifest
from lmkcli.errors import DataError, UnknownName, UsageError
from lmkcli.exchange.flatfile import write_flat
from lmkcli.manifest import Manifest
from lmkcli.progress import Progress, Report
from lmkcli.store.outputs import write_once
from lmkcli.store.part_writer import NpyAppender
from lmkcli.store.vectors import Vectors

PICKLE_BYTES = 256 << 20  # of vectors in one file: tevatron reads files one after another
PROTOCOL = 4  # the newest that every NumPy since 1.26 reads alike


class Batch(NamedTuple):
    """Some vectors [n, dim] in row order: whose each is, and which it is among that document's."""

    ids: list[str]
    chunks: NDArray[np.int64]
    vectors: NDArray[np.float32]


@dataclass(frozen=True)
class Outgoing:
    """What a format writes: batches, whose sizes add up to `rows`, of `dim` dimensions."""

    rows: int
    dim: int
    unit: str
    batches: Iterator[Batch]

    @property
    def many(self) -> bool:
        """Whether a document may have several vectors."""
        return self.unit != "doc"


def export(vectors: Vectors, to: str, folder: Path, report: Report = Report()) -> int:
    """Write all vectors to `folder` in the format `to`; returns how many there are.

    A folder that holds this very export is left as it is. UnknownName for a format that is none,
    UsageError for one that has no notion of the vectors' unit, Mismatch when another export is there.
    """
    if to not in FORMATS:
        raise UnknownName("export format", to, FORMATS)
    form, unit = FORMATS[to], vectors.recipe.doc.unit
    if unit not in form.units:
        able = " or ".join(name for name, other in FORMATS.items() if unit in other.units)
        raise UsageError(
            f"--to {to} has no place for a vector of every {unit}: its search compares single vectors; "
            f"export to {able}"
        )
    rows = vectors.counts().vectors
    facts = {**manifest.environment(report.call), "from": str(vectors.folder.absolute())}
    described = Manifest("export", {"to": to, "vectors": vectors.digest()}, facts=facts)
    outgoing = Outgoing(rows, vectors.dim, unit, _batches(vectors, rows, report.progress))
    write_once(folder, described, lambda growing: form.write(growing, outgoing))
    return rows


def _batches(vectors: Vectors, rows: int, progress: Progress) -> Iterator[Batch]:
    done = 0
    for docs, decoded in vectors.decoded():
        counts = [doc.vectors for doc in docs]
        ids = [doc.doc.id for doc in docs for _ in range(doc.vectors)]
        chunks = np.concatenate([np.zeros(0, np.int64), *map(np.arange, counts)])
        yield Batch(ids, chunks, decoded)
        done += len(ids)
        progress(done, rows, "vectors")


def _numpy(folder: Path, outgoing: Outgoing) -> None:
    """vectors.npy [rows, dim] float32, and the document's id of every row in ids.txt."""
    array = NpyAppender(folder / "vectors.npy", "float32", (outgoing.dim,))
    try:
        with open(folder / "ids.txt", "w", encoding="utf-8") as ids:
            for batch in outgoing.batches:
                array.append(batch.vectors)
                ids.writelines(f"{name}\n" for name in batch.ids)
        array.close()
    finally:
        array.abandon()


def _parquet(folder: Path, outgoing: Outgoing) -> None:
    """vectors.parquet: id, chunk (its number in the document, if there are several), vector."""
    columns = [("id", pa.string()), ("vector", pa.list_(pa.float32(), outgoing.dim))]
    if outgoing.many:
        columns.insert(1, ("chunk", pa.int64()))
    schema = pa.schema(columns)
    plain = {
        "compression": "none",
        "use_dictionary": False,
    }  # vectors are only made larger by either
    with pq.ParquetWriter(folder / "vectors.parquet", schema, **plain) as writer:
        for batch in outgoing.batches:
            flat = pa.array(batch.vectors.ravel())
            values = {
                "id": pa.array(batch.ids, pa.string()),
                "chunk": pa.array(batch.chunks),
                "vector": pa.FixedSizeListArray.from_arrays(flat, outgoing.dim),
            }
            writer.write_table(pa.table([values[name] for name in schema.names], schema=schema))


def _pyserini(folder: Path, outgoing: Outgoing) -> None:
    """`index` (FAISS, flat) and `docid`, a line a row: what pyserini's FaissSearcher opens.

    The chunks of a document are 'id#0', 'id#1' …, which its --max-passage puts together again.
    """

    def blocks() -> Iterator[NDArray[np.float32]]:
        for batch in outgoing.batches:
            docid.writelines(f"{name}\n" for name in _passages(batch, outgoing))
            yield batch.vectors

    with open(folder / "docid", "w", encoding="utf-8") as docid:
        write_flat(folder / "index", outgoing.rows, outgoing.dim, blocks())


def _passages(batch: Batch, outgoing: Outgoing) -> list[str]:
    if not outgoing.many:
        return batch.ids
    marked = next((name for name in batch.ids if "#" in name), None)
    if marked is not None:
        raise DataError(
            f"the document id {marked!r} has a '#', at which pyserini cuts the names of passages; "
            "export to numpy or parquet"
        )
    return [f"{name}#{chunk}" for name, chunk in zip(batch.ids, batch.chunks, strict=True)]


def _tevatron(folder: Path, outgoing: Outgoing) -> None:
    """corpus.0.pkl, corpus.1.pkl …: pickled pairs of vectors and ids, as tevatron's search loads them.

    It reads nothing else. What is pickled is an array and a list; nothing here ever loads a pickle.
    """
    held: list[Batch] = []
    number = 0
    for batch in outgoing.batches:
        held.append(batch)
        if sum(other.vectors.nbytes for other in held) >= PICKLE_BYTES:
            _pickle(folder / f"corpus.{number}.pkl", held, outgoing)
            held, number = [], number + 1
    if held or not number:
        _pickle(folder / f"corpus.{number}.pkl", held, outgoing)


def _pickle(path: Path, batches: list[Batch], outgoing: Outgoing) -> None:
    """(vectors, ids); with several vectors a document its ids are pairs (id, number of the chunk)."""
    lookup: list[str | tuple[str, int]] = []
    for batch in batches:
        pairs = zip(batch.ids, batch.chunks.tolist(), strict=True)
        lookup += pairs if outgoing.many else batch.ids
    empty = np.zeros((0, outgoing.dim), np.float32)
    matrix = np.concatenate([empty, *(batch.vectors for batch in batches)])
    with open(path, "wb") as file:
        pickle.dump((matrix, lookup), file, protocol=PROTOCOL)


class Format(NamedTuple):
    """How a format is written, and for which units of vectors it has a place."""

    write: Callable[[Path, Outgoing], None]
    units: tuple[str, ...]


FORMATS = {
    "numpy": Format(_numpy, ("doc", "chunk", "token")),
    "parquet": Format(_parquet, ("doc", "chunk", "token")),
    "pyserini": Format(_pyserini, ("doc", "chunk")),
    "tevatron": Format(_tevatron, ("doc", "chunk")),
}
