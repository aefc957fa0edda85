"""Haystacks: the evidence at its position among passages without judgements."""

import json
from pathlib import Path

import pytest

from lmkcli.data.collection import CHUNK_BREAK, Collection, Doc, Shard, open_collection
from lmkcli.errors import DataError, UnknownName, UsageError
from lmkcli.plugins.generated.haystack import open_haystack
from tests import tiny

DOCS, JUDGED = 60, 12


def passages(doc: Doc) -> list[str]:
    return doc.text.split(CHUNK_BREAK)


def contents(folder: Path) -> dict[str, str]:
    return {doc.id: doc.content for doc in open_collection(str(folder)).docs()}


def made(folder: Path, **options: object) -> Collection:
    return open_haystack(
        "haystack", {"from": str(folder)} | {k: str(v) for k, v in options.items()}
    )


@pytest.mark.parametrize("position", [0, 3, 9])
def test_the_evidence_is_at_its_position(beir: Path, position: int) -> None:
    collection, texts = made(beir, distractors=9, position=position), contents(beir)
    docs = list(collection.docs())
    judged = {qrel.doc_id for qrel in open_collection(str(beir)).qrels()}
    assert {doc.id for doc in docs} == judged
    for doc in docs:
        found = passages(doc)
        assert len(found) == 10
        assert found[position] == texts[doc.id]
    assert set(collection.query_metadata("position").values()) == {position}


def test_distractors_are_not_relevant_and_not_repeated(beir: Path) -> None:
    collection, texts = made(beir, distractors=20), contents(beir)
    judged = {texts[qrel.doc_id] for qrel in open_collection(str(beir)).qrels()}
    others = {text for text in texts.values() if text not in judged}
    pairs = set()
    for doc in collection.docs():
        found = passages(doc)
        drawn = [text for text in found if text != texts[doc.id]]
        assert len(drawn) == len(set(drawn)) == 20
        assert set(drawn) <= others
        pairs.add(tuple(drawn))
    assert len(pairs) == len(list(collection.docs()))


def test_without_a_position_each_document_has_a_random_one(beir: Path) -> None:
    collection, texts = made(beir, distractors=9), contents(beir)
    at = {doc.id: passages(doc).index(texts[doc.id]) for doc in collection.docs()}
    assert len(set(at.values())) > 5
    expected: dict[str, int] = {}
    for qrel in collection.qrels():
        expected[qrel.query_id] = min(at[qrel.doc_id], expected.get(qrel.query_id, 99))
    assert collection.query_metadata("position") == expected
    assert collection.query_metadata("language") == {}


def test_judgements_are_those_of_the_passages(beir: Path) -> None:
    inner, collection = open_collection(str(beir)), made(beir, distractors=9)
    assert list(collection.qrels()) == [qrel for qrel in inner.qrels() if qrel.grade > 0]
    judged = {qrel.query_id for qrel in collection.qrels()}
    assert [q for q in inner.queries() if q.id in judged] == list(collection.queries())
    assert "extra0" not in judged


def test_fewer_documents_keep_only_their_queries(beir: Path) -> None:
    whole, some = made(beir, distractors=9), made(beir, distractors=9, docs=7)
    docs = {doc.id for doc in some.docs()}
    assert len(docs) == 7
    assert docs < {doc.id for doc in whole.docs()}
    assert list(some.qrels()) == [qrel for qrel in whole.qrels() if qrel.doc_id in docs]
    assert {q.id for q in some.queries()} == {qrel.query_id for qrel in some.qrels()}


def test_passages_relevant_to_unused_queries_can_be_distractors(tmp_path: Path) -> None:
    """If every passage is relevant to a query, few used queries leave passages as distractors."""
    every = tiny.collection(tmp_path / "every", docs=30, queries=30)
    rows = "".join(f"q{i}\t{name}\t1\n" for i, name in enumerate(contents(every)))
    (every / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    with pytest.raises(DataError, match=r"9 distractors .* 0 .*docs="):
        list(made(every, distractors=9).docs())
    docs = list(made(every, distractors=9, docs=5).docs())
    assert [len(passages(doc)) for doc in docs] == [10] * 5


def test_documents_depend_on_the_seed_and_not_on_shards(beir: Path) -> None:
    one, two = (list(made(beir, distractors=9, seed=seed).docs()) for seed in (0, 1))
    assert {doc.id for doc in one} == {doc.id for doc in two}
    assert one != two
    shards = [doc for i in range(5) for doc in made(beir, distractors=9).docs(Shard(i, 5))]
    assert shards == one


def test_positions_move_only_the_evidence(beir: Path) -> None:
    """A curve over positions then compares the same distractors."""
    texts = contents(beir)
    for first, last in zip(
        made(beir, distractors=9, position=0).docs(),
        made(beir, distractors=9, position=9).docs(),
        strict=True,
    ):
        assert passages(first)[1:] == passages(last)[:-1]
        assert passages(first)[0] == passages(last)[-1] == texts[first.id]


def test_options_of_the_inner_collection_pass_through(beir: Path) -> None:
    spelling = f"haystack,distractors=4,from={beir}:test,fields=text,position=2"
    collection = open_collection(spelling)
    assert collection.name == f"haystack,distractors=4,position=2,from={beir}:test,fields=text"
    assert list(open_collection(collection.name).docs()) == list(collection.docs())
    assert collection.settings["fields"] == "text"
    texts = {doc.id: doc.text for doc in open_collection(str(beir)).docs()}
    assert all(passages(doc)[2] == texts[doc.id] for doc in collection.docs())
    with pytest.raises(UnknownName, match="'splat'"):
        open_collection(f"haystack,from={beir},splat=1")


def test_chunks_of_passages_are_not_chunks_of_the_document(tmp_path: Path) -> None:
    folder = tiny.collection(tmp_path / "chunked", docs=20, queries=2)
    rows = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().strip().split("\n")]
    rows = [{"_id": row["_id"], "chunks": [row["text"], "more"]} for row in rows]
    tiny.write_jsonl(folder / "corpus.jsonl", rows)
    assert {len(passages(doc)) for doc in made(folder, distractors=3).docs()} == {4}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"from": ""}, "from=': .*haystack,from=beir/scifact/test"),
        ({"position": "40"}, "position=40: .*39 distractors .*0 to 39"),
        ({"distractors": "-1"}, "distractors=-1: .*whole number, 0 "),
        ({"position": "first"}, "position=first: .*whole number, 0 "),
        ({"docs": "0"}, "docs=0: .*whole number, 1 "),
    ],
)
def test_bad_options_are_refused(beir: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        made(beir, **options)


def test_too_few_distractors_are_a_data_error(beir: Path) -> None:
    with pytest.raises(DataError, match=r"39 distractors .* 2"):
        list(made(beir).docs())


def test_a_collection_without_relevant_passages_is_refused(tmp_path: Path) -> None:
    folder = tiny.collection(tmp_path / "none")
    text = (folder / "qrels/test.tsv").read_text()
    (folder / "qrels/test.tsv").write_text(text.replace("\t2\n", "\t0\n").replace("\t1\n", "\t0\n"))
    with pytest.raises(DataError, match="no document is judged relevant"):
        list(made(folder).docs())
