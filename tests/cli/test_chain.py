"""All steps on a tiny collection with tiny models: every pooler, every verb, every table."""

import hashlib
import json
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmkcli.artifact import manifest
from lmkcli.cli import main
from lmkcli.vectors.stored import Vectors
from tests import tiny

Models = Callable[[str], Path]
Lmk = Callable[..., Any]
POOLERS = [
    ["--pool", "cls"],
    ["--pool", "last"],
    ["--pool", "mean"],
    ["--pool", "mean@4"],
    ["--pool", "multicls", "--gran", "8"],
    ["--pool", "lmk", "--gran", "8"],
    ["--pool", "lmk", "--gran", "sentence"],
]
MEASURES = {"nDCG@10", "R@100", "RR@10"}


@pytest.mark.parametrize("pooling", POOLERS, ids=lambda words: "-".join(words[1::2]))
def test_documents_to_scores(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path, pooling: list[str]
) -> None:
    model = tiny_model("bert")
    tokens, vectors, graph, run = (tmp_path / name for name in ("t", "v", "i", "r.trec"))
    split = ["--gran", "sentence", "--pool", "lmk"] if "sentence" in pooling else []
    assert (
        lmk("tokenize", beir, "-m", model, "-o", tokens, *split, "--json").json["documents"] == 60
    )
    for source in (
        beir,
        tokens,
    ):  # both sources give the same vectors, so the second run does nothing
        made = lmk("encode", source, "-m", model, "-o", vectors, *pooling, "--json").json
        assert (made["docs"], made["vectors"], made["empty"]) == (60, 60, 0)
    lmk("index", vectors, "-o", graph)
    for place in (vectors, graph):
        path = run.with_stem(place.name)
        shown = lmk("search", place, beir, "-k", 100, "-o", path, "--json").json
        assert (shown["queries"], shown["lines"], shown["silent"]) == (12, 12 * 60, 0)
        scores = lmk("eval", path, "--json").json[0]
        assert scores.keys() >= MEASURES
        assert scores["R@100"] == 1.0  # all documents are encoded
    exact, ann = ((tmp_path / f"{name}.trec").read_text().split() for name in "vi")
    assert exact[2::6] == ann[2::6]


