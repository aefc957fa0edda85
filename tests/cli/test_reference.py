"""Retrieval on a real collection, compared with scores that were computed without this package.

Dense retrieval: encode of sentence-transformers and exact cosine search (all-MiniLM-L6-v2, float32). Stages:
the same scores, reranked and fused by a few lines of numpy. docs/lexical.md contains more collections.
"""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmkcli.data.run import read_run

pytestmark = pytest.mark.slow
Lmk = Callable[..., Any]
# nDCG@10 on cranfield, and the allowed difference
FIGURES = {
    "exact": (0.3746, 0.002),
    "hnsw": (0.3746, 0.004),
    "bm25": (0.3417, 0.002),
    "rerank": (0.3929, 0.005),
    "rrf": (0.4041, 0.005),
}


def test_minilm_by_its_own_recipe(lmk: Lmk, shared: Path, minilm: Path, tmp_path: Path) -> None:
    """Exact, HNSW, lexical, reranked and fused runs, all from one encoding, which takes minutes."""
    data = shared / "data" / "cranfield"
    vectors, hnsw, bm25 = (tmp_path / name for name in ("vectors", "hnsw", "bm25"))
    lmk("encode", data, "-m", minilm, "-o", vectors, "--dtype", "fp32")
    lmk("index", vectors, "-o", hnsw)
    lmk("index", data, "--kind", "bm25", "-o", bm25)
    searches: dict[str, list[Any]] = {
        "exact": [vectors],
        "hnsw": [hnsw],
        "bm25": [bm25],
        "rerank": [bm25, "--rerank", vectors],
        "rrf": [bm25, "--with", vectors, "--fuse", "rrf"],
    }
    runs = {name: tmp_path / f"{name}.trec" for name in searches}
    for name, (index, *more) in searches.items():
        lmk("search", index, data, *more, "-k", 100, "-o", runs[name])
        found = lmk("eval", runs[name], "-m", "nDCG@10", "--json").json[0]["nDCG@10"]
        figure, tolerance = FIGURES[name]
        assert found == pytest.approx(figure, abs=tolerance), name
    assert recall(runs["hnsw"], runs["exact"]) >= 0.98


def recall(approximate: Path, exact: Path) -> float:
    """The share of the documents of the exact run that the other run also contains."""
    found, wanted = (
        {
            (query, doc)
            for query, ranking in read_run(run).rankings.items()
            for doc in ranking.doc_ids
        }
        for run in (approximate, exact)
    )
    return len(found & wanted) / len(wanted)


def test_bf16_scores_as_fp32_does(lmk: Lmk, shared: Path, minilm: Path, tmp_path: Path) -> None:
    """Forty documents: a CPU without instructions for bf16 takes ten times as long as for fp32."""
    few, whole = tmp_path / "few", shared / "data" / "cranfield"
    few.mkdir()
    for name, lines in (("corpus.jsonl", 40), ("queries.jsonl", 10)):
        with open(whole / name, encoding="utf-8") as file:
            (few / name).write_text("".join(itertools.islice(file, lines)), "utf-8")
    scores = []
    for dtype in ("fp32", "bf16"):
        vectors, run = tmp_path / dtype, tmp_path / f"{dtype}.trec"
        lmk("encode", few, "-m", minilm, "-o", vectors, "--dtype", dtype)
        lmk("search", vectors, few, "--all-queries", "-k", 40, "-o", run)
        found = read_run(run).rankings
        scores.append(
            {(query, doc): s for query in found for doc, s in zip(*found[query], strict=True)}
        )
    fp32, bf16 = scores
    assert len(fp32) == 400
    assert fp32 != bf16
    assert bf16 == pytest.approx(fp32, abs=0.01)
