"""Layouts of training files, each as its own tool writes it."""

import gzip
import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmkcli.errors import DataError
from lmkcli.training.data.examples import Example, ScoredText
from lmkcli.training.data.formats import read_examples


def write(path: Path, *records: dict[str, Any]) -> str:
    data = "".join(json.dumps(record) + "\n" for record in records).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return str(path)


def read(tmp_path: Path, record: dict[str, Any]) -> Example:
    (found,) = read_examples(write(tmp_path / "train.jsonl", record))
    return found


def texts(passages: tuple[ScoredText, ...]) -> list[str]:
    return [passage.text for passage in passages]


def scores(passages: tuple[ScoredText, ...]) -> list[float | None]:
    return [None if math.isnan(passage.score) else passage.score for passage in passages]


def test_flagembedding(tmp_path: Path) -> None:
    record = {"query": "q", "pos": ["a"], "neg": ["b", "c"], "pos_scores": [9], "prompt": "p: "}
    found = read(tmp_path, record | {"neg_scores": [1.5, None]})
    assert (found.query, found.prompt) == ("q", "p: ")
    assert found.positives == (ScoredText("a", 9.0),)
    assert texts(found.negatives) == ["b", "c"]
    assert scores(found.negatives) == [1.5, None]


def test_a_missing_list_of_scores_is_missing_for_these_texts_alone(tmp_path: Path) -> None:
    found = read(tmp_path, {"query": "q", "pos": ["a"], "neg": ["b"], "pos_scores": [9]})
    assert (scores(found.positives), scores(found.negatives)) == ([9.0], [None])


def test_tevatron(tmp_path: Path) -> None:
    record = {
        "query_id": "17",
        "query": "q",
        "positive_passages": [{"docid": "1", "title": "T", "text": "a"}],
        "negative_passages": [{"docid": "2", "title": "", "text": "b"}, {"docid": 3, "text": "c"}],
    }
    found = read(tmp_path, record)
    assert (found.id, texts(found.positives)) == ("17", ["T a"])
    assert texts(found.negatives) == ["b", "c"]


def test_columns_of_sentence_transformers(tmp_path: Path) -> None:
    found = read(tmp_path, {"anchor": "q", "positive": "a", "negative_1": "b", "negative_2": "c"})
    assert (found.query, texts(found.positives)) == ("q", ["a"])
    assert texts(found.negatives) == ["b", "c"]
    found = read(tmp_path, {"question": "q", "answer": "a", "score": 0.7})
    assert found.positives == (ScoredText("a", 0.7),)


def test_a_label_says_that_a_pair_is_one_and_is_no_score(tmp_path: Path) -> None:
    found = read(tmp_path, {"query": "q", "passage": "a", "label": 1})
    assert scores(found.positives) == [None]
    with pytest.raises(DataError, match="label 0 "):
        read(tmp_path, {"query": "q", "passage": "a", "label": 0})


def test_a_margin_becomes_scores_of_the_same_difference(tmp_path: Path) -> None:
    found = read(tmp_path, {"query": "q", "positive": "a", "negative": "b", "score": 3.5})
    assert (scores(found.positives), scores(found.negatives)) == ([0.0], [-3.5])
    record = {"query": "q", "positive": "a", "negative_1": "b", "negative_2": "c"}
    found = read(tmp_path, record | {"label": [3.5, -1.0]})
    assert scores(found.negatives) == [-3.5, 1.0]
    found = read(tmp_path, record | {"labels": [9.0, 2.0, 1.0]})
    assert scores(found.positives + found.negatives) == [9.0, 2.0, 1.0]


def test_parquet_with_lists_and_with_columns_that_nobody_asked_for(tmp_path: Path) -> None:
    rows = [{"query": "q", "pos": ["a", "b"], "neg": ["c"], "vector": [1.0]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    (found,) = read_examples(str(tmp_path / "train.parquet"))
    assert (texts(found.positives), texts(found.negatives)) == (["a", "b"], ["c"])


@pytest.mark.parametrize(
    ("lines", "negatives"),
    [
        ("q\ta\n", []),
        ("q\ta\tb\n", ["b"]),
        ("query\tpositive\tnegative\nq\ta\tb\n", ["b"]),
        ("query_id\tquery\tpositive\n7\tq\ta\n", []),
    ],
)
def test_tsv_with_and_without_a_header(tmp_path: Path, lines: str, negatives: list[str]) -> None:
    path = tmp_path / "train.tsv"
    path.write_text(lines)
    (found,) = read_examples(str(path))
    assert (found.query, texts(found.positives)) == ("q", ["a"])
    assert texts(found.negatives) == negatives


def test_packed_files_and_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = {"query": "q", "positive": "a"}
    (found,) = read_examples(write(tmp_path / "train.jsonl.gz", record))
    stdin = io.TextIOWrapper(io.BytesIO(json.dumps(record).encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert list(read_examples("-")) == [found]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"query": "q", "text": "a"}, "line 2: .*positive_passages.*query, text$"),
        ({"query": "q", "pos": [5]}, "line 2, pos: 5 .*string"),
        ({"query": ["q"], "pos": ["a"]}, r"line 2, query: \['q'\] .*string"),
        ({"query": "q", "pos": ["a"], "pos_scores": [1, 2]}, r"line 2: pos_scores .*\b1 scores"),
        ({"query": "q", "pos": ["a"], "pos_scores": ["x"]}, "line 2, pos_scores: .*'x' .*number"),
        (
            {"query": "q", "pos": ["a"], "pos_scores": [10**400]},
            "line 2, pos_scores: .*0{50}.* float32",
        ),
        (
            {"query": "q", "pos": ["a"], "pos_scores": [1e300]},
            r"line 2, pos_scores: .*1e\+300 .*float32",
        ),
        (
            {"query": "q", "pos": ["a"], "scores": [1, 2, 3]},
            "line 2, scores: 3 scores .*1 positives .*0 negatives",
        ),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, record: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "train.jsonl", {"query": "q", "positive": "a"}, record)
    with pytest.raises(DataError, match=message) as caught:
        list(read_examples(path))
    assert str(caught.value).startswith(path)


@pytest.mark.parametrize(
    ("name", "negatives"), [("msmarco", {25}), ("nli", {1}), ("nq", {79, 100})]
)
def test_samples_of_flagembedding(shared: Path, name: str, negatives: set[int]) -> None:
    path = shared / "data" / "flagembedding-example" / f"{name}.jsonl"
    found = list(read_examples(str(path)))
    assert len(found) == 10
    assert {len(each.negatives) for each in found} == negatives
    assert all(None not in scores(each.positives + each.negatives) for each in found)
