"""Exports: vectors and training examples in the files that other tools read.

An export is a folder; its manifest names the exported vectors. It is written under a temporary name and
renamed when it is complete.
"""

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lmkcli import catalog
from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import ExportFacts, ExportIdentity, ExportManifest
from lmkcli.artifact.outputs import write_once
from lmkcli.data.parquet import parquet_writer
from lmkcli.errors import DataError, UsageError
from lmkcli.plugins.exchange.faiss_flat import write_flat
from lmkcli.progress import Progress, Report
from lmkcli.store.part_writer import NpyAppender
from lmkcli.training.data.examples import Tally
from lmkcli.training.data.sources import parse_source, read_sources
from lmkcli.vectors.stored import DenseVectors

PICKLE_BYTES = 256 << 20  # of vectors in one file: tevatron reads one file at a time
PROTOCOL = 4  # the newest one with equal results in every NumPy since 1.26
EXAMPLES = "tevatron-train"  # the format of training examples


class VectorBatch(NamedTuple):
    """Vectors [n, dim] in row order, with the document of each vector and its number in the document."""

    ids: list[str]
    chunks: NDArray[np.int64]
    vectors: NDArray[np.float32]


@dataclass(frozen=True)
class ExportedVectors:
    """The vectors to write: batches with `rows` vectors in total, of `dim` dimensions."""

    rows: int
    dim: int
    unit: str
    batches: Iterator[VectorBatch]

    @property
    def many(self) -> bool:
        """Whether a document may have several vectors."""
        return self.unit != "doc"


def export(vectors: DenseVectors, to: str, folder: Path, report: Report = Report()) -> int:
    """Write all vectors to `folder` in the format `to`; return their number.

    A folder with the same export is left unchanged. UnknownName for an unknown format, UsageError for
    one that does not support the unit of the vectors, Mismatch if the folder contains another export.
    """
    write: Callable[[Path, ExportedVectors], None] = catalog.EXPORTERS.load(to)
    unit = vectors.recipe.doc.unit
    if unit not in catalog.EXPORTERS[to].units:
        formats = (row for row in catalog.EXPORTERS.values() if row.takes == "vectors")
        supporting = " or ".join(row.name for row in formats if unit in row.units)
        raise UsageError(
            f"--to {to} does not support a vector for each {unit}, because its search compares single "
            f"vectors; export to {supporting}"
        )
    rows = vectors.counts().vectors
    described = ExportManifest(
        identity=ExportIdentity(to=to, vectors=vectors.digest()),
        facts=ExportFacts(
            **manifest.environment(report.call), made_of=str(vectors.folder.absolute())
        ),
    )
    exported = ExportedVectors(rows, vectors.dim, unit, _batches(vectors, rows, report.progress))
    write_once(folder, described, lambda growing: write(growing, exported))
    return rows


def _batches(vectors: DenseVectors, rows: int, progress: Progress) -> Iterator[VectorBatch]:
    done = 0
    for docs, texts, _ in vectors.batches():
        counts = docs.count("vectors").tolist()
        ids = [doc.id for doc, n in zip(docs.docs, counts, strict=True) for _ in range(n)]
        chunks = np.concatenate([np.zeros(0, np.int64), *map(np.arange, counts)])
        yield VectorBatch(ids, chunks, texts.vectors.astype(np.float32, copy=False))
        done += len(ids)
        progress(done, rows, "vectors")


def write_numpy(folder: Path, exported: ExportedVectors) -> None:
    """Write vectors.npy [rows, dim] float32, and the document id of each row to ids.txt."""
    array = NpyAppender(folder / "vectors.npy", "float32", (exported.dim,))
    try:
        with open(folder / "ids.txt", "w", encoding="utf-8") as ids:
            for batch in exported.batches:
                array.append(batch.vectors)
                ids.writelines(f"{name}\n" for name in batch.ids)
        array.close()
    finally:
        array.abandon()


