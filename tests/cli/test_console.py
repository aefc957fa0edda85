"""What people see of other people's text: nothing that a terminal obeys gets through."""

import ast
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmkcli.cli import console, tables
from lmkcli.text import progress_bar

Lmk = Callable[..., Any]
CLI = Path(console.__file__).parent
OBEYED = "\x1b]0;owned\x07\x9b2J\u202etxt.exe\x7f\r\x08"


def harmless(text: str) -> bool:
    return not any(
        c != "\n" and c != "\t" and (c < " " or "\x7f" <= c <= "\x9f" or "\u202a" <= c <= "\u202e")
        for c in text
    )


def test_json_stays_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    console.plain_json({"id": OBEYED})
    out = capsys.readouterr().out
    assert harmless(out)
    assert json.loads(out) == {"id": OBEYED}


@pytest.mark.parametrize("form", list(tables.Format))
def test_no_table_lets_it_through(capsys: pytest.CaptureFixture[str], form: tables.Format) -> None:
    tables.table([OBEYED, "b"], [[OBEYED, tables.Cell(OBEYED)]], form, OBEYED)
    assert harmless(capsys.readouterr().out)


def test_answers_notes_and_errors_do_not(lmk: Lmk, tmp_path: Path) -> None:
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
def test_a_signal_that_python_swallows_still_stops_the_loops() -> None:
    class Held:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            os.getpid()  # the handler runs between two steps

    with console.leaving():
        held = Held()
        del held
        with console.stoppable() as stopping:
            assert stopping()
    with console.leaving(), console.stoppable() as stopping:
        assert not stopping()


def test_a_total_is_about_so_much_until_it_is_known_and_nothing_goes_back() -> None:
    pace = progress_bar._Pace()
    said = [pace.line(*each, "tokens") for each in ((90, 185_846), (100, 262_361), (150, 262_361))]
    assert "of about 190,000" in said[0]
    assert "of about 260,000" in said[1]
    assert "of 262,361" in said[2]
    shares = []
    for done, total in ((50, 100), (60, 200), (150, 200), (210, 200)):
        line = pace.line(done, total, "documents")
        shares.append(pace.share)
    assert shares == [0.5, 0.5, 0.75, 1.0]
    assert "100 % of 200, 0 s left" in line  # more than was estimated


def test_what_was_done_before_does_not_count_for_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: now[0])
    pace = progress_bar._Pace()
    assert pace.line(360, 720, "steps") == "360 steps, 50 % of about 720"
    assert progress_bar._Pace().line(369, 369, "queries") == "369 queries, 100 % of 369"
    now[0] += 10
    assert pace.line(363, 720, "steps") == "363 steps, 0.3/s, 50 % of 720, 19 min 50 s left"
