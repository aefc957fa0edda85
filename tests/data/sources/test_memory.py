"""Tables, texts and records of a Python program as collections."""

import copy
import gc
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import ir_measures
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import lmkcli
from lmkcli import Doc, Qrel, Query
from lmkcli.errors import DataError, LmkError, UsageError
from lmkcli.spec.values import Shard

ROWS = [
    {"id": "tea", "title": "Green tea", "text": "Steep green tea at eighty degrees."},
    {"id": "bike", "title": "", "text": "Take the wheel off."},
    {"id": "bread", "title": "Sourdough", "text": ""},
]
DOCS = [Doc(row["id"], row["text"], row["title"]) for row in ROWS]


def generated() -> Iterator[dict[str, str]]:
    yield from ROWS


TABLES: dict[str, Callable[[], Any]] = {
    "list": lambda: ROWS,
    "generator": generated,
    "pandas": lambda: pd.DataFrame(ROWS),
    "polars": lambda: pl.DataFrame(ROWS),
    "arrow": lambda: pa.Table.from_pylist(ROWS),
    "datasets": lambda: datasets.Dataset.from_list(ROWS),
    "streamed": lambda: datasets.Dataset.from_list(ROWS).to_iterable_dataset(),
    "columns": lambda: {name: [row[name] for row in ROWS] for name in ROWS[0]},
    "by id": lambda: {row["id"]: {"title": row["title"], "text": row["text"]} for row in ROWS},
    "docs": lambda: DOCS,
}


@pytest.mark.parametrize("kind", TABLES)
def test_every_kind_of_table_is_a_collection(kind: str) -> None:
    collection = lmkcli.open_collection(TABLES[kind]())
    assert list(collection.docs()) == DOCS
    assert list(collection.docs()) == DOCS, "it can be read again"
    sharded = [doc for n in range(2) for doc in collection.docs(Shard(n, 2))]
    assert sharded == DOCS


def test_texts_have_their_positions_as_ids() -> None:
    assert list(lmkcli.open_collection(["tea", "bike"]).docs()) == [
        Doc("0", "tea"),
        Doc("1", "bike"),
    ]
    assert list(lmkcli.open_collection({"a": "tea"}).docs()) == [Doc("a", "tea")]


def test_rows_without_ids_have_positions_or_labels_as_ids() -> None:
    frame = pd.DataFrame({"body": ["green tea", "flat tyre", "sour dough"]})
    ids = [doc.id for doc in lmkcli.open_collection(frame).docs()]
    assert ids == ["0", "1", "2"]
    chosen = frame[frame.body != "flat tyre"]
    assert [doc.id for doc in lmkcli.open_collection(chosen).docs()] == ["0", "2"]
    named = frame.set_index(pd.Index(["x", "y", "z"], name="docno"))
    assert [doc.id for doc in lmkcli.open_collection(named).docs()] == ["x", "y", "z"]
    assert [doc.id for doc in lmkcli.open_collection(pl.DataFrame(frame)).docs()] == ids


def test_columns_are_found_or_chosen_as_in_files() -> None:
    rows = [{"nr": 7, "headline": "Tea", "body": "Steep it.", "note": "a b c d"}]
    assert list(lmkcli.open_collection(rows).docs()) == [Doc("7", "Steep it.", "Tea")]
    chosen = lmkcli.open_collection(rows, text="note", id="nr")
    assert next(iter(chosen.docs())).text == "a b c d"
    with pytest.raises(DataError) as caught:
        list(lmkcli.open_collection([{"id": 1, "p": "a b c d", "q": "e f g h"}]).docs())
    assert "lmkcli.open_collection(…, text=" in str(caught.value)
    assert "FILE" not in str(caught.value)
    assert "after the file" not in str(caught.value)


def test_missing_values_are_empty_texts_and_wrong_ones_name_their_row() -> None:
    frame = pd.DataFrame({"id": ["a", "b"], "text": ["tea", None]})
    assert [doc.text for doc in lmkcli.open_collection(frame).docs()] == ["tea", ""]
    with pytest.raises(DataError, match="row 1: the document id is None"):
        list(lmkcli.open_collection([ROWS[0], {"id": None, "text": "x"}]).docs())


def test_queries_and_judgements_are_tables_too() -> None:
    questions = pd.DataFrame({"qid": ["q1"], "query": ["hot drink"]})
    for judgements in (
        pl.DataFrame({"query-id": ["q1"], "corpus-id": ["tea"], "score": [2]}),
        {"q1": {"tea": 2}},
        [Qrel("q1", "tea", 2)],
    ):
        whole = lmkcli.open_collection(ROWS, queries=questions, qrels=judgements)
        assert list(whole.queries()) == [Query("q1", "hot drink")]
        assert list(whole.qrels()) == [Qrel("q1", "tea", 2)]
        assert list(whole.docs()) == DOCS
        assert whole.judged_queries() == [Query("q1", "hot drink")]


