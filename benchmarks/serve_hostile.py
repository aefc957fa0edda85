"""Serve honest clients next to hostile ones, and stop in the end while all of them are connected.

    python benchmarks/serve_hostile.py --seconds 120
    python benchmarks/serve_hostile.py --seconds 600 --index dense --index bm25

Without --index, lmk makes a BM25 index of this Python's standard library. The server may open 1,024 files.
The clients run in two processes, one for each side. All connections go to 127.0.0.1. The same honest clients
also ask a bare server, a process that answers every request at once: its latencies are those of the machine.
--load N adds N processes that compute. Prints the latencies and failures of the honest clients, what each
kind of hostile client did, the memory of the server, and the time of its stop. The exit code is 1 if an
honest request failed or took more than a second. Linux only.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

from lmkcli.artifact import manifest
from lmkcli.data.collection import open_collection

SOURCE = "stdlib/functions"
LMK = [sys.executable, "-m", "lmkcli.cli.main"]
FILES = 1024  # that the server may open
HOST = "127.0.0.1"
SERVERS = ("lmk serve", "bare server")
ALONE = 10.0  # seconds without hostile clients
LONGEST = 1.0  # seconds of an honest request
PAUSE = 0.02  # seconds between two requests of an honest client
SEARCH = "POST /v1/search HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"


def request(body: bytes, more: str = "") -> bytes:
    """The bytes of a search."""
    return f"{SEARCH}{more}content-length: {len(body)}\r\n\r\n".encode() + body


class Target(NamedTuple):
    """The server, the names of its indexes, and some queries."""

    port: int
    indexes: list[str]
    queries: list[str]

    def search(self, **more: Any) -> bytes:
        """The body of a search."""
        wanted = {"query": random.choice(self.queries), "index": random.choice(self.indexes)}
        return json.dumps({**wanted, **more}).encode()


# the hostile clients: each opens one connection, and returns when the server or the client closes it

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def idle(stream: Stream, target: Target) -> None:
    """Send nothing."""
    await stream[0].read()


async def half(stream: Stream, target: Target) -> None:
    """Send half of a request line."""
    stream[1].write(b"POST /v1/sea")
    await stream[0].read()


async def drip(stream: Stream, target: Target) -> None:
    """Send a head, one byte at a time."""
    for byte in request(target.search()):
        stream[1].write(bytes([byte]))
        await stream[1].drain()
        await asyncio.sleep(0.1)
    await stream[0].read()


async def slow_body(stream: Stream, target: Target) -> None:
    """Send almost all of a large body, then one byte at a time."""
    stream[1].write(f"{SEARCH}content-length: 1000000\r\n\r\n".encode() + b" " * 900_000)
    while not stream[0].at_eof():
        stream[1].write(b" ")
        await stream[1].drain()
        await asyncio.sleep(0.5)


async def deaf(stream: Stream, target: Target) -> None:
    """Ask for a large answer, and never read it."""
    stream[1].transport.get_extra_info("socket")  # its buffer is small; see `attack`
    body = target.search(query=target.queries[:16], k=100, text="full")
    stream[1].write(request(body))
    stream[1].transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.sleep(60)


async def flood(stream: Stream, target: Target) -> None:
    """Send searches without a pause, and close after a hundred."""
    for _ in range(100):
        stream[1].write(request(target.search()))
        await read_answer(stream[0])


async def leave(stream: Stream, target: Target) -> None:
    """Send a search, and leave at once with a reset."""
    stream[1].write(request(target.search()))
    await stream[1].drain()
    linger = struct.pack("ii", 1, 0)
    stream[1].get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


async def nested(stream: Stream, target: Target) -> None:
    """Send a body of a megabyte of brackets."""
    many = random.choice([b"[" * 999_000, b'{"query":' + b"[],[" * 240_000, b'{"a":' * 190_000])
    stream[1].write(request(many))
    await read_answer(stream[0])


async def heavy(stream: Stream, target: Target) -> int:
    """Send a large body within all limits; return the status of the answer."""
    words = " ".join(random.choices(target.queries, k=3000))
    many = random.choice(
        [
            target.search(query=[words[:90_000]] * 10),
            target.search(query=[words[:3000]] * 256, k=1000, output="run"),
            target.search(query=[words[:2000]] * 200, k=20, text="full"),
            target.search(query=random.choice(target.queries), k=1000),
        ]
    )
    embeddings = json.dumps({"model": target.indexes[0], "input": [words[:400]] * 2000}).encode()
    if random.random() < 0.2:  # 400 if the index is not dense
        stream[1].write(request(embeddings).replace(b"/v1/search", b"/v1/embeddings", 1))
    else:
        stream[1].write(request(many))
    return (await read_answer(stream[0]))[0]


async def malformed(stream: Stream, target: Target) -> None:
    """Send wrong bytes, headers or values."""
    wrong = (
        random.randbytes(300) + b"\r\n\r\n",
        request(target.search(), "origin: http://[x\r\n"),
        request(target.search(), "host: a\r\n"),
        request(b'{"query": "a", "index": "none"}'),
        f"{SEARCH}content-length: -1\r\n\r\n".encode(),
        f"{SEARCH}transfer-encoding: chunked\r\n\r\nzz\r\n".encode(),
        b"GET /" + b"a" * 100_000,
        b"GET /v1/documents/%ff%00?query=%zz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: text/event-stream\r\n\r\n",
    )
    stream[1].write(random.choice(wrong))
    await read_answer(stream[0])
    await asyncio.sleep(0.01)


class Attack(NamedTuple):
    """A kind of hostile clients, their number, and seconds until a closed connection is opened again."""

    act: Callable[[Stream, Target], Awaitable[int | None]]
    clients: int
    pause: float


ATTACKS = (
    Attack(idle, 1100, 5),
    Attack(half, 1000, 5),
    Attack(drip, 100, 2),
    Attack(slow_body, 50, 1),
    Attack(deaf, 100, 1),
    Attack(flood, 8, 0.05),
    Attack(leave, 8, 0.05),
    Attack(nested, 2, 0.1),
    Attack(heavy, 4, 0.1),
    Attack(malformed, 8, 0.05),
)


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return the status and the body of an answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    size = re.search(rb"\r\ncontent-length: (\d+)", head, re.IGNORECASE)
    return int(head[9:12]), await reader.readexactly(int(size[1])) if size else b""


async def attack(one: Attack, target: Target, end: float, counts: Counter[str]) -> None:
    """Open one connection after another until a time."""
    name = one.act.__name__
    await asyncio.sleep(random.random() * 2)
    while (left := end - time.monotonic()) > 0:
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(left):
                client = socket.socket()
                client.setblocking(False)
                if one.act is deaf:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                await asyncio.get_running_loop().sock_connect(client, (HOST, target.port))
                reader, writer = await asyncio.open_connection(sock=client, limit=1 << 24)
                counts[f"{name}: connections"] += 1
                if status := await one.act((reader, writer), target):
                    counts[f"{name}: status {status}"] += 1
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            counts[f"{name}: closed by the server"] += 1
        finally:
            if writer is not None:
                writer.transport.abort()
        await asyncio.sleep(one.pause)


def attack_all(
    target: Target, end: float, attacks: list[Attack], share: float, results: Any
) -> None:
    """Run all hostile clients in this process until a time; send what they did."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    counts: Counter[str] = Counter()

    async def run() -> None:
        tasks = (
            attack(one, target, end, counts)
            for one in attacks
            for _ in range(max(1, round(one.clients * share)))
        )
        await asyncio.gather(*tasks)

    asyncio.run(run())
    results.send(dict(counts))


