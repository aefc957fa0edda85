"""Compare lmk's exact search with FAISS IndexFlatIP, alternating in one run, with medians.

    python benchmarks/exact.py --rows 400000 --dim 384 --queries 1000 --k 1000

lmk reads vectors from a memory-mapped fp16 file, selects candidates in bfloat16 if the processor supports
it (use --dtype fp32 to prevent this), rescores in float64 and proves that the top k is complete. FAISS holds
float32 in memory. Prints seconds, memory above the start, and the agreement of each order with float64.
"""

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lmkcli.artifact import manifest
from lmkcli.models.devices import native_dtype
from lmkcli.retrieval.engines.exact.exact_search import Exact
from lmkcli.retrieval.vectors.vector_search import RowHits
from lmkcli.vectors.rows import Ragged

BLOCK = 10_000
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Stored:
    """Rows of a memory-mapped fp16 matrix, read in float32 blocks."""

    single = True

    def __init__(self, path: Path, first: int = 0, stop: int | None = None) -> None:
        self._matrix = torch.from_numpy(np.load(path, mmap_mode="c"))[first:stop]
        self.rows, self.dim = self._matrix.shape
        self.total = self.rows

    def __iter__(self) -> Iterator[Ragged]:
        for start in range(0, self.rows, BLOCK):
            yield Ragged.single(self._matrix[start : start + BLOCK].float().numpy())

    def at(self, rows: np.ndarray) -> Ragged:
        return Ragged.single(self._matrix.index_select(0, torch.from_numpy(rows)).float().numpy())


def clustered(rows: int, dim: int, seed: int) -> np.ndarray:
    """Return unit vectors around 1,000 centres, as text embeddings are."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((1000, dim), dtype=np.float32)
    made = centres[random.integers(0, 1000, rows)] + random.standard_normal(
        (rows, dim), dtype=np.float32
    )
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--k", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--vectors", type=Path, help="use the first rows of this fp16 .npy file")
    parser.add_argument(
        "--alone", action="store_true", help="do not run FAISS, which needs much memory"
    )
    parser.add_argument("--device", default="cpu", help="where lmk searches: cpu or cuda")
    parser.add_argument("--dtype", choices=DTYPES)
    args = parser.parse_args()
    args.dtype = args.dtype or native_dtype(torch.device(args.device))
    if args.vectors:
        return run(args, Stored(args.vectors, stop=args.rows))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vectors.npy"
        np.save(path, clustered(args.rows, args.dim, 0).astype(np.float16))
        run(args, Stored(path))


def run(args: argparse.Namespace, stored: Stored) -> None:
    """Alternate both searches and print the table."""
    queries = make_queries(args, stored)
    ours = Exact(stored, torch.device(args.device), DTYPES[args.dtype])
    query_vectors = Ragged.single(queries)
    start = _memory_bytes()
    with Peak() as peak:
        hits = ours.search(query_vectors, args.k)
    ours_peak = peak.bytes - start
    if args.alone:
        seconds_taken = [
            timed(lambda: ours.search(query_vectors, args.k)) for _ in range(args.repeats)
        ]
        times = ", ".join(f"{each:.1f}" for each in seconds_taken)
        return print(f"{stored.rows:,} rows: {times} s, {ours_peak / 1e6:.0f} MB above the start")
    import faiss  # here, because --alone works without it

    flat = faiss.IndexFlatIP(args.dim)
    for block in stored:
        flat.add(block.vectors)
    seconds: dict[str, list[float]] = {"lmk exact": [], "FAISS IndexFlatIP": []}
    for _ in range(args.repeats):
        at = time.perf_counter()
        hits = ours.search(query_vectors, args.k)
        seconds["lmk exact"].append(time.perf_counter() - at)
        at = time.perf_counter()
        _, rows = flat.search(queries, args.k)
        seconds["FAISS IndexFlatIP"].append(time.perf_counter() - at)
    return show(
        args,
        seconds,
        ours_peak,
        (in_order(stored, queries, hits), faiss_order(stored, queries, rows)),
    )


def make_queries(args: argparse.Namespace, stored: Stored) -> np.ndarray:
    """Return clustered queries like the rows, or a sample of the rows if --vectors is given."""
    if not args.vectors:
        return clustered(args.queries, args.dim, 1)
    return stored.at(np.linspace(0, stored.rows - 1, args.queries).astype(np.int64)).vectors


def timed(work: Callable[[], Any]) -> float:
    """Return the seconds that the work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _memory_bytes() -> int:
    """Return the bytes of this process's own memory (without mapped files)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("RssAnon:")[1].split()[0])


class Peak(threading.Thread):
    """Peak of this process's own memory, sampled every 20 ms."""

    bytes = 0

    def __enter__(self) -> "Peak":
        self._stop_event = threading.Event()
        self.start()
        return self

    def run(self) -> None:
        while not self._stop_event.wait(0.02):
            self.bytes = max(self.bytes, _memory_bytes())

    def __exit__(self, *_: object) -> None:
        self._stop_event.set()
        self.join()


def in_order(stored: Stored, queries: np.ndarray, hits: RowHits) -> float:
    """Return the share of 50 queries with the top-k scores of float64 brute force, in the same order."""
    return share(
        stored,
        queries,
        [r[np.argsort(-s, kind="stable")] for r, s in zip(hits.rows, hits.scores, strict=True)],
    )


def faiss_order(stored: Stored, queries: np.ndarray, rows: np.ndarray) -> float:
    return share(stored, queries, list(rows))


def share(stored: Stored, queries: np.ndarray, found: list[np.ndarray]) -> float:
    same = 0
    chosen = range(0, len(queries), max(1, len(queries) // 50))
    for number in chosen:
        exact = np.concatenate(
            [b.vectors.astype(np.float64) @ queries[number].astype(np.float64) for b in stored]
        )
        best = np.sort(exact)[::-1][: len(found[number])]
        same += bool(np.array_equal(exact[found[number]], best))
    return same / len(chosen)


def show(
    args: argparse.Namespace,
    seconds: dict[str, list[float]],
    peak: int,
    orders: tuple[float, float],
) -> None:
    machine = manifest.environment()["machine"]
    print(
        f"{args.rows:,} x {args.dim}, {args.queries:,} queries, top {args.k:,}; {machine['cpu']}, "
        f"{machine['cores']} cores; fp16 on disk for lmk, fp32 in memory for FAISS; "
        f"median of {args.repeats}\n"
    )
    memory = (f"{peak / 1e6:,.0f}", f"{args.rows * args.dim * 4 / 1e6:,.0f} (the matrix)")
    print("| | seconds | MB above the start | in float64's order |")
    print("|---|---:|---:|---:|")
    for (name, values), used, order in zip(seconds.items(), memory, orders, strict=True):
        print(f"| {name} | {statistics.median(values):.2f} | {used} | {order:.0%} |")


if __name__ == "__main__":
    main()
