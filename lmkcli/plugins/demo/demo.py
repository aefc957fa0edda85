"""Demo: the whole pipeline on an installed collection and model, without a network."""

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
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import Result
from lmkcli.spec.settings import Flag
from lmkcli.text.formatting import duration

COLLECTION = "stdlib/functions"
# A part of it that an old processor encodes in seconds.
SLICE = (
    f"{COLLECTION},package=posixpath+shutil+pathlib+zipfile+tempfile+glob+csv+statistics+textwrap"
)
MODEL = "mean-minilm"
LONG_COLLECTION = "stdlib/modules,package=http+json"
BASE_MODEL = "minilm"  # the base of mean-minilm
QUESTION = "split a path into its components"
# Answered late in http.server, after the positions that the base model reads.
DEEP_QUESTION = "send and log an error reply"


@dataclass(frozen=True)
class Demonstrated(Result):
    """The folder of the artifacts, and the results of all steps in order.

    It prints nothing, because each result was printed at the end of its step.
    """

    folder: Path
    results: tuple[Any, ...]

    def as_json(self) -> Any:
        """Return a list of the results."""
        return [result.as_json() for result in self.results]


@dataclass(frozen=True)
class Demo(Operation[Demonstrated]):
    """Run the main steps on a real collection with a real model, offline. The first answer takes seconds.

    The collection is a part of the standard library of Python, or all of it with --full: given the first
    sentence of a docstring, find its function. The model is mean-minilm (extra `demo`). The last part
    searches whole modules. Its question has an answer that the base model, all-MiniLM-L6-v2, misses, because
    it reads only the start of each module.
    """

    verb: ClassVar[str] = "demo"

    folder: Annotated[
        Path,
        Flag(
            "Folder for the artifacts, which are kept.",
            argument=True,
            metavar="[FOLDER]",
            role="output",
        ),
    ] = Path("lmk-demo")
    full: Annotated[
        bool,
        Flag(
            "Use the whole standard library, and tokenize it first; half a minute to a few minutes."
        ),
    ] = False

    def operations(self) -> list[Operation[Any]]:
        """Return the operations of the demo in order."""
        folder = self.folder
        collection, name = (COLLECTION, "") if self.full else (SLICE, "slice-")
        vectors, run = folder / f"{name}vectors", folder / f"{name}dense.trec"
        bm25, lexical = folder / f"{name}bm25", folder / f"{name}bm25.trec"
        truncated, windows = folder / "truncated", folder / "windows"
        tokens = folder / "tokens"
        return [
            *([Tokenize(collection, model=MODEL, output=tokens)] if self.full else []),
            Encode(str(tokens) if self.full else collection, model=MODEL, output=vectors),
            Search(vectors, question=QUESTION, k=3),
            BuildIndex(collection, kind="bm25", output=bm25),
            Search(vectors, collection, k=100, output=run),
            Search(bm25, collection, k=100, output=lexical),
            Evaluate(runs=[run, lexical], measure=["nDCG@10", "R@100", "RR@10"]),
            Encode(LONG_COLLECTION, model=BASE_MODEL, output=truncated),
            Encode(LONG_COLLECTION, model=MODEL, output=windows),
            Search(truncated, question=DEEP_QUESTION, k=3),
            Search(windows, question=DEEP_QUESTION, k=3),
        ]

    def execute(self, report: Report) -> Demonstrated:
        """Run the operations; print each command line and its result."""
        start = time.monotonic()
        results = []
        for operation in self.operations():
            report.note(f"\n$ {operation.command_line()}")
            results.append(operation.run(report))
            report.show(results[-1])
        if not self.full:
            report.note("\nThese were a few functions; lmk demo --full searches the whole library.")
        report.note(
            f"\nThe demo took {duration(time.monotonic() - start)}; the artifacts are in {self.folder}/."
        )
        return Demonstrated(self.folder, tuple(results))
