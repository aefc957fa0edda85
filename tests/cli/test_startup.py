"""The imports of a command: only the libraries that it needs."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.version import Version

from tests.conftest import Lmk
from tests.forkserver import ForkServer

ROOT = Path(__file__).resolve().parents[2]
# Libraries that take from a tenth of a second to seconds to import.
SLOWEST = {"torch", "transformers", "sentence_transformers", "scipy.stats", "matplotlib", "faiss"}
ARROW = {"pyarrow", "numpy"}
LEXICAL = {"bm25s", "Stemmer", "scipy"}
# transformers before 5.21 imports scikit-learn wherever that is installed
OLD = {"pandas", "scipy.stats"} if Version(version("transformers")) < Version("5.21") else set()
HEAVY = (
    SLOWEST | ARROW | LEXICAL | {"huggingface_hub.errors", "ir_datasets", "ir_measures", "pandas"}
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the artifacts of this module."""
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
    """The heavy libraries that a command line imports in a new process."""
    line = [sys.executable, "-m", "tests.imports", *words]
    return heavy(subprocess.run(line, cwd=ROOT, capture_output=True, text=True), code)


def heavy(done: "subprocess.CompletedProcess[str]", code: int) -> set[str]:
    assert done.returncode == code, done.stderr
    return HEAVY & set(done.stderr.splitlines()[-1].split())


PATHS: dict[str, set[str]] = {
    "show poolers": set(),
    "show {}/vectors": ARROW,
    "show {}/bm25": ARROW,
    "show {}/run.trec": ARROW,
    "show {}/scores.jsonl": ARROW | {"ir_measures"},
    "plot --help": set(),
    "analyze --help": set(),
    "analyze lengths {beir}": ARROW,
    "index {beir} --kind bm25 -o {}/new": ARROW | LEXICAL | {"pandas"},
    "search {}/bm25 -q rivers": ARROW | LEXICAL,
    "search {}/bm25 {beir} -o {}/new.trec": ARROW | LEXICAL,
    "search {}/vectors -q rivers": ARROW  # with the stemmer, for snippets
    | {"Stemmer"}
    | {"huggingface_hub.errors", "scipy", "torch", "transformers", *OLD},
}


@pytest.mark.parametrize("line", PATHS)
def test_a_command_imports_only_needed_libraries(line: str, artifacts: Path, beir: Path) -> None:
    words = [word.format(artifacts, beir=beir) for word in line.split()]
    assert imported(words, 0) <= PATHS[line]


def test_the_doctor_imports_no_slow_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # a broken program would change the exit code
    assert not imported(["doctor"], 0)


