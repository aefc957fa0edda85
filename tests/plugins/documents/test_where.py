"""Filters of documents by path, type, date and fields of records."""

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import lmkcli
from lmkcli.data.run import read_run
from lmkcli.data.sources.file_collections import FileCollection
from lmkcli.errors import Mismatch, UsageError
from tests import tiny
from tests.conftest import Lmk

Models = Callable[[str], Path]


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of several types and days, and a table with fields."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "notes"
    (folder / "mail").mkdir(parents=True)
    for name, day in (
        ("old.md", 1_600_000_000),
        ("new.txt", 1_750_000_000),
        ("mail/a.txt", 1_750_000_000),
    ):
        (folder / name).write_text(f"Water in {name}.")
        os.utime(folder / name, (day, day))
    records = [
        {
            "id": str(n),
            "text": f"water report {n}",
            "status": "open" if n % 2 else "closed",
            "year": 2000 + n,
        }
        for n in range(12)
    ]
    tiny.write_jsonl(folder / "rows.jsonl", records)
    return folder


CASES = {
    "type=md": {"old.md"},
    "type=markdown": {"old.md"},
    "type!=jsonl": {"old.md", "new.txt", "mail/a.txt"},
    "path=mail/**": {"mail/a.txt"},
    "path=*.txt": {"new.txt"},
    "year>=2010": {"rows.jsonl#10", "rows.jsonl#11"},
    "status = open": {f"rows.jsonl#{n}" for n in range(1, 12, 2)},
}


@pytest.mark.parametrize("condition", CASES)
def test_hits_are_all_documents_that_fulfil_a_condition(
    lmk: Lmk, notes: Path, tiny_model: Models, condition: str
) -> None:
    ask = ["search", notes, "-m", tiny_model("bert"), "-q", "water report", "--json", "--where"]
    everything = [hit["id"] for hit in lmk(*ask[:-1], "-k", 20).json]
    found = [hit["id"] for hit in lmk(*ask, condition, "-k", 20).json]
    assert set(found) == CASES[condition]
    assert found == [name for name in everything if name in CASES[condition]], "in the same order"
    few = [hit["id"] for hit in lmk(*ask, condition, "-k", 1).json]
    assert few == found[:1], "however deep the hit is"


def test_dates_and_several_conditions(notes: Path, tiny_model: Models) -> None:
    def found(*where: str) -> set[str]:
        hits = lmkcli.search(notes, "water", 20, model=str(tiny_model("bert")), where=[*where])
        return {hit.id for hit in hits}

    assert found("date<2021") == found("date=2020-09") == {"old.md"}
    assert found("date>=2025-06-01", "date<=2025-06", "type=txt") == {"new.txt", "mail/a.txt"}
    assert found("status=closed", "year<2003") == {"rows.jsonl#0", "rows.jsonl#2"}


def test_conditions_that_cannot_be_read(lmk: Lmk, notes: Path) -> None:
    for wrong in ("type", "type>pdf", "=3", "type="):
        assert "where" in lmk("search", notes, "-q", "a", "--where", wrong, code=2).err
    with pytest.raises(UsageError):
        lmkcli.search(notes, "a", where=["path<a"])


def test_an_unknown_name_is_an_error(lmk: Lmk, notes: Path, tiny_model: Models) -> None:
    ask = ["search", notes, "-m", tiny_model("bert"), "-q", "water report", "--where"]
    assert "'typ'" in lmk(*ask, "typ=pdf", code=2).err
    assert lmk(*ask, "type=pdf", "--json").json == [], "no file is a PDF"


def test_filters_come_before_reranking(notes: Path, tiny_model: Models, tmp_path: Path) -> None:
    model = str(tiny_model("bert"))
    everything = lmkcli.search(notes, "water report", 20, model=model)
    last = everything[len(everything) - 1].id
    lmkcli.Encode(str(notes), model=model, output=tmp_path / "v", dtype="fp32").run()
    found = lmkcli.search(
        notes, "water report", 1, model=model, rerank=tmp_path / "v", rerank_depth=2,
        where=[f"path={last.partition('#')[0]}"],
    )  # fmt: skip
    assert [hit.id.partition("#")[0] for hit in found] == [last.partition("#")[0]]


def test_a_field_of_a_record_comes_before_its_file(tmp_path: Path, lmk: Lmk) -> None:
    rows = [
        {"id": str(n), "text": "water", "date": f"{2000 + n}-05-01", "type": "Memo"}
        for n in range(9)
    ]
    tiny.write_jsonl(tmp_path / "rows.jsonl", rows)
    lmk("index", tmp_path / "rows.jsonl", "--kind", "bm25", "-o", tmp_path / "b")
    ask = ["search", tmp_path / "b", "-q", "water", "--json"]
    found = lmk(
        *ask, "--where", "date>=2006-05", "--where", "date<2008", "--where", "type=memo"
    ).json
    assert {hit["id"] for hit in found} == {"6", "7"}
    assert len(lmk(*ask, "--where", "path=rows.jsonl").json) == 9