@pytest.mark.parametrize(
    ("value", "fact"),
    [
        (7, "a int is no collection"),
        ([1, 2], "row 0 is a int"),
        (["a.jsonl", "b.jsonl"], "'a.jsonl' is the name of a file"),
        ({"a": [1], "b": [1, 2]}, "different lengths"),
        (datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}), "'train'"),
        (pd.DataFrame({"id": ["a", 1], "text": ["x", "y"]}), "astype(str)"),
    ],
)
def test_other_objects_are_refused(value: Any, fact: str) -> None:
    with pytest.raises(UsageError) as caught:
        lmkcli.Encode(value, model="minilm", output="vectors")
    assert fact in str(caught.value)


def test_rows_are_encoded_indexed_searched_and_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minilm: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame(ROWS)
    lmkcli.Encode(frame, model=minilm, output="vectors").run()
    lmkcli.BuildIndex(frame, kind="bm25", output="bm25").run()
    questions = [{"id": "q1", "text": "green tea"}, {"id": "q2", "text": "wheel"}]
    for index in ("vectors", "bm25"):
        lmkcli.Search(index, questions, output=f"{index}.trec").run()
        scores = lmkcli.Evaluate(
            f"{index}.trec", qrels={"q1": {"tea": 1}, "q2": {"bike": 1}}, measure="RR@10"
        ).run()
        (row,) = scores.as_json()
        assert row["RR@10"] == 1.0
    with pytest.raises(LmkError, match="memory:"):
        lmkcli.Encode(frame[:2], model=minilm, output="vectors").run()
    lmkcli.Encode(frame, model=minilm, output="vectors").run()  # equal rows continue


def test_rows_live_as_long_as_their_operation() -> None:
    encode = lmkcli.Encode(TABLES["list"](), model="minilm", output="vectors")
    name, copied = str(encode.source), copy.deepcopy(encode.changed_to(output="others"))
    assert name.startswith("memory:")
    assert encode.as_json()["source"] == name
    del encode
    gc.collect()
    assert list(lmkcli.open_collection(name).docs()) == DOCS
    del copied
    gc.collect()
    with pytest.raises(DataError, match="the rows again, or write them to a file"):
        lmkcli.open_collection(name)


