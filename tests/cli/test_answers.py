"""Questions to vectors of chunks: the passage and its position; and runs that rank chunks."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmkcli.cli import main
from lmkcli.data.collection import open_collection
from lmkcli.data.run import read_run
from lmkcli.operations import search as answers
from lmkcli.text.query_words import QueryWords

Lmk = Callable[..., Any]
Models = Callable[[str], Path]
QUESTION = "rivers carry water"


@pytest.fixture(scope="module")
def made(beir: Path, tiny_model: Models, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with chunks/ (vectors), graph/ over them, docs/ (one vector each) and bm25/."""
    folder = tmp_path_factory.mktemp("answers")
    model = tiny_model("bert")
    for words in (
        ["encode", beir, "-m", model, "--unit", "chunk", "--gran", 4, "-o", folder / "chunks"],
        ["encode", beir, "-m", model, "-o", folder / "docs"],
        ["index", folder / "chunks", "-o", folder / "graph"],
        ["index", beir, "--kind", "bm25", "-o", folder / "bm25"],
    ):
        main.app(["-q", *map(str, words)], standalone_mode=False)
    return folder


@pytest.mark.parametrize("index", ["chunks", "graph"])
def test_a_question_shows_the_best_passage_and_where_it_is(
    lmk: Lmk, made: Path, beir: Path, index: str
) -> None:
    texts = {doc.id: doc.content for doc in open_collection(str(beir)).docs()}
    hits = lmk("search", made / index, "-q", QUESTION, "-k", 4, "--json").json
    assert len({hit["id"] for hit in hits}) == 4
    for hit in hits:
        assert hit["passage"] == texts[hit["id"]][hit["begin"] : hit["end"]] != ""
        assert 0 <= hit["chunk"] < hit["chunks"]
        assert "text" not in hit
    lines = lmk("search", made / index, "-q", QUESTION, "-k", 4).out.splitlines()
    first = hits[0]
    place = f"chunk {first['chunk'] + 1} of {first['chunks']}, "
    assert lines[1].strip() == place + f"characters {first['begin']}\u2013{first['end']}"
    assert lines[2].strip() == " ".join(first["passage"].split())


def test_reranking_by_chunks_shows_their_passages(lmk: Lmk, made: Path) -> None:
    hits = lmk("search", made / "bm25", "-q", QUESTION, "--rerank", made / "chunks", "--json").json
    assert hits
    assert all("passage" in hit for hit in hits)
    plain = lmk("search", made / "docs", "-q", QUESTION, "--json").json
    assert all("text" in hit and "passage" not in hit for hit in plain)


def test_level_chunk_ranks_chunks(lmk: Lmk, made: Path, beir: Path, tmp_path: Path) -> None:
    chunks, docs = tmp_path / "chunks.trec", tmp_path / "docs.trec"
    lmk("search", made / "chunks", beir, "-k", 7, "--level", "chunk", "-o", chunks)
    lmk("search", made / "chunks", beir, "-k", 7, "-o", docs)
    for query, ranking in read_run(chunks).rankings.items():
        names = [name.rpartition("#") for name in ranking.doc_ids]
        assert len(names) == 7
        assert all(number.isdecimal() for *_, number in names)
        assert names[0][0] == read_run(docs).rankings[query].doc_ids[0]
    hit = lmk("search", made / "graph", "-q", QUESTION, "--level", "chunk", "-k", 1, "--json").json[
        0
    ]
    assert hit["id"].endswith(f"#{hit['chunk']}")
    lmk("search", made / "chunks", beir, "-k", 7, "-o", chunks, code=3)  # a run with other settings


def test_aggregates_make_other_runs(lmk: Lmk, made: Path, beir: Path, tmp_path: Path) -> None:
    scores = {}
    for how in ("max", "sum", "avg", "first"):
        path = tmp_path / f"{how}.trec"
        lmk("search", made / "chunks", beir, "--aggregate", how, "-k", 60, "-o", path)
        ranking = read_run(path).rankings["q0"]
        scores[how] = dict(zip(ranking.doc_ids, ranking.scores.tolist(), strict=True))
    assert all(scores["max"][name] >= scores["avg"][name] - 1e-6 for name in scores["max"])
    assert all(scores["max"][name] >= scores["first"][name] - 1e-6 for name in scores["max"])
    assert list(scores["sum"]) != list(scores["avg"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["docs", "--aggregate", "sum"], "docs .*--aggregate and --level .*--unit chunk"),
        (["docs", "--level", "chunk"], "docs .*--aggregate and --level .*--unit chunk"),
        (["bm25", "--aggregate", "sum"], "error: --aggregate .*no effect.* bm25 "),
        (["bm25", "--level", "chunk"], "--level .*no effect.* bm25 "),
        (["chunks", "--level", "chunk", "--rerank", "docs"], "--level chunk .*fused.*rerank"),
        (
            ["chunks", "--level", "chunk", "--with", "docs", "--fuse", "rrf"],
            "--level chunk .*fused.*rerank",
        ),
        (["chunks", "--level", "chunk", "--aggregate", "max"], "--level chunk .*drop --aggregate"),
        (["chunks", "--aggregate", "mean"], "'mean': .*max, sum, avg or first"),
    ],
)
def test_flags_without_effect_are_refused(
    lmk: Lmk, made: Path, flags: list[str], message: str
) -> None:
    names = {"docs", "bm25", "chunks"}
    words = [made / word if word in names else word for word in flags]
    assert re.search(message, lmk("search", *words, "-q", QUESTION, code=2).err)


def test_chunks_that_the_collection_does_not_give_are_missed(
    lmk: Lmk, tiny_model: Callable[[str], Path], beir: Path, tmp_path: Path
) -> None:
    given = ["-m", tiny_model("bert"), "--unit", "chunk", "--gran", "given", "-o"]
    assert "provides one chunk per document" in lmk("encode", beir, *given, tmp_path / "v").err
    rows = tmp_path / "chunks.jsonl"
    rows.write_text('{"_id": "d", "chunks": ["one", "two"]}\n')
    assert "more than one chunk" not in lmk("encode", rows, *given, tmp_path / "w").err


def test_a_piece_of_a_text_ends_between_words_and_keeps_its_indent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [f"word{number}" for number in range(90)]
    text = " ".join(words)
    for question in ("word0", "word50", "word89"):
        piece = QueryWords(question).snippet(text)
        shown = piece.removeprefix("… ").removesuffix(" …").split()
        assert question in shown
        assert set(shown) <= set(words)
    monkeypatch.setenv("COLUMNS", "70")
    lines = answers._wrapped(QueryWords("word50").snippet(text)).splitlines()
    assert len(lines) > 2
    assert all(line.startswith("     ") and len(line) <= 70 for line in lines)