async def honest(
    target: Target, end: float, seconds: list[float], failures: list[str], number: int
) -> None:
    """Send searches with a pause after each; open a new connection for every tenth one."""
    stream: Stream | None = None
    done = number
    while time.monotonic() < end:
        done += 1
        if done % 10 == 0 and stream is not None:
            stream[1].close()
            stream = None
        body = target.search(k=10)
        start = time.perf_counter()
        for attempt in (0, 1):  # like every client: a connection that the server closed is no error
            kept = stream is not None
            try:
                if stream is None:
                    stream = await asyncio.open_connection(HOST, target.port, limit=1 << 24)
                stream[1].write(request(body))
                status, found = await read_answer(stream[0])
                if status != 200 or not json.loads(found)["results"]:
                    failures.append(f"status {status}: {found[:200]!r}")
                break
            except (OSError, EOFError) as error:
                stream = None
                if attempt or not kept:
                    failures.append(repr(error))
                    break
        seconds.append(time.perf_counter() - start)
        await asyncio.sleep(PAUSE)


async def answer_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of a client without any work."""
    body = b'{"results": [{}]}'
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            size = re.search(rb"\r\ncontent-length: (\d+)", head)
            await reader.readexactly(int(size[1]) if size else 0)
            writer.write(answer)
    except (OSError, EOFError):
        writer.close()


def serve_bare(results: Any) -> None:
    """Run the bare server in this process; send its port."""

    async def run() -> None:
        server = await asyncio.start_server(answer_at_once, HOST)
        results.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def compute() -> None:
    """Use a processor."""
    while True:
        sum(range(10_000))


@contextmanager
def background(load: int) -> Iterator[int]:
    """Run the bare server and processes that compute; the port of the server."""
    here, there = multiprocessing.Pipe()
    processes = [multiprocessing.Process(target=serve_bare, args=(there,))]
    processes += [multiprocessing.Process(target=compute) for _ in range(load)]
    for each in processes:
        each.start()
    try:
        yield here.recv()
    finally:
        for each in processes:
            each.kill()
            each.join()


class Memory(NamedTuple):
    """Resident memory of a process over time, in MB."""

    pid: int
    values: list[float]

    def add(self) -> None:
        """Read the present value."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        self.values.append(int(status.split("VmRSS:")[1].split()[0]) / 1e3)


