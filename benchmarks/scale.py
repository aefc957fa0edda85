"""IVF-PQ over many vectors: compare builds in one process and in shards, and searches, with plain FAISS code.

    python benchmarks/scale.py --rows 10000000 --dim 384 --factory IVF4096,PQ64 --shards 8 --work folder
    python benchmarks/scale.py --rows 10000000 --costs IVF16384,PQ64 IVF65536,PQ64 --work folder

Vectors are drawn around real ones (--around, a .npy file) or around random centres, stored in fp16 and read
from disk in blocks. Each step runs in a separate process and prints its seconds and its peak memory
(without mapped files) above that of the libraries. Searches print queries per second and recall@100 against
exact search. --max-memory limits every build. All files stay in --work, and existing vectors are used again.
--costs prints only the time to add a vector to indexes of the given kinds, after one iteration of training.
"""

import argparse
import multiprocessing
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
import torch
from exact import BLOCK, Peak, Stored, _memory_bytes, clustered

from lmkcli.models.devices import native_dtype
from lmkcli.progress import silent
from lmkcli.retrieval.engines.exact.exact_search import Exact, ExactScorer
from lmkcli.retrieval.engines.faiss.factory import make_index
from lmkcli.retrieval.engines.faiss.faiss_index import FaissIndex, Share
from lmkcli.retrieval.engines.faiss.faiss_settings import FaissSettings
from lmkcli.retrieval.engines.faiss.resources import sample_rows
from lmkcli.spec.values import Size
from lmkcli.vectors.rows import Ragged

K = 100
NOISE = 0.3  # length of the noise that is added to a unit vector


class Work(NamedTuple):
    """The folder of the files, the data and the settings."""

    folder: Path
    rows: int
    dim: int
    queries: int
    shards: int
    settings: FaissSettings
    around: str
    whole: bool

    @property
    def vectors(self) -> Path:
        return self.folder / "vectors.npy"


def draw_vectors(work: Work, rows: int, seed: int) -> np.ndarray:
    """Draw unit vectors near real ones, or near random centres."""
    if not work.around:
        return clustered(rows, work.dim, seed)
    random = np.random.default_rng(seed)
    real = np.load(work.around, mmap_mode="r")
    near: np.ndarray = real[np.sort(random.integers(0, len(real), rows))].astype(np.float32)
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    noise = random.standard_normal(near.shape, dtype=np.float32)
    near += NOISE * noise / np.linalg.norm(noise, axis=1, keepdims=True)
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    return near


def make(work: Work) -> None:
    """Write the stored vectors, block by block."""
    shape = (work.rows, work.dim)
    growing = work.vectors.with_suffix(".growing")
    matrix = np.lib.format.open_memmap(growing, mode="w+", dtype=np.float16, shape=shape)
    for number, first in enumerate(range(0, work.rows, 10 * BLOCK)):
        stop = min(work.rows, first + 10 * BLOCK)
        matrix[first:stop] = draw_vectors(work, stop - first, number + 1)
    matrix.flush()
    growing.rename(work.vectors)


def query_vectors(work: Work) -> np.ndarray:
    return draw_vectors(work, work.queries, 0)


def build_whole(work: Work) -> None:
    """Build with lmk in one process."""
    folder = _folder(work, "whole")
    FaissIndex.build(Stored(work.vectors), folder, work.settings, silent)


def build_plain(work: Work) -> None:
    """Build with FAISS alone: the same sample, added in the same blocks."""
    stored = Stored(work.vectors)
    index = make_index(work.settings.kind, work.dim)
    index.train(stored.at(sample_rows(index, work.rows, work.settings.seed)).vectors)
    for block in stored:
        index.add(block.vectors)
    faiss.write_index(index, str(_folder(work, "plain") / "faiss.index"))


def train(work: Work) -> None:
    """Train with lmk the part that all shards share."""
    FaissIndex.train(Stored(work.vectors), _folder(work, "shards") / "trained", work.settings)