@pytest.mark.parametrize("kind", TABLES)
def test_another_process_gets_the_rows_with_the_operation(kind: str, tmp_path: Path) -> None:
    encode = lmkcli.Encode(TABLES[kind](), model="minilm", output="vectors")
    (tmp_path / "encode").write_bytes(pickle.dumps(encode))
    code = (
        "import pickle, sys, lmkcli; encode = pickle.load(open('encode', 'rb')); "
        "print([doc.id for doc in lmkcli.open_collection(encode.spelling(encode.source)).docs()])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "['tea', 'bike', 'bread']\n"


def test_one_column_is_a_collection_of_texts() -> None:
    for values in (
        pd.Series(["tea", "bread"], index=["a", "b"], name="body"),
        pd.Index(["tea", "bread"]),
        pl.Series(["tea", "bread"]),
    ):
        docs = list(lmkcli.open_collection(values).docs())
        assert [doc.text for doc in docs] == ["tea", "bread"]
        assert [doc.id for doc in docs] == (
            ["a", "b"] if isinstance(values, pd.Series) else ["0", "1"]
        )


def test_half_of_a_surrogate_pair_is_named() -> None:
    with pytest.raises(UsageError, match=r"row 1: half of a surrogate pair.*surrogatepass"):
        lmkcli.open_collection(["tea", "wave \ud83d"])


JUDGED = {"q1": {"d1": 1}, "q2": {"d2": 1}}
RUNS = {
    "floats of numpy": {"q1": {"d1": np.float32(2), "d3": np.float64(1)}},
    "integers": {"q1": {"d1": 2, "d3": 1}},
    "a query without hits": {"q1": {"d1": 2.0}, "q2": {}},
    "a list of dictionaries": [{"query_id": "q1", "doc_id": "d1", "score": 1.0}],
    "ScoredDoc of ir_measures": [ir_measures.ScoredDoc("q1", "d1", 1.0)],
    "tuples": iter([("q1", "d1", 1.0)]),
    "columns": {"qid": ["q1"], "docno": ["d1"], "score": [1.0]},
    "pandas": pd.DataFrame({"qid": ["q1"], "docno": ["d1"], "score": [1.0], "rank": [0]}),
    "polars": pl.DataFrame({"query_id": ["q1"], "doc_id": ["d1"], "score": [1.0]}),
}


@pytest.mark.parametrize("kind", RUNS)
def test_runs_of_other_libraries_are_scored(kind: str) -> None:
    scores = lmkcli.evaluate(RUNS[kind], JUDGED, ["nDCG@10"])
    assert scores.per_query["nDCG@10"] == {"q1": 1.0, "q2": 0.0}


@pytest.mark.parametrize("run", [{}, [], {"q1": {}}, {"q1": {}, "q2": {}}])
def test_all_queries_of_an_empty_run_have_the_score_0(run: Any) -> None:
    scores = lmkcli.evaluate(run, JUDGED, "nDCG@10")
    assert scores.per_query == {"nDCG@10": {"q1": 0.0, "q2": 0.0}}
    assert scores.coverage.missing == ["q1", "q2"]


@pytest.mark.parametrize("number", [int, np.int64, np.uint8, str])
@pytest.mark.parametrize("judged", [int, np.int32, str])
def test_ids_that_are_numbers_are_their_digits(number: Any, judged: Any) -> None:
    qrels = {judged(1): {judged(5): 1}}
    for given in (qrels, [(judged(1), judged(5), np.int64(1))]):
        scores = lmkcli.evaluate({number(1): {number(5): 2.0}}, given, (m for m in ["nDCG@10"]))
        assert scores.per_query["nDCG@10"] == {"1": 1.0}
    frame = pd.DataFrame({"query_id": [1], "doc_id": [5], "relevance": [1]})
    assert lmkcli.evaluate({number(1): {number(5): 2.0}}, frame, "nDCG@10")["nDCG@10"] == 1.0


def test_the_judgements_of_ir_measures_are_read() -> None:
    qrels = [ir_measures.Qrel("q1", "d1", 1), ir_measures.Qrel("q2", "d2", 1)]
    assert lmkcli.evaluate({"q1": {"d1": 1.0}}, qrels, [ir_measures.nDCG @ 10])["nDCG@10"] == 0.5
    assert lmkcli.evaluate({"q1": {"d1": 1.0}}, {**JUDGED, "q3": {}}, "nDCG@10")["nDCG@10"] == 0.5


@pytest.mark.parametrize(
    ("run", "qrels", "message"),
    [
        (None, JUDGED, "a NoneType is not the run"),
        ({"q1": ["d1", "d2"]}, JUDGED, "the value of 'q1' has the type list; give {query id:"),
        ({"q1": [("d1", 1.0)]}, JUDGED, "the value of 'q1' has the type list; give {query id:"),
        ({"q1": {"d1": 1.0}, "q2": 3}, JUDGED, "the value of 'q2' has the type int; give"),
        ({"q1": {"d1": None}}, JUDGED, "key 'q1': the score 'None' is not a number"),
        ({"q1": {"d1": "high"}}, JUDGED, "key 'q1': the score 'high' is not a number"),
        ({"q1": {"d1": float("nan")}}, JUDGED, "the score 'nan' is not a number"),
        ({"x": {"d1": 1.0}}, JUDGED, "no query of the run is judged"),
        ({1: {5: 1.0}, "1": {"5": 1.0}}, {1: {5: 1}}, "document '5' occurs twice for query '1'"),
        ({"q1": {"d1": 1.0}}, None, "a NoneType is not the judgements"),
        ({"q1": {"d1": 1.0}}, {}, "contain no judgements"),
        ({"q1": {"d1": 1.0}}, {"q1": {"d1": None}}, "None is not a judgement"),
        ({"q1": {"d1": 1.0}}, {"q1": {"d1": 0.5}}, "an integer grade"),
        (
            {"q1": {"d1": 1.0}},
            {"q1": ["d1"]},
            "the value of 'q1' has the type list; give {query id:",
        ),
        ({"q1": {"d1": 1.0}}, [("q1", 0, "d1", 1)], "row 0 is a tuple"),
    ],
)
def test_other_objects_are_refused_with_the_form_to_give(
    run: Any, qrels: Any, message: str
) -> None:
    with pytest.raises(LmkError, match=re.escape(message)):
        lmkcli.evaluate(run, qrels, ["nDCG@10"])


def test_judgements_of_queries_without_documents_are_none() -> None:
    assert list(lmkcli.open_collection(["tea"], qrels={"q1": {}, "q2": {}}).qrels()) == []


def test_what_cannot_be_read_is_named_with_the_call_to_type() -> None:
    used = (text for text in ["tea"])
    assert len(list(lmkcli.open_collection(used).docs())) == 1
    with pytest.raises(UsageError, match="the generator yields nothing; if it was read before"):
        lmkcli.open_collection(used)
    with pytest.raises(
        UsageError, match=r"a LazyFrame is no collection; call its collect\(\) first"
    ):
        lmkcli.open_collection(pl.LazyFrame({"text": ["tea"]}))
    with pytest.raises(DataError, match=r"'a b' contains white space.*open_collection\(…, map_ids"):
        list(lmkcli.open_collection({"a b": "tea"}).docs())
    (mapped,) = lmkcli.open_collection({"a b": "tea"}, map_ids=True).docs()
    assert mapped.id == "a_b"


def test_no_measure_is_an_error() -> None:
    with pytest.raises(UsageError, match="name at least one, such as nDCG@10"):
        lmkcli.evaluate({"q1": {"d1": 1.0}}, JUDGED, [])
