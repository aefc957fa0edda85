"""lmk demo: the main job on what is installed, without a network."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from lmkcli.cli import console

COLLECTION = "stdlib/functions"
MODEL = "lmk-minilm"
LONG = "stdlib/modules,package=http+json"
BASE = "minilm"  # what it was made from
DEEP = "send and log an error reply"  # http.server does, far behind what the base reads of it


def demo(
    context: typer.Context,
    folder: Annotated[
        Path,
        typer.Argument(metavar="[FOLDER]", help="Where the artifacts go; kept for you to look at."),
    ] = Path("lmk-demo"),
) -> None:
    """All five steps on a real collection with a real model, offline, in half a minute to a few minutes.

    The collection is this Python's standard library: given the first sentence of a docstring, find the
    function it was written for. The model is lmk-minilm (extra `demo`). Then whole modules: a question
    that its base, all-MiniLM-L6-v2, misses, for it reads their beginnings alone.
    """
    import time

    lmk: Any = context.find_root().command
    start = time.monotonic()
    for line in commands(folder):
        console.note("\n$ lmk " + shlex.join(line))
        lmk.main([*console.flags(), *line], standalone_mode=False)
    console.note(
        f"\nAll of it took {console.duration(time.monotonic() - start)}; the artifacts are in {folder}/."
    )


def commands(folder: Path) -> list[list[str]]:
    """The command lines of the demo, as a user would type them."""
    tokens, vectors, run = (str(folder / name) for name in ("tokens", "vectors", "dense.trec"))
    bm25, lexical = (str(folder / name) for name in ("bm25", "bm25.trec"))
    truncated, landmarks = (str(folder / name) for name in ("truncated", "landmarks"))
    return [
        ["tokenize", COLLECTION, "-m", MODEL, "-o", tokens],
        ["encode", tokens, "-m", MODEL, "-o", vectors],
        ["index", COLLECTION, "--kind", "bm25", "-o", bm25],
        ["search", vectors, COLLECTION, "-k", "100", "-o", run],
        ["search", bm25, COLLECTION, "-k", "100", "-o", lexical],
        ["eval", run, lexical, "-m", "nDCG@10", "-m", "R@100", "-m", "RR@10"],
        ["search", vectors, "-q", "split a path into its components", "-k", "5"],
        ["encode", LONG, "-m", BASE, "-o", truncated],
        ["encode", LONG, "-m", MODEL, "-o", landmarks],
        ["search", truncated, "-q", DEEP, "-k", "3"],
        ["search", landmarks, "-q", DEEP, "-k", "3"],
    ]
