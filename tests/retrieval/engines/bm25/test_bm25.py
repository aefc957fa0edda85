import json
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import ir_measures
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmkcli.data.collection import Doc, Query, open_collection
from lmkcli.errors import DataError, Mismatch
from lmkcli.progress import silent
from lmkcli.retrieval.engine import engine_of
from lmkcli.retrieval.engines.bm25.bm25_engine import FOLDER, Bm25, Bm25Search
from lmkcli.retrieval.lexical.feedback import expand, is_expansion_term
from lmkcli.retrieval.lexical.lexical_settings import Feedback, LexicalSettings
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.pipeline import open_index
from lmkcli.text.analyzer import Analyzer
from tests.indexes import build_lexical

ROOT = Path(__file__).resolve().parents[4]
WORDS = ["tree", "stone", "river", "cloud", "zebra", "don't", "3.14", "东京"]
texts = st.lists(st.sampled_from([*WORDS, "the"]), max_size=12).map(" ".join)


def indexed(folder: Path, texts: list[str], settings: LexicalSettings | None = None) -> Bm25Search:
    engine = Bm25(settings or LexicalSettings())
    docs = [Doc(f"d{number}", text) for number, text in enumerate(texts)]
    folder.mkdir(exist_ok=True)
    engine.write(docs, folder, silent)
    return engine.open(folder)


def found(index: Bm25Search, query: str, k: int = 10) -> list[str]:
    return index.search([Query("q", query)], k).rankings["q"].doc_ids


def by_the_formula(texts: list[str], query: str, settings: LexicalSettings) -> dict[str, float]:
    """BM25 by the formula in the docstring of the engine, term by term in float64."""
    analyzer = Analyzer(settings.language)
    bags = [Counter(analyzer(text)) for text in texts]
    mean = sum(bag.total() for bag in bags) / len(bags)
    scores = {}
    for number, bag in enumerate(bags):
        terms = [term for term in analyzer(query) if bag[term]]
        score = 0.0
        for term in terms:
            df = sum(1 for other in bags if other[term])
            idf = math.log(1 + (len(bags) - df + 0.5) / (df + 0.5))
            long = 1 - settings.b + settings.b * bag.total() / mean
            score += idf * bag[term] / (bag[term] + settings.k1 * long)
        if terms:
            scores[f"d{number}"] = score
    return scores


def test_building_streams_reports_and_returns_facts(tmp_path: Path) -> None:
    seen = []
    docs = (Doc(str(number), "a few words here") for number in range(10))
    facts = Bm25(LexicalSettings()).write(docs, tmp_path, lambda *report: seen.append(report))
    assert seen[-1] == (10, None, "documents")
    assert facts["documents"] == 10
    assert facts["vocabulary"] == 3
    assert facts["tokens"] == facts["postings"] == 30
    assert facts["analysis"] == Analyzer("en").identity()


def test_two_builds_are_equal_byte_for_byte_and_contain_no_pickle(tmp_path: Path) -> None:
    texts = ["one two three", "two three", "three four"]
    for name in ("a", "b"):
        indexed(tmp_path / name, texts)
    files = sorted(path.name for path in (tmp_path / "a" / FOLDER).iterdir())
    for name in files:
        content = (tmp_path / "a" / FOLDER / name).read_bytes()
        assert content == (tmp_path / "b" / FOLDER / name).read_bytes()
        assert not content.startswith(b"\x80")
    for name in files:
        if name.endswith(".npy"):
            np.load(tmp_path / "a" / FOLDER / name, allow_pickle=False)


def test_a_damaged_index_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="build the index again"):
        Bm25(LexicalSettings()).open(tmp_path)
    indexed(tmp_path, ["apple"])
    (tmp_path / FOLDER / "vocab.index.json").write_text("{")
    with pytest.raises(DataError, match="build the index again"):
        Bm25(LexicalSettings()).open(tmp_path)


def test_own_stemmer_and_stop_words_are_used_for_both_sides(tmp_path: Path) -> None:
    texts = ["universities of one", "university the"]
    chosen = LexicalSettings(stemmer="none", stopwords="one")
    index = indexed(tmp_path, texts, chosen)
    assert found(index, "universities") == ["d0"]
    assert found(index, "the one") == ["d1"]
    with pytest.raises(Mismatch, match="stop_words: 'as given'"):
        Bm25(LexicalSettings(stemmer="none")).open(tmp_path)


