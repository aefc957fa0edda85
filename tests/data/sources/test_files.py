"""BEIR folders, single files, options, stdin."""

import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from lmkcli.data.collection import Doc, Qrel, Query
from lmkcli.data.sources.file_collections import FileCollection, open_files
from lmkcli.errors import DataError, UnknownName, UsageError


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    rows = [{"_id": "d1", "title": "T", "text": "x"}, {"_id": "d2", "text": ""}]
    write(tmp_path / "corpus.jsonl", rows)
    write(tmp_path / "queries.jsonl", [{"_id": "q1", "text": "a"}, {"_id": "q2", "text": "b"}])
    (tmp_path / "qrels").mkdir()
    for split, line in (("test", "q1\td1\t2"), ("dev", "q2\td2\t1")):
        (tmp_path / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{line}\n")
    return tmp_path


def write(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_a_beir_folder(beir: Path) -> None:
    collection = open_files(str(beir), {})
    assert list(collection.docs()) == [Doc("d1", "x", "T"), Doc("d2", "")]
    assert list(collection.queries()) == [Query("q1", "a"), Query("q2", "b")]
    assert list(collection.qrels()) == [Qrel("q1", "d1", 2)]
    assert list(open_files(f"{beir}:dev", {}).qrels()) == [Qrel("q2", "d2", 1)]
    assert collection.settings == {"fields": "title+text"}


def test_the_stamp_changes_with_the_corpus(beir: Path) -> None:
    before = open_files(str(beir), {}).file_stats()
    assert list(before) == ["corpus.jsonl"]
    (beir / "corpus.jsonl").write_text("")
    assert open_files(str(beir), {}).file_stats() != before


def test_a_missing_split(beir: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean test"):
        open_files(f"{beir}:tset", {})
    (beir / "qrels/test.tsv").unlink()
    collection = open_files(str(beir), {})
    assert not collection.has_qrels()
    assert len(collection.judged_queries()) == 2
    with pytest.raises(DataError, match=":dev"):
        collection.qrels()


def test_queries_without_a_corpus(beir: Path) -> None:
    (beir / "corpus.jsonl").unlink()
    collection = open_files(str(beir), {})
    assert collection.judged_queries() == [Query("q1", "a")]
    assert collection.file_stats() == {}
    with pytest.raises(DataError, match="no corpus"):
        collection.docs()


def test_a_folder_with_neither(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected BEIR's corpus.jsonl"):
        open_files(str(tmp_path), {})


def test_a_corpus_without_queries(beir: Path) -> None:
    (beir / "queries.jsonl").unlink()
    with pytest.raises(DataError, match="add ',queries=path'"):
        open_files(str(beir), {}).queries()


def test_queries_and_qrels_for_a_single_file(beir: Path) -> None:
    (beir / "topics.tsv").write_text("q1\twhat is x\nq2\twhat is y\n")
    (beir / "q.txt").write_text("q2 0 d1 1\n")
    options = {"queries": str(beir / "topics.tsv"), "qrels": str(beir / "q.txt")}
    collection = open_files(str(beir / "corpus.jsonl"), options)
    assert collection.judged_queries() == [Query("q2", "what is y")]
    assert list(collection.qrels()) == [Qrel("q2", "d1", 1)]
    with pytest.raises(DataError, match="qrels=nowhere: no such file"):
        open_files(str(beir), {"qrels": "nowhere"})
    with pytest.raises(UsageError, match="only a folder has splits"):
        open_files(f"{beir}/corpus.jsonl:dev", {})


def test_a_single_file_of_topics(tmp_path: Path) -> None:
    path = tmp_path / "topics.robust"
    path.write_text("<top>\n<num> Number: 7\n<title> a\n<desc> Description: b\n</top>\n")
    assert list(open_files(str(path), {}).queries()) == [Query("7", "a")]
    chosen = open_files(str(path), {"fields": "title+description"})
    assert list(chosen.queries()) == [Query("7", "a b")]


def test_chosen_fields_apply_to_documents_and_not_to_separate_queries(beir: Path) -> None:
    write(beir / "corpus.jsonl", [{"_id": "d1", "head": "h", "body": "b"}])
    collection = open_files(str(beir), {"fields": "head+body"})
    assert list(collection.docs()) == [Doc("d1", "h b")]
    assert len(list(collection.queries())) == 2


def test_ids_are_mapped_everywhere(beir: Path) -> None:
    write(beir / "corpus.jsonl", [{"_id": "d 1", "text": "x"}])
    write(beir / "queries.jsonl", [{"_id": "q 1", "text": "x"}])
    (beir / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq 1\td 1\t1\n")
    for read in (FileCollection.docs, FileCollection.queries, FileCollection.qrels):
        with pytest.raises(DataError, match=r"line .*map_ids=1"):
            list(read(open_files(str(beir), {})))
    mapped = open_files(str(beir), {"map_ids": "1"})
    assert list(mapped.docs()) == [Doc("d_1", "x")]
    assert mapped.judged_queries() == [Query("q_1", "x")]
    assert list(mapped.qrels()) == [Qrel("q_1", "d_1", 1)]


def test_stdin_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b'{"id": "1", "text": "x"}\n{"id": "2", "text": "y"}\n')
    collection = open_files("-", {})
    assert [doc.id for doc in collection.docs()] == ["1", "2"]
    assert collection.file_stats() == {}
    with pytest.raises(DataError, match="only once"):
        collection.docs()


def test_stdin_as_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, "7\tübung\n".encode())
    assert list(open_files("-", {}).queries()) == [Query("7", "übung")]


def test_real_collections(shared: Path) -> None:
    scifact = open_files(str(shared / "data/scifact"), {})
    docs = list(scifact.docs())
    assert len(docs) == 5183
    assert len(scifact.judged_queries()) == 300
    assert all(doc.title for doc in docs)
    cranfield = open_files(str(shared / "data/cranfield"), {})
    assert {"471", "995"} <= {doc.id for doc in cranfield.docs() if not doc.text}


def test_a_copy_of_a_known_collection_is_read_like_the_original(beir: Path) -> None:
    titled = open_files(str(beir), {"like": "beir/arguana"})
    assert next(iter(titled.docs())) == Doc("d1", "x", "T")
    assert titled.settings == open_files(str(beir), {}).settings
    assert titled.name == f"{beir},like=beir/arguana"
    untitled = open_files(str(beir), {"like": "mldr/en/test"})
    assert next(iter(untitled.docs())) == Doc("d1", "x")
    assert untitled.settings == {"fields": "text"}
    write(beir / "corpus.jsonl", [{"_id": "d1", "passage": "x", "title": "T"}])
    assert next(iter(open_files(str(beir), {"like": "loco/qmsum"}).docs())) == Doc("d1", "x")
    chosen = open_files(str(beir), {"like": "loco/qmsum", "fields": "title"})
    assert next(iter(chosen.docs())) == Doc("d1", "T")
    with pytest.raises(UnknownName, match=r"'beir/arguna'.*beir/arguana"):
        open_files(str(beir), {"like": "beir/arguna"})