Latencies = tuple[list[float], list[str]]


async def measure(
    targets: list[Target], seconds: float, clients: int, memory: Memory
) -> list[Latencies]:
    """Run the honest clients of several servers; return all latencies and failures of each."""
    results: list[Latencies] = [([], []) for _ in targets]
    end = time.monotonic() + seconds

    async def watch() -> None:
        while time.monotonic() < end:
            memory.add()
            await asyncio.sleep(1)

    honest_clients = (
        honest(target, end, *result, number)
        for target, result in zip(targets, results, strict=True)
        for number in range(clients)
    )
    await asyncio.gather(watch(), *honest_clients)
    return results


def start(indexes: list[Path], folder: Path) -> tuple["subprocess.Popen[bytes]", int]:
    """Start `lmk serve` with few files; return the process and the port."""
    log = folder / "serve.log"
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [*LMK, "serve", *map(str, indexes), "--port", "0"], stderr=file, env=environment
        )
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (FILES, FILES))
    while not (found := re.search(rf" at http://{HOST}:(\d+)", log.read_text("utf-8"))):
        if process.poll() is not None:
            raise SystemExit(log.read_text("utf-8"))
        time.sleep(0.1)
    return process, int(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--clients", type=int, default=4, help="honest clients")
    parser.add_argument("--share", type=float, default=1.0, help="of the hostile clients")
    parser.add_argument("--load", type=int, default=0, help="processes that compute")
    parser.add_argument(
        "--longest", type=float, default=LONGEST, help="seconds of an honest request"
    )
    kinds = [each.act.__name__ for each in ATTACKS]
    parser.add_argument("--kinds", nargs="+", default=kinds, choices=kinds)
    parser.add_argument("--index", type=Path, action="append", default=[])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not args.index:
            line = ["-q", "index", SOURCE, "--kind", "bm25", "-o", str(folder / "bm25")]
            subprocess.run([*LMK, *line], check=True, stdout=subprocess.DEVNULL)
        process, port = start(args.index or [folder / "bm25"], folder)
        try:
            with background(args.load) as bare:
                failed = run(process, port, bare, args)
        finally:
            process.kill()
            process.wait()
        log = (folder / "serve.log").read_text("utf-8")
    print(f"log of the server: {len(log):,} characters; {log.splitlines()[-1]}")
    sys.exit(failed)


def run(process: "subprocess.Popen[bytes]", port: int, bare: int, args: argparse.Namespace) -> bool:
    """Run both sides, stop the server, and print the figures; return whether an honest request failed."""
    with urlopen(f"http://{HOST}:{port}/v1/indexes") as answer:
        names = [each["name"] for each in json.load(answer)["indexes"]]
    texts = [query.text for query in open_collection(SOURCE).queries()][:500]
    target = Target(port, names, texts)
    memory = Memory(process.pid, [])
    targets = [target, target._replace(port=bare)]
    for name, found in zip(
        SERVERS, asyncio.run(measure(targets, ALONE, args.clients, memory)), strict=True
    ):
        show(f"{name}, alone", *found)
    before = len(memory.values)
    here, there = multiprocessing.Pipe()
    end = time.monotonic() + args.seconds + 8
    attacks = [each for each in ATTACKS if each.act.__name__ in args.kinds]
    hostile = multiprocessing.Process(
        target=attack_all, args=(target, end, attacks, args.share, there)
    )
    hostile.start()
    both = asyncio.run(measure(targets, args.seconds, args.clients, memory))
    for name, found in zip(SERVERS, both, strict=True):
        show(f"{name}, next to hostile clients", *found)
    times, failures = both[0]
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    code = process.wait(60)
    print(f"stop under attack: {time.monotonic() - begun:.1f} s, exit code {code}")
    for key, count in sorted(here.recv().items()):
        print(f"  {key}: {count:,}")
    hostile.join()
    beside = memory.values[before:]
    print(
        f"memory, MB: {memory.values[before - 1]:,.0f} before, {beside[len(beside) // 4]:,.0f} after a "
        f"quarter, {beside[-1]:,.0f} at the end, at most {max(beside):,.0f}"
    )
    machine = manifest.environment()["machine"]
    print(
        f"{args.seconds:g} s; {machine['cpu']}, {machine['cores']} cores, load {os.getloadavg()[0]:.0f}"
    )
    return bool(failures) or max(times) > args.longest or code != 75


def show(title: str, seconds: list[float], failures: list[str]) -> None:
    """Print the latencies and failures of the honest clients."""
    ordered = sorted(seconds)
    p50, p99, longest = (1e3 * ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99, 1))
    print(
        f"{title}: {len(ordered):,} requests, {len(failures)} failed, p50 {p50:.0f} ms, p99 {p99:.0f} ms, "
        f"longest {longest:.0f} ms",
        flush=True,
    )
    for text, count in Counter(failures).most_common(5):
        print(f"  {count} times {text}")


if __name__ == "__main__":
    main()
