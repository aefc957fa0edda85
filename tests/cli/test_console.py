"""The output: control characters in text from other people never reach the terminal."""

import ast
import io
import json
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lmkcli.cli import console, exits
from lmkcli.progress import EstimatedTotal
from lmkcli.text import progress_bar

Lmk = Callable[..., Any]
CLI = Path(console.__file__).parent
OBEYED = "\x1b]0;owned\x07\x9b2J\u202etxt.exe\x7f\r\x08"


def harmless(text: str) -> bool:
    return not any(
        c != "\n" and c != "\t" and (c < " " or "\x7f" <= c <= "\x9f" or "\u202a" <= c <= "\u202e")
        for c in text
    )


def test_json_keeps_control_characters_as_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    console.plain_json({"id": OBEYED})
    out = capsys.readouterr().out
    assert harmless(out)
    assert json.loads(out) == {"id": OBEYED}


@pytest.mark.parametrize("form", list(console.Format))
def test_tables_escape_control_characters(
    capsys: pytest.CaptureFixture[str], form: console.Format
) -> None:
    console.table([OBEYED, "b"], [[OBEYED, console.Cell(OBEYED)]], form, OBEYED)
    assert harmless(capsys.readouterr().out)


def test_hits_notes_and_errors_escape_control_characters(lmk: Lmk, tmp_path: Path) -> None:
    texts = tmp_path / "docs.jsonl"
    record = {"_id": "d1", "title": f"river {OBEYED}", "text": f"river {OBEYED} bank"}
    texts.write_text(json.dumps(record) + "\n")
    lmk("index", texts, "--kind", "bm25", "-o", tmp_path / "bm25")
    done = lmk("search", tmp_path / "bm25", "-q", "river")
    assert harmless(done.out)
    assert r"\u001b" in done.out
    assert harmless(lmk("search", tmp_path / "bm25", "-q", "river", "--json").out)
    for line in (["show", tmp_path / OBEYED], ["eval", tmp_path / f"{OBEYED}.trec"]):
        done = lmk(*line, code=3)
        assert harmless(done.out + done.err)
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({"kind": OBEYED, "identity": {OBEYED: OBEYED}}))
    done = lmk("search", tmp_path, "-q", "river", code=3)
    assert harmless(done.out + done.err)


@pytest.mark.parametrize("path", sorted(CLI.glob("*.py")), ids=lambda path: str(path.stem))
def test_only_the_console_prints(path: Path) -> None:
    if path.stem == "console":
        return
    called = [
        node.func.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    assert "print" not in called


class Destroyed:
    """Receives a signal while it is destroyed, so that Python ignores what the handler raises."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.getpid()  # the handler runs between two bytecode instructions


def test_a_signal_inside_a_destructor_still_stops_the_loops() -> None:
    with exits.raise_on_signal():
        destroyed = Destroyed()
        del destroyed
        with exits.watch_signals() as stopping:
            time.sleep(0.2)
            assert stopping()
    with exits.raise_on_signal(), exits.watch_signals() as stopping:
        assert not stopping()


def test_a_signal_inside_a_destructor_ends_a_command_that_loads(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def load() -> None:
        destroyed = Destroyed()
        del destroyed
        time.sleep(60)

    with pytest.raises(SystemExit) as left, exits.exit_codes():
        load()
    assert left.value.code == 75
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("SIGTERM: ")


class Clock:
    """A clock for the progress; a job reports `done` after `seconds` more."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]
    ) -> None:
        self._now, self._captured = 100.0, captured
        monkeypatch.setattr(progress_bar, "time", SimpleNamespace(monotonic=lambda: self._now))

    def run(self, reports: Iterable[tuple[float, int, int | None]], unit: str = "documents") -> str:
        """The lines of a log, for reports of (seconds since the last one, done, total)."""
        with console.progress("encode") as progress:
            for seconds, done, total in reports:
                self._now += seconds
                progress(done, total, unit)
        return self._captured.readouterr().err


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Clock:
    return Clock(monkeypatch, capsys)


def test_a_log_has_one_line_each_half_minute(clock: Clock) -> None:
    lines = clock.run((1, done, 100) for done in range(1, 101)).splitlines()
    assert lines == [
        "encode: 30 documents, 1/s, 30 % of 100, 1 min 10 s left",
        "encode: 60 documents, 1/s, 60 % of 100, 40 s left",
        "encode: 90 documents, 1/s, 90 % of 100, 10 s left",
    ]


