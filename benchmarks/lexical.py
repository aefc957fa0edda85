"""Compare the two lexical kinds: bm25 (bm25s) and lucene, alternating, with medians.

    python benchmarks/lexical.py                       # this Python's standard library
    python benchmarks/lexical.py path/to/beir-folder --repeats 5

Prints a markdown table with hardware and versions. Building and searching are timed in one process,
without reading the collection and loading the libraries. Start-up is a fresh process that loads the
kind, opens the index and runs one query.
"""

import argparse
import itertools
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from lmkcli import catalog
from lmkcli.artifact import manifest
from lmkcli.data.collection import Doc, Query, open_collection
from lmkcli.progress import silent
from lmkcli.retrieval.lexical.lexical_settings import LexicalSettings

KINDS = sorted(filter(catalog.is_lexical, catalog.ENGINES))
QUERIES = 1000
START_UP = """
import sys
from pathlib import Path
from lmkcli import catalog
from lmkcli.data.collection import Query
from lmkcli.retrieval.lexical.lexical_settings import LexicalSettings
index = catalog.ENGINES.load(sys.argv[1])(LexicalSettings()).open(Path(sys.argv[2]))
index.search([Query("q", sys.argv[3])], 10)
"""
COLUMNS = {
    "index": "index, s",
    "k=10": "1,000 queries k=10, s",
    "k=1000": "1,000 queries k=1000, s",
    "start": "start-up, s",
    "size": "size, MB",
}


def tasks(
    kind: str, folder: Path, docs: list[Doc], queries: list[Query]
) -> dict[str, Callable[[], object]]:
    """Return the timed tasks of one kind; searches use the index that was built first."""
    engine = catalog.ENGINES.load(kind)(LexicalSettings())

    def build(folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        engine.write(docs, folder, silent)

    build(folder)
    index = engine.open(folder)
    process = [sys.executable, "-c", START_UP, kind, str(folder), queries[0].text]
    return {
        "index": lambda: build(folder.with_suffix(".again")),
        "k=10": lambda: index.search(queries, 10),
        "k=1000": lambda: index.search(queries, 1000),
        "start": lambda: subprocess.run(process, check=True),
    }


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(
    runs: dict[str, dict[str, Callable[[], object]]], repeats: int
) -> dict[tuple[str, str], float]:
    """Return median seconds of each kind and task after one warm-up round; the kinds take turns."""
    found: dict[tuple[str, str], list[float]] = {}
    for round_ in range(repeats + 1):
        for task, kind in itertools.product(["index", "k=10", "k=1000", "start"], runs):
            took = seconds(runs[kind][task])
            if round_:
                found.setdefault((kind, task), []).append(took)
    return {key: statistics.median(times) for key, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("collection", nargs="?", default="stdlib/functions")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    collection = open_collection(given.collection)
    docs = list(collection.docs())
    asked = itertools.islice(itertools.cycle(collection.queries()), QUERIES)
    queries = [Query(str(number), query.text) for number, query in enumerate(asked)]
    with tempfile.TemporaryDirectory() as folder:
        places = {kind: Path(folder, kind) for kind in KINDS}
        runs = {kind: tasks(kind, place, docs, queries) for kind, place in places.items()}
        medians = measure(runs, given.repeats)
        sizes = {
            kind: sum(path.stat().st_size for path in place.rglob("*") if path.is_file()) / 1e6
            for kind, place in places.items()
        }
    show(medians, sizes)
    machine = manifest.environment()["machine"]
    print(
        f"\n{len(docs):,} documents of {Path(given.collection).name}; median of {given.repeats} rounds; "
        f"{machine['cpu']}, {machine['cores']} cores"
    )


def show(medians: dict[tuple[str, str], float], sizes: dict[str, float]) -> None:
    print("| kind | " + " | ".join(COLUMNS.values()) + " |")
    print("|---|" + "---:|" * len(COLUMNS))
    for kind in KINDS:
        values = [medians[kind, task] for task in list(COLUMNS)[:-1]] + [sizes[kind]]
        print(f"| {kind} | " + " | ".join(f"{value:.2f}" for value in values) + " |")


if __name__ == "__main__":
    main()
