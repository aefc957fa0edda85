"""Questions and texts that are not UTF-8: an error that names the byte, never a search for '?'."""

import io
from pathlib import Path

import pytest

from tests.conftest import Lmk

LATIN = b"gro\xdfe".decode("utf-8", "surrogateescape")  # as Python reads an argument in Latin-1


@pytest.fixture
def index(lmk: Lmk, tmp_path: Path) -> Path:
    docs = tmp_path / "d.jsonl"
    docs.write_text('{"id":"d1","text":"große Straße"}\n{"id":"d2","text":"green tea"}\n')
    lmk("index", docs, "--kind", "bm25", "-o", tmp_path / "b")
    return tmp_path / "b"


def test_a_question_in_latin_1(lmk: Lmk, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "byte 0xdf" in lmk("search", index, "-q", LATIN, "--server", "none", code=2).err
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{LATIN}\n"))  # the C locale
    assert "byte 0xdf" in lmk("search", index, "-i", "--server", "none", code=2).err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"gro\xdfe\n"), "utf-8"))
    assert "0xdf" in lmk("search", index, "-i", "--server", "none", code=3).err
    assert "d1" in lmk("search", index, "-q", "große", "--server", "none").out


@pytest.mark.parametrize("suffix", ["tsv", "jsonl", "csv", "xml", "json"])
@pytest.mark.parametrize("encoding", ["", "latin-1"])
def test_queries_in_latin_1(lmk: Lmk, index: Path, suffix: str, encoding: str) -> None:
    text = {
        "tsv": "1\tgroße\n",
        "jsonl": '{"_id": "1", "text": "große"}\n',
        "csv": "id,text\n1,große\n",
        "xml": "<top><num>1<title>große</top>\n",
        "json": '{"1": "große"}',
    }[suffix]
    path = index.parent / f"q.{suffix}"
    path.write_bytes(text.encode("latin-1"))
    run = index.parent / "r.trec"
    if encoding:
        lmk("search", index, f"{path},encoding={encoding}", "--all-queries", "-o", run)
        assert run.read_text().startswith("1 Q0 d1 1")
    else:
        err = lmk("search", index, path, "--all-queries", "-o", run, code=3).err
        assert "encoding=latin-1" in err
