"""Plug-ins can be taken out: the rest works, and what is gone is unknown in one clear sentence.

Each test runs in a process that imports a copy of the package without some folders of plugins/.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lmkcli import Encode
from tests import levels
from tests.test_architecture import PACKAGE, PLUGINS

RUN = """
import contextlib, io, json, sys
from lmkcli.cli import console, main
found = []
for words in json.loads(sys.argv[1]):
    out, err, code = io.StringIO(), io.StringIO(), 0
    sys.argv = ["lmk", *words]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main.main()
        except SystemExit as left:
            code = left.code or 0
    found.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(found))
"""
# What the core does, with a folder of BEIR and a model.
CORE = (
    "--help",
    "show poolers",
    "show engines",
    "tokenize ./corpus -m model -o tokens",
    "encode ./corpus -m model --pool lmk --gran 4 -o vectors",
    "encode tokens -m model --pool mean -o means",
    "index vectors -o hnsw",
    "index ./corpus --kind bm25 -o bm25",
    "search vectors ./corpus -o exact.trec",
    "search hnsw ./corpus -o hnsw.trec",
    "search bm25 ./corpus --with vectors --fuse rrf -o fused.trec",
    "search bm25 ./corpus --rerank vectors -o reranked.trec",
    "search vectors -q tea",
    "eval exact.trec fused.trec --qrels ./corpus -m nDCG@10",
    "update ./corpus vectors hnsw bm25",
    "verify vectors",
    "show vectors",
    "show exact.trec",
    "repro exact.trec",
    "show sources",
)
# For each plug-in, lines that need it, and a word of the answer without it.
NEEDS = {
    "analysis": [("analyze lengths ./corpus -m model", "analyze"), ("plot scores.jsonl", "plot")],
    "browse": [("browse exact.trec -o page.html", "browse")],
    "demo": [("demo", "demo")],
    "documents": [("encode folder:corpus -m model -o v", "folder:corpus")],
    "exchange": [
        ("export vectors --to numpy -o out", "export"),
        ("import x.npy --from numpy -o v", "import"),
    ],
    "generated": [("encode stdlib/functions -m model -o v", "stdlib/functions")],
    "grid": [("grid grid.toml -o results", "grid")],
    "lucene": [("index ./corpus --kind lucene -o lucene", "lucene")],
    "m2bert": [],  # models are tested below
    "milvus": [("index vectors --kind milvus -o milvus", "milvus")],
    "pretrain": [("pretrain ./corpus -m model -o pretrained", "pretrain")],
    "serve": [
        ("serve vectors", "serve"),
        ("search vectors -q x --server http://localhost", "server"),
    ],
    "sparse": [
        ("encode ./corpus -m model --pool splade -o v", "splade"),
        ("index vectors --kind inverted -o i", "inverted"),
    ],
    "static": [],
    "tite": [("pretrain ./corpus -m model --objective tite -o pretrained", "tite")],
}


def run_without(
    out: set[str], lines: list[str], tmp_path: Path, beir: Path, model: Path
) -> list[list[Any]]:
    """Run command lines in one process without some plug-ins. Returns their codes and outputs."""
    copy = tmp_path / "copy" / "lmkcli"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name in out:
        shutil.rmtree(copy / "plugins" / name)
    shutil.copytree(beir, tmp_path / "corpus")
    os.symlink(model, tmp_path / "model")
    return run_lines(lines, tmp_path, copy.parent)


def run_lines(lines: Sequence[str], folder: Path, *paths: Path) -> list[list[Any]]:
    """Run command lines in one new process that imports from `paths` first: code, stdout, stderr of each."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps([line.split() for line in lines])],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: list[list[Any]] = json.loads(done.stdout)
    return found


def check_core(found: list[list[Any]]) -> None:
    for line, (code, _, err) in zip(CORE, found, strict=False):
        assert code == 0, f"lmk {line}: {err}"


def check_unknown(lines: list[tuple[str, str]], found: list[list[Any]]) -> None:
    for (line, word), (code, _, err) in zip(lines, found, strict=True):
        assert code == 2, f"lmk {line}: {err}"
        assert word in err
        assert len(err.splitlines()) == 1, err


def test_every_plugin_is_tested() -> None:
    assert NEEDS.keys() == PLUGINS


def test_the_core_works_without_any_plugin(
    tmp_path: Path, beir: Path, tiny_model: Callable[[str], Path]
) -> None:
    # tite's objectives are named only if the command that has objectives is present
    needs = [pair for name, pairs in NEEDS.items() if name != "tite" for pair in pairs]
    lines = [*CORE, *(line for line, _ in needs)]
    found = run_without(PLUGINS, lines, tmp_path, beir, tiny_model("bert"))
    check_core(found)
    check_unknown(needs, found[len(CORE) :])


def test_vectors_of_a_codec_that_is_not_installed_are_named(
    tmp_path: Path, beir: Path, masked_model: Callable[[str], Path]
) -> None:
    model = masked_model("bert")
    Encode(str(beir), model=str(model), pool="splade", output=tmp_path / "terms").run()
    lines = ["search terms -q tea", "verify terms", "update ./corpus terms", "index terms -o i"]
    for line, (code, _, err) in zip(
        lines, run_without({"sparse"}, lines, tmp_path, beir, model), strict=True
    ):
        assert code == 3, f"lmk {line}: {err}"
        assert "store_dtype 'sparse': no installed package has this codec" in err
        assert len(err.splitlines()) == 1, err


@pytest.mark.slow
@pytest.mark.parametrize("name", levels.sample("plug-ins taken out", sorted(PLUGINS), 3))
def test_each_plugin_can_be_taken_out_alone(
    name: str, tmp_path: Path, beir: Path, tiny_model: Callable[[str], Path]
) -> None:
    lines = [*CORE, *(line for line, _ in NEEDS[name]), "search ./corpus -q tea"]
    found = run_without({name}, lines, tmp_path, beir, tiny_model("bert"))
    check_core(found)
    check_unknown(NEEDS[name], found[len(CORE) : -1])
    if name != "documents":
        assert found[-1][0] == 0, found[-1][2]
