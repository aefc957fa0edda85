r"""Search sparse vectors: exact, with lmk's inverted file, with Lucene's impacts, and with Seismic.

    python benchmarks/sparse.py --rows 100000 --queries 200 --only exact inverted lucene
    OMP_NUM_THREADS=1 RAYON_NUM_THREADS=1 python benchmarks/sparse.py --rows 1000000 --queries 60 \
        --only exact inverted lucene seismic

The vectors are drawn: terms of a passage come from a topic and from a common distribution, both after Zipf's
law. A passage has about 130 terms, a query 20 to 40; 70 % of them are terms of one passage. The table has the
seconds of building, the size, queries per second with k = 100, one after the other, and recall@10 and @100
against exact search. Seconds are processor time of all threads, so other programs disturb them little. Lucene
gets the weights times 100, rounded, as Anserini does (extra lucene). Seismic (extra seismic) is measured with
exact scores of its candidates, as `--kind seismic` searches, and alone.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lmkcli.plugins.exchange.imports import ForeignVector, run_import, unknown_recipe
from lmkcli.plugins.sparse.exact_product import ExactProduct
from lmkcli.plugins.sparse.inverted import Postings
from lmkcli.plugins.sparse.sparse_imports import SparseForeign
from lmkcli.plugins.sparse.sparse_vectors import Entries, SparseRows, collected
from lmkcli.progress import Report, silent
from lmkcli.retrieval.vectors.ranked_units import RankedUnits
from lmkcli.vectors.stored import Vectors

VOCABULARY, TOPIC_TERMS, TERMS, K = 30522, 400, 150, 100
BLOCK = 20_000  # passages that are drawn together
Found = list[np.ndarray]  # rows of each query, best first


class Measured(NamedTuple):
    """One row of the table."""

    name: str
    build: float
    bytes: int
    seconds: float
    found: Found


def zipf(count: int, offset: float) -> np.ndarray:
    weights = 1 / (np.arange(count) + offset)
    return weights / weights.sum()


class Passages:
    """Drawn passages. Iteration yields the same blocks each time."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        random = np.random.default_rng(1)
        shares = zipf(VOCABULARY, 200)
        self._topics = np.stack(
            [
                random.choice(VOCABULARY, TOPIC_TERMS, replace=False, p=shares)
                for _ in range(max(50, rows // 200))
            ]
        )

    def __iter__(self) -> Iterator[SparseRows]:
        common, own = np.cumsum(zipf(VOCABULARY, 20)), np.cumsum(zipf(TOPIC_TERMS, 10))
        for first in range(0, self.rows, BLOCK):
            random = np.random.default_rng([2, first])
            size = min(BLOCK, self.rows - first)
            topics = random.integers(0, len(self._topics), size)
            places = np.searchsorted(own, random.random((size, TERMS // 2))).clip(
                0, TOPIC_TERMS - 1
            )
            others = np.searchsorted(common, random.random((size, TERMS // 2)))
            terms = np.concatenate(
                [self._topics[topics[:, None], places], others.clip(0, VOCABULARY - 1)], 1
            )
            weights = np.exp(random.normal(-0.7, 0.7, terms.shape))
            weights *= 0.4 + 0.6 * np.log1p(terms) / np.log(VOCABULARY)  # rare terms weigh more
            weights[:, TERMS // 2 :] *= 0.6
            entries = Entries(
                np.repeat(np.arange(size), TERMS),
                terms.ravel(),
                np.minimum(weights, 3.5).astype(np.float32).ravel(),
            )
            yield collected(entries, np.ones(size, np.int64), VOCABULARY)

    def rows_of(self) -> Iterator[ForeignVector]:
        number = 0
        for block in self:
            for start, stop in zip(block.offsets[:-1], block.offsets[1:], strict=True):
                span = slice(start, stop)
                yield ForeignVector(
                    f"drawn line {number}", str(number), "", block.weights[span], block.terms[span]
                )
                number += 1


def stored(rows: int, folder: Path) -> Vectors:
    """Draw passages and store them as sparse vectors."""
    source = folder / "drawn"
    source.touch()
    foreign = SparseForeign("drawn", [source], VOCABULARY, "float32", False, Passages(rows).rows_of)
    run_import(foreign, unknown_recipe(), folder / "vectors", False, Report())
    return Vectors(folder / "vectors")


def drawn_queries(vectors: Vectors, count: int) -> SparseRows:
    random, shares = np.random.default_rng(3), zipf(VOCABULARY, 20)
    chosen = vectors.at(np.sort(random.choice(vectors.rows, count, replace=False)))
    owners, terms, weights = [], [], []
    for number in range(count):
        passage = chosen.take(np.array([number]))
        size = int(random.integers(20, 41))
        own = int(0.7 * size)
        picked = random.choice(
            len(passage.terms), own, replace=False, p=passage.weights / passage.weights.sum()
        )
        owners.append(np.full(size, number))
        terms.append(
            np.concatenate([passage.terms[picked], random.choice(VOCABULARY, size - own, p=shares)])
        )
        noisy = passage.weights[picked] * np.exp(random.normal(0, 0.4, own))
        weights.append(np.concatenate([noisy, np.exp(random.normal(-1.2, 0.5, size - own))]))
    entries = Entries(
        np.concatenate(owners),
        np.concatenate(terms).astype(np.int64),
        np.concatenate(weights).astype(np.float32),
    )
    return collected(entries, np.ones(count, np.int64), VOCABULARY)


def one_by_one(queries: SparseRows) -> list[SparseRows]:
    return [queries.take(np.array([number])) for number in range(len(queries.counts))]


def best(rows: np.ndarray, scores: np.ndarray) -> np.ndarray:
    order: np.ndarray = rows[np.lexsort((rows, -scores))][:K]
    return order


def measured(
    name: str, build: float, size: int, search: Callable[[], Found], repeat: bool = True
) -> Measured:
    if repeat:
        search()  # the first search reads the files into memory
    start = time.process_time()
    found = search()
    return Measured(name, build, size, time.process_time() - start, found)


def exact(vectors: Vectors, queries: SparseRows, _: Path) -> Iterator[Measured]:
    def search() -> Found:
        return [best(*pair) for pair in zip(*ExactProduct(vectors).search(queries, K), strict=True)]

    size = sum(file.stat().st_size for file in vectors.folder.glob("parts/*/*.npy"))
    yield measured("exact, all queries together", 0, size, search)
    alone = queries.take(np.arange(1))

    def first() -> Found:
        return [best(*pair) for pair in zip(*ExactProduct(vectors).search(alone, K), strict=True)]

    yield measured("exact, one query", 0, size, first)


def inverted(vectors: Vectors, queries: SparseRows, folder: Path) -> Iterator[Measured]:
    (folder / "inverted").mkdir()
    start = time.process_time()
    facts = Postings.build(vectors, folder / "inverted", silent)
    build = time.process_time() - start
    postings, each = Postings(folder / "inverted", RankedUnits(vectors)), one_by_one(queries)

    def search() -> Found:
        hits = [postings.search(query, K) for query in each]
        return [best(rows[0], scores[0]) for rows, scores in hits]

    yield measured("inverted", build, facts["bytes"], search)


def lucene(vectors: Vectors, queries: SparseRows, folder: Path) -> Iterator[Measured]:
    from lmkcli.plugins.lucene.jvm import cast, java_class, silence

    silence()
    options = java_class("java.util.HashMap")
    analyzer = java_class("org.apache.lucene.analysis.custom.CustomAnalyzer").builder()
    analyzer = analyzer.withTokenizer("whitespace", options())
    analyzer = analyzer.addTokenFilter("delimitedTermFrequency", options()).build()
    settings = java_class("org.apache.lucene.index.IndexWriterConfig")(analyzer)
    settings.setRAMBufferSizeMB(256.0)
    where = java_class("java.nio.file.Paths").get(str(folder / "lucene"))
    directory = java_class("org.apache.lucene.store.FSDirectory").open(where)
    kind = java_class("org.apache.lucene.document.FieldType")()
    kind.setOmitNorms(True)
    kind.setTokenized(True)
    kind.setIndexOptions(java_class("org.apache.lucene.index.IndexOptions").DOCS_AND_FREQS)
    field, text = (
        java_class("org.apache.lucene.document.Field"),
        java_class("java.io.StringReader"),
    )
    document = java_class("org.apache.lucene.document.Document")
    start = time.process_time()
    writer = java_class("org.apache.lucene.index.IndexWriter")(directory, settings)
    for block in vectors:
        impacts = np.rint(block.weights * 100).astype(np.int64)
        for first, stop in zip(block.offsets[:-1], block.offsets[1:], strict=True):
            pairs = zip(block.terms[first:stop].tolist(), impacts[first:stop].tolist(), strict=True)
            words = " ".join(f"{term}|{impact}" for term, impact in pairs if impact)
            doc = document()
            doc.add(field("contents", cast("java.io.Reader", text(words)), kind))
            writer.addDocument(doc)
    writer.forceMerge(1)
    writer.commit()
    writer.close()
    build = time.process_time() - start
    reader = java_class("org.apache.lucene.index.DirectoryReader").open(directory)
    searcher = java_class("org.apache.lucene.search.IndexSearcher")(
        cast("org.apache.lucene.index.IndexReader", reader)
    )
    searcher.setSimilarity(java_class("io.anserini.search.similarity.ImpactSimilarity")())
    builder = java_class("org.apache.lucene.search.BooleanQuery$Builder")
    boost = java_class("org.apache.lucene.search.BoostQuery")
    term_query = java_class("org.apache.lucene.search.TermQuery")
    term = java_class("org.apache.lucene.index.Term")
    should = java_class("org.apache.lucene.search.BooleanClause$Occur").SHOULD

    def search() -> Found:
        found = []
        for query in one_by_one(queries):
            clauses = builder()
            for number, weight in zip(query.terms.tolist(), query.weights.tolist(), strict=True):
                clauses.add(boost(term_query(term("contents", str(number))), weight), should)
            top = searcher.search(clauses.build(), K)
            found.append(np.array([hit.doc for hit in top.scoreDocs]))
        return found

    size = sum(file.stat().st_size for file in (folder / "lucene").iterdir())
    yield measured("lucene", build, size, search)


def seismic(vectors: Vectors, queries: SparseRows, folder: Path) -> Iterator[Measured]:
    import seismic

    from lmkcli.plugins.sparse.seismic import FILE, SeismicSearch

    (folder / "seismic").mkdir()
    before = os.times()
    facts = SeismicSearch.build(vectors, folder / "seismic")
    after = os.times()
    build = sum(after[:4]) - sum(before[:4])  # with the process that builds
    opened, each = SeismicSearch(folder / "seismic", RankedUnits(vectors)), one_by_one(queries)

    def ranked() -> Found:
        hits = [opened.search(query, K) for query in each]
        return [best(rows[0], scores[0]) for rows, scores in hits]

    yield measured("seismic", build, facts["bytes"], ranked)
    index = seismic.SeismicIndex.load(str(folder / "seismic" / FILE))
    texts = [query.terms.astype(seismic.get_seismic_string()) for query in each]
    for cut, heap in ((10, 0.8), (20, 0.9), (40, 1.0)):

        def search(cut: int = cut, heap: float = heap) -> Found:
            pairs = zip(texts, (query.weights for query in each), strict=True)
            found = [index.search("", terms, weights, K, cut, heap) for terms, weights in pairs]
            return [np.array([int(hit[2]) for hit in hits]) for hits in found]

        name = f"Seismic alone, query_cut {cut}, heap_factor {heap}"
        yield measured(name, build, facts["bytes"], search)


ENGINES = {"exact": exact, "inverted": inverted, "lucene": lucene, "seismic": seismic}


def recall(found: Found, wanted: Found, k: int) -> float:
    pairs = zip(found, wanted, strict=False)
    return float(np.mean([len({*a[:k]} & {*b[:k]}) / len(b[:k]) for a, b in pairs]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--only", nargs="+", choices=ENGINES, default=["exact", "inverted"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        vectors = stored(arguments.rows, Path(name))
        queries = drawn_queries(vectors, arguments.queries)
        terms = sum(len(block.terms) for block in vectors) / vectors.rows
        print(
            f"{vectors.rows:,} passages of {terms:.0f} terms, queries of {queries.lengths.mean():.0f}"
        )
        print("| | build, s | MB | queries/s | recall@10 | recall@100 |")
        print("|---|---:|---:|---:|---:|---:|")
        wanted: Found = []
        for engine in arguments.only:
            for row in ENGINES[engine](vectors, queries, Path(name)):
                wanted = wanted or row.found
                rate = len(row.found) / row.seconds
                scores = f"{recall(row.found, wanted, 10):.3f} | {recall(row.found, wanted, K):.3f}"
                size = f"{row.build:.0f} | {row.bytes / 1e6:,.0f}"
                print(f"| {row.name} | {size} | {rate:,.1f} | {scores} |", flush=True)


if __name__ == "__main__":
    main()