def test_a_record_may_have_a_number_sign_in_its_id(notes: Path, lmk: Lmk) -> None:
    tiny.write_jsonl(notes / "c#.jsonl", [{"id": "a#b", "text": "sharp water", "tone": "low"}])
    lmk("index", notes, "--kind", "bm25", "-o", notes.parent / "b")
    ask = ["search", notes.parent / "b", "-q", "sharp", "--json", "--where"]
    for condition in ("tone=low", "path=c#.jsonl", "type=jsonl"):
        assert [hit["id"] for hit in lmk(*ask, condition).json] == ["c#.jsonl#a#b"]


def test_runs_of_an_index_with_conditions(
    beir: Path, tmp_path: Path, lmk: Lmk, tiny_model: Models
) -> None:
    """A run with conditions is another run, also after fusion; chunks have the metadata of their document."""
    rows = list(
        map(json.loads, (beir / "corpus.jsonl").read_text("utf-8").rstrip("\n").split("\n"))
    )
    folder = tmp_path / "collection"
    shutil.copytree(beir, folder)
    tiny.write_jsonl(
        folder / "corpus.jsonl", [{**row, "half": n % 2} for n, row in enumerate(rows)]
    )
    half = {row["_id"] for n, row in enumerate(rows) if n % 2}
    model = tiny_model("bert")
    lmk("encode", folder, "-m", model, "--unit", "chunk", "--gran", 4, "-o", tmp_path / "v")
    lmk("index", folder, "--kind", "bm25", "-o", tmp_path / "b")
    ask = ["search", tmp_path / "v", folder, "-o", tmp_path / "run.trec"]
    lmk(*ask)
    assert "--if-exists" in lmk(*ask, "--where", "half=1", code=3).err
    both = ["--with", tmp_path / "b", "--fuse", "rrf"]
    for more in ([], both, ["--level", "chunk"]):
        lmk(*ask, *more, "--where", "half=1", "--if-exists", "overwrite")
        rankings = read_run(tmp_path / "run.trec").rankings.values()
        found = {name for ranking in rankings for name in ranking.doc_ids}
        assert {name.rpartition("#")[0] or name for name in found} == half


def test_what_has_no_metadata(
    lmk: Lmk, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lmk("index", beir, "--kind", "bm25", "-o", tmp_path / "b")
    lmk("search", tmp_path / "b", beir, "-o", tmp_path / "r.trec")
    ask = ["search", tmp_path / "r.trec", beir, "-o", tmp_path / "s.trec", "--where", "type=pdf"]
    assert "records no collection" in lmk(*ask, code=2).err
    rows = "".join(f'{{"id": "{n}", "text": "water"}}\n' for n in range(3))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(rows.encode())))
    lmk("index", "-", "--kind", "bm25", "-o", tmp_path / "p")
    assert "in no files" in lmk("search", tmp_path / "p", "-q", "a", "--where", "a=1", code=2).err
    ask = ["search", tmp_path / "b", beir, "-o", tmp_path / "s.trec", "--where", "a=1"]
    assert "--shard" in lmk(*ask, "--shard", "0/2", code=2).err
    (tmp_path / "other").mkdir()
    tiny.write_jsonl(tmp_path / "other.jsonl", [{"id": "1", "text": "water"}])
    lmk("index", tmp_path / "other.jsonl", "--kind", "bm25", "-o", tmp_path / "o")
    ask = ["search", tmp_path / "b", "--with", tmp_path / "o", "--fuse", "rrf", "-q", "a"]
    assert "different collections" in lmk(*ask, "--where", "type=jsonl", code=2).err


def test_the_records_are_read_once_for_several_conditions(
    lmk: Lmk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "d.jsonl"
    tiny.write_jsonl(file, [{"id": str(n), "text": "water", "a": n} for n in range(5)])
    lmk("index", file, "--kind", "bm25", "-o", tmp_path / "b")
    opened = lmkcli.open_index(tmp_path / "b")
    assert [hit.id for hit in opened.search("water", where="a=3")] == ["3"]
    read = []
    reading = FileCollection._document_metadata

    def counted(each: FileCollection, name: str) -> dict[str, tuple[str | float, ...]]:
        read.append(name)
        return reading(each, name)

    monkeypatch.setattr(FileCollection, "_document_metadata", counted)
    assert [hit.id for hit in opened.search("water", where="a=4")] == ["4"]
    assert {hit.id for hit in opened.search("water", where="a<2")} == {"0", "1"}
    assert not read
    tiny.write_jsonl(file, [{"id": "7", "text": "water", "a": 4}])
    with pytest.raises(Mismatch, match="have changed"):
        opened.search("water", where="a=4")
