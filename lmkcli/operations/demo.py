"""Demo: the whole pipeline on what is installed, without a network."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from lmkcli.operations.encode import Encode
from lmkcli.operations.eval import Evaluate
from lmkcli.operations.index import BuildIndex
from lmkcli.operations.search import Search
from lmkcli.operations.tokenize import Tokenize
from lmkcli.progress import Report
from lmkcli.settings import Flag
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import Result
from lmkcli.text.numbers import duration

COLLECTION = "stdlib/functions"
MODEL = "lmk-minilm"
LONG = "stdlib/modules,package=http+json"
BASE = "minilm"  # the base of lmk-minilm
DEEP = "send and log an error reply"  # in http.server, far behind what the base model reads of it


@dataclass(frozen=True)
class Demonstrated(Result):
    """The folder of the artifacts, and the results of all steps in order."""

    folder: Path
    results: tuple[Any, ...]

    def as_json(self) -> Any:
        """A list of the results."""
        return [result.as_json() for result in self.results]

    def __str__(self) -> str:
        return ""  # each result was shown when its step ended


@dataclass(frozen=True)
class Demo(Operation[Demonstrated]):
    """All five steps on a real collection with a real model, offline, in half a minute to a few minutes.

    The collection is this Python's standard library: given the first sentence of a docstring, find the
    function it was written for. The model is lmk-minilm (extra `demo`). Then whole modules: a question
    that its base, all-MiniLM-L6-v2, misses, because it reads only the start of each module.
    """

    verb: ClassVar[str] = "demo"

    folder: Annotated[
        Path,
        Flag(
            "Where the artifacts go; kept for you to look at.",
            argument=True,
            metavar="[FOLDER]",
            role="output",
        ),
    ] = Path("lmk-demo")

    def operations(self) -> list[Operation[Any]]:
        """The operations of the demo in order."""
        folder = self.folder
        tokens, vectors, run = folder / "tokens", folder / "vectors", folder / "dense.trec"
        bm25, lexical = folder / "bm25", folder / "bm25.trec"
        truncated, landmarks = folder / "truncated", folder / "landmarks"
        return [
            Tokenize(COLLECTION, model=MODEL, output=tokens),
            Encode(str(tokens), model=MODEL, output=vectors),
            BuildIndex(COLLECTION, kind="bm25", output=bm25),
            Search(vectors, COLLECTION, k=100, output=run),
            Search(bm25, COLLECTION, k=100, output=lexical),
            Evaluate(runs=[run, lexical], measure=["nDCG@10", "R@100", "RR@10"]),
            Search(vectors, question="split a path into its components", k=5),
            Encode(LONG, model=BASE, output=truncated),
            Encode(LONG, model=MODEL, output=landmarks),
            Search(truncated, question=DEEP, k=3),
            Search(landmarks, question=DEEP, k=3),
        ]

    def execute(self, report: Report) -> Demonstrated:
        """Run the operations, showing each command line and its result."""
        start = time.monotonic()
        results = []
        for operation in self.operations():
            report.note(f"\n$ {operation.command_line()}")
            results.append(operation.run(report))
            report.show(results[-1])
        report.note(
            f"\nAll of it took {duration(time.monotonic() - start)}; the artifacts are in {self.folder}/."
        )
        return Demonstrated(self.folder, tuple(results))
