"""The output: control characters in text from other people never reach the terminal."""

import ast
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmkcli.cli import console, exits
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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_inside_a_destructor_still_stops_the_loops() -> None:
    class Destroyed:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            os.getpid()  # the handler runs between two bytecode instructions

    with exits.raise_on_signal():
        destroyed = Destroyed()
        del destroyed
        with exits.watch_signals() as stopping:
            assert stopping()
    with exits.raise_on_signal(), exits.watch_signals() as stopping:
        assert not stopping()


def test_an_estimated_total_is_rounded_and_may_grow() -> None:
    pace = progress_bar._Pace()
    lines = [pace.line(*each, "tokens") for each in ((90, 185_846), (100, 262_361), (150, 262_361))]
    assert "of about 190,000" in lines[0]
    assert "of about 260,000" in lines[1]
    assert "of 262,361" in lines[2]
    shares = []
    for done, total in ((50, 100), (60, 200), (150, 200), (210, 200), (210, 420), (420, 420)):
        line = pace.line(done, total, "documents")
        shares.append(pace.share)
    assert shares == [0.5, 0.3, 0.75, None, 0.5, 1.0]
    assert "100 % of 420, 0 s left" in line


def test_the_remaining_time_recovers_from_a_slow_start(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: now[0])
    pace = progress_bar._Pace()
    pace.line(0, 1000, "documents")
    for done in range(1, 11):  # one document in ten seconds, and then ten in one second
        now[0] += 10
        line = pace.line(done, 1000, "documents")
    assert line.endswith("0.1/s, 1 % of 1,000, 2 h 45 min left")
    for done in range(20, 710, 10):
        now[0] += 1
        line = pace.line(done, 1000, "documents")
    assert line == "700 documents, 10/s, 70 % of 1,000, 30 s left"


def test_earlier_work_does_not_count_for_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: now[0])
    pace = progress_bar._Pace()
    assert pace.line(360, 720, "steps") == "360 steps, 50 % of about 720"
    assert progress_bar._Pace().line(369, 369, "queries") == "369 queries, 100 % of 369"
    now[0] += 10
    assert pace.line(363, 720, "steps") == "363 steps, 0.3/s, 50 % of 720, 19 min 50 s left"
