"""Lexical indexes of chunks: contexts, ranking of chunks, ranking of documents by their best chunk."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmkcli.data.collection import Collection, CountedDocs, Doc, Query, join_chunks, open_collection
from lmkcli.data.run import Ranking, ranked
from lmkcli.errors import DataError, UsageError
from lmkcli.retrieval.engine import engine_of
from lmkcli.retrieval.index import Index
from lmkcli.retrieval.lexical.lexical_chunks import chunk_spans, chunking_error, chunks
from lmkcli.retrieval.lexical.lexical_settings import LexicalSettings
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.pipeline import open_all, open_index
from lmkcli.retrieval.stages import Stages
from tests.indexes import build_lexical, update_lexical

WORDS = ["tree", "stone", "river", "cloud", "zebra"]
TEXT = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)


class InMemoryCollection(Collection):
    """Documents in memory."""

    settings: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, docs: list[Doc], name: str = "given") -> None:
        self._docs, self.name = docs, name

    def docs(self, *_: object) -> CountedDocs:
        return CountedDocs(lambda: iter(self._docs), len(self._docs))

    def queries(self) -> Any:
        raise NotImplementedError

    qrels = queries


@pytest.fixture(params=["bm25", "lucene"])
def family(request: pytest.FixtureRequest) -> str:
    if request.param == "lucene":
        pytest.importorskip("pyserini")
    return str(request.param)


def indexed(folder: Path, family: str, docs: list[Doc], level: str = "", **own: Any) -> Index:
    built(docs, folder, family, unit="chunk", **own)
    return open_index(folder, OpenSettings(level="chunk" if level else None))


def built(docs: list[Doc], folder: Path, family: str, **own: Any) -> Any:
    engine = engine_of(family)
    return build_lexical(InMemoryCollection(docs), folder, engine, engine.settings_type(**own))


def found(index: Index, words: str, k: int = 10) -> Ranking:
    return index.search([Query("q", words)], k).rankings["q"]


@given(TEXT, TEXT, st.integers(1, 5))
def test_words_are_cut_into_chunks_and_none_is_lost(title: str, text: str, size: int) -> None:
    for context in ("", "title"):
        doc = Doc("d", text, title)
        own = LexicalSettings(unit="chunk", gran=str(size), context=context)
        cut = [doc.content[begin:end].split() for begin, end in chunk_spans(doc, own)]
        words = text.split() if context else doc.content.split()
        assert [word for chunk in cut for word in chunk] == words
        assert all(len(chunk) == size for chunk in cut[:-1])
        assert len(cut[-1]) <= size


def test_chunks_follow_their_contexts() -> None:
    doc = Doc("d", join_chunks(["# A", "x", "y"]), "T")
    given = {"unit": "chunk", "gran": "given"}
    made = {}
    for context in ("", "title", "headings"):
        own = LexicalSettings(**given, context=context)
        made[context] = [(chunk.id, chunk.title, chunk.text) for chunk in chunks([doc], own)]
    assert made[""] == [("d#0", "", "T # A"), ("d#1", "", "x"), ("d#2", "", "y")]
    assert made["title"] == [("d#0", "T", "# A"), ("d#1", "T", "x"), ("d#2", "T", "y")]
    assert made["headings"] == [("d#0", "", "T # A"), ("d#1", "A", "x"), ("d#2", "A", "y")]


@pytest.mark.parametrize("gran", ["given", "sentence", "3"])
def test_chunks_are_indexed_with_their_contexts(tmp_path: Path, family: str, gran: str) -> None:
    """Scores equal those of an index of documents 'context chunk', passages are the chunks."""
    texts = [
        join_chunks(["A tree. A stone.", "The river runs here."]),
        "Clouds are over the river and the stone. No zebra is. Nor a tree.",
        join_chunks(["zebra zebra", "", "stone tree river"]),
    ]
    docs = [Doc(f"d{n}", text, f"cloud {WORDS[n]}") for n, text in enumerate(texts)]
    own = LexicalSettings(unit="chunk", gran=gran, context="title")
    parts = list(chunks(docs, own))
    plain = [Doc(one.id, f"{one.title}\n{one.text}") for one in parts]
    built(plain, tmp_path / "plain", family)
    wanted = open_index(tmp_path / "plain", OpenSettings())
    by_chunk = indexed(tmp_path / "v", family, docs, "chunk", gran=gran, context="title")
    by_doc = open_index(tmp_path / "v", OpenSettings())
    for words in ("tree river", "zebra", "stone cloud", "nothing"):
        expected_chunks, actual = found(wanted, words, 99), found(by_chunk, words, 99)
        assert actual.doc_ids == expected_chunks.doc_ids
        np.testing.assert_array_equal(actual.scores, expected_chunks.scores)
        best: dict[str, float] = {}
        for name, score in zip(*expected_chunks, strict=True):
            best.setdefault(name.partition("#")[0], score)
        expected = ranked(list(best), np.array(list(best.values()), np.float32))
        assert found(by_doc, words).doc_ids == expected.doc_ids
        np.testing.assert_array_equal(found(by_doc, words).scores, expected.scores)
        passages = by_doc.passages(Query("q", words), list(best))
        firsts = {name.partition("#")[0]: name for name in reversed(expected_chunks.doc_ids)}
        text_of = {one.id: one.text for one in parts}
        content = {doc.id: doc.content for doc in docs}
        for name, part in passages.items():
            assert f"{name}#{part.chunk}" == firsts[name]
            assert part.text == text_of[firsts[name]] == content[name][part.begin : part.end]
        assert passages.keys() == best.keys()
    assert by_doc.texts(["d1"]) == {"d1": docs[1]}
    assert by_chunk.texts(["d1#0"])["d1#0"].text == text_of["d1#0"]
    assert by_chunk.passages(Query("q", ""), ["d1#0"])["d1#0"].text == text_of["d1#0"]


@settings(deadline=None, max_examples=12)
@given(st.lists(st.lists(TEXT, min_size=1, max_size=8), min_size=1, max_size=8), st.integers(1, 4))
def test_k_documents_are_found_however_many_chunks_each_has(
    tmp_path_factory: pytest.TempPathFactory, texts: list[list[str]], k: int
) -> None:
    docs = [Doc(f"d{n}", join_chunks(["tree", *parts])) for n, parts in enumerate(texts)]
    folder = tmp_path_factory.mktemp("index")
    index = indexed(folder, "bm25", docs, gran="given")
    by_chunk = open_index(folder, OpenSettings(level="chunk"))
    every = found(by_chunk, "tree river", 999)
    best: dict[str, float] = {}
    for name, score in zip(*every, strict=True):
        best.setdefault(name.partition("#")[0], score)
    wanted = ranked(list(best), np.array(list(best.values()), np.float32)).cut(k)
    assert found(index, "tree river", k).doc_ids == wanted.doc_ids


def test_documents_and_chunks_are_counted(tmp_path: Path, family: str) -> None:
    docs = [Doc("a", join_chunks(["tree", "stone"])), Doc("b", "river")]
    record = built(docs, tmp_path / "v", family, unit="chunk", gran="given")
    assert (record.facts["documents"], record.facts["chunks"]) == (2, 3)


def corpus(path: Path, why: object) -> None:
    record = {"_id": "d", "chunks": ["tree", "stone"], "why": why}
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")


def test_an_update_sees_a_changed_context(tmp_path: Path, family: str) -> None:
    file, folder = tmp_path / "c.jsonl", tmp_path / "v"
    engine = engine_of(family)
    own = engine.settings_type(unit="chunk", gran="given", context="field:why")

    def opened() -> Collection:
        return open_collection(str(file), context="why")

    corpus(file, ["cloud", "zebra"])
    build_lexical(opened(), folder, engine, own)
    level = OpenSettings(level="chunk")
    assert found(open_index(folder, level), "zebra").doc_ids == ["d#1"]
    corpus(file, ["zebra", "cloud cloud"])
    assert "built again" in update_lexical(opened(), folder, engine, own).how
    assert found(open_index(folder, level), "zebra").doc_ids == ["d#0"]
    corpus(file, ["one"])
    with pytest.raises(DataError, match=r"document d .*2 chunks.*1 contexts.*'why'"):
        update_lexical(opened(), folder, engine, own)


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ({"gran": "5"}, "--gran .*only.*--unit chunk"),
        ({"context": "title"}, "--context .*only.*--unit chunk"),
        ({"unit": "chunk"}, "--unit chunk .*--gran .*'sentence' or 'given'"),
        ({"unit": "chunk", "gran": "0"}, "--unit chunk .*--gran .*'sentence' or 'given'"),
        ({"unit": "chunk", "gran": "9" * 5000}, "--unit chunk .*--gran .*'sentence' or 'given'"),
        (
            {"unit": "chunk", "gran": "given", "context": "x"},
            "--context x: .*title, headings, .*field:NAME",
        ),
    ],
)
def test_settings_without_an_effect_are_refused(
    tmp_path: Path, own: dict[str, Any], reason: str
) -> None:
    assert re.search(reason, chunking_error(LexicalSettings(**own)))
    with pytest.raises(UsageError, match=reason):
        build_lexical(
            InMemoryCollection([Doc("d", "tree")]),
            tmp_path / "v",
            engine_of("bm25"),
            LexicalSettings(**own),
        )
    assert not (tmp_path / "v").exists()


@pytest.mark.parametrize(
    ("own_settings", "reason"),
    [
        ({"rm3": True}, "--rm3 .*whole documents.*--unit chunk"),
        ({"aggregate": "sum"}, "--aggregate .*no effect.* bm25 .*chunks"),
        ({"model": "m"}, "--model .*no effect.* bm25 .*chunks"),
    ],
)
def test_search_settings_without_an_effect_on_chunks(
    tmp_path: Path, own_settings: dict[str, Any], reason: str
) -> None:
    indexed(tmp_path / "v", "bm25", [Doc("d", "tree")], gran="given")
    with pytest.raises(UsageError, match=reason):
        open_index(tmp_path / "v", OpenSettings(**own_settings))


def test_indexes_of_chunks_are_fused_by_chunk_and_not_with_others(tmp_path: Path) -> None:
    docs = [Doc("d", join_chunks(["tree", "stone"]))]
    for name, gran in (("a", "given"), ("b", "1")):
        indexed(tmp_path / name, "bm25", docs, gran=gran)
    build_lexical(
        InMemoryCollection(docs), tmp_path / "whole", engine_of("bm25"), LexicalSettings()
    )
    level = OpenSettings(level="chunk")
    made = open_all(Stages([tmp_path / "a", tmp_path / "b"]), level)
    assert [found(index, "tree").doc_ids for index in made] == [["d#0"], ["d#0"]]
    with pytest.raises(UsageError, match="cannot be fused with chunks"):
        open_all(Stages([tmp_path / "a", tmp_path / "whole"]), level)