def write_parquet(folder: Path, exported: ExportedVectors) -> None:
    """Write vectors.parquet: id, chunk (the number in the document, if there are several), vector."""
    columns = [("id", pa.string()), ("vector", pa.list_(pa.float32(), exported.dim))]
    if exported.many:
        columns.insert(1, ("chunk", pa.int64()))
    schema = pa.schema(columns)
    # Compression and dictionaries make vectors larger
    plain = {"compression": "none", "use_dictionary": False}
    with parquet_writer(folder / "vectors.parquet", schema, **plain) as writer:
        for batch in exported.batches:
            flat = pa.array(batch.vectors.ravel())
            values = {
                "id": pa.array(batch.ids, pa.string()),
                "chunk": pa.array(batch.chunks),
                "vector": pa.FixedSizeListArray.from_arrays(flat, exported.dim),
            }
            writer.write_table(pa.table([values[name] for name in schema.names], schema=schema))


def write_pyserini(folder: Path, exported: ExportedVectors) -> None:
    """Write `index` (FAISS, flat) and `docid` (a line for each row), for the FaissSearcher of pyserini.

    The chunks of a document are 'id#0', 'id#1' …, which --max-passage of pyserini joins again.
    """

    def blocks() -> Iterator[NDArray[np.float32]]:
        for batch in exported.batches:
            names = batch.ids
            if exported.many:
                marked = next((name for name in batch.ids if "#" in name), None)
                if marked is not None:
                    raise DataError(
                        f"the document id {marked!r} has a '#', at which pyserini cuts the names of "
                        "passages; export to numpy or parquet"
                    )
                pairs = zip(batch.ids, batch.chunks, strict=True)
                names = [f"{name}#{chunk}" for name, chunk in pairs]
            docid.writelines(f"{name}\n" for name in names)
            yield batch.vectors

    with open(folder / "docid", "w", encoding="utf-8") as docid:
        write_flat(folder / "index", exported.rows, exported.dim, blocks())


def write_tevatron(folder: Path, exported: ExportedVectors) -> None:
    """Write corpus.0.pkl, corpus.1.pkl …: pickled pairs of vectors and ids, for the search of tevatron.

    The search of tevatron reads no other format. The pickles contain an array and a list; lmk never
    loads a pickle.
    """
    batches: list[VectorBatch] = []
    number = 0
    for batch in exported.batches:
        batches.append(batch)
        if sum(each.vectors.nbytes for each in batches) >= PICKLE_BYTES:
            _pickle(folder / f"corpus.{number}.pkl", batches, exported)
            batches, number = [], number + 1
    if batches or not number:
        _pickle(folder / f"corpus.{number}.pkl", batches, exported)


def _pickle(path: Path, batches: list[VectorBatch], exported: ExportedVectors) -> None:
    """Write (vectors, ids). If documents have several vectors, ids are pairs (id, number of the chunk)."""
    lookup: list[str | tuple[str, int]] = []
    for batch in batches:
        pairs = zip(batch.ids, batch.chunks.tolist(), strict=True)
        lookup += pairs if exported.many else batch.ids
    empty = np.zeros((0, exported.dim), np.float32)
    matrix = np.concatenate([empty, *(batch.vectors for batch in batches)])
    with open(path, "wb") as file:
        pickle.dump((matrix, lookup), file, protocol=PROTOCOL)


def export_examples(spelling: str, folder: Path, report: Report = Report()) -> Tally:
    """Write `folder/train.jsonl`, a line for each example of a source; return counts of the examples.

    Sources are spelled as for training: 'beir/scifact:train,negatives=run.trec,depth=10:100', or a file.
    A folder with the same export is left unchanged; Mismatch if it contains another export.
    """
    examples, [tally] = read_sources([parse_source(spelling)])
    described = ExportManifest(
        identity=ExportIdentity(to=EXAMPLES, examples=examples.digest),
        facts=ExportFacts(**manifest.environment(report.call), made_of=spelling),
    )

    def write(growing: Path) -> None:
        with open(growing / "train.jsonl", "w", encoding="utf-8") as file:
            for number in range(len(examples)):
                example = examples[number]
                record = {
                    "query_id": example.id,
                    "query": example.query,
                    # the text includes the title, if any
                    "positive_passages": [{"text": each.text} for each in example.positives],
                    "negative_passages": [{"text": each.text} for each in example.negatives],
                }
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
                report.progress(number + 1, len(examples), "examples")

    write_once(folder, described, write)
    return tally