ENCODE = "encode {beir} -m {model} -o {}/x"
TRAIN = "train {beir} -m {model} -o {}/x"
PRETRAIN = "pretrain {beir} -m {model} -o {}/x"
MISTAKES = {
    f"{ENCODE} --pool lmk": 2,
    f"{ENCODE} --pool mean --gran 8": 2,
    f"{ENCODE} --pool mean@x": 2,
    f"{ENCODE} --window 32 --max-length 16": 2,
    f"{ENCODE} --window some": 2,
    f"{ENCODE} --window 32 --overlap 32": 2,
    f"{ENCODE} --overlap 3": 2,
    f"{ENCODE} --unit word": 2,
    f"{ENCODE} --pool cls --unit chunk --gran 8": 2,
    f"{ENCODE} --extend nope --max-length 900": 2,
    f"{ENCODE} --extend grouped": 2,
    f"{ENCODE} --extend ntk --max-length 900": 2,
    f"{ENCODE} --max-length 9999": 2,
    f"{ENCODE} --query-max-length 9999": 2,
    f"{ENCODE} --revision main": 2,
    f"{ENCODE} --no-normalize": 2,
    f"{ENCODE} --pad-to-max": 2,
    f"{ENCODE} --shard 2/2": 2,
    f"{ENCODE} --shard 0/2 --if-exists overwrite": 2,
    f"{ENCODE} --batch-size 0": 2,
    "encode {beir} -m {model}": 2,
    "encode {beir} -m {model} -o {}/x.trec": 2,
    "encode {beir} -m {model} -o {beir}": 3,
    "encode {beir} -m {model} -o {}/vectors --if-exists fail": 3,
    "encode {beir},nonsense=1 -m {model} -o {}/x": 2,
    "encode {}/vectors -m {model} --if-exists overwrite -o {}/vectors": 2,
    "tokenize {beir} -m {model} --pool nope -o {}/x": 2,
    "tokenize --show word -m {model} --pool lmk": 2,
    "tokenize --show word -m {model} --window 32 --max-length 16": 2,
    "index {}/vectors --kind nope -o {}/x": 2,
    "index {}/vectors --kind exact -o {}/x": 2,
    "index {}/vectors --k1 1 -o {}/x": 2,
    "index {beir} -o {}/x": 2,
    "index {}/vectors -o {}/x.faiss": 2,
    "search {}/bm25 -q x --ef-search 3": 2,
    "search {}/vectors -q x --nprobe 3": 2,
    "search {}/vectors -q x --rm3": 2,
    "search {}/vectors -q x --rm3-terms 3": 2,
    "search {}/vectors -k 0 -q x": 2,
    "search {}/vectors -q x -o {}/x.trec": 2,
    "search {}/vectors {beir}": 2,
    "search {}/vectors {beir} -o {}/bm25": 2,
    "search {}/vectors --with {}/bm25 -q x": 2,
    "search {}/vectors --with {}/bm25 --fuse nope -q x": 2,
    "search {}/vectors --rerank-depth 9 -q x": 2,
    "search {}/nowhere -q x": 3,
    "verify {}/nowhere": 3,
    "verify {}/vectors --sample 0": 2,
    "eval {}/run.trec -m nDCX": 2,
    "eval {}/run.trec --bins 1,2": 2,
    "eval {}/run.trec --per-query --all-pairs": 2,
    "plot {}/nowhere.jsonl --x gran -o {}/x.svg": 3,
    "plot {}/scores.jsonl -o {}/x.svg": 2,
    "analyze attention {beir}": 2,
    "analyze map {}/vectors --gran 3": 2,
    "analyze landmarks {beir} -m {model}": 2,
    "fetch nope": 2,
    "fetch": 2,
    f"{TRAIN} --loss nope": 2,
    f"{TRAIN} --pool lmk --gran 8,x": 2,
    f"{TRAIN} --patience 3": 2,
    f"{TRAIN} --loss opl --temperature 0.1": 2,
    f"{TRAIN} --loss kl --symmetric": 2,
    f"{TRAIN} --loss prediction": 2,
    f"{TRAIN} --loss insent": 2,
    f"{TRAIN} --loss kl": 3,
    f"{TRAIN} --loss margin-mse --unit chunk --gran given --pool mean": 3,
    f"{TRAIN} --skip-positions 0.5 --unit chunk --gran given --pool mean": 2,
    f"{TRAIN} --dims 8,x": 2,
    f"{TRAIN} --dims 8,999": 2,
    "train {beir} -m {qwen2} --dims 999 -o {}/x": 2,
    f"{TRAIN} --window chunk": 2,
    f"{TRAIN} --extend ntk --max-length 90": 2,
    f"{TRAIN} --max-length 9999": 2,
    f"{TRAIN} --pool lmk --gran 8,sentence,x": 2,
    f"{TRAIN} --unit chunk --pool mean --gran 8": 2,
    f"{TRAIN} --dev {{beir}} --dev-measure nDCX": 2,
    f"{TRAIN} --dev nowhere/at/all": 2,
    f"{TRAIN} --revision main": 2,
    "train {beir},depth=x -m {model} -o {}/x": 2,
    "train {beir},weight=-1 -m {model} -o {}/x": 2,
    "train {beir},negatives={}/nowhere.trec -m {model} -o {}/x": 3,
    "train {}/nowhere.jsonl -m {model} -o {}/x": 3,
    "train {beir} -m {}/nowhere -o {}/x": 3,
    f"{PRETRAIN} --objective nope": 2,
    f"{PRETRAIN} --pool lmk": 2,
    f"{PRETRAIN} --pool lmk --gran 8,sentence": 2,
    f"{PRETRAIN} --gran 8": 2,
    f"{PRETRAIN} --blocks --pool lmk --gran sentence": 2,
    f"{PRETRAIN} --official-quirks": 2,
    f"{PRETRAIN} --mask-pool 9": 2,
    f"{PRETRAIN} --objective tite-bow --decoder-mask 0.5": 2,
    f"{PRETRAIN} --objective tite --query-stream raw": 2,
    f"{PRETRAIN} --tokenizer {{model}}": 2,
    f"{PRETRAIN} --architecture {{model}}/config.json": 2,
    f"{PRETRAIN} --max-length 9999": 2,
    "pretrain {beir},depth=9 -m {model} -o {}/x": 2,
    "pretrain nowhere/at/all -m {model} -o {}/x": 2,
    "pretrain {beir} -o {}/x": 2,
    "encode {beir} -m {tite} --pool mean -o {}/x": 2,
    "encode {beir} -m {tite} --extend grouped --max-length 900 -o {}/x": 2,
    "encode {beir} -m {tite} --unit token -o {}/x": 2,
    "encode {beir} -m {m2bert} --pool cls -o {}/x": 2,
    "encode {beir} -m {m2bert} --max-length 99999 -o {}/x": 2,
    "encode {beir} -m {m2bert} --unit chunk --gran 8 -o {}/x": 2,
    "tokenize {beir} -m {tite} --pool lmk --gran 8 -o {}/x": 2,
    "train {beir} -m {tite} --pool lmk --gran 8 -o {}/x": 2,
    "encode {beir} -m {modernbert} --extend grouped --max-length 900 -o {}/x": 2,
    "encode {beir} -m {modernbert} --pad-to-max -o {}/x": 2,
    "encode {beir} -m {modernbert} --no-normalize -o {}/x": 2,
    "encode {beir} -m {modernbert} --overlap 5 -o {}/x": 2,
    "encode {beir} -m {modernbert} --pool model -o {}/x": 2,
    "train {beir} -m {modernbert} --loss insent -o {}/x": 2,
    "pretrain {beir} -m {modernbert} --gran 8 -o {}/x": 2,
    "pretrain {beir} -m {tite} -o {}/x": 2,
    "pretrain {beir} -m {tite} --objective retromae -o {}/x": 2,
    "pretrain {beir} -m {modernbert} --objective tite-bow -o {}/x": 2,
    "pretrain {beir} --architecture {tite}/config.json --tokenizer {model} -o {}/x": 2,
    "pretrain {beir} --architecture {beir}/queries.jsonl --tokenizer {model} -o {}/x": 3,
    "encode {beir} -m {qwen2} --unit token -o {}/x": 2,
    "encode {beir} -m {qwen2} --revision main -o {}/x": 2,
    "export -m {m2bert} --pool mean --to sentence-transformers -o {}/x": 2,
    "verify {}/bm25 --sample 0": 2,
    "export {}/vectors --to numpy": 2,
    "export -m {model} --to numpy -o {}/x": 2,
    "import {}/x.npy --from numpy --pool cls -o {}/x": 2,
    "import {}/x.npy --from numpy -m {model} --unit token -o {}/x": 2,
    "import {}/nowhere.npy --from numpy --ids {}/nowhere.txt -o {}/x": 3,
    "import {}/nowhere --from pyserini -m {model} -o {}/x": 3,
    "repro nothing.trec": 3,
    "search {}/bm25 -q rivers --rerank-model {model}": 3,
}


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]) -> Path:
    """Folders of other model kinds and architectures. Errors are found by reading their files, without
    loading."""
    folder = tmp_path_factory.mktemp("kinds")
    shapes = {
        "tite": {"kernel_sizes": [None, 4]},
        "m2bert": {},
        "modernbert": {},
        "qwen2": {"hidden_size": 16},
    }
    for kind, shape in shapes.items():
        shutil.copytree(tiny_model("bert"), folder / kind)
        config = {"model_type": kind, "max_position_embeddings": 128, **shape}
        (folder / kind / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_reported_before_torch_is_imported(
    line: str,
    artifacts: Path,
    beir: Path,
    model: Path,
    others: Path,
    light_forkserver: ForkServer,
) -> None:
    kinds = {folder.name: folder for folder in others.iterdir()}
    words = [word.format(artifacts, beir=beir, model=model, **kinds) for word in line.split()]
    done = light_forkserver.run(*words, cwd=ROOT, function="tests.imports:main")
    assert not heavy(done, MISTAKES[line]) & SLOWEST
