"""Compare ways to store and to search several vectors per document: size, time and quality.

    lmk encode ./scifact -m minilm --unit token -o tokens
    python benchmarks/late.py ./scifact=tokens --search exact hnsw hnsw,muvera=20x5x16
    python benchmarks/late.py ./scifact=tokens --rows 1000000 --work folder --search exact IVF4096,PQ16

An argument is a collection and its vectors by lmk encode, of tokens or chunks. The table has these rows:

- exact: MaxSim over the stored vectors, and over the same vectors as int8, int4, int2 and binary;
- any other --search: a kind of lmk index, with ",muvera=RxBxD" an index of encodings.

Columns: bytes per document (vectors, or index); seconds to build; queries per second, all queries in one
search without their encoding; the share of exact MaxSim's 100 documents that are among the 100; nDCG@10.

With --rows, documents of 100 vectors of 128 dimensions are made from the given vectors: consecutive vectors
from a random place, projected at random, with noise of length 0.3. They are stored as --store, and every
index searches the first of these. The exact 100 are those of the vectors before they are stored. The
queries are the first 50 of the collection. --work keeps vectors and indexes for the next run.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from msgspec import structs

from lmkcli.artifact import manifest
from lmkcli.catalog import CODECS
from lmkcli.data.collection import Doc, Qrel, Query, doc_hash, open_collection
from lmkcli.data.run import Run, ranked
from lmkcli.evaluation.measures import evaluate, parse_measures
from lmkcli.progress import Report
from lmkcli.retrieval.engines.faiss.faiss_engine import Faiss
from lmkcli.retrieval.engines.faiss.faiss_settings import FaissSettings
from lmkcli.retrieval.index_input import VectorsInput
from lmkcli.retrieval.index_job import IndexJob
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.pipeline import open_index
from lmkcli.retrieval.searching import queries_of
from lmkcli.retrieval.vectors.exact_scoring import DENSE_SCORING
from lmkcli.retrieval.vectors.vector_index import VectorIndex, open_query_encoder
from lmkcli.spec.values import WHOLE, Muvera
from lmkcli.store.doctable import DocRows
from lmkcli.store.part_writer import PartTarget, PartWriter, shard_writer
from lmkcli.store.ragged import cut, ranges
from lmkcli.vectors.codec import open_codec
from lmkcli.vectors.dense_codecs import DenseCodec
from lmkcli.vectors.rows import Ragged
from lmkcli.vectors.stored import BLOCK_BYTES, Vectors

DEPTH, MADE_QUERIES = 100, 50
LENGTH, DIM, NOISE, BLOCK = 100, 128, 0.3, 1000  # of made documents; BLOCK is documents
SETTINGS = OpenSettings()
Rows = list[np.ndarray]


class Recoded:
    """The vectors of a folder in another stored dtype, in memory."""

    single = False

    def __init__(self, vectors: Vectors, dtype: str) -> None:
        self._storage, self._starts = cast(DenseCodec, open_codec(dtype)), vectors.starts
        self.rows, self.total, self.dim = vectors.rows, vectors.total, vectors.dim
        coded = [self._storage.encode(block.vectors) for block in vectors]
        self._codes = {stem: np.concatenate([each[stem] for each in coded]) for stem in coded[0]}

    def __iter__(self) -> Iterator[Ragged]:
        for first, stop in cut(self._starts, BLOCK_BYTES // (4 * self.dim)):
            yield self.at(np.arange(first, stop))

    def at(self, rows: np.ndarray) -> Ragged:
        counts = np.diff(self._starts)[rows]
        positions = ranges(self._starts[rows], counts)
        codes = {stem: array[positions] for stem, array in self._codes.items()}
        return Ragged.of(self._storage.decode(codes, self.dim), counts)


class Data(NamedTuple):
    """Vectors and queries. `truth` are the best rows of each query; nDCG@10 needs judgements."""

    name: str
    vectors: Vectors
    ids: list[str]
    queries: Ragged
    truth: Rows
    judged: tuple[list[Query], list[Qrel]] | None = None
    k: int = DEPTH

    def line(self, what: str, size: float, built: float | None, search: Any) -> str:
        """Search twice and print a row of the table."""
        search.search(self.queries, self.k)
        start = time.perf_counter()
        hits = search.search(self.queries, self.k)
        rate = len(self.queries.counts) / (time.perf_counter() - start)
        best = [
            rows[np.argsort(-scores, kind="stable")[:DEPTH]]
            for rows, scores in zip(hits.rows, hits.scores, strict=True)
        ]
        pairs = zip(best, self.truth, strict=True)
        recall = np.mean([np.isin(true, found).mean() for found, true in pairs])
        cells = [self.name, what, f"{size:,.0f}", "" if built is None else f"{built:,.1f}"]
        cells += [f"{rate:,.1f}" if rate < 100 else f"{rate:,.0f}", f"{recall:.3f}"]
        cells.append(f"{self._quality(hits, *self.judged):.4f}" if self.judged else "")
        return f"| {' | '.join(cells)} |"

    def _quality(self, hits: Any, queries: list[Query], qrels: list[Qrel]) -> float:
        rankings = {
            query.id: ranked([self.ids[row] for row in rows], scores).cut(DEPTH)
            for query, rows, scores in zip(queries, hits.rows, hits.scores, strict=True)
        }
        found = evaluate(Run(rankings), qrels, parse_measures(["nDCG@10"]))
        return float(found.aggregated["nDCG@10"])


def stored_bytes(vectors: Vectors, dtype: str) -> float:
    """Return the bytes of the vectors of a document."""
    sizes = open_codec(dtype).types(vectors.dim).values()
    each = sum(np.dtype(kind).itemsize * math.prod(width) for kind, width in sizes)
    return each * vectors.total / vectors.rows


def read(collection: str, folder: Path, most: int) -> Data:
    """Encode the first queries of a collection, at most `most`, and search its vectors exactly."""
    vectors = Vectors(folder)
    queries, _ = queries_of(collection, all_queries=False)
    queries = queries[:most]
    encoded = open_query_encoder(vectors, SETTINGS).queries(queries)
    hits = DENSE_SCORING.search(vectors, SETTINGS).search(encoded, DEPTH)
    truth = [
        rows[np.argsort(-scores, kind="stable")[:DEPTH]]
        for rows, scores in zip(hits.rows, hits.scores, strict=True)
    ]
    ids = vectors.ids(np.arange(vectors.rows))
    known = {query.id for query in queries}
    judged = queries, [q for q in open_collection(collection).qrels() if q.query_id in known]
    return Data(Path(collection).name, vectors, ids, encoded, truth, judged)


def compare(data: Data, indexes: list[str], work: Path) -> Iterator[str]:
    """Yield the rows of the table for the vectors of a collection."""
    if "exact" in indexes:
        yield from stored_as(data)
    yield from searched(data, indexes, work)


def stored_as(data: Data) -> Iterator[str]:
    """Search the vectors exactly, in each stored dtype."""
    stored = data.vectors.manifest.execution.store_dtype
    exact = DENSE_SCORING.search(data.vectors, SETTINGS)
    yield data.line(f"exact, {stored}", stored_bytes(data.vectors, stored), None, exact)
    for dtype in ("int8", "int4", "int2", "binary"):
        search = DENSE_SCORING.search(Recoded(data.vectors, dtype), SETTINGS)
        yield data.line(f"exact, {dtype}", stored_bytes(data.vectors, dtype), None, search)


def searched(data: Data, indexes: list[str], work: Path) -> Iterator[str]:
    """Build each index unless it exists, search it, and yield its row of the table."""
    for index in [each for each in indexes if each != "exact"]:
        kind, _, muvera = index.partition(",muvera=")
        folder = work / f"{data.name}-{index.replace(',', '-')}"
        took = folder.with_suffix(".json")
        settings = FaissSettings(kind=kind, muvera=Muvera(muvera))
        start = time.perf_counter()
        engine = Faiss(settings)
        record = IndexJob(engine, VectorsInput(data.vectors, engine.by_document), folder).build()
        if not took.exists():
            took.write_text(json.dumps(time.perf_counter() - start))
        opened = open_index(folder, SETTINGS)
        assert isinstance(opened, VectorIndex)
        size, seconds = record.facts["bytes"] / data.vectors.rows, json.loads(took.read_text())
        yield data.line(f"{index} ({record.facts['factory']})", size, seconds, opened.vector_search)


# --- a million documents ---------------------------------------------------------------------------


def projection(dim: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((dim, DIM), dtype=np.float32)


def unit(vectors: np.ndarray) -> np.ndarray:
    made: np.ndarray = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return made


def made_blocks(vectors: Vectors, rows: int) -> Iterator[Ragged]:
    """Yield made documents, BLOCK at a time."""
    real = np.concatenate([unit(b.vectors @ projection(vectors.dim)) for b in vectors])
    for first in range(0, rows, BLOCK):
        count = min(BLOCK, rows - first)
        random = np.random.default_rng(first + 1)
        places = random.integers(0, len(real) - LENGTH, count)[:, None] + np.arange(LENGTH)
        made = real[places.reshape(-1)]
        noise = random.standard_normal(made.shape, dtype=np.float32)
        yield Ragged.of(unit(made + NOISE * unit(noise)), np.full(count, LENGTH))


def made_data(source: Data, rows: int, stores: list[str], work: Path) -> list[Data]:
    """Return the made documents, stored in each dtype, with the exact best of the first queries."""
    real = source.queries.take(np.arange(min(MADE_QUERIES, len(source.queries.counts))))
    queries = Ragged(unit(real.vectors @ projection(source.vectors.dim)), real.starts)
    truth, folders = work / "truth.npy", [work / f"made-{store}" for store in stores]
    if not truth.exists():
        np.save(
            truth,
            write_made(source.vectors, rows, dict(zip(stores, folders, strict=True)), queries),
        )
    best = list(np.load(truth))
    return [Data("made", Vectors(folder), [], queries, best, k=source.k) for folder in folders]


def write_made(
    vectors: Vectors, rows: int, folders: dict[str, Path], queries: Ragged
) -> np.ndarray:
    """Write the made documents in each stored dtype, and return the exact best rows [queries, DEPTH]."""
    with ExitStack() as stack:
        writers = {
            store: stack.enter_context(made_writer(vectors, folder, store))
            for store, folder in folders.items()
        }
        return write_blocks(made_blocks(vectors, rows), writers, queries)


def made_writer(vectors: Vectors, folder: Path, store: str) -> AbstractContextManager[PartWriter]:
    """Open a vectors folder with the recipe of `vectors`, for made documents in a stored dtype."""
    described = vectors.manifest
    described = structs.replace(
        described,
        identity=structs.replace(described.identity, dim=DIM),
        execution=structs.replace(described.execution, store_dtype=store, shards=1),
    )
    manifest.claim(folder, described)
    target = PartTarget(folder, WHOLE, open_codec(store).types(DIM), store_text=False)
    return shard_writer(target, Report())


class InMemory:
    """Documents in memory, one row per document, with one vector or more."""

    def __init__(self, vectors: Ragged) -> None:
        self._vectors = vectors
        self.rows, self.total = len(vectors.counts), len(vectors.vectors)
        self.dim = vectors.vectors.shape[1]
        self.single = self.rows == self.total

    def __iter__(self) -> Iterator[Ragged]:
        """All vectors in one block."""
        yield self._vectors

    def at(self, rows: np.ndarray) -> Ragged:
        """Return the vectors of some rows."""
        return self._vectors.take(rows)


def write_blocks(
    blocks: Iterator[Ragged], writers: dict[str, PartWriter], queries: Ragged
) -> np.ndarray:
    """Write documents in each stored dtype, and return the exact best rows [queries, DEPTH]."""
    count = len(queries.counts)
    best = np.zeros((count, DEPTH), np.int64)
    scores = np.full((count, DEPTH), -np.inf)
    first = 0
    for block in blocks:
        ids = [str(first + number) for number in range(len(block.counts))]
        docs = [Doc(each, "", each) for each in ids]
        lengths = np.full(len(docs), LENGTH)
        counts = {"tokens": lengths, "vectors": lengths}
        rows = DocRows(docs, [doc_hash(doc) for doc in docs], counts)
        for store, writer in writers.items():
            writer.append(rows, open_codec(store).coded(block, writer.array_rows))
        memory = InMemory(block)
        hits = DENSE_SCORING.search(memory, SETTINGS).search(queries, DEPTH)
        for query in range(count):
            found = np.concatenate([best[query], hits.rows[query] + first])
            values = np.concatenate([scores[query], hits.scores[query]])
            order = np.argsort(-values, kind="stable")[:DEPTH]
            best[query], scores[query] = found[order], values[order]
        first += len(ids)
    return best


def save(data: Data, folder: Path) -> None:
    """Write vectors and queries, their numbers per text, and the exact best rows for benchmarks/plaid.py."""
    folder.mkdir(exist_ok=True)
    shape = (data.vectors.total, data.vectors.dim)
    docs = np.lib.format.open_memmap(folder / "docs.npy", "w+", np.float16, shape)
    first = 0
    for block in data.vectors:
        docs[first : first + len(block.vectors)] = block.vectors
        first += len(block.vectors)
    docs.flush()
    np.save(folder / "counts.npy", np.diff(data.vectors.starts))
    np.save(folder / "queries.npy", data.queries.vectors)
    np.save(folder / "query-counts.npy", data.queries.counts)
    np.save(folder / "truth.npy", np.array(data.truth))
    queries, qrels = data.judged or ([], [])
    names = {"docs": data.ids, "queries": [query.id for query in queries]}
    (folder / "names.json").write_text(json.dumps(names))
    lines = [f"{each.query_id} 0 {each.doc_id} {each.grade}\n" for each in qrels]
    (folder / "qrels.txt").write_text("".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pairs", nargs="+", metavar="COLLECTION=VECTORS")
    parser.add_argument("--search", nargs="+", default=["exact", "hnsw", "hnsw,muvera=20x5x16"])
    parser.add_argument("--queries", type=int, default=500, help="use the first queries")
    parser.add_argument("--k", type=int, default=DEPTH, help="search for more than 100 documents")
    parser.add_argument("--rows", type=int, default=0, help="make this many documents")
    parser.add_argument("--store", nargs="+", default=["int4", "int2"], choices=[*CODECS])
    parser.add_argument("--save", action="store_true", help="save arrays for benchmarks/plaid.py")
    parser.add_argument("--work", type=Path, required=True, help="folder of indexes and vectors")
    given = parser.parse_args()
    given.work.mkdir(exist_ok=True)
    print(
        "| collection | search | bytes per document | seconds | queries/s | of exact's 100 | nDCG@10 |"
    )
    print("|---|---|---:|---:|---:|---:|---:|", flush=True)
    for pair in given.pairs:
        collection, _, folder = pair.rpartition("=")
        data = read(collection, Path(folder), given.queries)._replace(k=given.k)
        if given.save:
            save(data, given.work / f"{data.name}-arrays")
        if not given.rows:
            for line in compare(data, given.search, given.work):
                print(line, flush=True)
            continue
        made = made_data(data, given.rows, given.store, given.work)
        if given.save:
            save(made[0], given.work / "made-arrays")
        stores = zip(given.store, made, strict=True) if "exact" in given.search else ()
        for store, each in stores:
            search = DENSE_SCORING.search(each.vectors, SETTINGS)
            size = stored_bytes(each.vectors, store)
            print(each.line(f"exact, {store}", size, None, search), flush=True)
        for line in searched(made[0], given.search, given.work):
            print(line, flush=True)


if __name__ == "__main__":
    main()
