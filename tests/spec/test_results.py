"""Results in Python: tables of pandas and polars, HTML for notebooks, and short reprs."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pytest

import lmkcli
from lmkcli.catalog import VERBS
from lmkcli.data.run import Ranking, Run
from lmkcli.errors import DataError, UsageError
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import Cell, Result, Table, html_of

TEXT = "Take the wheel off. " * 2000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, minilm: Path) -> Path:
    """Vectors of documents and of chunks, and a run."""
    folder = tmp_path_factory.mktemp("results")
    rows = [
        {"id": "bike", "title": "Flat tyre", "text": TEXT},
        {"id": "tea", "title": "", "text": "Green <b>tea</b>\nat eighty degrees."},
    ]
    lmkcli.Encode(rows, model=minilm, output=folder / "docs").run()
    lmkcli.Encode(rows, model=minilm, unit="chunk", gran="8", output=folder / "chunks").run()
    queries = {"q1": "wheel", "q2": "tea"}
    lmkcli.Search(folder / "docs", queries, output=folder / "run.trec").run()
    return folder


def results_of(kind: Any) -> Any:
    """The type that `run` of an operation returns."""
    (base,) = (each for each in kind.__orig_bases__ if get_origin(each) is Operation)
    return get_args(base)[0]


@pytest.mark.parametrize("name", VERBS)
def test_an_operation_returns_one_type(name: str) -> None:
    found = results_of(VERBS.load(name))
    assert get_origin(found) not in (Union, UnionType)
    assert found is type(None) or issubclass(found, Result)


def test_every_variant_of_a_command_returns_that_type(folder: Path, minilm: Path) -> None:
    texts = ["Green tea", "Flat tyre"]
    settings = {"model": minilm, "output": folder / "variants"}
    for more in ({}, {"if_exists": "update"}, {"dry_run": True}):
        encoded = lmkcli.Encode(texts, **settings, **more).run()  # type: ignore[arg-type]
        assert encoded.output == folder / "variants"
        assert encoded.counts.docs == 2
    again = lmkcli.Search(folder / "docs", {"q1": "wheel", "q2": "tea"}, output=folder / "run.trec")
    assert again.run().as_json() == {
        "output": str(folder / "run.trec"),
        "queries": 2,
        "lines": 4,
        "silent": 0,
        "unfindable": 0,
        "cut": 0,
        "cut_pairs": 0,
    }
    assert lmkcli.Search(folder / "docs", question="wheel").run().hits[0].id == "bike"


def test_hits_are_short_and_become_tables(folder: Path) -> None:
    hits = lmkcli.search(folder / "docs", "wheel")
    assert repr(hits[0]).startswith("<Hit 1. bike 0.")
    assert max(len(repr(hits)), *map(len, map(repr, hits))) < 120
    assert [type(hits[:1]), len(hits[:1])] == [type(hits), 1]
    frame = hits.to_pandas()
    assert list(frame.columns) == ["rank", "score", "meaning", "id", "title", "text"]
    assert frame.text[0] == TEXT
    assert hits.to_polars()["id"].to_list() == ["bike", "tea"]
    html = hits._repr_html_()
    assert len(html) < 2000
    assert "&lt;b&gt;tea&lt;/b&gt;" in html


def test_no_hits_have_the_same_columns() -> None:
    hits = lmkcli.index(["green tea"], kind="bm25").search("puncture")
    assert repr(hits) == "<Hits for 'puncture': none>"
    for frame in (hits.to_pandas(), hits.to_polars()):
        assert list(frame.columns) == ["rank", "score", "meaning", "id", "title", "text"]
        assert len(frame) == 0


@pytest.mark.parametrize("again", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_results_and_open_indexes_are_copied_and_pickled(
    folder: Path, again: Callable[[Any], Any]
) -> None:
    memory = lmkcli.index({"tea": "green tea", "bread": "rye bread"}, kind="bm25")
    for index, question in ((memory, "teas"), (lmkcli.open_index(folder / "docs"), "wheel")):
        hits = index.search(question)
        assert again(hits) == hits
        assert str(again(hits)) == str(hits)
        run = index.search({"q1": question})
        assert str(again(run).to_pandas()) == str(run.to_pandas())
        scores = lmkcli.evaluate(run, {"q1": {hits[0].id: 1}}, "RR@10")
        assert again(scores) == scores
        assert repr(again(index)) == repr(index)
        assert again(index).search(question).hits == hits.hits


def test_questions_of_numpy_and_dictionaries() -> None:
    index = lmkcli.index({"tea": "green tea", "bread": "rye bread"}, kind="bm25")
    first, second = index.search(np.array(["tea", "bread"]))
    assert (repr(first), second[0].id) == (repr(index.search("tea")), "bread")
    run = index.search([{"id": "q1", "text": "tea"}, {"id": "q2", "text": "bread"}])
    assert {query: run[query].doc_ids for query in run} == {"q1": ["tea"], "q2": ["bread"]}
    with pytest.raises(UsageError, match="values of the type int and str cannot be searched"):
        index.search(["tea", 5])  # type: ignore[list-item]


def test_hits_of_chunks_have_their_passages(folder: Path) -> None:
    hits = lmkcli.search(folder / "chunks", "wheel")
    first = hits.to_pandas().iloc[0]
    assert first.passage
    assert hits[0].content[first.begin : first.end] == first.passage


def test_runs_and_scores_become_tables(folder: Path) -> None:
    run = lmkcli.read_run(folder / "run.trec")
    assert (len(run), list(run), run["q1"].doc_ids[0]) == (2, ["q1", "q2"], "bike")
    frame = run.to_pandas()
    assert list(frame.columns) == ["query_id", "doc_id", "rank", "score"]
    assert frame.score.dtype == np.float32
    assert frame[["query_id", "rank"]].values.tolist() == [
        ["q1", 1],
        ["q1", 2],
        ["q2", 1],
        ["q2", 2],
    ]
    assert run.to_polars().shape == (4, 4)
    scores = lmkcli.evaluate(run, [lmkcli.Qrel("q1", "bike", 1)], ["RR@10", "nDCG@10"])
    assert repr(scores) == "<Scores: RR@10 1.0000, nDCG@10 1.0000 (1 query)>"
    assert scores["RR@10"] == 1.0
    assert scores.to_pandas().to_dict("list") == {
        "query_id": ["q1"],
        "RR@10": [1.0],
        "nDCG@10": [1.0],
    }
    table = lmkcli.Evaluate(folder / "run.trec", qrels={"q1": {"bike": 1}}, measure="RR@10").run()
    assert table.to_pandas()["RR@10"].tolist() == [1.0]
    assert "<td" in table._repr_html_()
    assert repr(table) == "<Evaluated: 1 row of run, RR@10>"


def test_evaluate_accepts_paths_tables_and_dictionaries(folder: Path) -> None:
    run = lmkcli.read_run(folder / "run.trec")
    qrels = folder / "qrels.txt"
    qrels.write_text("q1 0 bike 1\nq2 0 bike 1\n")
    grades = {"q1": {"bike": 1}, "q2": {"bike": 1}}
    table = {"query_id": ["q1", "q2"], "doc_id": ["bike", "bike"], "grade": [1, 1]}
    objects = [lmkcli.Qrel("q1", "bike", 1), lmkcli.Qrel("q2", "bike", 1)]
    judged = lmkcli.open_collection(["x"], qrels=grades)
    for given in (
        qrels,
        str(qrels),
        grades,
        table,
        objects,
        iter(objects),
        pl.DataFrame(table),
        judged,
    ):
        assert lmkcli.evaluate(run, given, "RR@10")["RR@10"] == 0.75
    assert lmkcli.evaluate(folder / "run.trec", grades, "RR@10")["RR@10"] == 0.75


def test_vectors_become_arrays(folder: Path) -> None:
    stored = lmkcli.Vectors(folder / "chunks")
    assert len(lmkcli.Vectors(folder / "docs")) == len(stored) == 2
    array = stored.numpy()
    assert (array.dtype, array.shape[1]) == (np.float32, 384)
    np.testing.assert_array_equal(np.asarray(stored), np.concatenate([b.vectors for b in stored]))
    assert np.asarray(stored, dtype=np.float64).dtype == np.float64
    assert repr(stored.at(np.arange(1))).startswith("<Ragged: ")


def test_an_empty_run_is_a_table_and_true() -> None:
    assert Run()
    assert Run().to_pandas().empty
    assert "<table>" in Run()._repr_html_()
    many = Run({"q": Ranking([str(n) for n in range(50)], np.arange(50, 0, -1, np.float32))})
    assert "… 30 more rows" in many._repr_html_()


@pytest.mark.parametrize("length", [299, 300, 301])
def test_a_notebook_shows_300_characters_of_a_value(length: int) -> None:
    """An ellipsis tells that a value is cut, and follows no whole value."""
    html = html_of([Table(["id"], [["x" * length]], "")])
    assert f">{'x' * min(length, 300)}{'…' * (length > 300)}<" in html


def test_html_escapes_values_and_marks_the_best() -> None:
    html = html_of([Table(["<a>", "n"], [["x<y", Cell(0.5, best=True, mark="†")]], "t&"), "a\x1bb"])
    assert '<th style="text-align: left">&lt;a&gt;</th>' in html
    assert "x&lt;y" in html
    assert "<b>0.5000†</b>" in html
    assert "t&amp;" in html
    assert "\x1b" not in html


def test_reprs_of_operations_are_the_calls_that_make_them() -> None:
    encode = lmkcli.Encode("notes.jsonl", model="minilm", gran=64, output=Path("v"))
    assert repr(encode) == "Encode('notes.jsonl', model='minilm', gran='64', output='v')"
    assert eval(repr(encode), {"Encode": lmkcli.Encode}) == encode


def test_frames_have_the_columns_of_the_printed_tables(folder: Path) -> None:
    """Facts for programs may be nested, as those of a score log or of an analysis."""
    log = folder / "log.jsonl"
    lmkcli.Evaluate(
        folder / "run.trec", qrels={"q1": {"bike": 1}}, measure=["RR@10", "P@1"], log=log
    ).run()
    results: list[Result] = [
        lmkcli.Doctor().run(),
        lmkcli.Show(str(log)).run(),
        lmkcli.Show("measures").run(),
        lmkcli.Analyze("lengths", ["Green tea", "Flat tyre at night"]).run(),
    ]
    for result in results:
        printed = next(block for block in result.blocks() if isinstance(block, Table))
        frame = result.to_pandas()
        assert set(printed.columns) <= set(frame.columns), type(result)
        assert len(frame) == len(printed.rows)
        assert result.to_polars().height == len(printed.rows)


def test_an_index_is_searched_for_every_kind_of_queries(folder: Path) -> None:
    """The keys of a dictionary and the names of columns are no questions."""
    index = lmkcli.open_index(folder / "docs")
    by_id = {"q1": "wheel", "q2": "tea"}
    expected = index.search([lmkcli.Query("q1", "wheel"), lmkcli.Query("q2", "tea")], k=1)
    table = {"id": list(by_id), "text": list(by_id.values())}
    kinds: list[Any] = [
        by_id, pl.DataFrame(table), pd.DataFrame(table), datasets.Dataset.from_dict(table),
        lmkcli.open_collection(by_id),
    ]  # fmt: skip
    for queries in kinds:
        run = index.search(queries, k=1)
        assert isinstance(run, Run)
        assert {name: run[name].doc_ids for name in run} == {
            name: expected[name].doc_ids for name in expected
        }
    for texts in (["wheel", "tea"], pl.Series(["wheel", "tea"]), pd.Series(["wheel", "tea"])):
        assert [hits[0].id for hits in index.search(texts, k=1)] == ["bike", "tea"]  # type: ignore[call-overload]
    assert len(index.search([], k=1)) == 0


def test_a_single_query_has_a_run_of_its_own(folder: Path) -> None:
    index, query = lmkcli.open_index(folder / "docs"), lmkcli.Query("q1", "wheel")
    run = index.search(query, k=1)  # type: ignore[call-overload]
    assert {name: run[name].doc_ids for name in run} == {"q1": ["bike"]}


@pytest.mark.parametrize("second", [lmkcli.Query("q", "tea"), {"id": "q", "text": "tea"}])
def test_a_query_id_that_occurs_twice_is_refused(folder: Path, second: Any) -> None:
    first = (
        lmkcli.Query("q", "wheel") if isinstance(second, lmkcli.Query) else {"id": "q", "text": "x"}
    )
    with pytest.raises(UsageError, match="'q' occurs twice"):
        lmkcli.open_index(folder / "docs").search([first, second])


@pytest.mark.parametrize("queries", [None, 3, ["tea", None], ["tea", lmkcli.Query("q", "tea")]])
def test_other_queries_are_refused(folder: Path, queries: Any) -> None:
    with pytest.raises(UsageError, match="cannot be searched"):
        lmkcli.open_index(folder / "docs").search(queries)


@pytest.mark.parametrize("k", [0, -1, "3", 2.5, None])
def test_k_is_a_number_of_documents(folder: Path, k: Any) -> None:
    index = lmkcli.open_index(folder / "docs")
    with pytest.raises(UsageError, match="a whole number from 1"):
        index.search("tea", k=k)
    assert len(index.search("tea", k=np.int64(1))) == 1  # type: ignore[call-overload]


def test_a_run_is_a_dictionary_or_a_table(folder: Path) -> None:
    qrels = {"q1": {"bike": 1}, "q2": {"tea": 1}}
    scores = {"q1": {"bike": 0.9, "tea": 0.1}, "q2": {"bike": 3.0, "tea": 1}}
    hits = [(query, doc, score) for query, of in scores.items() for doc, score in of.items()]
    table = dict(zip(("query_id", "doc_id", "score"), zip(*hits, strict=True), strict=True))
    for run in (scores, pd.DataFrame(table), pl.DataFrame(table)):
        assert lmkcli.evaluate(run, qrels, "RR@10")["RR@10"] == 0.75
    numbered = lmkcli.evaluate({1: {2: 0.5}}, {1: {2: 1}}, "RR@10")  # type: ignore[dict-item]
    assert numbered["RR@10"] == 1.0
    with pytest.raises(DataError, match="key 'q1': the score 'best' is not a number"):
        lmkcli.evaluate({"q1": {"bike": "best"}}, qrels, "RR@10")  # type: ignore[dict-item]
    frame = lmkcli.read_run(folder / "run.trec").to_pandas()
    assert lmkcli.evaluate(frame, qrels, "RR@10")["RR@10"] == 1.0


def test_a_table_of_hits_may_have_grades() -> None:
    """Such a table is a run with its scores, and judgements with its grades."""
    table = pd.DataFrame(
        {
            "qid": ["q1", "q1"],
            "docno": ["bike", "tea"],
            "score": [0.1, 0.9],
            "label": [1, 0],
        }
    )
    assert lmkcli.evaluate(table, table, "RR@10")["RR@10"] == 0.5


@pytest.mark.parametrize("score", [np.float32, np.float64, np.int64])
def test_scores_and_grades_may_be_numbers_of_numpy(score: Any) -> None:
    run = {"q1": {"bike": score(1), "tea": score(2)}}
    qrels = {"q1": {"bike": score(1)}}
    assert lmkcli.evaluate(run, qrels, "RR@10")["RR@10"] == 0.5
    rows = [{"query_id": "q1", "doc_id": doc, "score": number} for doc, number in run["q1"].items()]
    assert lmkcli.evaluate(rows, qrels, "RR@10")["RR@10"] == 0.5
