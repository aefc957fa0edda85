"""Tiny twins of the grids of papers run completely: each cell has a score, and no step runs twice."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from lmkcli.data.collection import CHUNK_BREAK
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
    "conteb-table2": Size(8, 3, 3),
    "conteb-figure4": Size(3, 1, 1),
    "conteb-figure4-left": Size(3, 1, 1),
    "conteb-figure6": Size(12, 3, 12),
    "m2bert-table17": Size(4, 1),
    "tite-table1": Size(8, 1, 1),  # seven models, one of them trained, and BM25
    "tite-table2": Size(6, 1, 12),  # six pre-trained, and each trained
    "tite-table3": Size(7, 1, 14),
    "m2bert-table1": Size(2, 1),
    "m2bert-table6": Size(3, 1, 6),
    "m2bert-table8": Size(3, 1, 3),
    "m2bert-table14": Size(2, 1),
    "m2bert-table15": Size(11, 1),
    "m2bert-table10": Size(11, 1),  # five models, twice, and BM25
    "lmk-table1": Size(14, 3, 10),
    "lmk-table2": Size(8, 3, 5),
    "lmk-table3": Size(6, 3, 6),
    "lmk-table4": Size(10, 3, 10),
    "lmk-table5": Size(5, 3, 5),
    "lmk-table7": Size(14, 3, 10),
    "lmk-table8": Size(7, 3, 4),
    "lmk-table13": Size(9, 3, 12),  # six pre-trained, and each trained
    "lmk-table14": Size(4, 3, 8),
    "lmk-figure1": Size(20, 1, 4),
    "lmk-figure5": Size(28, 3, 4),
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
    assert ("RR@10" in measured) == (name == "lmk-table13")
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
        vectors = Vectors(path.parent)
        chunked = CHUNK_BREAK in vectors.docs(np.zeros(1, np.int64))[0].text
        if (
            name.startswith("conteb") and chunked
        ):  # only ESG's documents are too long; they are read whole
            cut = recipe["doc"]["max_length"] == 32 and recipe["doc"]["window"] == "full"
            assert bool(vectors.counts().chunks_lost) == cut
    if name.startswith("lmk-figure"):  # over the maximum length of documents
        most = 32 if name == "lmk-figure1" else 128
        assert found == {
            (length, most) for length in (16, 17, 18, 19, 32, 64, 128) if length <= most
        }
    elif name.startswith("lmk-"):  # 8,192 positions of all texts, and 32,768 in LongEmbed
        assert found == {(32, 32), (128, 128)}
    elif name == "tite-table1":  # queries of 32 tokens in §4.1, here 8, and documents of 512
        assert found == {(16, 8)}
    elif name == "conteb-table2":
        assert found == {
            (32, 32),
            (512, 512),
            (512, 32),
        }  # a trained model declares its length of queries


def test_each_paper_has_a_twin() -> None:
    assert SIZES.keys() == {file.stem for file in PAPERS.glob("*.toml")}
