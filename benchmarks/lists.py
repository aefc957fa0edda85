"""Search FAISS inverted lists on the CPU and on a GPU, alternating in one run, with medians.

    python benchmarks/lists.py --rows 1000000 --dim 384 --kind IVF4096,Flat     # extra faiss-gpu

Vectors are drawn around random centres. Prints seconds to build the index, to copy it to the GPU and to
search, and the share of candidates that both find.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmkcli.progress import silent
from lmkcli.retrieval.engines.faiss import lists
from lmkcli.retrieval.engines.faiss.faiss_index import FaissIndex
from lmkcli.retrieval.engines.faiss.faiss_settings import FaissSettings
from lmkcli.retrieval.vectors.vector_search import Candidates
from lmkcli.vectors.rows import Ragged

BLOCK = 10_000


class Drawn:
    """Vectors around centres, drawn again in each pass."""

    def __init__(self, rows: int, dim: int, seed: int) -> None:
        self.rows, self.dim, self._seed = rows, dim, seed
        centres = np.random.default_rng(99).standard_normal((4096, dim), dtype=np.float32)
        self._centres = centres

    def __iter__(self) -> Iterator[Ragged]:
        random = np.random.default_rng(self._seed)
        for first in range(0, self.rows, BLOCK):
            count = min(BLOCK, self.rows - first)
            noise = random.standard_normal((count, self.dim), dtype=np.float32)
            vectors = self._centres[random.integers(len(self._centres), size=count)] + noise
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            yield Ragged.single(vectors)


def timed(index: FaissIndex, queries: NDArray[np.float32], k: int) -> tuple[float, Candidates]:
    start = time.perf_counter()
    found = index.candidates(queries, k)
    return time.perf_counter() - start, found


def agreement(one: Candidates, other: Candidates) -> float:
    """The mean share of candidates that both found."""
    both = [len(np.intersect1d(a, b)) / len(a) for a, b in zip(one.rows, other.rows, strict=True)]
    return statistics.fmean(both)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--k", type=int, default=1000)
    parser.add_argument("--kind", default="IVF4096,Flat")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    (queries,) = (each.vectors for each in Drawn(args.queries, args.dim, seed=1))
    settings = FaissSettings(kind=args.kind)
    with tempfile.TemporaryDirectory() as name:
        start = time.perf_counter()
        FaissIndex.build(Drawn(args.rows, args.dim, seed=0), Path(name), settings, silent)
        built = time.perf_counter()
        sides = {"CPU": FaissIndex.open(Path(name), settings)}
        if lists.count():
            copied = time.perf_counter()
            sides["GPU"] = FaissIndex.open(Path(name), settings, 0)
            print(f"copied to the GPU in {time.perf_counter() - copied:.1f} s; {sides['GPU'].note}")
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        found = {}
        for _ in range(args.repeats + 1):
            for side, index in sides.items():
                taken, found[side] = timed(index, queries, args.k)
                seconds[side].append(taken)
    print(f"{args.kind} of {args.rows:,} vectors built in {built - start:.1f} s")
    for side, values in seconds.items():
        print(
            f"{side}: {statistics.median(values[1:]):.3f} s for {args.queries:,} queries, top {args.k}"
        )
    if len(sides) > 1:
        print(f"candidates that both find: {agreement(found['CPU'], found['GPU']):.2%}")


if __name__ == "__main__":
    main()
