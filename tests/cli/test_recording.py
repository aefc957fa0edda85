"""What a command was asked is recorded, and asked again by the words that come of it."""

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from lmkcli import manifest
from lmkcli.cli import console, recording
from lmkcli.cli.main import app
from lmkcli.errors import DataError

Lmk = Callable[..., Any]
GROUP: Any = get_command(app)
LINES = [
    "encode ./x -m model --pool lmk --gran 64 --no-store-text --no-normalize --doc-prompt='a: b' -o v",
    "encode ./x -m model --query-prompt='' --normalize --only run.trec --if-exists update -o v",
    "index - --kind OPQ64,IVF4096,PQ64 --max-memory 16GB -o i",
    "search a b --with c --with d --fuse linear:0.3,0.7 --fuse-scale none -k 10 --map-ids -o r",
    "search a -q --strange-question",
    "eval q.tsv r.trec s.trec -m 'AP(rel=2)@100' -m nDCG@10 --drop-self no -p -f latex",
    "verify vectors --sample 7 --json",
]


def asked(line: list[str]) -> dict[str, Any]:
    """What the command would be given."""
    found: dict[str, Any] = GROUP.commands[line[0]].make_context(line[0], line[1:]).params
    return found


@pytest.mark.parametrize("line", LINES)
def test_recorded_words_ask_for_the_same(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = GROUP.commands[line.split()[0]]
    recorded: list[dict[str, Any]] = []
    monkeypatch.setattr(command, "callback", lambda **_: recorded.append(recording.call()))
    context = command.make_context(line.split()[0], shlex.split(line)[1:])
    command.invoke(context)
    (call,) = recorded
    again = recording.words(GROUP, json.loads(json.dumps(call)))
    assert asked(again) == context.params
    assert recording.call() == {}  # nothing stays behind


def test_every_command_is_recorded() -> None:
    for name, command in GROUP.commands.items():
        assert isinstance(command, recording.Recorded), name


def test_a_call_is_narrowed_to_one_of_several() -> None:
    with recording.call_with({"source": "beir/nfcorpus", "output": Path("v/beir-nfcorpus")}):
        assert recording.call() == {"source": "beir/nfcorpus", "output": "v/beir-nfcorpus"}
    assert recording.call() == {}


def test_what_this_lmk_does_not_know_is_refused() -> None:
    with pytest.raises(DataError, match="no command 'teach'"):
        recording.words(GROUP, {"verb": "teach"})
    with pytest.raises(DataError, match="index knows no magic"):
        recording.words(GROUP, {"verb": "index", "source": "x", "magic": True})


def test_manifests_hold_the_call_and_the_folder(lmk: Lmk, beir: Path, tmp_path: Path) -> None:
    lmk("index", beir, "--kind", "bm25", "--k1", "1.5", "-o", tmp_path / "bm25")
    facts = manifest.read(tmp_path / "bm25").facts
    assert facts["directory"] == os.getcwd()
    call = facts["call"]
    assert (call["verb"], call["source"], call["k1"]) == ("index", str(beir), 1.5)
    assert "b" not in call  # nobody said


def test_a_line_that_is_run_again_leaves_the_process_as_it_was(
    beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["lmk", "repro"])
    monkeypatch.setattr(console, "quiet", True)
    monkeypatch.setenv("LMK_INDEX_K1", "2.5")
    recording.run(GROUP, ["index", "--kind=bm25", f"--output={tmp_path / 'bm25'}", "--", str(beir)])
    found = manifest.read(tmp_path / "bm25")
    assert found.identity["settings"]["k1"] == 0.9
    assert found.facts["command"][:2] == ["lmk", "index"]
    assert os.environ["LMK_INDEX_K1"] == "2.5"
    assert console.quiet
    assert capsys.readouterr() == ("", "")
