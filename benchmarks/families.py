"""Compare the families of retrieval: quality, bytes on disk and time, in one table per collection.

    python benchmarks/families.py ./cranfield ./xquad-en -o families --sparse ./splade-minilm
    python benchmarks/families.py ./scifact -o families --only bm25 dense

Families: BM25, one dense vector (minilm), one vector of windows (lmk-minilm) and the same by landmarks,
late interaction (a vector of every token of minilm), and learned sparse vectors (with --sparse MODEL).
Each row has:

- nDCG@10 of all judged queries;
- terms: the mean number of terms of a document (sparse vectors);
- bytes: the size of the index or the vectors per document, without stored texts (docs.parquet);
- docs/s: documents per second of `lmk encode` or `lmk index`, model loading included;
- ms/query: the time of a second search with all queries, divided by their number, model loading excluded.

Folders in the output are kept, and a second run reuses them; its docs/s are those of the first run.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import lmkcli
from lmkcli.vectors.stored import Vectors

LENGTH = 256  # positions of a document for one vector; windows of lmk-minilm are longer


class Family(NamedTuple):
    """A family: the class of its operation, and its settings."""

    operation: Any
    settings: dict[str, Any]


def families(sparse: str, length: int) -> dict[str, Family]:
    """Return the families by name."""
    every = {
        "bm25": Family(lmkcli.BuildIndex, {"kind": "bm25"}),
        "dense": Family(lmkcli.Encode, {"model": "minilm", "max_length": length}),
        "windows": Family(lmkcli.Encode, {"model": "lmk-minilm"}),
        "landmarks": Family(lmkcli.Encode, {"model": "lmk-minilm", "pool": "lmk", "gran": "64"}),
        "late": Family(lmkcli.Encode, {"model": "minilm", "unit": "token", "max_length": length}),
    }
    if sparse:
        every["sparse"] = Family(lmkcli.Encode, {"model": sparse, "max_length": length})
    return every


def measure(name: str, family: Family, collection: str, folder: Path) -> list[Any]:
    """Make the index or the vectors unless they exist, search, and return the row of a table."""
    facts = folder.with_suffix(".json")
    if not facts.exists():
        start = time.perf_counter()
        family.operation(collection, output=folder, **family.settings).run()
        facts.write_text(json.dumps({"seconds": time.perf_counter() - start}))
    seconds = json.loads(facts.read_text())["seconds"]
    opened = lmkcli.open_collection(collection)
    queries = [query.text for query in opened.queries()]
    docs = sum(1 for _ in opened.docs())
    run = folder.with_suffix(".trec")
    lmkcli.Search(folder, collection, k=100, output=run, if_exists="overwrite").run()
    (scored,) = lmkcli.Evaluate([run], measure=["nDCG@10"]).run()
    score = scored.scores.aggregated["nDCG@10"]
    index = lmkcli.open_index(str(folder))
    index.search(queries[:8], k=10)
    start = time.perf_counter()
    index.search(queries, k=10)
    spent = 1000 * (time.perf_counter() - start) / len(queries)
    files = [file for file in folder.rglob("*") if file.is_file() and file.suffix != ".parquet"]
    size = sum(file.stat().st_size for file in files) / docs
    terms = mean_terms(folder) if name == "sparse" else "-"
    return [name, f"{score:.4f}", terms, f"{size:,.0f}", f"{docs / seconds:.1f}", f"{spent:.1f}"]


def mean_terms(folder: Path) -> str:
    """Return the mean number of terms of a document."""
    vectors = Vectors(folder)
    return f"{sum(int(block.lengths.sum()) for block in vectors) / vectors.rows:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("collections", nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--sparse", default="", help="a folder with a sparse model")
    parser.add_argument("--length", type=int, default=LENGTH, help="positions of a document")
    parser.add_argument("--only", nargs="+", help="names of families")
    words = parser.parse_args()
    chosen = families(words.sparse, words.length)
    print("collection   family     nDCG@10  terms      bytes   docs/s  ms/query")
    for collection in words.collections:
        stem = Path(collection).name
        (words.output / stem).mkdir(parents=True, exist_ok=True)
        for name in words.only or chosen:
            row = measure(name, chosen[name], collection, words.output / stem / name)
            line = "{:<10} {:>7} {:>6} {:>10} {:>8} {:>9}".format(*row)
            print(f"{stem:<12} {line}", flush=True)


if __name__ == "__main__":
    main()
