"""Tutorials run as a reader would: files are saved, lines are typed into a shell, and what it prints is
held against the page.

A fenced block after `Save this as \\`NAME\\`` is a file. In a `console` block a line after `$ ` is typed
(with its continuation lines, which begin with `> `), the lines below it are what it prints, on stdout
and stderr together. Any other block is not run.

Two outputs are the same when their words are, and their numbers nearly: a number may differ by 5 %, or
by 0.03 where it has a decimal point; whole numbers below 20 are equal. `…` on a line stands for any text,
alone on a line for any lines. Spaces count as one, lines that report progress for none, and a triple of
wins/ties/losses for any other: one near-tie moves it. Vectors are made in fp32, on every machine.

A server listens at a free port, which stands for 8080. A program in the background writes its process id to
`NAME.pid`; it ends with the page.

    python -m tests.tutorials docs/tutorials/first-steps.md

runs a page and writes into it what was printed, except where `…` still says it.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*(ROOT / "docs" / "tutorials").glob("*.md"), ROOT / "docs" / "update.md"])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SAVED = re.compile(r"Save (?:this|it) as\s+`([^`]+)`(?:[^\n]|\n(?!\n))*\n\n\Z")
TRIPLE = re.compile(r"\b\d+/\d+/\d+\b")
NUMBER = re.compile(r"-?\d[\d,]*\.?\d*")
PROGRESS = re.compile(  # what comes by the clock
    r"^([\w ]+: [\d,.]+ \w+, (?:.*[\d.](?: \w+)?/s, .*|\d+ % of .*)"
    r"|Matplotlib is building the font cache.*)\n",
    re.MULTILINE,
)
RELATIVE, ABSOLUTE, EXACT = 0.05, 0.03, 20
PORT = "8080"  # of servers, on the pages
PATIENCE = 1200  # seconds for one line; generous, for a busy machine


class Save(NamedTuple):
    """A file that the page shows."""

    name: str
    text: str


class Run(NamedTuple):
    """A line that is typed, and what the page says that it prints; where that stands in the page."""

    line: str
    shown: str
    place: tuple[int, int]


def steps(page: str) -> Iterator[Save | Run]:
    """What a page asks its reader to do, in order."""
    for block in BLOCK.finditer(page):
        saved = SAVED.search(page[: block.start()])
        if saved:
            yield Save(saved[1], block[2])
        elif block[1] == "console":
            yield from _lines(block[2], block.start(2))


def _lines(text: str, start: int) -> Iterator[Run]:
    for found in re.finditer(r"^\$ (.*\n(?:> .*\n)*)((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
        typed = found[1].replace("\n> ", "\n").rstrip("\n")
        yield Run(typed, found[2], (start + found.start(2), start + found.end(2)))


def environment(folder: Path, lmk: Path | None) -> dict[str, str]:
    """Of a newcomer in an empty folder: `lmk` and `python` are on the path, nothing is cached.

    `lmk` is another program of that name, which starts faster.
    """
    for name in ("bin", "home", "run"):
        (folder / name).mkdir(mode=0o700)
    path = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
    for name, words in (("lmk", "-m lmkcli.cli.main"), ("python", "")):
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {sys.executable} {words} "$@"\n')
        program.chmod(0o755)
    places = [*([lmk.parent] if lmk else []), folder / "bin", os.environ["PATH"]]
    return {
        "HOME": str(folder / "home"), "XDG_RUNTIME_DIR": str(folder / "run"),
        "PATH": ":".join(map(str, places)), "TERM": "dumb", "LANG": "C.UTF-8",
        "COLUMNS": "110", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2", "LMK_ENCODE_DTYPE": "fp32",
    }  # fmt: skip


def typed(line: str, folder: Path, env: dict[str, str]) -> str:
    """What a shell line prints; AssertionError for an exit code other than 0, or 3 (refused input)."""
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=env, timeout=PATIENCE, encoding="utf-8",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode in (0, 3), f"$ {line}\n{done.stdout}\nexit code {done.returncode}"
    return PROGRESS.sub("", done.stdout)


def follow(
    page: Path,
    root: Path,
    lmk: Path | None = None,
    more: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[tuple[Run, str]]:
    """Each line of a page and what it prints, run in order in an empty folder below `root`.

    `more` are variables that the environment has besides.
    """
    port = _free_port()
    env = environment(root, lmk) | {"LMK_SERVE_PORT": port} | more
    folder = root / "work"
    folder.mkdir()
    with _background(folder):
        for step in steps(page.read_text(encoding="utf-8")):
            if isinstance(step, Save):
                (folder / step.name).parent.mkdir(parents=True, exist_ok=True)
                (folder / step.name).write_text(step.text, encoding="utf-8")
            else:
                printed = typed(step.line.replace(PORT, port), folder, env)
                yield step, printed.replace(port, PORT)


def _free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@contextmanager
def _background(folder: Path) -> Iterator[None]:
    """End the programs that wrote `NAME.pid`, if they still run."""
    try:
        yield
    finally:
        for note in folder.glob("*.pid"):
            with suppress(ProcessLookupError):
                os.kill(int(note.read_text()), signal.SIGKILL)


def differs(shown: str, printed: str) -> str:
    """The first line of the page that was not printed so, and what stands there; empty if none is."""
    wanted, got = shown.splitlines(), [line for line in printed.splitlines() if line.strip()]
    wanted = [line for line in wanted if line.strip()]
    at = 0
    while wanted:
        line = wanted.pop(0)
        if line.strip() == "…":
            if not wanted:
                return ""
            at = next((i for i in range(at, len(got)) if same(wanted[0], got[i])), len(got))
            continue
        if at == len(got) or not same(line, got[at]):
            return f"the page shows\n  {line}\nand the command prints\n  {(got[at:] or ['(no more)'])[0]}"
        at += 1
    return f"the command also prints\n  {got[at]}" if at < len(got) else ""


def same(shown: str, printed: str) -> bool:
    """Whether two lines say the same, by the rules above."""
    shown, printed = (TRIPLE.sub("w/t/l", " ".join(line.split())) for line in (shown, printed))
    parts = [NUMBER.split(part.strip()) for part in shown.split("…")]
    numbers = NUMBER.findall(shown)
    pattern = ".*".join(r"(-?\d[\d,]*\.?\d*)".join(map(re.escape, part)) for part in parts)
    found = re.fullmatch(pattern, printed)
    return bool(found) and all(map(near, numbers, found.groups()))


def near(shown: str, printed: str) -> bool:
    """Whether two numbers are the same up to what machines and versions change."""
    one, other = (float(each.replace(",", "")) for each in (shown, printed))
    if "." not in shown + printed and abs(one) < EXACT:
        return one == other
    return abs(one - other) <= max(RELATIVE * abs(one), ABSOLUTE if "." in shown else 0)


def check(
    page: Path,
    root: Path,
    lmk: Path | None = None,
    more: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """AssertionError with the first line of a page that prints something else than it shows."""
    for run, printed in follow(page, root, lmk, more):
        wrong = differs(run.shown, printed)
        assert not wrong, f"$ {run.line}\n{wrong}\n\nall of it:\n{printed}"


def rewritten(page: Path) -> str:
    """The page with what its lines print now."""
    text, done, moved = page.read_text(encoding="utf-8"), "", 0
    with tempfile.TemporaryDirectory(prefix="lmk-tutorial-") as root:
        for run, printed in follow(page, Path(root)):
            print(f"$ {run.line}\n{printed}", end="", flush=True)
            first, last = run.place
            kept = "…" in run.shown and not differs(run.shown, printed)
            done += text[moved:first] + (run.shown if kept else printed)
            moved = last
    return done + text[moved:]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        new = rewritten(Path(name))
        Path(name).write_text(new, encoding="utf-8")