def test_an_estimated_total_is_rounded_and_may_grow(clock: Clock) -> None:
    totals = [185_846, 185_846, 262_361, 262_361, 299]
    reports = [(31.0, 90 + number, EstimatedTotal(total)) for number, total in enumerate(totals)]
    lines = clock.run(
        [*reports, (31, 200, EstimatedTotal(150)), (31, 300, 300)], "tokens"
    ).splitlines()
    assert [line.partition(" % of ")[2].partition(", ")[0] for line in lines] == [
        "about 190,000", "about 190,000", "about 260,000", "about 260,000", "about 300", "", "300",
    ]  # fmt: skip
    assert lines[5] == "encode: 200 tokens, 1.7/s"  # more than estimated: no share, no time left
    assert [fact for fact in ("100 %", "300", "0 s") if fact not in lines[6]] == []


def test_unfinished_work_is_never_100_percent(clock: Clock) -> None:
    lines = clock.run(
        [(31, 999_999, 1_000_000), (31, 999_999, EstimatedTotal(999_999))]
    ).splitlines()
    assert ", 99 % of 1,000,000" in lines[0]
    assert "%" not in lines[1]


def test_the_remaining_time_recovers_from_a_slow_start(clock: Clock) -> None:
    slow = [(10.0, done, 1000) for done in range(11)]  # one in ten seconds, and then ten in one
    fast = [(1.0, done, 1000) for done in range(20, 1000, 10)]
    lines = clock.run([*slow, *fast]).splitlines()
    assert lines[2] == "encode: 8 documents, 0.1/s, 0 % of 1,000, 2 h 45 min left"
    assert lines[-1] == "encode: 710 documents, 10/s, 71 % of 1,000, 29 s left"


def test_the_remaining_time_recovers_from_a_low_estimate(clock: Clock) -> None:
    low = [(1.0, done, EstimatedTotal(40)) for done in range(1, 41)]
    better = [(1.0, done, EstimatedTotal(400)) for done in range(41, 100)]
    lines = clock.run([*low, *better]).splitlines()
    assert lines[0] == "encode: 30 documents, 1/s, 75 % of about 40, 10 s left"
    assert lines[1] == "encode: 60 documents, 1/s, 15 % of about 400, 5 min 40 s left"


def test_earlier_work_does_not_count_for_the_pace(clock: Clock) -> None:
    lines = clock.run([(31, 360, 720), (31, 363, 720)], "steps").splitlines()
    assert lines[0] == "encode: 360 steps, 50 % of 720"
    assert lines[1] == "encode: 363 steps, 0.097/s, 50 % of 720, 1 h 01 min left"


@pytest.mark.parametrize(("totals", "share"), [((40, 400), "9 % of about 400"), ((40, 30), "")])
def test_the_bar_of_a_terminal_follows_the_estimate(
    monkeypatch: pytest.MonkeyPatch, totals: tuple[int, ...], share: str
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    with console.progress("encode") as progress:
        for total in totals:
            progress(38, EstimatedTotal(total), "documents", "loss 2")
    drawn = screen.getvalue()  # the last state is drawn at the end
    assert "38 documents" in drawn
    assert "loss 2" in drawn
    assert share in drawn
    assert ("%" in drawn) == bool(share)


LONG = "green tea " * 30_000


@pytest.mark.parametrize(
    "line",
    [
        ["search", ".", "-q", "a", "--fuse", LONG],
        ["search", LONG, "-q", "a"],
        ["search", ".", "-q", "a", "-k", LONG],
        ["encode", LONG, "-m", "minilm", "-o", "out"],
        ["encode", ".", "-m", LONG, "-o", "out"],
        ["encode", ".", "-m", "minilm", "--pool", LONG, "-o", "out"],
        ["encode", ".", "-m", "minilm", "--window", LONG, "-o", "out"],
        ["eval", ".", "--measures", LONG],
        ["train", ".", "-m", "minilm", "--loss", LONG, "-o", "out"],
        ["show", LONG],
        ["index", ".", LONG],
        [LONG],
        ["search", ".", f"--{LONG}"],
    ],
    ids=lambda line: " ".join(word[:9] for word in line),
)
def test_messages_with_long_texts_are_short(
    lmk: Lmk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = lmk(*line, code=None)
    assert done.code in (2, 3)
    assert 0 < len(done.err) < 5_000


def test_a_long_message_keeps_the_fault_and_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    for show in (console.error, console.note):
        show(f"the text {LONG} is too long; shorten it")
        shown = capsys.readouterr().err
        assert shown.removeprefix("error: ").startswith("the text green tea")
        assert shown.endswith("is too long; shorten it\n")
        assert len(shown) < 5_000
