"""What a command imports: the libraries of its own path, and nothing that takes seconds besides."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Lmk

ROOT = Path(__file__).resolve().parents[2]
# What takes a tenth of a second or more, or seconds.
SLOWEST = {"torch", "transformers", "sentence_transformers", "scipy.stats", "matplotlib", "faiss"}
ARROW = {"pyarrow", "numpy"}
LEXICAL = {"bm25s", "Stemmer", "scipy"}
HEAVY = (
    SLOWEST | ARROW | LEXICAL | {"huggingface_hub.errors", "ir_datasets", "ir_measures", "pandas"}
)

CODE = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from lmkcli.cli.main import main
sys.argv = ["lmk", *sys.argv[1:]]
main()
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for artifacts of this module's tests."""
    return tmp_path_factory.mktemp("startup")


@pytest.fixture
def model(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("bert")


@pytest.fixture
def artifacts(lmk: Lmk, made: Path, beir: Path, model: Path) -> Path:
    """Vectors, a BM25 index, a run and a log, made once."""
    if not (made / "scores.jsonl").exists():
        lmk("encode", beir, "-m", model, "-o", made / "vectors")
        lmk("index", beir, "--kind", "bm25", "-o", made / "bm25")
        lmk("search", made / "bm25", beir, "-o", made / "run.trec")
        lmk("eval", made / "run.trec", "-m", "nDCG@10", "--log", made / "scores.jsonl")
    return made


def imported(words: list[str], code: int) -> set[str]:
    """The heavy libraries that a command line imported in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return HEAVY & set(done.stderr.splitlines()[-1].split())


PATHS: dict[str, set[str]] = {
    "show poolers": set(),
    "show {}/vectors": ARROW,
    "show {}/bm25": ARROW,
    "show {}/run.trec": ARROW,
    "show {}/scores.jsonl": ARROW | {"ir_measures"},
    "plot --help": set(),
    "index {beir} --kind bm25 -o {}/new": ARROW | LEXICAL | {"pandas"},
    "search {}/bm25 -q rivers": ARROW | LEXICAL,
    "search {}/bm25 {beir} -o {}/new.trec": ARROW | LEXICAL,
    "search {}/vectors -q rivers": ARROW
    | {"huggingface_hub.errors", "scipy", "torch", "transformers"},
}


@pytest.mark.parametrize("line", PATHS)
def test_a_command_imports_only_what_its_path_needs(line: str, artifacts: Path, beir: Path) -> None:
    words = [word.format(artifacts, beir=beir) for word in line.split()]
    assert imported(words, 0) <= PATHS[line]


MISTAKES = {
    "encode {beir} -m {model} --pool lmk -o {}/x": 2,
    "encode {beir} -m {model} --pool mean --gran 8 -o {}/x": 2,
    "tokenize {beir} -m {model} --pool nope -o {}/x": 2,
    "index {}/vectors --kind nope -o {}/x": 2,
    "search {}/bm25 -q x --ef-search 3": 2,
    "search {}/vectors -k 0 -q x": 2,
    "search {}/nowhere -q x": 3,
    "verify {}/nowhere": 3,
    "eval {}/run.trec -m nDCX": 2,
    "plot {}/nowhere.jsonl --x gran -o {}/x.svg": 3,
    "fetch nope": 2,
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_answered_before_torch_is_imported(
    line: str, artifacts: Path, beir: Path, model: Path
) -> None:
    words = [word.format(artifacts, beir=beir, model=model) for word in line.split()]
    assert not imported(words, MISTAKES[line]) & SLOWEST
