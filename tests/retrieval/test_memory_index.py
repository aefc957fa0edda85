"""An index of texts in two lines, in a temporary folder."""

import gc
import tempfile
from pathlib import Path

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
