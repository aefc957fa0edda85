"""lmk index --kind milvus, search, update and eval, with Milvus Lite."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lmkcli.data.run import read_run
from tests.conftest import Lmk

pytest.importorskip("milvus_lite")
pymilvus = pytest.importorskip("pymilvus")

Models = Callable[[str], Path]
SECRET = "s3cret-t0ken"


@pytest.fixture
def vectors(lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path) -> Path:
    made = tmp_path / "vectors"
    unit = ("--unit", "chunk", "--gran", "8", "--window", "chunk")
    lmk("encode", beir, "-m", tiny_model("bert"), "--pool", "mean", *unit, "-o", made)
    return made


def place(folder: Path, name: str = "docs") -> list[str]:
    return ["--kind", "milvus", "--uri", str(folder / "milvus.db"), "--collection", name]


def test_from_vectors_to_the_run_of_exact_search(
    lmk: Lmk, vectors: Path, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMK_MILVUS_TOKEN", SECRET)
    index = tmp_path / "index"
    done = lmk("index", vectors, *place(tmp_path), "--index-type", "FLAT", "-o", index)
    assert f"{index}: rows " in done.out
    assert "Traceback" not in done.err
    run, exact = tmp_path / "run.trec", tmp_path / "exact.trec"
    lmk("search", index, beir, "-k", 20, "-o", run)
    lmk("search", vectors, beir, "-k", 20, "-o", exact)
    assert read_run(run).rankings.keys() == read_run(exact).rankings.keys()
    for query, ranking in read_run(exact).rankings.items():
        found = read_run(run).rankings[query]
        assert found.doc_ids == ranking.doc_ids
        assert found.scores.tolist() == ranking.scores.tolist()
    texts = [path.read_text("utf-8") for path in tmp_path.rglob("*.json")]
    assert any("milvus.db" in text for text in texts)
    assert not any(SECRET in text for text in texts)
    assert "milvus.db" in lmk("show", index).out
    assert "no files to verify" in lmk("verify", index, code=2).err
    assert "in a database outside of its folder (--kind milvus)" in lmk("repro", run, code=3).err


def test_replaced_and_kept_collections(lmk: Lmk, vectors: Path, tmp_path: Path) -> None:
    client = pymilvus.MilvusClient(str(tmp_path / "milvus.db"))
    client.create_collection("theirs", dimension=3)
    index = tmp_path / "index"
    message = lmk("index", vectors, *place(tmp_path, "theirs"), "-o", index, code=3).err
    assert "collection theirs" in message
    lmk("index", vectors, *place(tmp_path), "-o", index)
    overwrite = ("-o", index, "--if-exists", "overwrite")
    lmk("index", vectors, *place(tmp_path, "theirs"), *overwrite, code=3)
    assert (index / "built.json").is_file()  # the error comes before anything is removed
    lmk("index", vectors, *place(tmp_path), "--index-type", "HNSW", *overwrite)
    assert client.has_collection("theirs")
    assert client.describe_index("docs", "vector")["index_type"] == "HNSW"


def test_lmk_update_follows_the_vectors(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    source, vectors, index = (tmp_path / name for name in ("source", "vectors", "index"))
    shutil.copytree(beir, source)
    lmk("encode", source, "-m", tiny_model("bert"), "--pool", "mean", "-o", vectors)
    lmk("index", vectors, *place(tmp_path), "-o", index)
    corpus = source / "corpus.jsonl"
    lines = corpus.read_text("utf-8").rstrip("\n").split("\n")
    new = '{"_id": "new", "title": "", "text": "copper conducts"}'
    corpus.write_text("\n".join([*lines[3:], new]) + "\n", "utf-8")
    updated = lmk("update", source, vectors, index).err
    assert re.search(r"\b1 vectors? written.*\b3 .*deleted", updated)
    assert "already up to date" in lmk("update", source, vectors, index).err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--kind", "milvus"], r"--kind milvus .*--uri \./milvus\.db --collection docs"),
        (
            ["--kind", "milvus", "--uri", "x.db", "--collection", "a-b"],
            "--collection 'a-b': .*letters, digits",
        ),
        (
            ["--kind", "milvus", "--uri", "ftp://x", "--collection", "a"],
            "--uri 'ftp://x' .*http://host:19530",
        ),
        (
            ["--kind", "milvus", "--uri", f"http://root:{SECRET}@x", "--collection", "a"],
            "--uri .*http://host:19530/DATABASE; .*LMK_MILVUS_TOKEN",
        ),
        (
            ["--kind", "milvus", "--uri", "x.db", "--collection", "a", "--m", "8"],
            "--m .*no effect.*--index-type AUTOINDEX",
        ),
        (["--kind", "hnsw", "--uri", "x.db"], "--uri .*no effect.*--kind hnsw"),
        (["--kind", "bm25", "--index-type", "FLAT"], "--index-type .*no effect.*--kind bm25"),
    ],
)
def test_usage(lmk: Lmk, tmp_path: Path, words: list[str], message: str) -> None:
    (tmp_path / "manifest.json").touch()  # as in a vectors folder
    err = lmk("index", tmp_path, *words, "-o", tmp_path / "index", code=2).err
    assert re.search(message, err)
    assert SECRET not in err


def test_uri_has_no_effect_on_faiss(lmk: Lmk, vectors: Path, tmp_path: Path) -> None:
    lmk("index", vectors, "-o", tmp_path / "hnsw")
    for folder in (tmp_path / "hnsw", vectors):
        message = lmk("search", folder, "-q", "x", "--uri", "x.db", code=2).err
        assert "--uri has no effect" in message
