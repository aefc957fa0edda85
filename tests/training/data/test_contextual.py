"""Documents in chunks: both layouts, what is left out, and the facts of a batch."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmkcli.errors import DataError
from lmkcli.training.data.contextual import (
    ChunkQuery,
    Document,
    Documents,
    chunk_facts,
    conteb_files,
    read_documents,
)
from lmkcli.training.data.sampling import Sampling, batches
from lmkcli.training.data.sources import parse_source
from tests import mirrors


def write(path: Path, *records: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def test_records_with_chunks_and_queries(tmp_path: Path) -> None:
    asked = [{"query": "a?", "chunk": 1}, {"query": "b?", "chunk": 0}]
    path = write(tmp_path / "train.jsonl", {"id": "d", "chunks": ["x", "y"], "queries": asked})
    documents, _ = read_documents([parse_source(path)])
    assert documents[0] == Document("d", ("x", "y"), (ChunkQuery("a?", 1), ChunkQuery("b?", 0)))


def test_a_collection_that_judges_chunks(tmp_path: Path) -> None:
    write(tmp_path / "corpus.jsonl", {"_id": "d", "title": "T", "chunks": ["x", "y"]})
    write(tmp_path / "queries.jsonl", {"_id": "q", "text": "a?"})
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "train.tsv").write_text("q\td#1\t1\nq\td#0\t1\n")
    documents, _ = read_documents([parse_source(f"{tmp_path}:train")])
    assert documents[0] == Document("d", ("T x", "y"), (ChunkQuery("a?", 1), ChunkQuery("a?", 0)))


def test_a_data_set_of_conteb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrors.conteb(tmp_path, "covid-qa", "train", "chunk_id")
    monkeypatch.setenv("LMK_DATA", str(tmp_path))
    documents, (tally,) = read_documents([parse_source("conteb/covid-qa")])
    assert [document.id for document in documents] == ["d0", "d1", "d2"]
    assert [asked.chunk for document in documents for asked in document.queries] == [0, 1, 2]
    assert tally.found() == {"read": 3}


def test_a_folder_with_the_tables_of_conteb(tmp_path: Path) -> None:
    rows = [{"chunk_id": f"a_b_{i}", "chunk": f"text {i}", "og_chunk": ""} for i in (10, 9, 2)]
    mirrors.parquet(tmp_path / "documents/train-00000-of-00001.parquet", rows)
    mirrors.parquet(tmp_path / "documents/test-00000-of-00001.parquet", rows[:1])
    one = [{"query": "one?", "chunk_id": "a_b_9"}, {"query": "lost?", "chunk_id": "a_b_3"}]
    mirrors.parquet(tmp_path / "queries/train-00000-of-00001.parquet", one)
    many = [{"query": "both?", "chunk_ids": ["a_b_2", "a_b_10"]}]
    mirrors.parquet(tmp_path / "synthetic_queries/train-00000-of-00001.parquet", many)
    documents, (tally,) = read_documents([parse_source(f"{tmp_path}:train")])
    asked = (ChunkQuery("one?", 1), ChunkQuery("both?", 0), ChunkQuery("both?", 2))
    assert documents.documents == [Document("a_b", ("text 2", "text 9", "text 10"), asked)]
    assert tally.found() == {"read": 1, "queries_without_chunk": 1}


def test_a_folder_that_does_not_exist_is_no_training_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mirrors.parquet(tmp_path / "elsewhere/mine-0.parquet", [{"chunk_id": "a_0", "chunk": "text"}])
    for name in (str(tmp_path / "missing"), "mine"):
        assert conteb_files(name) == []


def test_a_chunk_of_no_document_is_named(tmp_path: Path) -> None:
    mirrors.parquet(tmp_path / "documents.parquet", [{"chunk_id": "alone", "chunk": "text"}])
    with pytest.raises(DataError, match=r"documents.parquet row 1: .*'alone'"):
        read_documents([parse_source(str(tmp_path))])


def test_what_cannot_be_asked_is_left_out_and_counted(tmp_path: Path) -> None:
    queries = [
        {"query": "good", "chunk": 0},
        {"query": "good", "chunk": 0},
        {"query": " ", "chunk": 0},
        {"query": "beyond", "chunk": 2},
        {"query": "of nothing", "chunk": 1},
    ]
    path = write(
        tmp_path / "train.jsonl",
        {"id": "d", "chunks": ["x", ""], "queries": queries},
        {"id": "e", "chunks": ["x"], "queries": []},
    )
    documents, (tally,) = read_documents([parse_source(path)])
    assert documents.documents == [Document("d", ("x", ""), (ChunkQuery("good", 0),))]
    assert tally.found() == {"read": 2, "empty_examples": 1, "queries_without_chunk": 3}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"query": "q", "positive": "a"}, "line 1: .*'chunks', .*'queries', .*query, positive$"),
        (
            {"chunks": ["a"], "queries": [{"query": "q"}]},
            "line 1: .*'queries' .*'query', .*'chunk', ",
        ),
        (
            {"chunks": ["a"], "queries": [{"query": "q", "chunk": 1e400}]},
            "line 1: .*'queries' .*'query', .*'chunk', ",
        ),
        (
            {"chunks": ["a"], "queries": [{"query": "q", "chunk": "9" * 5000}]},
            "line 1: .*'queries' .*'query', .*'chunk', ",
        ),
    ],
)
def test_a_bad_record_is_named(tmp_path: Path, record: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_documents([parse_source(write(tmp_path / "train.jsonl", record))])


def test_judgements_of_whole_documents_are_refused(beir: Path) -> None:
    with pytest.raises(DataError, match="does not name a chunk"):
        read_documents([parse_source(str(beir))])


def test_facts_of_a_batch() -> None:
    found = chunk_facts(
        [
            Document(
                "d", ("x", "y", "z"), (ChunkQuery("a", 2), ChunkQuery("b", 0), ChunkQuery("b", 1))
            ),
            Document("e", ("z", "w"), (ChunkQuery("c", 1),)),
        ]
    )
    assert found.groups.tolist() == [[2], [0], [1], [4]]
    assert found.sequence is not None
    assert found.sequence.tolist() == [0, 0, 0, 1, 1]
    assert found.excluded is not None
    rows = [[i for i, no in enumerate(row) if no] for row in found.excluded.tolist()]
    assert rows == [[3], [1], [0], []]


def test_documents_are_sampled_as_examples_are() -> None:
    each = [Document(str(i), ("x" * i,), (ChunkQuery(f"q{i // 2}", 0),)) for i in range(12)]
    documents = Documents(each, np.zeros(12, np.int64))
    for batch in islice(batches(documents, [1.0], Sampling(4)), 12):
        assert len({number // 2 for number in batch.examples.tolist()}) == 4


def test_the_digest_changes_with_what_is_asked() -> None:
    def documents(chunk: int, source: int) -> Documents:
        asked = (ChunkQuery("q", chunk),)
        return Documents([Document("d", ("x", "y"), asked)], np.array([source]))

    each = [documents(0, 0), documents(1, 0), documents(0, 1)]
    assert len({one.digest for one in each}) == 3
    assert each[0].digest == documents(0, 0).digest
