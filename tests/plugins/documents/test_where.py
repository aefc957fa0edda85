"""Filters of documents by path, type, date and fields of records."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import lmkcli
from lmkcli.errors import UsageError
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
    "nowhere=1": set(),
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


def test_an_index_has_no_metadata(lmk: Lmk, beir: Path, tmp_path: Path) -> None:
    lmk("index", beir, "--kind", "bm25", "-o", tmp_path / "b")
    refused = lmk("search", tmp_path / "b", "-q", "a", "--where", "type=pdf", code=2)
    assert "--where has no effect" in refused.err
