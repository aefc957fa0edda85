"""The score log: whole lines from many processes, what stands in one, and how it is read."""

import errno
import json
import multiprocessing
import os
from pathlib import Path

import pytest

from lmkcli.data.collection import Qrel
from lmkcli.data.run import read_run
from lmkcli.errors import DataError, UsageError
from lmkcli.evaluation.measures import evaluate, parse_measures
from lmkcli.progress import Call
from lmkcli.provenance import scorelog

QRELS = [Qrel("q1", "d1", 1), Qrel("q2", "d9", 1)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "some.trec"
    path.write_text("q1 Q0 d1 1 2.0 tag\nq1 Q0 d2 2 1.0 tag\n")
    return path


def write(log: Path, run: Path, times: int) -> None:
    scores = evaluate(read_run(run), QRELS, parse_measures(["P@1"]))
    for _ in range(times):
        scorelog.append(log, scorelog.entry_of(run, scores, "some/qrels.tsv", QRELS, Call()))


def test_lines_of_many_processes_stay_whole(tmp_path: Path, run: Path) -> None:
    log = tmp_path / "logs" / "scores.jsonl"
    crowd = [multiprocessing.Process(target=write, args=(log, run, 25)) for _ in range(4)]
    for each in crowd:
        each.start()
    for each in crowd:
        each.join()
    entries = scorelog.read(log)
    assert len(entries) == 100
    assert {json.dumps(e["scores"]) for e in entries} == {'{"P@1": 0.5}'}


def test_an_entry_says_what_was_scored_against_what(tmp_path: Path, run: Path) -> None:
    write(tmp_path / "log.jsonl", run, 1)
    (entry,) = scorelog.read(tmp_path / "log.jsonl")
    assert entry["run"] == str(run)
    assert len(entry["run_sha256"]) == 64
    assert entry["qrels"] == "some/qrels.tsv"
    assert entry["qrels_digest"] == scorelog.qrels_digest(reversed(QRELS))
    assert entry["coverage"]["missing"] == ["q2"]
    low, high = entry["intervals"]["P@1"]
    assert 0 <= low < 0.5 < high <= 1
    assert entry["lineage"] == []
    assert entry["packages"]["numpy"]
    assert entry["machine"]["cores"] >= 1


def test_qrels_digests_tell_grades_apart() -> None:
    other = [QRELS[0], QRELS[1]._replace(grade=2)]
    assert scorelog.qrels_digest(QRELS) != scorelog.qrels_digest(other)


def test_a_damaged_line_is_named(tmp_path: Path, run: Path) -> None:
    log = tmp_path / "log.jsonl"
    write(log, run, 1)
    with log.open("a") as file:
        file.write('{"scores"')
    with pytest.raises(DataError, match=r"log\.jsonl line 2"):
        scorelog.read(log)
    log.write_text('{"no": "scores"}\n')
    with pytest.raises(DataError, match="line 1"):
        scorelog.read(log)


def test_what_a_killed_writer_left_does_not_swallow_the_next_entry(
    tmp_path: Path, run: Path
) -> None:
    log = tmp_path / "log.jsonl"
    write(log, run, 1)
    with log.open("a") as file:
        file.write('{"run": "cut of')
    write(log, run, 1)
    with pytest.raises(DataError, match="line 2"):
        scorelog.read(log)
    log.write_text(log.read_text().replace('{"run": "cut of', "") + "\n")  # empty lines are none
    assert [entry["run"] for entry in scorelog.read(log)] == [str(run)] * 2


@pytest.mark.parametrize("text", ["q1 Q0 d1 1 2.0 tag\n", '{"_id": "d1", "text": "scores"}'])
def test_nothing_is_appended_to_what_is_no_log(tmp_path: Path, run: Path, text: str) -> None:
    other = tmp_path / "other"
    other.write_text(text)
    with pytest.raises(DataError, match="no score log"):
        write(other, run, 1)
    assert other.read_text() == text


def test_a_line_that_does_not_fit_is_taken_back(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log.jsonl"
    write(log, run, 1)
    before = log.read_bytes()

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write(log, run, 1)
    assert log.read_bytes() == before


@pytest.mark.parametrize("text", [b"", b"\n", b"[1]\n", b'{"scores": {"P@1": "x"}}', b"\xff\xfe"])
def test_what_is_no_log(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "log.jsonl").write_bytes(text)
    with pytest.raises(DataError, match=r"log\.jsonl"):
        scorelog.read(tmp_path / "log.jsonl")


def test_a_line_separator_in_a_name_parts_no_line(tmp_path: Path, run: Path) -> None:
    odd = run.rename(tmp_path / "a\u2028b.trec")
    write(tmp_path / "log.jsonl", odd, 2)
    assert [entry["run"] for entry in scorelog.read(tmp_path / "log.jsonl")] == [str(odd)] * 2


def test_an_entry_is_chosen_by_its_number(tmp_path: Path, run: Path) -> None:
    log = tmp_path / "log.jsonl"
    write(log, run, 1)
    assert scorelog.pick(str(log)) == scorelog.pick(f"{log}#1")
    write(log, run, 1)
    assert scorelog.pick(f"{log}#2")["time"] >= scorelog.pick(f"{log}#1")["time"]
    for wrong in (str(log), f"{log}#0", f"{log}#3", f"{log}#x"):
        with pytest.raises(UsageError, match="has 2 entries"):
            scorelog.pick(wrong)
