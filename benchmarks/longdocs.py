"""Long documents: compare every method of lmk in one table, as lmk commands.

    python benchmarks/longdocs.py table path/to/beir-folder -o runs      # one row per method
    python benchmarks/longdocs.py curve path/to/beir-folder -o runs      # evidence at every position

Each row is a few lmk commands; the script prints them before it runs them (`--dry-run`: only prints).
It skips existing results. `curve` makes LoCo's distractor test: each relevant passage among 39 others, once
for each position; it also draws the curve (extra `plot`).
"""

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

from lmkcli import catalog

GRAN, FULL = ("--gran", "64"), ("--max-length", "512")
SEEN = ("--window", "512")
METHODS: dict[str, tuple[str, ...]] = {
    "truncation (FirstP)": FULL,
    "average of windows": SEEN,
    "chunk-then-embed (MaxP)": ("--unit", "chunk", "--gran", "256", "--window", "chunk", *FULL),
    "late chunking": ("--unit", "chunk", *GRAN, *SEEN),
    "landmarks, one vector": ("--pool", "lmk", *GRAN, *SEEN),
    "landmark vectors": ("--pool", "lmk", "--unit", "chunk", *GRAN, *SEEN),
    "grouped positions (4096)": ("--extend", "grouped", "--max-length", "4096"),
    "interpolated positions (4096)": ("--extend", "interpolate", "--max-length", "4096"),
    "recurrent positions (4096)": ("--extend", "recurrent", "--max-length", "4096"),
    "token vectors (MaxSim)": ("--unit", "token", *SEEN),
}
LEXICAL = "BM25"
CURVES = ("truncation (FirstP)", "average of windows", "landmark vectors")
MEASURE = "nDCG@10"


class Row(NamedTuple):
    """One method's row of the table."""

    score: float
    vectors: float  # per document
    bytes: float  # per document
    seconds: float


class Bench:
    """Runs lmk in one folder; with `dry` it only prints the commands."""

    def __init__(self, folder: Path, model: str, dry: bool) -> None:
        self.folder, self.model, self.dry = folder, model, dry
        if not dry:
            folder.mkdir(parents=True, exist_ok=True)

    def lmk(self, *words: str) -> str:
        """Print one command, run it, and return its output."""
        print("$", shlex.join(["lmk", *words]), file=sys.stderr, flush=True)
        if self.dry:
            return ""
        scripts = str(Path(sys.executable).parent)
        program = shutil.which("lmk", path=scripts) or "lmk"
        done = subprocess.run([program, "-q", *words], stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(done.returncode)
        return done.stdout

    def row(self, method: str, collection: str, name: str) -> Row | None:
        """Encode (or index), search and score under a name; return None after a dry run."""
        made = self.folder / name
        start = time.perf_counter()
        if method == LEXICAL:
            self.lmk("index", collection, "--kind", "bm25", "-o", str(made))
        else:
            self.lmk("encode", collection, "-m", self.model, *METHODS[method], "-o", str(made))
        seconds = self._seconds(made, time.perf_counter() - start)
        run = f"{made}.trec"
        self.lmk("search", str(made), collection, "-k", "100", "-o", run)
        printed = self.lmk("eval", run, "-m", MEASURE, "--json")
        if self.dry:
            return None
        (found,) = json.loads(printed)
        return Row(float(found[MEASURE]), *sizes(made), seconds)

    def _seconds(self, made: Path, measured: float) -> float:
        """Return the seconds of the first run; later runs find the finished work."""
        file = made.with_suffix(".seconds")
        if not self.dry and not file.exists():
            file.write_text(f"{measured:.2f}")
        return float(file.read_text()) if file.exists() else measured


def sizes(made: Path) -> tuple[float, float]:
    """Return vectors per document, and bytes of vectors per document; BM25 has none."""
    parts = list(made.glob("parts/*/vectors.npy"))
    if not parts:
        return 0.0, 0.0
    arrays = [np.load(part, mmap_mode="r") for part in parts]
    docs = sum(pq.ParquetFile(part.parent / "docs.parquet").metadata.num_rows for part in parts)
    return sum(map(len, arrays)) / docs, sum(array.nbytes for array in arrays) / docs


def slug(text: str) -> str:
    """Turn a text into a folder name."""
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


def table(bench: Bench, collection: str, methods: Iterable[str]) -> None:
    """Print one row per method."""
    print(f"| | {MEASURE} | vectors per document | bytes per document | encode time, s |")
    print("|---|---:|---:|---:|---:|")
    for method in methods:
        row = bench.row(method, collection, slug(method))
        if row is not None:
            kept = f"{row.vectors:,.1f} | {row.bytes:,.0f}" if row.vectors else "- | -"
            print(f"| {method} | {row.score:.4f} | {kept} | {row.seconds:.0f} |", flush=True)


def curve(bench: Bench, collection: str, args: argparse.Namespace) -> None:
    """Print one row per position with one column per method, and draw the curve."""
    found: dict[str, list[tuple[float, float]]] = {method: [] for method in args.methods}
    print(f"| position | {' | '.join(found)} |")
    print("|---:|" + "---:|" * len(found))
    for position in args.positions:
        haystack = f"haystack,position={position},docs={args.docs},from={collection}"
        for method, points in found.items():
            row = bench.row(method, haystack, f"{slug(method)}-{position:02d}")
            points += [] if row is None else [(position, row.score)]
        if not bench.dry:
            cells = " | ".join(f"{points[-1][1]:.4f}" for points in found.values())
            print(f"| {position} | {cells} |", flush=True)
    if not bench.dry:
        draw = catalog.PLOTS.load("curve")
        draw(found, "position of the evidence", MEASURE, bench.folder / "curve.svg")


def main() -> None:
    """Print a table of methods, or of methods and positions."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("what", choices=("table", "curve"))
    parser.add_argument("collection")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("-m", "--model", default="minilm")
    parser.add_argument("--methods", nargs="+", choices=[*METHODS, LEXICAL])
    parser.add_argument("--positions", nargs="+", type=int, default=list(range(40)))
    parser.add_argument("--docs", type=int, default=100, help="long documents (curve)")
    parser.add_argument("--dry-run", action="store_true", help="print the commands only")
    args = parser.parse_args()
    bench = Bench(args.output, args.model, args.dry_run)
    if args.what == "table":
        table(bench, args.collection, args.methods or [*METHODS, LEXICAL])
    else:
        args.methods = args.methods or CURVES
        curve(bench, args.collection, args)


if __name__ == "__main__":
    main()
