"""An index of texts in two lines, in a temporary folder."""

import gc
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import lmkcli
from lmkcli.errors import DataError, UsageError

TEXTS = ["Steep green tea at eighty degrees.", "Take the wheel off. Find the hole."]


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_two_lines_search_texts(minilm: Path, temporary: Path) -> None:
    index = lmkcli.index(TEXTS, minilm)
    assert [hit.id for hit in index.search("flat tyre", k=1)] == ["1"]
    assert index.search("hot drink")[0].text == TEXTS[0]
    assert len([*temporary.iterdir()]) == 1
    del index
    gc.collect()
    assert [*temporary.iterdir()] == []


@pytest.mark.parametrize("question", ["", " \n", ["tea", ""]])
def test_an_empty_question_is_refused(question: Any) -> None:
    with pytest.raises(UsageError, match="the question is empty"):
        lmkcli.index(TEXTS, kind="bm25").search(question)


def test_tables_chunks_and_other_kinds(minilm: Path) -> None:
    frame = pd.DataFrame({"docno": ["tea", "bike"], "body": TEXTS})
    passages = lmkcli.index(frame, minilm, unit="chunk", gran="sentence").search("a hole")
    assert passages[0].passage is not None
    assert passages[0].passage.text == "Find the hole."
    assert lmkcli.index(frame, kind="bm25").search("wheel")[0].id == "bike"
    flat = lmkcli.index(frame, minilm, kind="hnsw", m=8)
    assert (flat.info.kind, flat.search("tyre")[0].id) == ("hnsw", "bike")


def test_wrong_settings_leave_nothing_behind(minilm: Path, temporary: Path) -> None:
    for settings in (
        {"grann": 3},
        {"output": "here"},
        {"kind": "bm52"},
        {"m": 8},
        {"kind": "bm25", "k1": -1},
    ):
        with pytest.raises(UsageError):
            lmkcli.index(TEXTS, "" if "kind" in settings else minilm, **settings)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="model has no effect"):
        lmkcli.index(TEXTS, minilm, kind="bm25")
    with pytest.raises(DataError):
        lmkcli.index("missing.jsonl", minilm)
    assert [*temporary.iterdir()] == []


FRAME = pd.DataFrame(
    {
        "docno": [f"d{n}" for n in range(40)],
        "body": [f"water report {n}" for n in range(40)],
        "year": [2000 + n for n in range(40)],
        "open": [n % 2 == 0 for n in range(40)],
        "tags": [["all", f"t{n % 4}"] for n in range(40)],
        "seen": pd.date_range("2024-01-31", periods=40),
    }
)


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("year>=2037", {"d37", "d38", "d39"}),
        (["open=true", "tags=t0"], {f"d{n}" for n in range(0, 40, 4)}),
        ("seen=2024-01", {"d0"}),
        ((), {f"d{n}" for n in range(40)}),
    ],
)
@pytest.mark.parametrize("chunks", [False, True])
def test_other_columns_of_a_table_select_documents(
    minilm: Path, chunks: bool, where: list[str], wanted: set[str]
) -> None:
    settings: dict[str, Any] = {"unit": "chunk", "gran": 2} if chunks else {}
    for index in (lmkcli.index(FRAME, minilm, **settings), lmkcli.index(FRAME, kind="bm25")):
        gc.collect()
        assert {hit.id for hit in index.search("water report", k=40, where=where)} == wanted
        (hits,) = index.search(["water report"], k=1, where=where)
        assert {hit.id for hit in hits} <= wanted
        run = index.search([lmkcli.Query("q", "water report")], k=40, where=where)
        assert {*run["q"].doc_ids} == wanted


def test_an_unknown_column_is_an_error() -> None:
    index = lmkcli.index([{"id": "a", "text": "water", "year": 2000}], kind="bm25")
    assert len(index.search("water", where="year<2000")) == 0
    with pytest.raises(UsageError, match="'yeer'"):
        index.search("water", where="yeer=2000")
    with pytest.raises(UsageError, match="an operator"):
        index.search("water", where="year")


def test_an_index_on_disk_is_filtered_by_the_rows_that_the_program_keeps(tmp_path: Path) -> None:
    rows = lmkcli.open_collection(FRAME)
    lmkcli.BuildIndex(rows, kind="bm25", output=tmp_path / "rows").run()
    found = lmkcli.search(tmp_path / "rows", "water", 40, where=["year<2002"])
    assert {hit.id for hit in found} == {"d0", "d1"}
    other = lmkcli.open_collection(FRAME.assign(year=1))
    lmkcli.BuildIndex(other, kind="bm25", output=tmp_path / "other").run()
    both = {"others": [tmp_path / "other"], "fuse": "rrf"}
    with pytest.raises(UsageError, match="different collections"):
        lmkcli.search(tmp_path / "rows", "water", where=["year=1"], **both)
    assert lmkcli.open_index(tmp_path / "other").search("water", where="year=1")
    del rows, other
    gc.collect()
    with pytest.raises(DataError, match="give the rows again"):
        lmkcli.search(tmp_path / "rows", "water", where=["year<2002"])


def test_a_reranked_index_filters_first(minilm: Path, tmp_path: Path) -> None:
    rows = lmkcli.open_collection(FRAME)
    lmkcli.Encode(rows, model=minilm, output=tmp_path / "v").run()
    settings = {"rerank": tmp_path / "v", "rerank_depth": 10}
    with pytest.raises(UsageError, match="open_index"):
        lmkcli.open_index(tmp_path / "v", **settings).search("water", where="year=2039")
    found = lmkcli.open_index(tmp_path / "v", where=["year=2039"], **settings).search("water")
    assert [hit.id for hit in found] == ["d39"]
