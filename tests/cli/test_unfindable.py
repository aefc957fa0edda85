"""Relevant documents and chunks that an index cannot return are counted: a line, the manifest, and --json."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import tiny
from tests.conftest import Lmk

Models = Callable[[str], Path]
CHUNK = "rivers and bread and birds"


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    """The first and the last chunk of each document are relevant; another chunk is not."""
    folder = tmp_path / "judged"
    (folder / "qrels").mkdir(parents=True)
    docs = {"short": [CHUNK], "long": [CHUNK] * 9, "longer": [CHUNK] * 20}
    tiny.write_jsonl(
        folder / "corpus.jsonl", [{"_id": name, "chunks": chunks} for name, chunks in docs.items()]
    )
    tiny.write_jsonl(folder / "queries.jsonl", [{"_id": "q", "text": "rivers"}])
    chunks = ["short#0", "long#0", "long#8", "longer#0", "longer#19"]
    rows = [f"q\t{chunk}\t1" for chunk in chunks] + ["q\tlonger#18\t0"]
    text = "query-id\tcorpus-id\tscore\n" + "\n".join(rows) + "\n"
    (folder / "qrels" / "test.tsv").write_text(text)
    return folder


def recorded(run: Path) -> int:
    found: int = json.loads(Path(f"{run}.json").read_text())["facts"].get("unfindable", 0)
    return found


@pytest.mark.parametrize("unit", ["chunk", "token"])
def test_chunks_of_cut_documents(
    lmk: Lmk, judged: Path, tiny_model: Models, tmp_path: Path, unit: str
) -> None:
    pool = ("--pool", "mean", "--unit", unit, "--gran", "given", "--max-length", "24")
    lmk("encode", judged, "-m", tiny_model("bert"), *pool, "-o", tmp_path / "v")
    run = tmp_path / "r.trec"
    words = ("search", tmp_path / "v", judged, "--level", "chunk", "-o")
    done = lmk(*words, run)
    assert "2 of 5 relevant chunks or documents cannot be found" in done.err
    assert "long#8" in done.err
    assert recorded(run) == 2
    assert lmk(*words, tmp_path / "j.trec", "--json").json["unfindable"] == 2
    assert "2 of 5 relevant" in lmk(*words, run).err  # also if the run exists


def test_judgements_of_chunks_need_a_ranking_of_chunks(
    lmk: Lmk, judged: Path, tiny_model: Models, tmp_path: Path
) -> None:
    lmk("encode", judged, "-m", tiny_model("bert"), "--pool", "mean", "-o", tmp_path / "v")
    done = lmk("search", tmp_path / "v", judged, "-o", tmp_path / "r.trec")
    assert "5 of 5 relevant chunks or documents cannot be found" in done.err


def test_documents_that_an_index_does_not_contain(
    lmk: Lmk, beir: Path, tiny_model: Models, tmp_path: Path
) -> None:
    part = f"{beir},subset=5"
    lmk("encode", part, "-m", tiny_model("bert"), "-o", tmp_path / "v")
    lmk("index", part, "--kind", "bm25", "-o", tmp_path / "bm25")
    lmk("index", beir, "--kind", "bm25", "-o", tmp_path / "whole")
    lmk("index", tmp_path / "v", "--kind", "hnsw", "-o", tmp_path / "hnsw")
    counts = {}
    for number, stages in enumerate(
        [
            ("v",),
            ("hnsw",),
            ("bm25",),
            ("bm25", "--rerank", tmp_path / "v"),
            ("v", "--with", tmp_path / "bm25", "--fuse", "rrf"),
            ("whole",),
            ("v", "--with", tmp_path / "whole", "--fuse", "rrf"),
        ]
    ):
        run = tmp_path / f"{number}.trec"
        done = lmk("search", tmp_path / stages[0], beir, *stages[1:], "-o", run)
        counts[number] = recorded(run)
        assert ("cannot be found" in done.err) == bool(counts[number])
    some = counts[0]
    assert some > 0
    assert counts == dict.fromkeys(range(5), some) | {5: 0, 6: 0}


def test_unjudged_queries_lack_nothing(
    lmk: Lmk, beir: Path, tiny_model: Models, tmp_path: Path
) -> None:
    lmk("encode", f"{beir},subset=5", "-m", tiny_model("bert"), "-o", tmp_path / "v")
    tiny.write_jsonl(tmp_path / "q.jsonl", [{"_id": "q", "text": "rivers"}])
    run = tmp_path / "r.trec"
    done = lmk("search", tmp_path / "v", tmp_path / "q.jsonl", "--all-queries", "-o", run)
    assert "cannot be found" not in done.err
    assert recorded(run) == 0


def test_a_search_of_all_queries_needs_no_judgements(lmk: Lmk, beir: Path, tmp_path: Path) -> None:
    lmk("index", beir, "--kind", "bm25", "-o", tmp_path / "bm25")
    (tmp_path / "qrels").write_text("damaged\n")
    queries = f"{beir / 'corpus.jsonl'},queries={beir / 'queries.jsonl'},qrels={tmp_path / 'qrels'}"
    words = ("search", tmp_path / "bm25", queries, "-o", tmp_path / "r.trec")
    assert "is not a judgement" in lmk(*words, code=3).err
    lmk(*words, "--all-queries")
