"""The score log: lines of many processes, kills at any moment, the contents of an entry, reading."""

import errno
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from lmkcli.data.collection import Qrel
from lmkcli.data.run import read_run
from lmkcli.errors import DataError, UsageError
from lmkcli.evaluation.measures import evaluate, parse_measures
from lmkcli.progress import Call
from lmkcli.provenance import scorelog
from tests.forkserver import ForkServer

BYTES = 7  # that one write stores at most in a process that will be killed
QRELS = [Qrel("q1", "d1", 1), Qrel("q2", "d9", 1)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "some.trec"
    path.write_text("q1 Q0 d1 1 2.0 tag\nq1 Q0 d2 2 1.0 tag\n")
    return path


def write(log: Path, run: Path, times: int) -> None:
    scores = evaluate(read_run(run), QRELS, parse_measures(["P@1"]))
    for _ in range(times):
        scorelog.append(log, [scorelog.entry_of(run, scores, "some/qrels.tsv", QRELS, Call())])


def write_lines(log: str, run: str) -> None:
    write(Path(log), Path(run), 25)


def test_lines_of_concurrent_processes_do_not_mix(
    tmp_path: Path, run: Path, forkserver: ForkServer
) -> None:
    log = tmp_path / "logs" / "scores.jsonl"
    call = f"{__name__}:write_lines"
    processes = [forkserver.call(call, str(log), str(run)) for _ in range(4)]
    assert [each.wait() for each in processes] == [0] * 4
    entries = scorelog.read(log)
    assert len(entries) == 100
    assert {json.dumps(e["scores"]) for e in entries} == {'{"P@1": 0.5}'}


def append_three(log: str, run: str) -> None:
    for _ in range(20):
        scorelog.append(Path(log), [{"run": run, "scores": {"n": n}} for n in range(3)])


def test_the_entries_of_one_command_stay_together(
    tmp_path: Path, light_forkserver: ForkServer
) -> None:
    log = tmp_path / "scores.jsonl"
    call = f"{__name__}:append_three"
    processes = [light_forkserver.call(call, str(log), f"r{number}") for number in range(4)]
    assert [each.wait() for each in processes] == [0] * 4
    entries = scorelog.read(log)
    assert len(entries) == 240
    threes = [entries[start : start + 3] for start in range(0, 240, 3)]
    assert all(len({entry["run"] for entry in three}) == 1 for three in threes)


def test_an_entry_has_the_run_the_judgements_and_the_scores(tmp_path: Path, run: Path) -> None:
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


def test_qrels_digests_depend_on_the_grades() -> None:
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


def test_the_start_of_a_line_is_removed_by_the_next_entry(tmp_path: Path, run: Path) -> None:
    log = tmp_path / "log.jsonl"
    write(log, run, 1)
    with log.open("a") as file:
        file.write('{"run": "cut of')
    assert len(scorelog.read(log)) == 1
    write(log, run, 1)
    assert [entry["run"] for entry in scorelog.read(log)] == [str(run)] * 2


def test_a_whole_line_without_its_end_is_kept(tmp_path: Path, run: Path) -> None:
    log = tmp_path / "log.jsonl"
    write(log, run, 1)
    log.write_text(log.read_text().rstrip("\n"))
    assert len(scorelog.read(log)) == 1
    write(log, run, 1)
    assert len(scorelog.read(log)) == 2


@pytest.mark.parametrize("text", ["q1 Q0 d1 1 2.0 tag\n", '{"_id": "d1", "text": "scores"}'])
def test_nothing_is_appended_to_other_files(tmp_path: Path, run: Path, text: str) -> None:
    other = tmp_path / "other"
    other.write_text(text)
    with pytest.raises(DataError, match="not a score log"):
        write(other, run, 1)
    assert other.read_text() == text


def test_a_line_that_does_not_fit_is_removed(
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


INTERVALS = b'{"scores": {"P@1": 1.0}, "intervals": {"P@1": [0, 1, 2]}}'


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"[1]\n", INTERVALS, b'{"scores": {"P@1": "x"}}', b"\xff\xfe"]
)
def test_files_that_are_no_log_are_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "log.jsonl").write_bytes(text)
    with pytest.raises(DataError, match=r"log\.jsonl"):
        scorelog.read(tmp_path / "log.jsonl")


def test_a_line_separator_in_a_name_does_not_split_a_line(tmp_path: Path, run: Path) -> None:
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


def write_dying(log: str, moment: int) -> None:  # noqa: C901 (a file that dies)
    """Append an entry; killed just before the `moment`-th change of the log, in pieces of a few bytes."""
    left = moment

    class Dying:
        """The log, as on a disk on which every write is short."""

        def __init__(self, file: Any) -> None:
            self._file = file

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def __enter__(self) -> "Dying":
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def write(self, data: bytes) -> int:
            strike()
            return int(self._file.write(data[:BYTES]))

    def strike() -> None:
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    def opened(path: Any, mode: str = "r", *words: Any, **named: Any) -> Any:
        if mode != "a+b":
            return open(path, mode, *words, **named)
        strike()  # before the log exists
        return Dying(open(path, mode, *words, **named))

    fsync = os.fsync

    def synced(number: int) -> None:
        strike()  # after the last write
        fsync(number)

    scorelog.open = opened  # type: ignore[attr-defined]
    os.fsync = synced
    scorelog.append(Path(log), [{"run": "killed", "scores": {"P@1": 0.5}}])


def test_a_kill_at_any_moment_of_the_append_loses_and_doubles_nothing(
    tmp_path: Path, light_forkserver: ForkServer
) -> None:
    """Killed before, between and after the writes of a line; then entries are read and appended."""
    outcomes = []
    for moment in range(100):
        log = tmp_path / f"{moment}.jsonl"
        earlier = ["first", "second"] * (moment % 2)  # a log that exists, and one that does not
        for name in earlier:
            scorelog.append(log, [{"run": name, "scores": {"P@1": 0.5}}])
        before = log.read_bytes() if log.exists() else b""
        code = light_forkserver.call(f"{__name__}:write_dying", str(log), moment).wait()
        after = log.read_bytes() if log.exists() else b""
        assert after.startswith(before)
        added = after[len(before) :]
        outcomes.append("whole" if added.endswith(b"\n") else "part" if added else "nothing")
        here = [*earlier, *["killed"] * (outcomes[-1] == "whole")]
        if here:  # without any cleaning
            assert [entry["run"] for entry in scorelog.read(log)] == here
        scorelog.append(log, [{"run": "last", "scores": {"P@1": 0.5}}])
        assert [entry["run"] for entry in scorelog.read(log)] == [*here, "last"]
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert set(outcomes) == {"nothing", "part", "whole"}
    assert outcomes.count("part") > 3
