"""Extension by entry points: the package in examples/plugin adds a pooler and a loss."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmkcli import catalog
from lmkcli.errors import UsageError
from tests.forkserver import ForkServer
from tests.tiny import write_jsonl

PLUGIN = Path(__file__).resolve().parents[1] / "examples" / "plugin"
TRIPLES = [
    {"query": f"question {n}", "positive": f"answer {n}", "negatives": [f"other {n + 1}"]}
    for n in range(8)
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages that pip installed the plugin into."""
    folder = tmp_path_factory.mktemp("site")
    source = shutil.copytree(PLUGIN, tmp_path_factory.mktemp("source") / "plugin")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(folder), str(source)], check=True)
    return folder


@pytest.fixture
def lmk(installed: Path, forkserver: ForkServer, tmp_path: Path) -> Callable[..., Any]:
    """Runs lmk in a process that sees the plugin."""
    paths = [str(installed), str(PLUGIN.parents[1]), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def run(*words: object, code: int = 0) -> Any:
        done = forkserver.run(*words, env=env, cwd=tmp_path)
        assert done.returncode == code, done.stderr
        return done

    return run


def test_its_parts_are_used_listed_and_recorded(
    lmk: Callable[..., Any], tmp_path: Path, beir: Path, tiny_model: Callable[[str], Path]
) -> None:
    rows = json.loads(lmk("show", "poolers", "--json").stdout)
    assert {"poolers": "head@k", "description": "from lmk-head 0.1.0", "needs": ""} in rows
    assert "triplet" in lmk("show", "objectives").stdout
    model = tiny_model("bert")
    lmk("encode", beir, "-m", model, "--pool", "head@4", "-o", "v")
    made = json.loads((tmp_path / "v" / "manifest.json").read_text())
    recipe = made["identity"]["recipe"]["doc"]
    assert (recipe["pool"], recipe["pool_package"]) == ("head@4", "lmk-head 0.1.0")
    lmk("search", "v", beir, "-o", "run.trec")
    write_jsonl(tmp_path / "triples.jsonl", TRIPLES)
    how = ["--steps", 2, "--batch-size", 4, "--pool", "head@4", "--loss", "triplet"]
    lmk("train", "triples.jsonl", "-m", model, *how, "-o", "model")
    made = json.loads((tmp_path / "model" / "manifest.json").read_text())
    assert made["identity"]["loss package"] == "lmk-head 0.1.0"
    said = lmk("encode", beir, "-m", model, "--pool", "head@x", "-o", "w", code=2).stderr
    assert "head@k" in said


def test_without_the_package_the_pooler_is_unknown(
    forkserver: ForkServer, tmp_path: Path, beir: Path, tiny_model: Callable[[str], Path]
) -> None:
    line = ["encode", beir, "-m", tiny_model("bert"), "--pool", "head@4", "-o", "v"]
    done = forkserver.run(*line, cwd=tmp_path)
    assert done.returncode == 2
    assert "unknown pooler 'head@4'" in done.stderr


class _Point:
    """An entry point of a package."""

    value = "somewhere:Thing"

    def __init__(self, name: str, package: str) -> None:
        self.name = name
        self.dist = type("Dist", (), {"name": package, "version": "2"})


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([_Point("lmk", "mine")], "lmk .*mine 2 .*'lmk'"),
        ([_Point("x", "mine"), _Point("x", "yours")], "mine 2 .*yours 2 .*'x'"),
    ],
)
def test_a_name_that_is_taken_is_refused_with_both_packages(
    monkeypatch: pytest.MonkeyPatch, points: list[_Point], said: str
) -> None:
    monkeypatch.setattr(catalog, "entry_points", lambda group: points)
    table = catalog.Catalog("poolers", {"lmk": catalog.Row("a:b", "landmarks")})
    assert table["lmk"].help == "landmarks"
    with pytest.raises(UsageError, match=said):
        list(table)