def test_a_query_finds_its_own_text(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    """With random weights, the first hit of each document is still the document itself."""
    docs = [json.loads(line) for line in (beir / "corpus.jsonl").open(encoding="utf-8")]
    queries = tmp_path / "queries.jsonl"
    tiny.write_jsonl(
        queries, [{"_id": d["_id"], "text": f"{d['title']} {d['text']}"} for d in docs]
    )
    vectors, run = tmp_path / "v", tmp_path / "run.trec"
    lmk("encode", beir, "-m", tiny_model("bert"), "-o", vectors, "--pool", "lmk", "--gran", "4")
    lmk("search", vectors, queries, "-k", 1, "-o", run)
    lines = [line.split() for line in run.read_text().splitlines()]
    assert [line[0] for line in lines] == [d["_id"] for d in docs]
    assert (
        sum(line[0] == line[2] for line in lines) >= 58
    )  # this tokenizer does not distinguish NFC and NFD


@pytest.mark.parametrize("name", ["modernbert", "mpnet", "qwen2"])
def test_other_architectures(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path, name: str
) -> None:
    vectors, run = tmp_path / "v", tmp_path / "run.trec"
    lmk("encode", beir, "-m", tiny_model(name), "-o", vectors, "--pool", "lmk", "--gran", 16)
    lmk("search", vectors, beir, "-o", run)
    assert lmk("eval", run, "--json").json[0]["R@100"] == 1.0
    attention = lmk("show", vectors, "--json").json["execution"]["attention"]
    assert attention == ("packed" if tiny.KINDS[name].packs else "padded")


@pytest.fixture(scope="module")
def chain(tiny_model: Models, beir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one artifact of each kind. Tests may add files, but not change existing ones."""
    folder, model = tmp_path_factory.mktemp("chain"), tiny_model("bert")
    for words in (
        ["tokenize", beir, "-m", model, "-o", folder / "tokens"],
        ["encode", beir, "-m", model, "-o", folder / "vectors", "--dtype", "fp32"],
        ["index", folder / "vectors", "-o", folder / "hnsw"],
        ["index", beir, "--kind", "bm25", "-o", folder / "bm25"],
        ["search", folder / "vectors", beir, "-o", folder / "run.trec"],
        ["eval", folder / "run.trec", "--log", folder / "scores.jsonl"],
    ):
        main.app(["-q", *map(str, words)], standalone_mode=False)
    return folder


def test_every_table_is_json_too(lmk: Lmk, chain: Path, tiny_model: Models, beir: Path) -> None:
    model = tiny_model("bert")
    shown = lmk("tokenize", "--show", "copper conducts", "-m", model, "--json").json
    [only] = shown["inputs"]
    assert len(only["ids"]) == len(only["tokens"])
    plan = lmk("encode", beir, "-m", model, "--dry-run", "--json").json
    assert (plan["documents"], plan["empty texts"]) == (60, 0)
    assert lmk("index", chain / "vectors", "-o", chain / "hnsw", "--json").json["rows"] == 60
    assert lmk("index", beir, "--kind", "bm25", "-o", chain / "bm25", "--json").json
    hits = lmk("search", chain / "vectors", "-q", "copper", "--json").json
    assert [hit["rank"] for hit in hits] == list(range(1, 11))
    assert lmk("search", chain / "bm25", "-q", "copper electricity", "--json").json
    assert lmk("eval", chain / "run.trec", "--json").json
    queries = lmk("eval", chain / "run.trec", "-p", "--json").json
    assert {row["query"] for row in queries} == {f"q{i}" for i in range(12)}
    assert lmk("verify", chain / "vectors", "--json").json["least cosine"] > 0.99999


@pytest.mark.parametrize(
    "what",
    [
        *("tokens", "vectors", "hnsw", "bm25", "run.trec", "scores.jsonl"),
        *("sources", "poolers", "models", "engines", "losses"),
    ],
)
def test_show_is_json_too(lmk: Lmk, chain: Path, what: str) -> None:
    path = chain / what
    target = path if path.exists() else what
    assert lmk("show", target, "--json").json
    assert lmk("show", target).out.strip()


def test_show_counts_a_collection(lmk: Lmk, beir: Path) -> None:
    facts = lmk("show", beir, "--json").json
    assert (facts["documents"], facts["judged queries"], facts["judgements"]) == (60, 12, 36)


def test_show_counts_judged_documents_that_the_collection_lacks(
    lmk: Lmk, beir: Path, tmp_path: Path
) -> None:
    qrels = tmp_path / "more.qrels"
    qrels.write_text("q0 0 d000 1\nq0 0 d001#2 1\nq1 0 nowhere 1\n")
    facts = lmk("show", f"{beir},qrels={qrels}", "--json").json
    assert facts["judged but not there"] == "1 documents, such as nowhere"
    assert not lmk("show", beir, "--json").json["judged but not there"]


def test_lineage_reaches_from_the_run_to_the_collection(lmk: Lmk, chain: Path, beir: Path) -> None:
    lmk("search", chain / "hnsw", beir, "-o", chain / "ann.trec")
    facts = lmk("show", chain / "ann.trec", "--json").json
    vectors = facts["from"]["from"]
    assert facts["from"]["artifact"].startswith("index")
    assert vectors["artifact"].startswith("vectors")
    assert Path(vectors["from"]["collection"]).name == "beir"


@pytest.mark.parametrize("form", ["markdown", "csv", "latex", "table"])
def test_scores_in_every_form(lmk: Lmk, chain: Path, form: str) -> None:
    value = lmk("eval", chain / "run.trec", "-m", "RR@10", "--json").json[0]["RR@10"]
    assert f"{value:.4f}" in lmk("eval", chain / "run.trec", "-m", "RR@10", "-f", form).out


def test_a_repeated_command_changes_nothing(
    lmk: Lmk, chain: Path, tiny_model: Models, beir: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in chain.rglob("*") if path.is_file()}
    model = tiny_model("bert")
    lmk("tokenize", beir, "-m", model, "-o", chain / "tokens")
    lmk("encode", beir, "-m", model, "-o", chain / "vectors", "--dtype", "fp32")
    lmk("index", chain / "vectors", "-o", chain / "hnsw")
    lmk("index", beir, "--kind", "bm25", "-o", chain / "bm25")
    again = lmk("search", chain / "vectors", beir, "-o", chain / "run.trec")
    assert "is up to date" in again.err
    assert {path: path.stat().st_mtime_ns for path in chain.rglob("*") if path.is_file()} == before


def test_shards_are_the_whole(lmk: Lmk, chain: Path, tiny_model: Models, beir: Path) -> None:
    command = ["encode", beir, "-m", tiny_model("bert"), "-o", chain / "shards", "--dtype", "fp32"]
    for number in (2, 0):
        lmk(*command, "--shard", f"{number}/3")
    early = lmk("search", chain / "shards", beir, "-o", chain / "early.trec", code=3)
    assert "not finished: 1;" in early.err
    assert not (chain / "early.trec").exists()
    lmk(*command, "--shard", "1/3")
    lmk("search", chain / "shards", beir, "-o", chain / "shards.trec")
    runs = [(chain / name).read_text().split()[2::6] for name in ("run.trec", "shards.trec")]
    assert runs[0] == runs[1]
    assert (
        Vectors(chain / "shards").collection_digest()
        == Vectors(chain / "vectors").collection_digest()
    )


def test_verify_fails_where_vectors_are_others(lmk: Lmk, chain: Path, tmp_path: Path) -> None:
    vectors = shutil.copytree(chain / "vectors", tmp_path / "vectors")
    (part,) = (vectors / "parts").iterdir()
    array = np.load(part / "vectors.npy")
    array[-1] = array[-2]
    np.save(part / "vectors.npy", array)
    assert "digest differs" in lmk("verify", vectors, code=3).err
    # other vectors that were recorded as they are: only encoding them again shows it
    facts = json.loads((part / "part.json").read_text())
    hashes = {"vectors": hashlib.sha256(array.tobytes()).hexdigest()}
    digest = manifest.digest({"arrays": hashes, "collection": facts["collection"]})
    (part / "part.json").write_text(json.dumps({**facts, "arrays": hashes, "digest": digest}))
    (done,) = (vectors / "done").glob("*.json")
    listed = json.loads(done.read_text())
    done.write_text(json.dumps({**listed, "parts": {part.name: digest}}))
    assert "differs (cosine" in lmk("verify", vectors, code=4).err


def test_interactive_answers_line_by_line(
    lmk: Lmk, chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("copper wire\n\nrivers\n"))
    assert lmk("search", chain / "vectors", "-i", "-k", 2).out.count("  1  ") == 2


def test_unicode_comes_back_as_it_went_in(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    lmk("encode", beir, "-m", tiny_model("roberta"), "-o", tmp_path / "v")
    lmk("index", beir, "--kind", "bm25", "-o", tmp_path / "bm25")
    for name, text in tiny.STRANGE.items():
        first = lmk("search", tmp_path / "v", "-q", text, "-k", 1, "--json").json[0]
        assert (first["id"], first["text"]) == (f"s-{name}", " ".join(text.split()))
    found = lmk("search", tmp_path / "v", "-q", tiny.STRANGE["nfd"], "-k", 1, "--json")
    assert unicodedata.is_normalized("NFD", found.json[0]["text"])
    assert "\\u" not in found.out  # readable instead of escaped
    lexical = lmk("search", tmp_path / "bm25", "-q", "family waves", "-k", 1, "--json").json[0]
    assert lexical["text"] == tiny.STRANGE["emoji"]


def test_ids_of_every_script_survive_a_run(lmk: Lmk, tiny_model: Models, tmp_path: Path) -> None:
    ids = ["\u00e9", "e\u0301", "文書", "وثيقة", "👩‍👧", "a#b", "x/y:z"]
    corpus = tmp_path / "c.jsonl"
    tiny.write_jsonl(
        corpus, [{"_id": name, "text": tiny.sentence(i, 9)} for i, name in enumerate(ids)]
    )
    lmk("encode", corpus, "-m", tiny_model("bert"), "-o", tmp_path / "v")
    lmk("search", tmp_path / "v", corpus, "-o", tmp_path / "r.trec")
    lines = [line.split() for line in (tmp_path / "r.trec").read_text("utf-8").splitlines()]
    assert len(lines) == len(ids) ** 2
    assert {line[0] for line in lines} == {line[2] for line in lines} == set(ids)


def test_qrels_first_as_in_trec_eval(lmk: Lmk, chain: Path, beir: Path) -> None:
    qrels = chain / "q.qrels"
    rows = (beir / "qrels" / "test.tsv").read_text().splitlines()[1:]
    qrels.write_text("".join("{} 0 {} {}\n".format(*row.split("\t")) for row in rows))
    own = lmk("eval", chain / "run.trec", "--json").json
    assert lmk("eval", qrels, chain / "run.trec", "--json").json == own
    assert lmk("eval", chain / "run.trec", "--qrels", beir, "--json").json == own


def test_all_queries(lmk: Lmk, chain: Path, beir: Path) -> None:
    some = lmk("search", chain / "vectors", beir, "-o", chain / "a.trec", "--if-exists", "fail")
    assert "skipped 2 queries" in some.err
    shown = lmk(
        "search", chain / "vectors", beir, "-o", chain / "b.trec", "--all-queries", "--json"
    )
    assert shown.json["queries"] == 14
    assert "2 without judgements ignored" in lmk("eval", chain / "b.trec").err


def test_a_model_named_without_a_slash_is_found_again_from_elsewhere(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").symlink_to(tiny_model("bert"))
    monkeypatch.chdir(tmp_path)
    lmk("encode", beir, "-m", "mine", "-o", tmp_path / "v")
    monkeypatch.chdir(tmp_path.parent)
    assert lmk("search", tmp_path / "v", "-q", "copper", "--json").json


def test_stemmer_and_stop_words_of_an_index_are_those_of_its_queries(
    lmk: Lmk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    corpus, stop = Path("c.jsonl"), Path("stop.txt")
    tiny.write_jsonl(
        corpus, [{"_id": "1", "text": "the river"}, {"_id": "2", "text": "two rivers"}]
    )
    stop.write_text("two\n")
    chosen = ["--kind", "bm25", "--stemmer", "none", "--stopwords"]
    lmk("index", corpus, *chosen, stop, "-o", "own")
    lmk("index", corpus, *chosen, "none", "-o", "all")
    stop.unlink()  # the stop words are in the manifest

    def found(index: str, question: str) -> list[str]:
        return [hit["id"] for hit in lmk("search", index, "-q", question, "--json").json]

    assert found("own", "two the rivers") == ["2", "1"]
    assert (found("own", "two"), found("all", "two")) == ([], ["2"])
    assert found("all", "river") == ["1"]
    other = lmk("index", corpus, *chosen, "none", "-o", "own", code=3).err
    assert "own " in other
    assert "stopwords" in other