def build_shard(work: Work, number: int) -> None:
    """Build one of the shards with lmk."""
    first, stop = (work.rows * each // work.shards for each in (number, number + 1))
    folder = _folder(work, "shards")
    share = Share(Stored(work.vectors, first, stop), first)
    FaissIndex.build_shard(share, folder / "trained", folder / str(number), work.settings, silent)


def join(work: Work, name: str, apart: bool) -> None:
    """Join the lists of all shards with lmk, on disk or (`apart`) in their files."""
    folder = _folder(work, "shards")
    shards = [folder / str(number) for number in range(work.shards)]
    FaissIndex.join(folder / "trained", shards, _folder(work, name), work.settings, apart)


class Found(NamedTuple):
    """The best rows of each query, and the seconds of the search alone."""

    rows: np.ndarray
    seconds: float


def timed(search: Callable[[], np.ndarray]) -> Found:
    """Time the second of two searches: the first one reads the files into memory."""
    search()
    start = time.perf_counter()
    return Found(search(), time.perf_counter() - start)


def search_exact(work: Work) -> Found:
    """Search all vectors with lmk: the reference for recall."""
    low = native_dtype(torch.device("cpu")) == "bf16"
    dtype = torch.bfloat16 if low else torch.float32
    exact = Exact(Stored(work.vectors), torch.device("cpu"), dtype)
    queries = Ragged.single(query_vectors(work))

    def search() -> np.ndarray:
        hits = exact.search(queries, K)
        return np.array([rows[np.argsort(-scores)[:K]] for rows, scores in zip(*hits, strict=True)])

    return timed(search)


def search_lmk(work: Work, name: str) -> Found:
    """Search an index with lmk and rank its candidates by the codes' scores."""
    index, queries = FaissIndex.open(work.folder / name, work.settings), query_vectors(work)
    return timed(lambda: index.candidates(queries, K).rows)


def search_rescored(work: Work, name: str) -> Found:
    """Search as lmk search does: rescore four times as many candidates with the stored vectors."""
    index, queries = (
        FaissIndex.open(work.folder / name, work.settings),
        Ragged.single(query_vectors(work)),
    )
    scorer, deep = ExactScorer(Stored(work.vectors)), index.overfetch * K

    def search() -> np.ndarray:
        rows = [np.sort(each[each >= 0]) for each in index.candidates(queries.vectors, deep).rows]
        pairs = zip(rows, scorer(queries, rows), strict=True)
        return np.array([mine[np.argsort(-scores)[:K]] for mine, scores in pairs])

    return timed(search)


def search_plain(work: Work) -> Found:
    """Search with FAISS alone, with the index in memory."""
    index, queries = (
        faiss.read_index(str(work.folder / "plain" / "faiss.index")),
        query_vectors(work),
    )
    faiss.extract_index_ivf(index).nprobe = work.settings.nprobe
    return timed(lambda: index.search(queries, K)[1])


def cost(work: Work, factory: str) -> float:
    """Return the microseconds that FAISS needs to add a vector to these lists (after a short training)."""
    stored, index = Stored(work.vectors), make_index(factory, work.dim)
    lists: Any = faiss.extract_index_ivf(index)
    lists.cp.niter = 1
    index.train(stored.at(np.arange(max(lists.nlist, 10 * BLOCK))).vectors)
    added = stored.at(np.arange(work.rows - BLOCK, work.rows)).vectors
    start = time.perf_counter()
    index.add(added)
    return (time.perf_counter() - start) / len(added) * 1e6


def _folder(work: Work, name: str) -> Path:
    (work.folder / name).mkdir(exist_ok=True)
    return work.folder / name


class Measured(NamedTuple):
    """A step's result, seconds, and bytes of its own memory."""

    value: Any
    seconds: float
    memory: int


def measured(step: Callable[..., Any], *words: Any) -> Measured:
    """Run a step in a separate process that has loaded only the libraries."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["exact", "lmkcli.retrieval.engines.faiss.faiss_engine"])
    with context.Pool(1) as pool:
        return pool.apply(_measure, (step, words))


def _measure(step: Callable[..., Any], words: tuple[Any, ...]) -> Measured:
    before, start = _memory_bytes(), time.perf_counter()
    with Peak() as peak:
        value = step(*words)
    return Measured(value, time.perf_counter() - start, max(0, peak.bytes - before))


def builds(work: Work) -> Iterator[tuple[str, Measured]]:
    """Yield every build, by name; the time of a sharded build is the sum of its tasks."""
    if work.whole:
        yield "build, lmk", measured(build_whole, work)
        yield "build, FAISS alone", measured(build_plain, work)
    yield "train for shards, lmk", measured(train, work)
    tasks = [measured(build_shard, work, number) for number in range(work.shards)]
    seconds, most = sum(each.seconds for each in tasks), max(each.memory for each in tasks)
    yield f"{work.shards} shards, lmk (all; the largest)", Measured(None, seconds, most)
    yield "join on disk, lmk", measured(join, work, "joined", False)
    yield "join with --apart, lmk", measured(join, work, "apart", True)


def searches(work: Work) -> Iterator[tuple[str, Measured]]:
    """Yield every search, by name; the exact one first."""
    yield "exact, lmk", measured(search_exact, work)
    if work.whole:
        yield "whole, lmk", measured(search_lmk, work, "whole")
        yield "whole, lmk, rescored", measured(search_rescored, work, "whole")
    yield "joined, lmk", measured(search_lmk, work, "joined")
    yield "joined, lmk, rescored", measured(search_rescored, work, "joined")
    yield "apart, lmk", measured(search_lmk, work, "apart")
    if work.whole:
        yield "FAISS alone", measured(search_plain, work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--factory", default="IVF4096,PQ64")
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--nprobe", type=int, default=64)
    parser.add_argument("--max-memory", type=Size.parse, default=Size.parse("4GB"))
    parser.add_argument("--around", default="", help="a .npy file of real vectors")
    parser.add_argument("--sharded", action="store_true", help="build only in shards")
    parser.add_argument("--costs", nargs="+", default=[], metavar="FACTORY")
    parser.add_argument("--work", type=Path, required=True)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    settings = FaissSettings(kind=args.factory, nprobe=args.nprobe, max_memory=args.max_memory)
    work = Work(
        args.work,
        args.rows,
        args.dim,
        args.queries,
        args.shards,
        settings,
        args.around,
        not args.sharded,
    )
    if not work.vectors.exists():
        measured(make, work)
    if not args.costs:
        return show(work)
    for factory in args.costs:
        print(
            f"{factory}: {measured(cost, work, factory).value:,.0f} microseconds a vector",
            flush=True,
        )
    return None


def show(work: Work) -> None:
    """Run every step and print the two tables."""
    print(f"{work.rows:,} x {work.dim}, {work.settings.kind}, {work.shards} shards\n")
    print("| build | seconds | MB of its own |\n|---|---:|---:|")
    for name, step in builds(work):
        print(f"| {name} | {step.seconds:,.1f} | {step.memory / 1e6:,.0f} |", flush=True)
    header = f"{work.queries:,} queries, nprobe {work.settings.nprobe}"
    print(f"\n| {header} | queries/s | recall@{K} | MB of its own |\n|---|---:|---:|---:|")
    truth: np.ndarray | None = None
    for name, (found, _, memory) in searches(work):
        truth = found.rows if truth is None else truth
        numbers = f"{work.queries / found.seconds:,.0f} | {recall(truth, found.rows):.3f}"
        print(f"| {name} | {numbers} | {memory / 1e6:,.0f} |", flush=True)


def recall(truth: np.ndarray, found: np.ndarray) -> float:
    """Return the share of the true rows that were found."""
    both = zip(truth, found, strict=True)
    return float(np.mean([len(np.intersect1d(a, b)) / len(a) for a, b in both]))


if __name__ == "__main__":
    main()
