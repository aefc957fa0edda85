"""Compare small codes, in indexes and in stored vectors: bytes per document and retrieval quality.

    python benchmarks/quantised.py beir/scifact/test=vectors beir/nfcorpus/test=others

Each argument is a collection and the vectors of its documents by lmk encode, one vector per document. For
each kind, the table has bytes per document; the share of exact search's 100 documents that are among the
100 of this kind; R@100 and nDCG@10 by the collection's judgements. "rescored" is the behaviour of lmk
search: it scores candidates again with the stored vectors. "codes alone" ranks by the index's own scores.
"stored as" is --store-dtype: only the codes are stored.
"""

import argparse
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np

from lmkcli.data.collection import open_collection
from lmkcli.data.run import Ranking, Run, ranked
from lmkcli.evaluation.measures import evaluate, parse_measures
from lmkcli.progress import silent
from lmkcli.retrieval.engines.faiss.faiss_index import FaissIndex
from lmkcli.retrieval.engines.faiss.faiss_settings import FaissSettings
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.searching import queries_of
from lmkcli.retrieval.vectors.candidates import ApproximateSearch
from lmkcli.retrieval.vectors.exact_scoring import DENSE_SCORING
from lmkcli.retrieval.vectors.ranked_units import RankedUnits, number
from lmkcli.retrieval.vectors.vector_index import open_query_encoder
from lmkcli.retrieval.vectors.vector_search import RowHits
from lmkcli.vectors.codec import open_codec
from lmkcli.vectors.dense_codecs import DenseCodec
from lmkcli.vectors.rows import Ragged
from lmkcli.vectors.stored import Vectors

DEPTH = 100
MEASURES = ("R@100", "nDCG@10")


class Recoded:
    """The vectors of a folder (one per document) after rounding to --store-dtype."""

    single = True

    def __init__(self, vectors: Vectors, dtype: str) -> None:
        self._vectors, self._storage = vectors, cast(DenseCodec, open_codec(dtype))
        self.rows = self.total = vectors.rows
        self.dim = vectors.dim
        sizes = self._storage.types(self.dim).values()
        self.bytes = sum(np.dtype(kind).itemsize * math.prod(width) for kind, width in sizes)

    def __iter__(self) -> Iterator[Ragged]:
        return map(self._through, self._vectors)

    def at(self, rows: np.ndarray) -> Ragged:
        return self._through(self._vectors.at(rows))

    def _through(self, block: Ragged) -> Ragged:
        return Ragged.single(self._storage.decode(self._storage.encode(block.vectors), self.dim))


class Bench:
    """A collection's queries, encoded once, and its vectors."""

    def __init__(self, collection: str, folder: Path) -> None:
        self.vectors, self.name = Vectors(folder), Path(collection).name
        self.qrels = list(open_collection(collection).qrels())
        self.queries, _ = queries_of(collection, all_queries=False)
        settings = OpenSettings()
        self.query_vectors: Ragged = open_query_encoder(self.vectors, settings).queries(
            self.queries
        )
        self.units = RankedUnits(self.vectors)
        self.settings = settings
        self.exact = DENSE_SCORING.search(self.units.matrix, settings)

    def run(self, rows: list[np.ndarray], scores: list[np.ndarray]) -> Run:
        rankings: dict[str, Ranking] = {}
        for query, mine, values in zip(self.queries, rows, scores, strict=True):
            kept = mine >= 0
            rankings[query.id] = ranked(self.vectors.ids(mine[kept]), values[kept]).cut(DEPTH)
        return Run(rankings)

    def lines(self, kinds: list[str]) -> Iterator[list[str]]:
        best = self.run(*self.exact.search(self.query_vectors, DEPTH))
        yield [self.name, "exact, fp16", str(2 * self.vectors.dim), *self.figures(best, best)]
        for dtype in ("int8", "int4", "int2", "binary"):
            stored = Recoded(self.vectors, dtype)
            run = self.run(
                *DENSE_SCORING.search(stored, self.settings).search(self.query_vectors, DEPTH)
            )
            yield [self.name, f"stored as {dtype}", str(stored.bytes), *self.figures(run, best)]
        for kind in kinds:
            with tempfile.TemporaryDirectory() as place:
                facts = FaissIndex.build(
                    self.vectors, Path(place), FaissSettings(kind=kind), silent
                )
                index = FaissIndex.open(Path(place), FaissSettings(kind=kind))
                search = ApproximateSearch(index, self.units, number(self.vectors), self.exact)
                hits: RowHits = search.search(self.query_vectors, DEPTH)
                alone = index.candidates(self.query_vectors.vectors, DEPTH)
            size = f"{facts['bytes'] / self.vectors.rows:.0f}"
            name = f"{kind} ({facts['factory']})"
            found = self.run(*hits), self.run(list(alone.rows), list(alone.scores))
            for how, run in zip(("rescored", "codes alone"), found, strict=True):
                yield [self.name, f"{name}, {how}", size, *self.figures(run, best)]

    def figures(self, run: Run, best: Run) -> list[str]:
        shares = []
        for query, ranking in best.rankings.items():
            found = set(run.rankings[query].doc_ids) & set(ranking.doc_ids)
            shares.append(len(found) / max(1, len(ranking.doc_ids)))
        scores = evaluate(run, self.qrels, parse_measures(MEASURES))
        means = [scores.aggregated[name] for name in MEASURES]
        return [f"{value:.4f}" for value in (float(np.mean(shares)), *means)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pairs", nargs="+", metavar="COLLECTION=VECTORS")
    parser.add_argument("--kinds", nargs="*", default=["int8", "binary", "pq"])
    given = parser.parse_args()
    print("| collection | index | bytes per document | of exact's 100 | R@100 | nDCG@10 |")
    print("|---|---|---|---|---|---|")
    for pair in given.pairs:
        collection, _, folder = pair.rpartition("=")
        for line in Bench(collection, Path(folder)).lines(given.kinds):
            print(f"| {' | '.join(line)} |", flush=True)


if __name__ == "__main__":
    main()
