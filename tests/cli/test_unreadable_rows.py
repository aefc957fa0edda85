"""`,unreadable=skip`: every command counts the rows that it leaves out, once, whatever happens to the job."""

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmkcli.data.collection import Shard
from lmkcli.errors import Stopped
from lmkcli.store import parts, tokens
from lmkcli.vectors.stored import Vectors
from tests import tiny

Lmk = Callable[..., Any]
FILE = "notes.csv"
SKIP = f"{FILE},unreadable=skip"
ROWS = 2400  # shards of csv are dealt in blocks of 1,000 rows
BAD = {7: "ragged,row,of,four", 1203: '"",no id', 2398: "d5,the id of row 5 again"}


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with three rows that cannot be read; line 1 is the header."""
    monkeypatch.chdir(tmp_path)
    write(ROWS)


def write(rows: int) -> None:
    lines = [BAD.get(n, f"d{n},{tiny.sentence(n, 4)}") for n in range(rows)]
    Path(FILE).write_text("id,text\n" + "".join(f"{line}\n" for line in lines))


@pytest.fixture
def model(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("bert")


def job(verb: str, model: Path, output: str, *words: object) -> list[object]:
    return [verb, SKIP, "-m", model, "-o", output, *words]


@pytest.mark.parametrize("verb", ["encode", "tokenize", "index"])
def test_without_the_option_the_error_names_file_line_and_option(
    lmk: Lmk, model: Path, verb: str
) -> None:
    words = ("--kind", "bm25") if verb == "index" else ("-m", model)
    failed = lmk(verb, FILE, *words, "-o", "out", code=3)
    assert re.search(rf"{FILE} line 9: 4 fields.*\b2\b", failed.err)
    assert failed.err.rstrip().endswith(SKIP)


@pytest.mark.parametrize("verb", ["encode", "tokenize", "index"])
def test_the_rows_are_counted_and_named(lmk: Lmk, model: Path, verb: str) -> None:
    words = job(verb, model, "out")
    if verb == "index":
        words[2:4] = ["--kind", "bm25"]
    done = lmk(*words, "--json")
    assert done.json["skipped"] == 3
    for place in (9, 1205, 2400):
        assert f"skipped: {FILE} line {place}: " in done.err
    shown = lmk("show", "out", "--json").out
    assert '"skipped": 3' in shown.replace('"skipped":3', '"skipped": 3')
    again = lmk(*words, "--json")  # nothing is left to do
    assert again.json["skipped"] == 3


@pytest.mark.parametrize("verb", ["encode", "tokenize"])
def test_each_shard_counts_its_own_rows(lmk: Lmk, model: Path, verb: str) -> None:
    counts = []
    for number in range(2):
        done = lmk(*job(verb, model, "out", "--shard", f"{number}/2", "--json"))
        counts.append(done.json["skipped"])
    # The id of row 5 is in the first shard too, and the blocks 0 and 2 belong to it.
    assert counts[-1] == 3
    each = [json.loads(parts.done_path(Path("out"), Shard(n, 2)).read_text()) for n in range(2)]
    assert [one.get("skipped", 0) for one in each] == [2, 1]
    assert sum(one["rows"] for one in each) == ROWS - 3


@pytest.mark.parametrize("verb", ["encode", "tokenize"])
def test_a_continued_job_counts_all_rows(
    lmk: Lmk,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    part_bytes: Callable[[int], None],
    verb: str,
) -> None:
    monkeypatch.setattr(tokens, "BATCH_CHARACTERS", 20_000)
    monkeypatch.setattr("lmkcli.encoding.encoder.BUFFER_PACKS", 2)
    part_bytes(20_000)
    left, after = itertools.count(), 12 if verb == "encode" else 3

    def stopping(report: object) -> None:
        if next(left) == after:
            raise Stopped("stopped early")

    words = job(verb, model, "out")
    if verb == "encode":
        words += ["--batch-tokens", 1024]
    with monkeypatch.context() as patch:
        patch.setattr("lmkcli.progress.Report.check_stop", stopping)
        lmk(*words, code=75)
    assert parts.list_parts(Path("out"))
    assert parts.done_rows(Path("out"), Shard()) is None
    assert lmk(*words, "--json").json["skipped"] == 3


def test_an_update_counts_the_rows_of_the_file_that_it_reads(lmk: Lmk, model: Path) -> None:
    write(1000)
    first = lmk(*job("encode", model, "out", "--json")).json
    assert first["skipped"] == 1
    write(ROWS)
    updated = lmk(*job("encode", model, "out", "--if-exists", "update", "--json")).json
    assert (updated["skipped"], updated["encoded"]) == (3, ROWS - 3 - 999)
    assert Vectors(Path("out")).rows == ROWS - 3
