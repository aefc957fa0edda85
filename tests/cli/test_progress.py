"""The progress of whole commands: honest from the first line on, for collections of every kind."""

import gzip
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmkcli.errors import Stopped
from lmkcli.store import tokens
from lmkcli.text import progress_bar
from tests import tiny

Lmk = Callable[..., Any]
ROWS = [{"id": f"d{n}", "text": tiny.sentence(n, 30 + n % 5)} for n in range(200)]
LINE = re.compile(
    r"([\d,]+) tokens(?:, [\d.,e+-]+/s)?(?:, (\d+) % of (about )?([\d,]+)(?:, .* left)?)?, (.*) documents$"
)


def jsonl(path: Path) -> str:
    tiny.write_jsonl(path / "x.jsonl", ROWS)
    return "x.jsonl"


def csv(path: Path) -> str:
    (path / "x.csv").write_text("id,text\n" + "".join(f"{r['id']},{r['text']}\n" for r in ROWS))
    return "x.csv"


def array(path: Path) -> str:
    (path / "x.json").write_text(json.dumps(ROWS))
    return "x.json"


def parquet(path: Path) -> str:
    pq.write_table(pa.Table.from_pylist(ROWS), path / "x.parquet")
    return "x.parquet"


def zipped(path: Path) -> str:
    jsonl(path)
    (path / "x.jsonl.gz").write_bytes(gzip.compress((path / "x.jsonl").read_bytes()))
    return "x.jsonl.gz"


def folder(path: Path) -> str:
    (path / "notes").mkdir()
    for row in ROWS:
        (path / f"notes/{row['id']}.txt").write_text(row["text"])
    return "folder:notes"


@pytest.fixture
def in_half_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two reports of progress, half a minute passes; documents are read a few at a time."""
    now = itertools.count(0, 31)
    monkeypatch.setattr(progress_bar, "time", SimpleNamespace(monotonic=lambda: next(now)))
    monkeypatch.setattr(tokens, "BATCH_CHARACTERS", 2000)
    monkeypatch.setattr("lmkcli.encoding.encoder.BUFFER_PACKS", 2)
    monkeypatch.setattr("lmkcli.retrieval.engines.bm25.bm25_engine.BATCH_CHARACTERS", 4000)


@pytest.mark.parametrize("verb", ["encode", "tokenize"])
@pytest.mark.parametrize(
    ("make", "counted"),
    [(jsonl, False), (csv, False), (array, True), (parquet, True), (zipped, False), (folder, True)],
)
@pytest.mark.usefixtures("in_half_minutes")
def test_the_estimates_of_a_log_are_right_from_the_first_line(
    lmk: Lmk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Callable[[str], Path],
    verb: str, make: Callable[[Path], str], counted: bool,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    small = ("--batch-tokens", 512) if verb == "encode" else ()
    done = lmk(verb, make(tmp_path), "-m", tiny_model("bert"), "-o", "out", *small)
    found = [LINE.search(line) for line in done.err.splitlines() if " tokens" in line]
    lines = [match.groups() for match in found if match]
    assert len(lines) > 5
    whole = int(lines[-1][0].replace(",", ""))
    for count, percent, about, total, documents in lines:
        read, of, known = documents.partition(" of ")
        assert (known == "200") == counted == bool(of)
        share = int(count.replace(",", "")) / whole
        assert int(read) == pytest.approx(200 * share, abs=6)
        if make is zipped and percent is None:  # a block of a compressed file has an unknown share
            continue
        assert int(percent) == pytest.approx(100 * share, abs=8)
        assert int(total.replace(",", "")) == pytest.approx(whole, rel=0.1)
        assert about or total == f"{whole:,}"


@pytest.mark.usefixtures("in_half_minutes")
def test_a_continued_job_counts_only_its_own_work(
    lmk: Lmk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Callable[[str], Path],
    part_bytes: Callable[[int], None],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    part_bytes(4000)
    words = (
        *("encode", parquet(tmp_path), "-m", tiny_model("bert"), "-o", "out"),
        *("--batch-tokens", 512),
    )
    stop = itertools.count()
    with monkeypatch.context() as patch:
        patch.setattr(
            "lmkcli.progress.Report.check_stop",
            lambda self: stopped() if next(stop) == 12 else None,
        )

        def stopped() -> None:
            raise Stopped("stopped early")

        lmk(*words, code=75)
    rest = [LINE.search(line) for line in lmk(*words).err.splitlines() if " tokens" in line]
    [(_, percent, _, _, documents), *_] = [match.groups() for match in rest if match]
    assert int(percent) < 25
    assert int(documents.split(" of ")[1]) < 200


@pytest.mark.parametrize("make", [parquet, jsonl])
@pytest.mark.usefixtures("in_half_minutes")
def test_the_documents_of_a_lexical_index(
    lmk: Lmk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], str]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = lmk("index", make(tmp_path), "--kind", "bm25", "-o", "bm25")
    lines = [line for line in done.err.splitlines() if " documents, " in line]
    assert len(lines) > 5
    assert all(" % of 200" in line for line in lines)
