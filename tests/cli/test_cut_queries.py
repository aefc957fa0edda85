"""Queries, and pairs of a cross-encoder, that are too long are counted: a line, the manifest, and --json."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import lmkcli
from tests.conftest import Lmk
from tests.models.test_crossencoder import save

Models = Callable[[str], Path]
LONG = "rivers and bread " * 30


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    rows = [
        {"_id": f"q{n}", "text": text} for n, text in enumerate(["rivers", LONG, "bread", LONG])
    ]
    path = tmp_path / "q.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def vectors(lmk: Lmk, beir: Path, tiny_model: Models, tmp_path: Path) -> Path:
    words = ("-m", tiny_model("bert"), "--query-max-length", "16", "-o", tmp_path / "v")
    lmk("encode", beir, *words)
    return tmp_path / "v"


def counted(path: Path) -> int:
    cut: int = json.loads(Path(f"{path}.json").read_text())["facts"]["cut_queries"]
    return cut


def test_search_counts_them(lmk: Lmk, vectors: Path, queries: Path, tmp_path: Path) -> None:
    run = tmp_path / "r.trec"
    words = ("search", vectors, queries, "--all-queries", "-o")
    done = lmk(*words, run)
    assert "2 of 4 queries cut" in done.err
    assert counted(run) == 2
    assert json.loads(lmk(*words, tmp_path / "j.trec", "--json").out)["cut"] == 2
    assert "2 of 4 queries cut" in lmk("-v", *words, tmp_path / "k.trec").err
    assert "cut" in lmk("search", vectors, "-q", LONG, "--server", "none").err
    assert "cut" not in lmk("search", vectors, "-q", "rivers", "--server", "none").err
    found = lmkcli.search(vectors, LONG, server="none")
    assert found.cut


def test_indexes_fusion_and_reranking_count_them_once(
    lmk: Lmk, vectors: Path, beir: Path, queries: Path, tmp_path: Path
) -> None:
    lmk("index", vectors, "--kind", "hnsw", "-o", tmp_path / "hnsw")
    lmk("index", beir, "--kind", "bm25", "-o", tmp_path / "bm25")
    tail = (queries, "--all-queries", "--json", "-o")
    for number, (words, cut) in enumerate(
        [
            ((tmp_path / "hnsw",), 2),
            ((tmp_path / "bm25",), 0),
            ((tmp_path / "bm25", "--with", vectors, "--fuse", "rrf"), 2),
            ((tmp_path / "bm25", "--rerank", vectors), 2),
            ((vectors, "--rerank", vectors), 2),
        ]
    ):
        run = tmp_path / f"{number}.trec"
        assert json.loads(lmk("search", *words, *tail, run).out)["cut"] == cut
        assert counted(run) == cut


def test_shards_count_them(lmk: Lmk, vectors: Path, queries: Path, tmp_path: Path) -> None:
    words = ("search", vectors, queries, "--all-queries", "-o", tmp_path / "r.trec")
    for shard in ("0/2", "1/2"):
        lmk(*words, "--shard", shard)
    assert "2 of 4 queries cut" in lmk(*words).err
    assert counted(tmp_path / "r.trec") == 2


def test_pairs_that_a_cross_encoder_cuts_are_counted(
    lmk: Lmk, beir: Path, queries: Path, tmp_path: Path
) -> None:
    """The two long queries are cut with every document."""
    queries.write_text(queries.read_text().replace(LONG, 2 * LONG))
    lmk("index", beir, "--kind", "bm25", "-o", tmp_path / "bm25")
    model = save(tmp_path / "model", 1)
    run = tmp_path / "r.trec"
    words = ("search", tmp_path / "bm25", queries, "--all-queries", "--rerank-model", model)
    done = lmk(*words, "-o", run)
    rows = [line.split() for line in run.read_text().splitlines()]
    long = sum(row[0] in ("q1", "q3") for row in rows)
    assert long > 1
    assert f"{long} pairs of a query and a document cut" in done.err
    assert json.loads(Path(f"{run}.json").read_text())["facts"]["cut_pairs"] == long
    for _ in range(2):  # the second command finds the run
        assert json.loads(lmk(*words, "--json", "-o", tmp_path / "j.trec").out)["cut_pairs"] == long
    asked = lmk(
        "search", tmp_path / "bm25", "-q", 2 * LONG, "--rerank-model", model, "--server", "none"
    )
    assert f"{long // 2} pairs" in asked.err


def test_a_document_with_only_a_title_is_reranked(lmk: Lmk, tmp_path: Path) -> None:
    docs = [
        {"_id": "a", "title": "rivers and lakes", "text": ""},
        {"_id": "b", "text": "rivers of stone"},
    ]
    (tmp_path / "docs.jsonl").write_text("\n".join(map(json.dumps, docs)))
    (tmp_path / "queries.tsv").write_text("q1\trivers\n")
    lmk("index", tmp_path / "docs.jsonl", "--kind", "bm25", "-o", tmp_path / "bm25")
    words = ("search", tmp_path / "bm25", tmp_path / "queries.tsv")
    done = lmk(*words, "--rerank-model", save(tmp_path / "model", 1), "-o", tmp_path / "r.trec")
    assert "not reranked" not in done.err
    assert len((tmp_path / "r.trec").read_text().splitlines()) == 2