def expanded_scores(
    texts: list[str], query: str, settings: LexicalSettings, feedback: Feedback
) -> dict[str, float]:
    """Feedback over BM25 in float64: the weighted sum of the scores of single terms."""
    vocabulary = {term for text in texts for term in Analyzer()(text)}
    term_scores = {term: by_the_formula(texts, term, settings) for term in vocabulary}
    first = by_the_formula(texts, query, settings)
    best = sorted(first, key=lambda name: (-np.float32(first[name]), -int(name[1:])))[
        : feedback.docs
    ]
    terms = Analyzer()
    bags = [
        {
            term: count
            for term, count in Counter(terms(texts[int(name[1:])])).items()
            if is_expansion_term(term, len(term_scores[term]) / len(texts), feedback, True)
        }
        for name in best
    ]
    weights = expand(
        terms(query), bags, [float(np.float32(first[name])) for name in best], feedback
    )
    scores: dict[str, float] = {}
    for term, weight in weights.items():
        for name, score in term_scores.get(term, {}).items():
            scores[name] = scores.get(name, 0.0) + weight * score
    return scores


@pytest.mark.parametrize("feedback", [Feedback("rm3", 2, 2, 0.4), Feedback("rocchio")])
@settings(max_examples=25, deadline=None)
@given(st.lists(texts, min_size=1, max_size=6), st.sampled_from(WORDS[:5]))
def test_feedback_expands_a_query_with_terms_of_the_first_documents(
    tmp_path_factory: pytest.TempPathFactory, feedback: Feedback, texts: list[str], query: str
) -> None:
    texts = [*texts, *["filler"] * 40]  # so that the share of documents with a word can be low
    folder = tmp_path_factory.mktemp("bm25")
    rows = [{"_id": f"d{number}", "text": text} for number, text in enumerate(texts)]
    (folder / "docs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    build_lexical(
        open_collection(str(folder / "docs.jsonl")),
        folder / "i",
        engine_of("bm25"),
        LexicalSettings(),
    )
    rm3 = OpenSettings(rm3=True, rm3_terms=2, rm3_docs=2, rm3_weight=0.4)
    index = open_index(
        folder / "i", rm3 if feedback.method == "rm3" else OpenSettings(rocchio=True)
    )
    assert index.info.search["feedback"]["method"] == feedback.method
    ranking = index.search([Query("q", query)], 9).rankings["q"]
    expected = expanded_scores(texts, query, LexicalSettings(), feedback)
    assert len(ranking.doc_ids) == min(9, len(expected))
    for doc_id, score in zip(ranking.doc_ids, ranking.scores, strict=True):
        assert score == pytest.approx(expected[doc_id], rel=1e-5)


# Measured nDCG@10, which must stay equal within rounding; Lucene has .6789 for scifact.
@pytest.mark.parametrize(
    ("name", "language", "expected"),
    [
        ("scifact", "en", 0.682),
        ("cranfield", "en", 0.342),
        ("xquad-en", "en", 0.965),
        ("xquad-de", "de", 0.942),
        ("xquad-ar", "ar", 0.935),
        ("xquad-hi", "hi", 0.956),
        ("xquad-zh", "zh", 0.967),
    ],
)
def test_real_collections(
    shared: Path, tmp_path: Path, name: str, language: str, expected: float
) -> None:
    collection = open_collection(str(shared / "data" / name))
    settings = LexicalSettings(language=language)
    Bm25(settings).write(collection.docs(), tmp_path, silent)
    run = Bm25(settings).open(tmp_path).search(collection.judged_queries(), 10)
    scored = [
        ir_measures.ScoredDoc(query_id, doc_id, float(score))
        for query_id, ranking in run.rankings.items()
        for doc_id, score in zip(ranking.doc_ids, ranking.scores, strict=True)
    ]
    qrels = [ir_measures.Qrel(q.query_id, q.doc_id, q.grade) for q in collection.qrels()]
    measure = ir_measures.nDCG @ 10
    assert ir_measures.calc_aggregate([measure], qrels, scored)[measure] == pytest.approx(
        expected, abs=0.004
    )


def test_jax_is_not_started(tmp_path: Path) -> None:
    """Where JAX is installed, bm25s would start it, and it takes the memory of a GPU."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("print('started')\n")
    (tmp_path / "jax" / "lax.py").write_text("def top_k(*_): ...\n")
    code = "import lmkcli.retrieval.engines.bm25.bm25_engine; print('opened'); import jax"
    path = os.pathsep.join([str(tmp_path), str(ROOT), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("opened\nstarted\n", "")
