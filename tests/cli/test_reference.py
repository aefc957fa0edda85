"""The main job on real collections, against scores that sentence-transformers reaches with the model.

The figures were measured with its own encode and exact cosine search (all-MiniLM-L6-v2, float32).
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FIGURES = {"scifact": 0.6455, "cranfield": 0.3746}
Lmk = Callable[..., Any]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", sorted(FIGURES))
def test_minilm_by_its_own_recipe(
    lmk: Lmk, shared: Path, minilm: Path, tmp_path: Path, name: str, dtype: str
) -> None:
    collection = shared / "data" / name
    vectors, index, runs = tmp_path / "vectors", tmp_path / "index", tmp_path / "runs"
    lmk("encode", collection, "-m", minilm, "-o", vectors, "--dtype", dtype)
    lmk("search", vectors, collection, "-o", runs / "exact.trec", "-k", 100)
    lmk("index", vectors, "-o", index)
    lmk("search", index, collection, "-o", runs / "hnsw.trec", "-k", 100)
    table = json.loads(
        lmk("eval", runs / "exact.trec", runs / "hnsw.trec", "-m", "nDCG@10", "--json").out
    )
    exact, graph = (row["nDCG@10"] for row in table)
    assert exact == pytest.approx(FIGURES[name], abs=0.002)
    assert graph == pytest.approx(exact, abs=0.002)
    assert recall(runs / "hnsw.trec", runs / "exact.trec") >= 0.98


def recall(approximate: Path, exact: Path) -> float:
    """The share of the exact run's documents that the other run has too."""
    found, wanted = (
        {tuple(line.split()[:3]) for line in path.read_text().splitlines()}
        for path in (approximate, exact)
    )
    return len(found & wanted) / len(wanted)
