"""Tiny twins of the grids of papers run completely: each cell has a score, and no step runs twice."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from lmkcli.vectors.stored import Vectors
from tests import levels
from tests.plugins.grid.twins import twin

ROOT = Path(__file__).resolve().parents[3]
PAPERS = ROOT / "examples" / "papers"


class Size(NamedTuple):
    """The size of a twin: rows of its table, collections, trained models."""

    rows: int
    collections: int
    models: int = 0


SIZES = {
    "conteb": Size(3, 2, 1),
    "tite-table4": Size(4, 1),
    "tite-table1": Size(8, 1),  # seven models, and BM25
    "loco-m2bert": Size(11, 1),
    "lmk-table1": Size(13, 3, 9),
    "lmk-table2": Size(7, 3, 4),
    "lmk-table7": Size(13, 3, 9),
    "lmk-table8": Size(7, 3, 4),
    "lmk-table13": Size(9, 3, 12),  # six pre-trained, and each trained
    "lmk-table14": Size(4, 3, 8),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", levels.sample("twins", SIZES, 3))
def test_a_twin_has_all_cells_and_runs_each_step_once(name: str, tmp_path: Path) -> None:
    file, size = twin(PAPERS / f"{name}.toml", tmp_path), SIZES[name]
    words = [sys.executable, "-m", "lmkcli.cli.main", "grid", file.name, "-o", "results", "--json"]
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "left out" not in done.stderr
    scores = json.loads(done.stdout)
    assert len({each["cell"] for each in scores}) == size.rows * size.collections
    assert len({(each["cell"], each["measure"]) for each in scores}) == len(scores)
    measured = {each["measure"] for each in scores}
    assert ("RR@10" in measured) == (name in ("lmk-table13", "tite-table4"))
    assert all(0 <= each["score"] <= 1 for each in scores)
    plan = json.loads((tmp_path / "results" / "plan.json").read_text())
    logs = {path.parent.name: path.read_text() for path in tmp_path.glob("results/steps/*/log.txt")}
    assert logs.keys() == plan["steps"].keys()
    assert {log.count("$ lmk ") for log in logs.values()} == {1}
    check_lengths(name, tmp_path / "results" / "steps")
    made = Counter(key.partition("-")[0] for key in logs)
    assert made["train"] + made["pretrain"] == size.models
    assert made["eval"] == size.rows * size.collections


def check_lengths(name: str, steps: Path) -> None:
    """The manifests of vectors have the paper's lengths of documents and queries, reduced."""
    found = set()
    for path in steps.glob("encode-*/vectors/manifest.json"):
        recipe = json.loads(path.read_text())["identity"]["recipe"]
        found.add((recipe["doc"]["max_length"], recipe["query"]["max_length"]))
        if name == "conteb":  # only the documents of ESG are too long, and they are read as a whole
            lost = Vectors(path.parent).counts().chunks_lost
            cut = recipe["doc"]["max_length"] == 32 and recipe["doc"]["window"] == "full"
            assert bool(lost) == cut
    if name.startswith("lmk-"):  # 8,192 positions of all texts, and 32,768 in LongEmbed
        assert found == {(32, 32), (128, 128)}
    elif name == "tite-table1":  # queries of 32 tokens in §4.1, here 8, and documents of 512
        assert found == {(16, 8)}
    elif name == "conteb":
        assert found == {(32, 32), (512, 512)}


def test_each_paper_has_a_twin() -> None:
    assert SIZES.keys() == {file.stem for file in PAPERS.glob("*.toml")}
